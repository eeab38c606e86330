"""Leave-one-out errors against predictions without the row, and what calibration does to intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, PathGPRegressor
from pathgp.kernels import RBF, Matern52
from pathgp.likelihood.calibration import calibrated, leave_one_out


def dense(lengthscale, variance):
    def k(A, B):
        r = np.sqrt(5 * np.sum((A[:, None] - B[None]) ** 2, axis=-1)) / lengthscale
        return variance * (1 + r + r**2 / 3) * np.exp(-r)

    return k


def test_leave_one_out_errors_are_those_of_predictions_without_the_row():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(40, 2)).astype(np.float32).astype(np.float64)
    Y = np.column_stack([np.sin(6 * X[:, 0]), X[:, 1] ** 2]).astype(np.float32).astype(np.float64)
    k, noise, rows = dense(0.5, 2.0), 0.01, np.array([3, 0, 17])
    found = leave_one_out(GP(Matern52(0.5, 2.0), noise, 0.25), jnp.asarray(X), jnp.asarray(Y), rows)
    for i, z in zip(rows, found, strict=True):
        rest = np.delete(np.arange(40), i)
        gain = np.linalg.solve(k(X[rest], X[rest]) + noise * np.eye(39), k(X[rest], X[i : i + 1]))[:, 0]
        sd = np.sqrt(2.0 - gain @ k(X[rest], X[i : i + 1])[:, 0] + noise)
        np.testing.assert_allclose(z, (Y[i] - 0.25 - gain @ (Y[rest] - 0.25)) / sd, rtol=1e-4)


def test_a_scale_that_is_wrong_is_put_right(key):
    """A draw from the GP itself: whatever its scale is said to be, calibration finds the true one."""
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(600, 2)).astype(np.float32).astype(np.float64)
    H = dense(0.3, 1.0)(X, X) + 1e-7 * np.eye(600)
    y = jnp.asarray(np.linalg.cholesky(H) @ rng.normal(size=600))[:, None]
    for wrong in (0.04, 1.0, 25.0):
        gp = calibrated(GP(Matern52(0.3, wrong), 1e-7 * wrong), jnp.asarray(X), y, key=key)
        assert float(gp.kernel.variance) == pytest.approx(1.0, rel=0.25)  # of 500 errors: 4 % of a standard deviation
        assert float(gp.noise) == pytest.approx(1e-7 * float(gp.kernel.variance), rel=1e-3)


def test_noise_few_rows_and_singular_systems_leave_it_as_it_is(key):
    X = jnp.linspace(0, 1, 200)[:, None]
    y = jnp.sin(6 * X)
    for gp, rows in ((GP(RBF(0.1, 1.0), 1e-3), 200), (GP(RBF(0.1, 1.0), 1e-7), 99), (GP(RBF(50.0, 1.0), 1e-30), 200)):
        assert calibrated(gp, X[:rows], y[:rows], key=key) is gp


def test_noise_behind_a_large_kernel_variance_leaves_it_as_it_is(key):
    """A smooth function with noise of 0.1, and a kernel whose variance is 10,000 times that of the data."""
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(300, 1)).astype(np.float32)
    y = X + 0.1 * rng.normal(size=(300, 1)).astype(np.float32)
    gp = GP(RBF(20.0, 1e4), 0.01)
    assert calibrated(gp, jnp.asarray(X), jnp.asarray(y), key=key) is gp


def test_the_90_percent_intervals_of_an_emulator_cover_90_percent():
    """Most of the errors of a function with a ridge are near the ridge: the likelihood makes intervals too wide."""
    rng = np.random.default_rng(0)
    f = lambda X: np.abs(X[:, 0] - 0.4) ** 3 + np.sin(3 * X[:, 1])
    X, x = rng.uniform(size=(900, 2)), rng.uniform(size=(500, 2))
    model = PathGPRegressor("matern52", random_state=0, num_samples=4).fit(X, f(X))
    mean, std = model.predict(x, return_std=True)
    assert 0.8 < np.mean(np.abs(mean - f(x)) < 1.645 * std) < 0.97  # of 500 points near 500 judged rows: 2 %
    assert jax.tree.all(jax.tree.map(lambda a: bool(jnp.all(jnp.isfinite(a))), model.kernel_))
