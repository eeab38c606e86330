"""`pathgp suggest`: the next points to evaluate, from a table of earlier evaluations."""

import argparse
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from pathgp.cli.common import add_command, check_out, check_seed, print_message, show

BOUNDS = """
bounds.json names each input, a column of HISTORY, and its range or choices:
  {
    "temperature": [20, 80],                      a number from 20 to 80
    "rate": {"real": [1e-4, 0.1], "log": true},   a number, on a logarithmic scale
    "layers": {"integer": [1, 8]},                an integer, both ends included
    "solvent": {"choices": ["water", "ethanol"]}  one of these: all text, all numbers or all booleans
  }

A row of HISTORY whose target is missing or not finite is a failed evaluation. It is left out of the fit and is not
suggested again.
Columns that are neither the target nor in bounds.json are ignored.
"""
"""Appended to the help of the command."""


def add_to(commands: Any) -> None:
    """Add `suggest` to the command line."""
    parser = add_command(
        commands,
        "suggest",
        "suggest the next points to evaluate, from a table of results",
        run,
        """
pathgp suggest history.csv --bounds bounds.json --target yield --n 100 --out next.csv
pathgp suggest history.csv --bounds bounds.json --target cost --direction minimize --pending next.csv --n 10
pathgp suggest history.csv --bounds bounds.json --target yield --state search.safetensors --json""",
    )
    parser.epilog = f"{BOUNDS.strip()}\n\n{parser.epilog}"
    parser.add_argument("file", metavar="HISTORY", type=pathlib.Path, help="a table: .csv, .csv.gz, .parquet or .npy")
    parser.add_argument(
        "--bounds", required=True, type=pathlib.Path, metavar="FILE", help="JSON file of the inputs, see below"
    )
    parser.add_argument("--target", required=True, metavar="COLUMN", help="the column with the results")
    parser.add_argument("--n", type=int, default=1, metavar="N", help="number of suggestions (default: %(default)s)")
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument(
        "--direction",
        type=lambda text: text.replace("mise", "mize"),
        choices=("minimize", "maximize"),
        default="maximize",
        help="whether the target is minimized or maximized (default: %(default)s)",
    )
    for name in ("minimize", "maximize"):
        names = f"--{name}", f"--{name.replace('z', 's')}"
        direction.add_argument(
            *names, dest="direction", action="store_const", const=name, help=f"the same as --direction {name}"
        )
    known = parser.add_mutually_exclusive_group()
    known.add_argument(
        "--pending",
        type=pathlib.Path,
        metavar="FILE",
        help="a table of inputs under evaluation, which are not suggested again",
    )
    known.add_argument(
        "--state",
        type=pathlib.Path,
        metavar="FILE",
        help="resume from this file, created if needed, which stores the suggestions and the fitted model; new rows of "
        "HISTORY must follow the old ones",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, help=".csv, .csv.gz or .parquet (default: CSV on stdout)")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    parser.add_argument("--json", action="store_true", help="print the suggestions and a summary as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Read all tables, propose points, write the suggestions, and then the state."""
    from pathgp._checks import require_at_least
    from pathgp.cli.history import Optimisation
    from pathgp.cli.tables.files import counted, is_parquet, table_writer
    from pathgp.thompson.loop import propose

    start, a = time.perf_counter(), arguments
    require_at_least(a.n, 1, "--n")
    check_seed(a.seed)
    if a.out is not None:
        check_out(a.out, a.force)
        is_parquet(a.out)
    if a.state is not None:
        check_out(a.state, force=True)
    search = Optimisation.read(a)
    settings, state = search.settings, search.state
    if state.y.size < settings.initial:
        print_message(
            f"suggesting space-filling points: a fit needs {settings.initial} results, but there are {state.y.size}."
        )
    else:
        print_message(
            f"fitting {a.target!r} to {counted(state.y.size, 'result')} with {counted(len(search.names), 'input')}."
        )
    codes, after = propose(settings, state, a.n)
    points = settings.space.decode(codes)
    suggestions = {name: np.asarray(points[:, i].tolist()) for i, name in enumerate(search.names)}
    if a.out is not None or not a.json:
        with table_writer(a.out, sys.stdout.buffer, a.force) as write:
            write(suggestions)
    if a.state is not None:
        # After the suggestions, so that the state holds only points that were handed out.
        search._replace(state=after).save(a.state)
    result = {
        "target": a.target,
        "direction": a.direction,
        "results": state.y.size,
        "failed": len(state.failed),
        "pending": len(state.pending),
        "best": search.best(),
        "suggestions": {name: column.tolist() for name, column in suggestions.items()},
        "seconds": time.perf_counter() - start,
        "out": None if a.out is None else str(a.out),
    }
    if a.json or a.out is not None:
        show(result, lines(result, a.n), a.json)


def lines(result: Mapping[str, Any], n: int) -> dict[str, str]:
    """Return the result in words."""
    found = result["best"]
    at = "" if found is None else ", ".join(f"{name} = {value}" for name, value in found["inputs"].items())
    return {
        "results": f"{result['results']:,} finite, {result['failed']:,} failed, {result['pending']:,} pending",
        "best": "none yet" if found is None else f"{found['value']:.6g} at {at}",
        "seconds": f"{result['seconds']:.1f}",
        "written": f"{n:,} suggestions to {result['out']}",
    }
