"""One solver or peer library on one data set, run by `pathgp bench solve` in a separate process.

    python -m pathgp_paper.bench.contest NAME --dataset elevators

The task is the posterior mean and 64 samples at the test rows, or its closest equivalent in the peer. Prints a line of
JSON. A separate process is needed to measure memory, and to keep a crash of one peer from ending the others.
"""

import argparse
import dataclasses
import importlib
import json
import pathlib
import re
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pathgp import _checks as checks
from pathgp.analysis import metrics
from pathgp.functions import TILE_POINTS, Canonical, Function
from pathgp.kernels import Matern32
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.solvers import CG, SAP, SDD, SGD, SVGP, Auto, Cholesky, InducingCG, Observer, Snapshot, Solver, SubsetOfData
from pathgp.solvers.inducing.points import RandomPoints, random_subset
from pathgp_paper import datasets
from pathgp_paper.bench.peers import MODULES, NUM_SAMPLES, PEERS, SVGP_BATCH, SVGP_RATE, svgp_points, svgp_steps
from pathgp_paper.bench.scores import Result, scores
from pathgp_paper.datasets import Dataset

SECONDS = 270.0
"""Time limit of SGD and SDD, in seconds. Their default numbers of steps are large, as in the paper."""


def ours(solver: Solver, every: int | None = None) -> Callable[[Dataset, GP], Result]:
    """Return a contestant of this library with a solver that does not depend on the data."""
    return made(lambda data, gp: solver, every)


def made(make: Callable[[Dataset, GP], Solver], every: int | None = None) -> Callable[[Dataset, GP], Result]:
    """Return a contestant of this library: a compile run, shortened if possible, and a timed run with snapshots."""

    def run(data: Dataset, gp: GP) -> Result:
        snapshots: list[tuple[float, np.ndarray]] = []

        def look(snapshot: Snapshot) -> None:
            snapshots.append((snapshot.seconds, np.asarray(snapshot.weights[:, 0])))

        def job(quickly: bool, observe: Observer | None = None) -> tuple[float, Posterior, np.ndarray, np.ndarray]:
            start, key = time.perf_counter(), jax.random.key(0)
            asked = make(data, gp)
            solver = hurried(asked) if quickly else asked
            posterior = condition(gp, data.X, data.y, solver=solver, num_samples=NUM_SAMPLES, key=key, observe=observe)
            # The compile run needs few points: on a CPU, all larger numbers of points share one compilation.
            points = data.X_test if solver is asked else data.X_test[: 8 * TILE_POINTS]
            mean, variance = map(np.asarray, jax.block_until_ready(posterior.predict(points)))
            return time.perf_counter() - start, posterior, mean, variance

        first, posterior, mean, variance = job(quickly=True)
        seconds, whole = first, hurried(posterior.solver) is posterior.solver
        if not whole or first < SECONDS:  # in a long run, compilation is negligible
            seconds, posterior, mean, variance = job(False, None if every is None else Observer(every, look))
        compiling, info = max(0.0, first - seconds) if whole else first, posterior.info
        canonical = Canonical(gp.kernel, posterior.system.X)
        y_test = jnp.asarray(data.y_test)
        error = lambda w: float(metrics.rmse(y_test, Function(canonical, jnp.asarray(w))(data.X_test)))
        return {
            "seconds": seconds,
            "compile_seconds": compiling,
            "solver": info.solver,
            "reason": info.reason,
            "passes": info.passes,
            "residual": float(jnp.max(info.relative_residual)),
            **scores(data, mean, variance + float(gp.noise)),
            "curve": [(at, error(w)) for at, w in snapshots],
        }

    return run


def hurried(solver: Solver) -> Solver:
    """Return the solver with a time limit of 0 if it has a limit, so that it compiles and stops."""
    return dataclasses.replace(solver, max_seconds=0.0) if hasattr(solver, "max_seconds") else solver


def svgp(data: Dataset, gp: GP) -> SVGP:
    """Return SVGP on k-means centres, with as many steps as its peer."""
    return SVGP(svgp_points(data, gp), steps=svgp_steps(len(data.X)), batch_size=SVGP_BATCH, learning_rate=SVGP_RATE)


def inducing(data: Dataset, gp: GP) -> InducingCG:
    """Return InducingCG on as many random rows as the estimator uses: under a minute per step on two million rows."""
    points = random_subset(data.X, RandomPoints().number(len(data.X)), key=jax.random.key(1))
    return InducingCG(points=points, max_seconds=4 * SECONDS)


CONTESTANTS: dict[str, Callable[[Dataset, GP], Result]] = {
    "auto": ours(Auto()),
    "sap": ours(SAP(), 8),
    "cg": ours(CG(), 10),
    "sdd": ours(SDD(max_seconds=SECONDS), 500),
    "sgd": ours(SGD(max_seconds=SECONDS), 500),
    "cholesky": ours(Cholesky()),
    "svgp": made(svgp),
    "inducing": made(inducing),
    "subset": ours(SubsetOfData(25_000)),
    **PEERS,
}


def problem(
    dataset: str,
    n: int | None,
    split: int,
    noise: float | None = None,
    hyperparameters: pathlib.Path | None = None,
    test_rows: int | None = None,
) -> tuple[Dataset, GP]:
    """Return the data and the GP: from `hyperparameters`, or published for real data and fixed for synthetic data."""
    for option, rows in (("--n", n), ("--test-rows", test_rows)):
        checks.require_at_least(1 if rows is None else rows, 1, option)
    is_synthetic = dataset == "synthetic"
    if is_synthetic and split != 0:
        raise ValueError(f"--split is {split}, but synthetic data have no other than 0: leave it out.")
    whole = datasets.synthetic(n or 10_000) if is_synthetic else datasets.load(dataset, split)
    if hyperparameters is not None:
        gp = _read_gp(hyperparameters, whole.X.shape[1])
    elif is_synthetic:
        gp = GP(Matern32(np.full(whole.X.shape[1], 3.0)), noise=0.08)
    else:
        gp = datasets.published_gp(dataset, split)
    X, y, X_test, y_test = whole.X[:n], whole.y[:n], whole.X_test[:test_rows], whole.y_test[:test_rows]
    data = Dataset(dataset, X, y, X_test, y_test)
    # The mean is subtracted, so that contestants without a mean get the same problem.
    centred = data._replace(y=data.y - float(gp.mean), y_test=data.y_test - float(gp.mean))
    return centred, GP(gp.kernel, gp.noise if noise is None else noise)


def _read_gp(path: pathlib.Path, inputs: int) -> GP:
    try:
        gp = datasets.read_gp(json.loads(path.read_text()))
    except (ValueError, TypeError, OSError) as error:  # not JSON, not numbers, or no file
        raise ValueError(f"--hyperparameters {path} cannot be used: {error}") from None
    lengthscales = np.size(getattr(gp.kernel, "lengthscale", ()))
    if lengthscales not in (1, inputs):
        raise ValueError(
            f"--hyperparameters {path} has {lengthscales} length scales, but the data have {inputs} inputs."
        )
    return gp


def peak_gigabytes() -> float:
    """Return the peak resident memory of this process (Linux)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found[1]) / 2**20 if found else float("nan")


def main() -> None:
    """Run one contestant and print its line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", choices=sorted(CONTESTANTS))
    parser.add_argument("--dataset", default="synthetic")
    parser.add_argument("--n", type=int, default=None)
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--noise", type=float, default=None)
    parser.add_argument("--hyperparameters", type=pathlib.Path, default=None)
    parser.add_argument("--test-rows", type=int, default=None)
    a = parser.parse_args()
    data, gp = problem(a.dataset, a.n, a.split, a.noise, a.hyperparameters, a.test_rows)
    if a.name in MODULES:
        importlib.import_module(MODULES[a.name])
    before = peak_gigabytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CONTESTANTS[a.name](data, gp)
    print(json.dumps({"name": a.name, "rows": len(data.X), **result, "gigabytes": peak_gigabytes() - before}))


if __name__ == "__main__":
    main()
