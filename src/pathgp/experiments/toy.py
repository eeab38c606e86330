"""Figure 1 of the paper: one kernel, two layouts of 10,000 points, five solvers, one time budget.

    python -m pathgp.experiments.toy --out demo.png

Infill: the inputs are N(0, 1), so points crowd and the system is badly conditioned. Large domain: the inputs are a
regular grid, so the domain grows with the number of points and the system is well conditioned.
"""

import argparse
import json
import pathlib
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pathgp import GP, Posterior, condition, datasets, metrics
from pathgp.experiments.base import png
from pathgp.files import write_atomically
from pathgp.kernels import RBF
from pathgp.plots import new_figure, posterior_panel
from pathgp.solvers import CG, SAP, SDD, SGD, Cholesky, ConvergenceWarning, Solver


class Layout(NamedTuple):
    """A toy data set, the process that models it, and where it is looked at."""

    name: str
    gp: GP
    X: Float[Array, "N 1"]
    y: Float[Array, "N"]
    x: Float[Array, "n 1"]


class Row(NamedTuple):
    """One line of the table."""

    layout: str
    solver: str
    seconds: float
    passes: float
    relative_residual: float
    rmse_to_exact_mean: float
    w2_to_exact_marginals: float


def layouts(N: int, seed: int = 0) -> Iterator[Layout]:
    """Both layouts, with observations sin(2x) + cos(5x) + N(0, 0.5)."""
    gp = GP(RBF(lengthscale=0.5), noise=datasets.NOISE)
    for data in (datasets.infill(N, seed), datasets.large_domain(N, seed)):
        X, y, x = map(jnp.asarray, (data.X, data.y, data.X_test))
        yield Layout(data.name.replace("_", " "), gp, X, y, x)


def solvers(seconds: float) -> list[Solver]:
    """The exact solver, and the others within a time budget."""
    return [
        Cholesky(),
        SGD(steps=20_000, batch_size=256, max_seconds=seconds),
        SDD(steps=20_000, batch_size=256, max_seconds=seconds),
        SAP(passes=1000, max_seconds=seconds),
        CG(steps=1000, max_seconds=seconds),
    ]


def run(N: int, seconds: float, num_samples: int) -> tuple[list[Row], list[tuple[Layout, list[Posterior]]]]:
    """Every solver on both layouts; each is compiled on a run that does not count."""
    rows, pictures = [], []
    for layout in layouts(N):
        posteriors: list[Posterior] = []
        for solver, rehearsal in zip(solvers(seconds), solvers(0.0), strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                if posteriors:
                    condition(
                        layout.gp, layout.X, layout.y, solver=rehearsal, num_samples=num_samples, key=jax.random.key(1)
                    )
                posterior = condition(
                    layout.gp, layout.X, layout.y, solver=solver, num_samples=num_samples, key=jax.random.key(1)
                )
            posteriors.append(posterior)
            exact, x = posteriors[0], layout.x
            w2 = metrics.w2(posterior.mean(x), posterior.variance(x), exact.mean(x), exact.variance(x))
            info = posterior.info
            rows.append(
                Row(
                    layout.name,
                    info.solver,
                    info.seconds,
                    info.passes,
                    float(jnp.max(info.relative_residual)),
                    float(metrics.rmse(posterior.mean(x), exact.mean(x))),
                    float(jnp.sqrt(jnp.mean(w2**2))),
                )
            )
        pictures.append((layout, posteriors))
    return rows, pictures


def table(rows: list[Row]) -> str:
    """The table as text."""
    head = f"{'layout':<13} {'solver':<9} {'seconds':>8} {'passes':>8} {'residual':>9} {'RMSE':>8} {'W2':>8}"
    lines = [
        f"{r.layout:<13} {r.solver:<9} {r.seconds:8.2f} {r.passes:8.1f} {r.relative_residual:9.1e} "
        f"{r.rmse_to_exact_mean:8.4f} {r.w2_to_exact_marginals:8.4f}"
        for r in rows
    ]
    return "\n".join([head, "-" * len(head), *lines])


def draw(pictures: list[tuple[Layout, list[Posterior]]], rows: list[Row], path: pathlib.Path) -> None:
    """A row of panels for each layout, a column for each solver, written in one move."""
    columns = len(pictures[0][1])
    figure = new_figure(3.4 * columns, 5.6)
    axes = figure.subplots(len(pictures), columns, sharey="row", squeeze=False)
    results = iter(rows)
    for line, (layout, posteriors) in zip(axes, pictures, strict=True):
        for axis, posterior in zip(line, posteriors, strict=True):
            result = next(results)
            posterior_panel(axis, posterior, layout.x, posteriors[0])
            axis.set_title(
                f"{result.solver}: {result.seconds:.1f} s, W2 {result.w2_to_exact_marginals:.3f}", fontsize=10
            )
            axis.set_ylim(-4, 4)
            axis.set_xlabel("x")
        line[0].set_ylabel(f"{layout.name}, {layout.X.shape[0]} points")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    write_atomically(path, png(figure))


def main() -> None:
    """Runs the comparison, prints the table and writes the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--n", type=int, default=10_000, help="number of points of each layout")
    parser.add_argument("--seconds", type=float, default=4.0, help="time budget of each approximate solver")
    parser.add_argument("--samples", type=int, default=64, help="number of posterior samples")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo.png"), help="the picture")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    arguments = parser.parse_args()
    start = time.perf_counter()
    rows, pictures = run(arguments.n, arguments.seconds, arguments.samples)
    print(json.dumps([r._asdict() for r in rows], indent=2) if arguments.json else table(rows))
    draw(pictures, rows, arguments.out)
    if not arguments.json:
        print(f"\nRMSE to the exact mean and W2 to the exact marginals over the part shown in {arguments.out}.")
        print(f"Finished in {time.perf_counter() - start:.0f} s, compilation included; seconds above are without it.")


if __name__ == "__main__":
    main()
