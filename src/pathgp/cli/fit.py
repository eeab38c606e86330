"""`pathgp fit`: fit a model to a table."""

import argparse
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pathgp.cli.common import (
    Interrupted,
    add_command,
    check_out,
    check_seed,
    print_message,
    say_dialect,
    show,
)
from pathgp.cli.evaluate import lines, scores

SHORTEST = 0.1
"""Seconds for fitting and the solve if no time is left: enough for one step each."""


def add_to(commands: Any) -> None:
    """Add `fit` to the command line."""
    parser = add_command(
        commands,
        "fit",
        "fit a model that predicts one column of a table from the others",
        run,
        """
pathgp fit train.csv --target price --out model.safetensors
pathgp fit train.parquet --target price --drop id --one-hot city --impute --out model.safetensors
pathgp fit train.csv --target price --columns size age --test-share 0.1 --out model.safetensors --json
pathgp fit train.csv --target price --devices 4 --out model.safetensors
pathgp fit train.npy --target 10 --solver inducing --points 2000 --num-samples 16 --out model.safetensors
pathgp fit train.parquet --target price --out model.safetensors --checkpoint run --resume""",
    )
    parser.add_argument("file", metavar="FILE", type=pathlib.Path, help="a table: .csv, .csv.gz, .parquet or .npy")
    parser.add_argument("--target", required=True, metavar="COLUMN", help="the column to predict")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="MODEL", help="file to write the model to")
    parser.add_argument("--force", action="store_true", help="overwrite MODEL if it exists, and a checkpoint in DIR")
    inputs = parser.add_argument_group("inputs")
    picked = inputs.add_mutually_exclusive_group()
    picked.add_argument("--columns", nargs="+", metavar="COLUMN", help="use only these columns as inputs")
    picked.add_argument(
        "--drop", nargs="+", default=[], metavar="COLUMN", help="use all columns except these as inputs"
    )
    inputs.add_argument(
        "--one-hot",
        nargs="*",
        metavar="COLUMN",
        help="one-hot encode these columns (all text columns if none is given)",
    )
    lacking = inputs.add_mutually_exclusive_group()
    lacking.add_argument(
        "--impute",
        action="store_true",
        help="replace missing values by the median (numbers) or no category (text), and add an indicator column",
    )
    lacking.add_argument("--skip-missing", action="store_true", help="leave out rows with a missing value")
    inputs.add_argument(
        "--test-share", type=float, default=0.0, metavar="SHARE", help="hold out this share of the rows for scoring"
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--kernel",
        default="matern32",
        help="matern12, matern32, matern52, rbf or rational_quadratic (default: %(default)s)",
    )
    model.add_argument(
        "--noise",
        type=float,
        metavar="VARIANCE",
        help="initial noise variance, as a share of that of the target (default: 0.1)",
    )
    model.add_argument(
        "--solver", default="auto", help="auto, cholesky, sap, cg, sdd, sgd, subset or inducing (default: %(default)s)"
    )
    model.add_argument(
        "--points",
        type=int,
        metavar="M",
        help="number of points of --solver inducing (default: rows / 4, at most 10000)",
    )
    model.add_argument(
        "--num-samples", type=int, default=64, metavar="N", help="posterior samples (default: %(default)s)"
    )
    model.add_argument(
        "--max-seconds",
        type=float,
        metavar="S",
        help="approximate time limit: hyperparameter fitting and iterative solvers stop early to meet it. Reading, "
        "compilation, factorisations, prior draws, exact solves and scoring are not cut short",
    )
    model.add_argument("--memory", type=float, metavar="GB", help="memory limit (default: what is available)")
    model.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    safety = parser.add_argument_group("long runs")
    safety.add_argument(
        "--checkpoint", type=pathlib.Path, metavar="DIR", help="keep checkpoints in DIR until the run is done"
    )
    safety.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="time between checkpoints (default: %(default)s)",
    )
    safety.add_argument(
        "--resume", action="store_true", help="resume from the checkpoint in DIR; the result does not change"
    )
    job = parser.add_argument_group("several devices and processes (docs/distributed.md)")
    job.add_argument("--devices", type=int, metavar="N", help="shard the rows over N devices per process")
    job.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0, the same for all processes")
    job.add_argument("--process-id", type=int, metavar="I", help="index of this process, from 0")
    job.add_argument("--num-processes", type=int, metavar="N", help="number of processes in the job")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Check the options, join the job, and fit."""
    start = time.perf_counter()
    check_out(arguments.out, arguments.force)
    if not 0 <= arguments.test_share < 1:
        raise ValueError(f"--test-share must be at least 0 and below 1, but it is {arguments.test_share}.")
    from pathgp._checks import as_positive, require_at_least
    from pathgp.cli.expected import check_points
    from pathgp.estimator.registry import KERNELS, SOLVERS, look_up

    a = arguments
    require_at_least(a.num_samples, 1, "--num-samples")
    require_at_least(a.max_seconds or 0, 0, "--max-seconds")
    look_up(KERNELS, a.kernel, "--kernel")
    look_up(SOLVERS, a.solver, "--solver")
    check_seed(a.seed)
    a.speaks = join_job(a)  # before the first JAX array, which fixes the devices
    as_positive(1.0 if a.noise is None else a.noise, "noise")
    tell = print_message if a.speaks else lambda _: None
    check_points(a)
    with checkpoint_of(a, tell) as checkpoint:
        learn(a, tell, checkpoint, start)


def learn(arguments: argparse.Namespace, tell: Callable[[str], None], checkpoint: Any, start: float) -> None:
    """Read the table, fit, save and report, with options that have been checked."""
    import jax
    import jax.numpy as jnp

    from pathgp.cli.expected import check_memory, expected
    from pathgp.cli.fitted import Fitted, save
    from pathgp.cli.tables.files import counted
    from pathgp.cli.tables.infer import infer_encoding
    from pathgp.parallel.jobs import report_lost_process

    a = arguments
    check_memory(a)
    tell(f"reading {a.file}.")
    if a.speaks:
        say_dialect(a.file)
    scan = infer_encoding(a.file, a.target, a.columns, a.drop, a.one_hot, a.impute, a.skip_missing)
    encoding, N = scan.encoding, scan.rows
    for note in scan.notes:
        tell(note)
    train, test = split(N, a.test_share, a.seed)
    if a.test_share and not len(test):
        raise ValueError(f"--test-share {a.test_share} of {N:,} rows holds out no row: use a larger share.")
    if len(train) < 2:
        raise ValueError(f"{a.file} has {counted(len(train), 'training row')}: at least 2 are needed.")
    inputs = len(encoding.inputs)
    estimate = expected(a, N, len(train), inputs)
    rows = encoding.read(a.file, jnp.result_type(float), N, skip_missing=a.skip_missing)
    check_target(a.target, rows.y[train])
    tell(f"this will take {estimate}.")
    early = "saves a checkpoint and stops" if checkpoint else "stops early" if jax.process_count() == 1 else "stops"
    tell(f"fitting {a.target!r} to {counted(len(train), 'row')} with {counted(inputs, 'input')} (Ctrl-C {early}).")
    with report_lost_process():
        try:
            learned = rows.some(train) if len(test) else rows  # no copy if nothing is held out
            fitted = Fitted.fit(learned, scan, a, checkpoint, time_left(a.max_seconds, estimate.floor, start, tell))
            for name, value in fitted.constant.items():
                tell(f"{name!r} is {value:g} in every row, so its effect cannot be estimated.")
        except (KeyboardInterrupt, SystemExit) as stop:
            if checkpoint is None or not checkpoint.files:
                raise
            kept = f"the checkpoint is in {a.checkpoint}: to resume, run the same command with --resume."
            if isinstance(stop, SystemExit):
                tell(f"terminated: {kept}")
                raise
            raise Interrupted(kept) from None
        # The model is saved before the evaluation, so that Ctrl-C during the evaluation does not lose it.
        save(fitted, a.out, a.force)
        if checkpoint is not None:
            checkpoint.clear()
        result, report = fitted.summary(), {}
        if len(test):
            tell(f"scoring on {counted(len(test), 'held-out row')}.")
            try:
                result["held_out"] = scores(rows.y[test], *fitted.predict(rows.some(test).inputs))
            except KeyboardInterrupt:
                raise Interrupted(f"{a.out} is a complete model, but it was not scored.") from None
            report = {f"held-out {name}": text for name, text in lines(result["held_out"]).items()}
    if not a.speaks:
        return
    told = {"seconds": estimate.seconds, "gigabytes": estimate.bytes / 1e9}
    result |= {"expected": told, "seconds": time.perf_counter() - start, "model": str(a.out)}
    report |= {"seconds": f"{result['seconds']:.1f}", "model": f"{a.out} ({a.out.stat().st_size / 1e6:.1f} MB)"}
    show(result, fitted.lines() | report, a.json)
    if fitted.interrupted:
        raise Interrupted(
            f"hyperparameter fitting ended after {len(fitted.loss)} steps: {a.out} is a complete model with the best "
            "hyperparameters so far."
        )


def time_left(seconds: float | None, floor: Any, start: float, tell: Callable[[str], None]) -> float | None:
    """Return the rest of `--max-seconds` for fitting and the solver, counted from the start of the command."""
    if seconds is None:
        return None
    passed = time.perf_counter() - start
    if passed + sum(floor) > seconds:
        least = passed + sum(floor)
        tell(f"--max-seconds {seconds:g} is too short: the steps that are not cut short take about {least:.0f} s.")
    return max(floor.budget(seconds - passed), SHORTEST)


def join_job(options: argparse.Namespace) -> bool:
    """Create the devices, join the job if there is one, and return whether this process prints and writes for all."""
    import jax

    from pathgp._checks import require_at_least
    from pathgp.parallel import jobs

    require_at_least(1 if options.devices is None else options.devices, 1, "--devices")
    if options.devices is not None:
        jax.config.update("jax_num_cpu_devices", options.devices)  # only CPU devices can be created
    given = options.coordinator, options.process_id, options.num_processes
    if given == (None, None, None) and not jobs.is_job():
        return True
    jobs.join(*given)
    options.devices = None  # a job uses all devices of all processes
    if jax.process_index() > 0:
        warnings.simplefilter("ignore")  # the first process prints the same warnings
    return jax.process_index() == 0


@contextmanager
def checkpoint_of(arguments: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[Any]:
    """Yield the checkpoint, locked for this run; an earlier one is resumed or replaced, or raises `FileExistsError`."""
    from pathgp.parallel.jobs import barrier
    from pathgp.runs.checkpoint import Checkpoint

    a = arguments
    if a.checkpoint is None:
        if a.resume:
            raise ValueError("--resume requires --checkpoint DIR, the directory to resume from.")
        yield None
        return
    checkpoint = Checkpoint(a.checkpoint, a.checkpoint_seconds)
    with checkpoint.reserve():
        if a.resume:
            tell(
                f"resuming from {a.checkpoint}."
                if checkpoint.files
                else f"{a.checkpoint} has no checkpoint to resume from."
            )
        elif checkpoint.files and not a.force:
            raise FileExistsError(
                f"{a.checkpoint} has the checkpoint of a previous run: add --resume to resume it, or --force to start "
                "again."
            )
        else:
            checkpoint.clear()
            barrier()  # only the first process clears: the others wait for it
        yield checkpoint


def split(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to fit and the rows held out, each in the order of the table."""
    order = np.random.default_rng(seed).permutation(rows)
    held_out = round(share * rows)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def check_target(name: str, y: np.ndarray) -> None:
    """Raise `ValueError` if the target is constant."""
    if np.ptp(y) == 0:
        raise ValueError(f"the target {name!r} is {y[0]:g} in every row: choose a target that varies.")
