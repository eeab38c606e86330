"""One solver, or one peer, on one data set: run by `pathgp bench solve`, each in a process of its own.

    python -m pathgp.experiments.contest NAME --dataset elevators

The job is the posterior mean and 64 samples, or what comes nearest to it in the peer, at the test rows. Prints a line
of JSON. A process of its own, because memory is measured, and because a peer that crashes must not take others along.
"""

import argparse
import json
import pathlib
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathgp import datasets, metrics
from pathgp.datasets import Dataset
from pathgp.gp import GP, condition
from pathgp.kernels import Matern32
from pathgp.solvers import CG, SAP, SDD, SGD, Auto, Cholesky, Solver

NUM_SAMPLES = 64
Result = dict[str, float | str]


def ours(solver: Solver) -> Callable[[Dataset, GP], Result]:
    """This library: a run to compile, then the one that counts."""

    def run(data: Dataset, gp: GP) -> Result:
        def job() -> tuple[float, Result]:
            start = time.perf_counter()
            posterior = condition(gp, data.X, data.y, solver=solver, num_samples=NUM_SAMPLES, key=jax.random.key(0))
            mean, variance = posterior.mean(data.X_test), posterior.variance(data.X_test)
            jax.block_until_ready((mean, variance))
            info = posterior.info
            return time.perf_counter() - start, {
                "solver": info.solver,
                "passes": info.passes,
                "residual": float(jnp.max(info.relative_residual)),
                **scores(data, np.asarray(mean), np.asarray(variance) + float(gp.noise)),
            }

        first, _ = job()
        seconds, result = job()
        return {"seconds": seconds, "compile_seconds": max(0.0, first - seconds), **result}

    return run


def scipy_cholesky(dtype: type) -> Callable[[Dataset, GP], Result]:
    """Matrix, factor in place and solves by NumPy and SciPy: mean and exact variance."""

    def run(data: Dataset, gp: GP) -> Result:
        from scipy import linalg

        start = time.perf_counter()
        X, X_test = (_scaled(x, gp, dtype) for x in (data.X, data.X_test))
        H = np.empty((len(X), len(X)), dtype=dtype, order="F")
        for i in range(0, len(X), 512):
            H[:, i : i + 512] = _matern32(X, X[i : i + 512], gp)
        H[np.diag_indices(len(X))] += dtype(gp.noise)
        L = linalg.cholesky(H, lower=True, overwrite_a=True, check_finite=False)
        right = np.column_stack([_matern32(X, X_test, gp), data.y.astype(dtype)])
        U = linalg.solve_triangular(L, right, lower=True, overwrite_b=True, check_finite=False)
        mean = U[:, :-1].T @ U[:, -1]
        variance = float(gp.kernel.diag(jnp.zeros((1, 1)))[0]) - np.sum(U[:, :-1] ** 2, axis=0)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, **scores(data, mean, variance + float(gp.noise))}

    return run


def sklearn_gpr(data: Dataset, gp: GP) -> Result:
    """scikit-learn's GaussianProcessRegressor with the same kernel, held fixed."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    assert isinstance(gp.kernel, Matern32)
    lengthscale: Any = np.asarray(gp.kernel.lengthscale, dtype=float)
    kernel = ConstantKernel(float(gp.kernel.variance)) * Matern(lengthscale, nu=1.5)
    fixed: Any = None
    start = time.perf_counter()
    model = GaussianProcessRegressor(kernel, alpha=float(gp.noise), optimizer=fixed).fit(data.X, data.y)
    mean, deviation = map(np.asarray, model.predict(data.X_test, return_std=True))
    return {"seconds": time.perf_counter() - start, **scores(data, mean, deviation**2 + float(gp.noise))}


def _scaled(X: np.ndarray, gp: GP, dtype: type) -> np.ndarray:
    assert isinstance(gp.kernel, Matern32)
    return (X / np.asarray(gp.kernel.lengthscale)).astype(dtype)


def _matern32(A: np.ndarray, B: np.ndarray, gp: GP) -> np.ndarray:
    assert isinstance(gp.kernel, Matern32)
    r2 = np.sum(A**2, axis=1)[:, None] + np.sum(B**2, axis=1)[None, :] - 2 * A @ B.T
    r = np.sqrt(3 * np.maximum(r2, 0))
    return A.dtype.type(gp.kernel.variance) * (1 + r) * np.exp(-r)


def scores(data: Dataset, mean: np.ndarray, variance: np.ndarray) -> Result:
    """Test RMSE and NLL, the variance with the noise in it."""
    m, v, y = (jnp.asarray(x, dtype=float) for x in (mean, variance, data.y_test))
    return {"rmse": float(metrics.rmse(m, y)), "nll": float(metrics.nll(m, v, y))}


CONTESTANTS: dict[str, Callable[[Dataset, GP], Result]] = {
    "auto": ours(Auto()),
    "sap": ours(SAP()),
    "cg": ours(CG()),
    "sdd": ours(SDD(steps=2000)),
    "sgd": ours(SGD(steps=2000)),
    "cholesky": ours(Cholesky()),
    "scipy-float64": scipy_cholesky(np.float64),
    "scipy-float32": scipy_cholesky(np.float32),
    "sklearn": sklearn_gpr,
}


def problem(dataset: str, n: int | None, split: int) -> tuple[Dataset, GP]:
    """The data and the process: published hyperparameters for a real data set, known ones for a synthetic one."""
    if dataset == "synthetic":
        data = datasets.synthetic(n or 10_000)
        return data, GP(Matern32(np.full(data.X.shape[1], 3.0)), noise=0.08)
    data = datasets.load(dataset, split)
    keep = slice(None) if n is None else slice(n)
    return data._replace(X=data.X[keep], y=data.y[keep]), datasets.published_gp(dataset, split)


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
    arguments = parser.parse_args()
    data, gp = problem(arguments.dataset, arguments.n, arguments.split)
    before = peak_gigabytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CONTESTANTS[arguments.name](data, gp)
    print(json.dumps({"name": arguments.name, "rows": len(data.X), **result, "gigabytes": peak_gigabytes() - before}))


if __name__ == "__main__":
    main()
