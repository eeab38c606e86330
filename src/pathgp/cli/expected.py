"""The estimate that `pathgp fit` reports before it starts; a fit that needs too much memory raises an error."""

import argparse
from collections.abc import Iterable
from typing import Any

import jax

from pathgp._checks import require_at_least
from pathgp.cli.budget import Estimate, Rates, estimate, table_bytes
from pathgp.cli.tables.files import column_kinds, row_count
from pathgp.estimator.registry import SOLVERS
from pathgp.runs.memory import memory_limit

ANY = Rates(0.0, 0.0, 0.0)
"""Rates for estimates of memory only."""

SAMPLES, POINTS = (32, 16, 8, 4), (2000, 1000, 500, 200)
"""Numbers of samples and of inducing points that are tried to find a fit within the memory limit."""


def check_points(options: argparse.Namespace, rows: int | None = None) -> None:
    """Raise `ValueError` if `--memory` or the number of inducing points is invalid, as far as the number of rows is
    known.
    """
    if options.memory is not None and not options.memory > 0:
        raise ValueError(f"--memory must be positive, but it is {options.memory}.")
    if options.points is None:
        return
    if options.solver != "inducing":
        raise ValueError(f"--points requires --solver inducing, but --solver is {options.solver}.")
    require_at_least(options.points, 1, "--points")
    if rows is not None and options.points > rows:
        raise ValueError(f"--points must be at most the {rows:,} training rows, but it is {options.points:,}.")


def check_memory(options: argparse.Namespace) -> None:
    """Raise `ValueError` before reading a file that states its number of rows, if it has too many."""
    rows = row_count(options.file)
    learned = 0 if rows is None else rows - round(options.test_share * rows)
    if rows is None or learned == 0:
        return
    columns = options.columns or list(column_kinds(options.file))[1 + len(options.drop) :]
    # A column of text counts as one input: its categories are not known yet.
    inputs = max(1, len(columns))
    check_points(options, learned)
    _refuse(_estimate(options, rows, learned, inputs, ANY), options, (rows, learned, inputs))


def expected(options: argparse.Namespace, rows: int, learned: int, inputs: int) -> Estimate:
    """Return the estimate for fitting `learned` of `rows` rows; raise `ValueError` if it exceeds the memory limit."""
    check_points(options, learned)
    found = _estimate(options, rows, learned, inputs, None)
    _refuse(found, options, (rows, learned, inputs))
    return found


def _estimate(options: argparse.Namespace, rows: int, learned: int, inputs: int, rates: Rates | None) -> Estimate:
    held = rows if learned == rows else rows + learned  # the rows to learn from are copied if others are held out
    return estimate(
        learned,
        inputs,
        options.num_samples,
        options.solver,
        points=options.points,
        max_seconds=options.max_seconds,
        held_bytes=table_bytes(held, inputs),
        rates=rates,
        processes=jax.process_count(),
        judged=rows - learned,
    )


def _refuse(found: Estimate, options: argparse.Namespace, size: tuple[int, int, int]) -> None:
    limit = memory_limit() if options.memory is None else options.memory * 1e9
    if limit is None or found.bytes <= limit:
        return
    where = "this machine has" if options.memory is None else "--memory allows"
    raise ValueError(
        f"the fit needs about {found.bytes / 1e9:.3g} GB ({found.solver}), but {where} {limit / 1e9:.3g} GB: "
        f"{_advice(options, size, limit)}; --memory sets another limit."
    )


def _advice(options: argparse.Namespace, size: tuple[int, int, int], limit: float) -> str:
    """Return alternatives that fit into memory by the same estimate, in words."""
    rows, learned, inputs = size

    def fits(rows: int = rows, learned: int = learned, **changes: Any) -> bool:
        changed = argparse.Namespace(**{**vars(options), **changes})
        return _estimate(changed, rows, learned, inputs, ANY).bytes <= limit

    def first(changes: Iterable[dict[str, Any]]) -> list[str]:
        fitting = next((c for c in changes if fits(**c)), {})
        words = [f"--{n.replace('_', '-')} {v}" for n, v in fitting.items() if getattr(options, n) != v]
        return [" ".join(words)] if words else []

    now = SOLVERS["inducing"](options.points).number(learned) if options.solver == "inducing" else learned
    samples = [number for number in SAMPLES if number < options.num_samples]
    points = [{"solver": "inducing", "points": number} for number in POINTS if number < now]
    found = first({"num_samples": number} for number in samples)
    found += first(p | {"num_samples": n} for p in points for n in (options.num_samples, *samples))
    fewer = [learned >> halvings for halvings in range(1, learned.bit_length())]
    enough = next((n for n in fewer if n >= (options.points or 2) and fits(n, n)), None)
    found += [] if enough is None else [f"about {enough:,} rows"]
    return f"use {', or '.join(found)}" if found else "every fit of these columns needs more"
