"""A short version of figure 1 of the paper: five solvers with one time budget on two layouts of 10,000 points.

    python -m pathgp_paper.experiments.toy --out demo.png

Infill: the inputs are N(0, 1), so points are dense and the system is ill-conditioned. Large domain: the inputs are a
regular grid, so the domain grows with the number of points and the system is well-conditioned.
"""

import argparse
import json
import pathlib
import time
from typing import NamedTuple

from pathgp.runs.atomic import write_atomically
from pathgp_paper.experiments.base import Record, png
from pathgp_paper.experiments.fig1_toy import EXACT, EXPERIMENT, cells, distances
from pathgp_paper.experiments.problems import Curve, root_mean_square

SOLVERS = (EXACT, "SGD", "SDD", "SAP", "CG")


class Row(NamedTuple):
    """One row of the table."""

    layout: str
    solver: str
    seconds: float
    passes: float
    relative_residual: float
    rmse_to_exact_mean: float
    w2_to_exact_marginals: float


def run(N: int, seconds: float, num_samples: int) -> list[Record]:
    """Run every solver on both layouts."""
    of_cell = lambda cell: Record(cell.name, cell.settings, EXPERIMENT.compute(cell.settings))
    return list(map(of_cell, cells(N, seconds, num_samples, solvers=SOLVERS)))


def compared(records: list[Record]) -> list[Row]:
    """Return the cost of each solver, and its distance to the exact solver on the same layout."""
    w2, rows, exact = distances(records), [], {}
    for record in records:
        assert record.result is not None
        layout, solver = record.settings["layout"], record.settings["solver"]["name"]
        mean = Curve.read(record).mean
        exact.setdefault(layout, mean)  # the exact solver is the first of its layout
        seconds, passes, left = (record.result[name] for name in ("seconds", "passes", "relative_residual"))
        error = root_mean_square(mean - exact[layout])
        rows.append(Row(layout, solver, seconds, passes, left, error, w2[layout, solver]))
    return rows


def table(rows: list[Row]) -> str:
    """Return the table as text."""
    head = f"{'layout':<13} {'solver':<9} {'seconds':>8} {'passes':>8} {'residual':>9} {'RMSE':>8} {'W2':>8}"
    lines = [
        f"{r.layout:<13} {r.solver:<9} {r.seconds:8.2f} {r.passes:8.1f} {r.relative_residual:9.1e} "
        f"{r.rmse_to_exact_mean:8.4f} {r.w2_to_exact_marginals:8.4f}"
        for r in rows
    ]
    return "\n".join([head, "-" * len(head), *lines])


def main() -> None:
    """Run the comparison, print the table and write the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--n", type=int, default=10_000, help="number of points of each layout")
    parser.add_argument("--seconds", type=float, default=4.0, help="time budget of each approximate solver")
    parser.add_argument("--samples", type=int, default=64, help="number of posterior samples")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo.png"), help="the picture")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    arguments = parser.parse_args()
    start = time.perf_counter()
    records = run(arguments.n, arguments.seconds, arguments.samples)
    rows = compared(records)
    print(json.dumps([r._asdict() for r in rows], indent=2) if arguments.json else table(rows))
    write_atomically(arguments.out, png(EXPERIMENT.figure(records)))
    if not arguments.json:
        print(f"\nRMSE to the exact mean and W2 to the exact marginals over the part shown in {arguments.out}.")
        print(f"Finished in {time.perf_counter() - start:.0f} s, compilation included; seconds above are without it.")


if __name__ == "__main__":
    main()
