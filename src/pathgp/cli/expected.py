"""The memory that `pathgp fit` reports before it starts; a fit that needs too much raises an error."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from pathgp.cli.budget import DOUBLE, Estimate, estimate, table_bytes
from pathgp.cli.options import Options
from pathgp.cli.tables.files import column_kinds, row_count
from pathgp.estimator.registry import SOLVERS
from pathgp.runs.memory import memory_limit

SAMPLES, POINTS = (32, 16, 8, 4), (2000, 1000, 500, 200)
"""Numbers of samples and of inducing points that are tried to find a fit within the memory limit."""


class Size(NamedTuple):
    """Size of a table: its rows, those to fit, and the inputs."""

    rows: int
    learned: int
    inputs: int


def check_header(options: Options) -> None:
    """Raise `ValueError` before reading a file that states its number of rows, if it has too many."""
    rows = row_count(options.file)
    learned = 0 if rows is None else rows - round(options.test_share * rows)
    if rows is None or learned == 0:
        return
    columns = options.columns or list(column_kinds(options.file))[1 + len(options.drop) :]
    # A column of text counts as one input: its categories are not known yet.
    expected(options, Size(rows, learned, max(1, len(columns))))


def expected(options: Options, size: Size) -> Estimate:
    """Return the estimate for a table of this size; raise `ValueError` if it exceeds the memory limit."""
    if options.points is not None and options.points > size.learned:
        raise ValueError(f"--points must be at most the {size.learned:,} training rows, but it is {options.points:,}.")
    found = _estimate(options, size)
    if limit := _limit_below(options, found.bytes):
        raise ValueError(f"the fit needs {_exceeds(options, size, found, limit)}; --memory sets another limit.")
    return found


def float64_note(options: Options, size: Size) -> str:
    """Return a warning if float64, which nearly noiseless data need, would exceed the memory limit; else nothing."""
    found = _estimate(options, size, DOUBLE)
    limit = _limit_below(options, found.bytes)
    told = _exceeds(options, size, found, limit, DOUBLE) if limit else ""
    return told and f"if the data turn out to be nearly noiseless, the solve is in float64 and the fit needs {told}."


def _estimate(options: Options, size: Size, itemsize: int | None = None) -> Estimate:
    # The rows to learn from are copied if others are held out.
    held = size.rows if size.learned == size.rows else size.rows + size.learned
    return estimate(
        size.learned,
        size.inputs,
        options.num_samples,
        options.solver,
        points=options.points,
        held_bytes=table_bytes(held, size.inputs),
        processes=jax.process_count(),
        itemsize=itemsize,
    )


def _limit_below(options: Options, needed: float) -> float | None:
    """Return the memory limit in bytes if it is below what is needed; else None."""
    limit = memory_limit() if options.memory is None else options.memory * 1e9
    return None if limit is None or needed <= limit else limit


def _exceeds(options: Options, size: Size, found: Estimate, limit: float, itemsize: int | None = None) -> str:
    where = "this machine has" if options.memory is None else "--memory allows"
    return (
        f"about {found.bytes / 1e9:.3g} GB ({found.solver}), but {where} {limit / 1e9:.3g} GB: "
        f"{_advice(options, size, limit, itemsize)}"
    )


def _advice(options: Options, size: Size, limit: float, itemsize: int | None) -> str:
    """Return alternatives that fit into memory by the same estimate, in words."""

    def first(changes: Iterable[dict[str, Any]]) -> list[str]:
        fits = lambda c: _estimate(dataclasses.replace(options, **c), size, itemsize).bytes <= limit
        fitting = next(filter(fits, changes), {})
        words = [f"--{n.replace('_', '-')} {v}" for n, v in fitting.items() if getattr(options, n) != v]
        return [" ".join(words)] if words else []

    now = SOLVERS["inducing"](options.points).number(size.learned) if options.solver == "inducing" else size.learned
    samples = [number for number in SAMPLES if number < options.num_samples]
    points = [{"solver": "inducing", "points": number} for number in POINTS if number < now]
    found = first({"num_samples": number} for number in samples)
    found += first(p | {"num_samples": n} for p in points for n in (options.num_samples, *samples))
    fewer = [size.learned >> halvings for halvings in range(1, size.learned.bit_length())]
    enough = (n for n in fewer if n >= (options.points or 2))
    fitting = next((n for n in enough if _estimate(options, Size(n, n, size.inputs), itemsize).bytes <= limit), None)
    found += [] if fitting is None else [f"about {fitting:,} rows"]
    return f"use {', or '.join(found)}" if found else "every fit of these columns needs more"
