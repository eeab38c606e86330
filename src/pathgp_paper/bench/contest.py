"""One solver, or one peer, on one data set: run by `pathgp bench solve`, each in a process of its own.

    python -m pathgp_paper.bench.contest NAME --dataset elevators

The job is the posterior mean and 64 samples, or what comes nearest to it in the peer, at the test rows. Prints a line
of JSON. A process of its own, because memory is measured, and because a peer that crashes must not take others along.
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
"""When SGD and SDD are stopped, as patient as they are in the paper."""


def ours(solver: Solver, every: int | None = None) -> Callable[[Dataset, GP], Result]:
    """This library with a solver that needs to know nothing of the data."""
    return made(lambda data, gp: solver, every)


def made(make: Callable[[Dataset, GP], Solver], every: int | None = None) -> Callable[[Dataset, GP], Result]:
    """This library: a run to compile, cut short where it can be, then the one that counts, watched every few steps."""

    def run(data: Dataset, gp: GP) -> Result:
        snapshots: list[tuple[float, np.ndarray]] = []

        def look(snapshot: Snapshot) -> None:
            snapshots.append((snapshot.seconds, np.asarray(snapshot.weights[:, 0])))

        def job(quickly: bool, observe: Observer | None = None) -> tuple[float, Posterior, np.ndarray, np.ndarray]:
            start, key = time.perf_counter(), jax.random.key(0)
            asked = make(data, gp)
            solver = hurried(asked) if quickly else asked
            posterior = condition(gp, data.X, data.y, solver=solver, num_samples=NUM_SAMPLES, key=key, observe=observe)
            # A rehearsal needs few points: on a CPU one compilation serves all that are more.
            points = data.X_test if solver is asked else data.X_test[: 8 * TILE_POINTS]
            mean, variance = map(np.asarray, jax.block_until_ready(posterior.predict(points)))
            return time.perf_counter() - start, posterior, mean, variance

        first, posterior, mean, variance = job(quickly=True)
        seconds, whole = first, hurried(posterior.solver) is posterior.solver
        if not whole or first < SECONDS:  # compilation is a part of a long run that can be neglected
            seconds, posterior, mean, variance = job(False, None if every is None else Observer(every, look))
        compiling, info = max(0.0, first - seconds) if whole else first, posterior.info
        canonical = Canonical(gp.kernel, posterior.system.X)
        y_test = jnp.asarray(data.y_test)
        error = lambda w: float(metrics.rmse(Function(canonical, jnp.asarray(w))(data.X_test), y_test))
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
    """The solver, stopped as soon as it can be, if it can: it compiles what is needed."""
    return dataclasses.replace(solver, max_seconds=0.0) if hasattr(solver, "max_seconds") else solver


def svgp(data: Dataset, gp: GP) -> SVGP:
    """SVGP on the centres of clusters, for as many steps as its peer."""
    return SVGP(svgp_points(data, gp), steps=svgp_steps(len(data.X)), batch_size=SVGP_BATCH, learning_rate=SVGP_RATE)


def inducing(data: Dataset, gp: GP) -> InducingCG:
    """As many random rows as the estimator takes: a step on two million takes less than a minute then."""
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
    """The data and the process: given, published for a real data set, or known for a synthetic one."""
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
    # Without its mean, so that contestants which know of none are given the same problem.
    centred = data._replace(y=data.y - float(gp.mean), y_test=data.y_test - float(gp.mean))
    return centred, GP(gp.kernel, gp.noise if noise is None else noise)


def _read_gp(path: pathlib.Path, inputs: int) -> GP:
    try:
        gp = datasets.read_gp(json.loads(path.read_text()))
    except (ValueError, TypeError, OSError) as error:  # not JSON, no numbers, not there
        raise ValueError(f"--hyperparameters {path} cannot be used: {error}") from None
    lengthscales = np.size(getattr(gp.kernel, "lengthscale", ()))
    if lengthscales not in (1, inputs):
        raise ValueError(
            f"--hyperparameters {path} has {lengthscales} length scales, but the data have {inputs} inputs."
        )
    return gp


def peak_gigabytes() -> float:
    """The largest resident memory of this process so far (Linux)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found[1]) / 2**20 if found else float("nan")


def main() -> None:
    """Runs one contestant and prints its line."""
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
