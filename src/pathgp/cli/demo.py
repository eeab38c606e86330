"""`pathgp demo`: a first run without data."""

import argparse
import pathlib
import shlex
from typing import Any

import numpy as np

from pathgp.cli.common import Interrupted, add_command, check_out

ROWS, NEW_ROWS = 800, 400


def add_to(commands: Any) -> None:
    """Add `demo` to the command line."""
    parser = add_command(
        commands,
        "demo",
        "run an example on generated data: fit, predict and plot, in under two minutes",
        run,
        """
pathgp demo
pathgp demo --out somewhere --force""",
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("pathgp-demo"), metavar="FOLDER",
                        help="folder of the output files (default: %(default)s)")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="overwrite the files of a previous run")


def run(arguments: argparse.Namespace) -> None:
    """Write two tables, then run and show the commands that a user would."""
    folder: pathlib.Path = arguments.out
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file: give a folder.")
    train, new, model, predictions = (
        folder / name for name in ("train.csv", "new.csv", "model.safetensors", "predictions.csv")
    )
    commands = [
        f"fit {quoted(train)} --target rides --test-share 0.1 --out {quoted(model)}",
        f"predict {quoted(model)} {quoted(new)} --out {quoted(predictions)}",
        f"plot {quoted(model)} {quoted(train)} --kind map --out {quoted(folder / 'map.png')}",
        f"plot {quoted(model)} {quoted(new)} --kind calibration --out {quoted(folder / 'calibration.png')}",
        f"plot {quoted(model)} {quoted(new)} --kind predicted --out {quoted(folder / 'predicted.png')}",
        f"plot {quoted(model)} --kind convergence --out {quoted(folder / 'convergence.png')}",
    ]
    outputs = [train, new, *(pathlib.Path(shlex.split(command)[-1]) for command in commands)]
    folder.mkdir(parents=True, exist_ok=True)
    # All outputs are checked before the first is written.
    for path in outputs:
        check_out(path, arguments.force)
    try:
        write_rides(train, ROWS, seed=0)
        write_rides(new, NEW_ROWS, seed=1)
        print(f"{train} has {ROWS:,} rows: simulated bicycle rentals by hour of the day and temperature.")
        for command in commands:
            print(f"\n$ pathgp {command}", flush=True)
            call([*shlex.split(command), *(["--force"] if arguments.force else [])])
    except KeyboardInterrupt as stop:
        told = f"{stop} " if isinstance(stop, Interrupted) else ""
        raise Interrupted(f"{told}{folder} has the files written so far; to start again, add --force.") from None
    print(f"\n{folder} has the tables, the model, the predictions and four plots. Next, try:")
    print(f"  pathgp info {quoted(model)}")
    print(f"  pathgp evaluate {quoted(model)} {quoted(new)}")
    print(f"  pathgp sample {quoted(model)} {quoted(new)} --num-samples 5 --out {quoted(folder / 'samples.csv')}")


def call(words: list[str]) -> None:
    """Run a command as its own process would, except for the handling of errors and Ctrl-C."""
    from pathgp.cli import parsed

    command = parsed(words)
    command.run(command)


def quoted(path: pathlib.Path) -> str:
    """Return a path quoted for the shell."""
    return shlex.quote(str(path))


def write_rides(path: pathlib.Path, rows: int, seed: int) -> None:
    """Write a table of rides per hour: two rush hours, fewer rides when it is cold or hot, and noise of 15 rides."""
    from pathgp.cli.tables.files import table_writer

    rng = np.random.default_rng(seed)
    hour, temperature = rng.uniform(0, 24, rows), rng.normal(14, 8, rows)
    rush = (
        200 * np.exp(-((hour - 8) ** 2) / 4)
        + 260 * np.exp(-((hour - 17.5) ** 2) / 8)
        + 60 * np.exp(-((hour - 13) ** 2) / 40)
    )
    weather = np.exp(-((temperature - 22) ** 2) / 300)
    rides = 60 + rush * weather + rng.normal(0, 15, rows)
    with table_writer(path, None) as write:
        write({"hour": hour.round(3), "temperature": temperature.round(2), "rides": rides.round(1)})
