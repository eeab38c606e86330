"""SAP compared with SciPy's Cholesky: mean and 64 samples, until predictions are within 1 % of the exact ones.

    python -m pathgp_paper.bench.tiled_solve [--n 15000]

The kernel is Matérn-3/2 on synthetic data with 10 inputs, and the noise variance is 0.1. Both run in the same process.
SAP is compiled in an untimed run. SciPy factorises a float64 matrix in place; its time covers matrix, factor and solve.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from pathgp import GP, condition
from pathgp.functions import Canonical, Function
from pathgp.kernels import Matern32
from pathgp.solvers import SAP, ConvergenceWarning, Observer


def scipy_cholesky(X, B, lengthscale, noise):
    """Return (K + noise I)⁻¹ B in float64, and the seconds it took."""
    start = time.perf_counter()
    X = np.asarray(X, dtype=np.float64) / lengthscale
    squares = np.sum(X**2, axis=1)
    H = np.empty((len(X), len(X)), order="F")
    for i in range(0, len(X), 512):
        r = np.sqrt(3 * np.maximum(squares[:, None] + squares[None, i : i + 512] - 2 * X @ X[i : i + 512].T, 0))
        H[:, i : i + 512] = (1 + r) * np.exp(-r)
    H[np.diag_indices(len(X))] += noise
    factor = linalg.cho_factor(H, lower=True, overwrite_a=True, check_finite=False)
    return linalg.cho_solve(factor, np.asarray(B, dtype=np.float64), check_finite=False), time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--n", type=int, default=15_000)
    n = parser.parse_args().n
    warnings.simplefilter("ignore", ConvergenceWarning)
    key = jax.random.key(0)
    X, x = jax.random.normal(key, (n, 10)), jax.random.normal(jax.random.key(1), (1000, 10))
    y = jnp.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1**0.5 * jax.random.normal(jax.random.key(2), (n,))
    gp = GP(Matern32(4.0), noise=0.1)

    snapshots, error = [], float("nan")
    solver = SAP(passes=20, tolerance=0.0)
    condition(gp, X, y, solver=SAP(passes=1, tolerance=0.0), key=key)
    posterior = condition(
        gp, X, y, solver=solver, key=key, observe=Observer(-(-n // solver.block_size), snapshots.append)
    )

    exact, scipy_seconds = scipy_cholesky(X, posterior.targets.total, 4.0, 0.1)
    predict = lambda weights: np.asarray(Function(Canonical(gp.kernel, X), jnp.asarray(weights, dtype=float))(x))
    target = predict(exact)
    print(f"SciPy Cholesky, float64: {scipy_seconds:.1f} s for {n} rows and 65 columns")
    for snapshot in snapshots:
        error = np.linalg.norm(predict(snapshot.weights) - target) / np.linalg.norm(target)
        if error < 0.01:
            print(f"SAP: prediction error {error:.4f} after {snapshot.passes:.1f} passes, {snapshot.seconds:.1f} s")
            print(f"ratio: {snapshot.seconds / scipy_seconds:.2f} of SciPy's time")
            return
    print(f"SAP did not reach 1 % in {solver.passes} passes: {error:.4f}")


if __name__ == "__main__":
    main()
