"""Seconds of a first fit and prediction in a new process, import and compilation included: `pathgp bench cold`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

ROWS = [200, 600, 2000]
POINTS, INPUTS, FEWER = 1000, 6, 13
"""Points of a prediction, inputs, and the rows that a refit has less."""


class Cell(NamedTuple):
    """The seconds of one library on one number of rows."""

    rows: int
    library: str
    total: float
    fit: float
    predict: float
    refit: float
    """Fit and prediction with `FEWER` rows less, in the same process."""
    rmse: float
    nll: float


def run(rows: list[int], seed: int = 0) -> list[Cell]:
    """Measure each library in processes of its own; pathgp with an empty compilation cache, then with that of the run.

    Parameters
    ----------
    rows
        Numbers of rows.
    seed
        Seed of the data.
    """
    cells = []
    for n in rows:
        with tempfile.TemporaryDirectory() as cache:
            for library, name in (("pathgp, empty cache", "pathgp"), ("pathgp", "pathgp"), ("scikit-learn", "sklearn")):
                found = _in_new_process(name, n, seed, cache)
                cells.append(Cell(n, library, **found))
    return cells


def table(cells: list[Cell]) -> str:
    """Return one line per cell, with the ratios to scikit-learn."""
    peers = {cell.rows: cell for cell in cells if cell.library == "scikit-learn"}
    head = f"{'rows':>6} {'library':<20} {'total':>7} {'ratio':>6} {'fit':>7} {'predict':>8} {'refit':>7} {'ratio':>6} "
    lines = [head + f"{'RMSE':>7} {'NLL':>7}"]
    for c in cells:
        peer = peers[c.rows]
        lines.append(
            f"{c.rows:6d} {c.library:<20} {c.total:7.2f} {c.total / peer.total:6.2f} {c.fit:7.2f} {c.predict:8.2f} "
            f"{c.refit:7.2f} {c.refit / peer.refit:6.2f} {c.rmse:7.4f} {c.nll:7.3f}"
        )
    return "\n".join(lines)


def _in_new_process(name: str, rows: int, seed: int, cache: str) -> dict[str, float]:
    environment = os.environ | {"PATHGP_COMPILATION_CACHE": cache}
    command = [sys.executable, "-m", "pathgp_paper.bench.cold", name, str(rows), str(seed)]
    clock = time.perf_counter()
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    total = time.perf_counter() - clock
    found = json.loads(done.stdout.splitlines()[-1])
    return {"total": total - found["refit"], **found}


def _measure(name: str, rows: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.uniform(size=(n, INPUTS))
    f = lambda X: np.sin(4 * X[:, 0]) + X[:, 1] * X[:, 2]
    X, x = draw(rows), draw(POINTS)
    y, y_test = f(X) + 0.1 * rng.normal(size=rows), f(x) + 0.1 * rng.normal(size=POINTS)
    make = _pathgp if name == "pathgp" else _sklearn
    started = time.perf_counter()
    model = make().fit(X, y)
    fitted = time.perf_counter()
    mean, std = model.predict(x, return_std=True)
    predicted = time.perf_counter()
    make().fit(X[:-FEWER], y[:-FEWER]).predict(x, return_std=True)
    refitted = time.perf_counter()
    error = y_test - mean
    return {
        "fit": fitted - started,
        "predict": predicted - fitted,
        "refit": refitted - predicted,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nll": float(np.mean(np.log(2 * np.pi * std**2) + (error / std) ** 2) / 2),
    }


def _pathgp() -> Any:
    from pathgp import PathGPRegressor

    return PathGPRegressor(random_state=0)


def _sklearn() -> Any:
    """Return the model that pathgp has by default: Matérn-3/2 with a length scale per input, and noise."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    lengthscales: Any = np.ones(INPUTS)  # scikit-learn's annotation knows only one number
    kernel = ConstantKernel() * Matern(lengthscales, (1e-3, 1e4), nu=1.5) + WhiteKernel(0.1, (1e-8, 1e1))
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
