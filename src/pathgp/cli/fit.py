"""`pathgp fit`: fit a model to a table."""

import argparse
import dataclasses
import logging
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pathgp.cli.common import (
    Interrupted,
    add_command,
    say_dialect,
    show,
)
from pathgp.cli.evaluate import lines, scores
from pathgp.cli.options import Job, Options

if TYPE_CHECKING:
    from pathgp.cli.budget import Estimate
    from pathgp.cli.fitted import Fitted
    from pathgp.cli.tables.encoding import Rows
    from pathgp.cli.tables.infer import Scan
    from pathgp.runs.checkpoint import Checkpoint

SHORTEST = 0.1
"""Seconds for fitting and the solve if no time is left: enough for one step each."""

SCORING_SHARE, SCORED_ROWS = 0.05, 4096
"""Share of `--max-seconds` reserved for scoring, and the held-out rows that are scored between two looks at the clock.
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the table becomes inputs, the rows to fit and those held out, and the memory that it takes."""

    scan: "Scan"
    train: np.ndarray
    test: np.ndarray
    estimate: "Estimate"


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
        help="approximate time limit: hyperparameter fitting, iterative solvers and scoring stop early to meet it. "
        "Reading, compilation, factorisations, prior draws and exact solves are not cut short",
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
    """Check the options, plan the fit, train, score and report."""
    start = time.perf_counter()
    options = Options.of(arguments)
    from pathgp.parallel.jobs import report_lost_process

    job = join_job(options)  # before the first JAX array, which fixes the devices
    with opened_checkpoint(options, job) as checkpoint:
        plan = make_plan(options, job)
        train_rows, test_rows = read(options, plan, job)
        with report_lost_process():
            fitted = train(options, plan, train_rows, job, checkpoint, start)
            scored = judge(options, test_rows, fitted, job, start)
    if job.speaks:
        report(options, plan, fitted, scored, start)


def join_job(options: Options) -> Job:
    """Create the devices, and join the job if there is one."""
    import jax

    from pathgp.parallel import jobs

    if options.devices is not None:
        jax.config.update("jax_num_cpu_devices", options.devices)  # only CPU devices can be created
    given = options.coordinator, options.process_id, options.num_processes
    if given == (None, None, None) and not jobs.is_job():
        return Job(True, options.devices)
    jobs.join(*given)
    if jax.process_index() > 0:
        warnings.simplefilter("ignore")  # the first process prints the same warnings
    return Job(jax.process_index() == 0, None)  # a job uses all devices of all processes


@contextmanager
def opened_checkpoint(options: Options, job: Job) -> "Iterator[Checkpoint | None]":
    """Yield the checkpoint, locked for this run; an earlier one is resumed or replaced, or raises `FileExistsError`."""
    from pathgp.parallel.jobs import barrier
    from pathgp.runs.checkpoint import Checkpoint

    if options.checkpoint is None:
        yield None
        return
    checkpoint = Checkpoint(options.checkpoint, options.checkpoint_seconds)
    with checkpoint.reserve():
        if options.resume and checkpoint.files:
            job.tell(f"resuming from {options.checkpoint}.")
        elif options.resume:
            job.tell(f"{options.checkpoint} has no checkpoint to resume from.")
        elif checkpoint.files and not options.force:
            raise FileExistsError(
                f"{options.checkpoint} has the checkpoint of a previous run: add --resume to resume it, or --force to "
                "start again."
            )
        else:
            checkpoint.clear()
            barrier()  # only the first process clears: the others wait for it
        yield checkpoint


def make_plan(options: Options, job: Job) -> Plan:
    """Scan the table; raise `ValueError` if it cannot be fitted, or needs too much memory."""
    from pathgp.cli.expected import Size, check_header, expected, float64_note
    from pathgp.cli.tables.files import counted
    from pathgp.cli.tables.infer import infer_encoding

    check_header(options)
    job.tell(f"reading {options.file}.")
    if job.speaks:
        say_dialect(options.file)
    o = options
    scan = infer_encoding(o.file, o.target, o.columns, o.drop, o.one_hot, o.impute, o.skip_missing)
    for note in scan.notes:
        job.tell(note)
    train, test = split(scan.rows, o.test_share, o.seed)
    if o.test_share and not len(test):
        raise ValueError(f"--test-share {o.test_share} of {scan.rows:,} rows holds out no row: use a larger share.")
    if len(train) < 2:
        raise ValueError(f"{o.file} has {counted(len(train), 'training row')}: at least 2 are needed.")
    size = Size(scan.rows, len(train), len(scan.encoding.inputs))
    plan = Plan(scan, train, test, expected(options, size))
    if note := float64_note(options, size):
        job.tell(note)
    return plan


def read(options: Options, plan: Plan, job: Job) -> "tuple[Rows, Rows]":
    """Return the rows to fit and those held out."""
    import jax.numpy as jnp

    from pathgp.cli.tables.encoding import check_varies

    scan = plan.scan
    rows = scan.encoding.read(options.file, jnp.result_type(float), scan.rows, skip_missing=options.skip_missing)
    train = rows.some(plan.train) if len(plan.test) else rows  # no copy if nothing is held out
    check_varies(options.target, train.y)
    return train, rows.some(plan.test)


def train(
    options: Options, plan: Plan, rows: "Rows", job: Job, checkpoint: "Checkpoint | None", start: float
) -> "Fitted":
    """Fit a model to the rows, and save it; the checkpoint is deleted when it is saved."""
    import jax

    from pathgp.cli.fitted import Fitted, save
    from pathgp.cli.tables.files import counted

    job.tell(f"this will take {plan.estimate}.")
    early = "saves a checkpoint and stops" if checkpoint else "stops early" if jax.process_count() == 1 else "stops"
    what = f"{counted(len(rows.y), 'row')} with {counted(rows.X.shape[1], 'input')}"
    job.tell(f"fitting {options.target!r} to {what} (Ctrl-C {early}).")
    try:
        with progress_told(job.tell):
            seconds = seconds_to_fit(options, len(plan.test) > 0, start, job.tell)
            fitted = Fitted.fit(rows, plan.scan, options, job, checkpoint, seconds)
    except (KeyboardInterrupt, SystemExit) as stop:
        if checkpoint is None or not checkpoint.files:
            raise
        kept = f"the checkpoint is in {options.checkpoint}: to resume, run the same command with --resume."
        if isinstance(stop, SystemExit):
            job.tell(f"terminated: {kept}")
            raise
        raise Interrupted(kept) from None
    for name, value in fitted.constant.items():
        job.tell(f"{name!r} is {value:g} in every row, so its effect cannot be estimated.")
    # The model is saved before the evaluation, so that Ctrl-C during the evaluation does not lose it.
    save(fitted, options.out, options.force)
    if checkpoint is not None:
        checkpoint.clear()
    return fitted


def seconds_to_fit(options: Options, is_scored: bool, start: float, tell: Callable[[str], None]) -> float | None:
    """Return the rest of `--max-seconds` for fitting and the solver, counted from the start of the command."""
    if options.max_seconds is None:
        return None
    passed = time.perf_counter() - start
    if passed >= options.max_seconds:
        tell(
            f"--max-seconds {options.max_seconds:g} is too short: reading took {passed:.0f} s. Fitting takes one step."
        )
    return max((1 - SCORING_SHARE * is_scored) * (options.max_seconds - passed), SHORTEST)


@contextmanager
def progress_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Print the lines that `runs.run.Progress` logs where it shows no bar."""
    logger, handler = logging.getLogger("pathgp.progress"), logging.Handler()
    handler.emit = lambda record: tell(record.getMessage())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def judge(options: Options, rows: "Rows", fitted: "Fitted", job: Job, start: float) -> dict[str, Any]:
    """Return the scores on held-out rows, if any: on random ones of them if `--max-seconds` ends before all."""
    import jax

    from pathgp.cli.tables.files import counted

    total = len(rows.y)
    if not total:
        return {}
    job.tell(f"scoring on {counted(total, 'held-out row')}.")
    order, chunk, end = np.arange(total), total, float("inf")
    if options.max_seconds is not None and jax.process_count() == 1:  # the processes of a job score alike
        order, chunk = np.random.default_rng(options.seed).permutation(total), SCORED_ROWS
        end = start + options.max_seconds
    parts = []
    try:
        for first in range(0, total, chunk):
            if parts and time.perf_counter() > end:
                job.tell(f"--max-seconds is over: {first:,} of them were scored.")
                break
            some = rows.some(order[first : first + chunk])
            parts.append((some.y, *fitted.predict(some.inputs)))
    except KeyboardInterrupt:
        raise Interrupted(f"{options.out} is a complete model, but it was not scored.") from None
    return scores(*map(np.concatenate, zip(*parts, strict=True)))


def report(options: Options, plan: Plan, fitted: "Fitted", scored: dict[str, Any], start: float) -> None:
    """Print the result; raise `Interrupted` if Ctrl-C has ended hyperparameter fitting."""
    seconds, out = time.perf_counter() - start, options.out
    result = fitted.summary() | ({"held_out": scored} if scored else {})
    result |= {"expected": {"gigabytes": plan.estimate.bytes / 1e9}, "seconds": seconds, "model": str(out)}
    told = fitted.lines() | {f"held-out {name}": text for name, text in (lines(scored) if scored else {}).items()}
    told |= {"seconds": f"{seconds:.1f}", "model": f"{out} ({out.stat().st_size / 1e6:.1f} MB)"}
    show(result, told, options.json)
    if fitted.interrupted:
        raise Interrupted(
            f"hyperparameter fitting ended after {len(fitted.loss)} steps: {out} is a complete model with the best "
            "hyperparameters so far."
        )


def split(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to fit and the rows held out, each in the order of the table."""
    order = np.random.default_rng(seed).permutation(rows)
    held_out = round(share * rows)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
