"""Rows that repeat a place against the posterior of all of them, by NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, condition
from pathgp.kernels import Matern32
from pathgp.solvers import SAP, Cholesky
from pathgp.system.duplicates import find_duplicates

QUERIES = np.linspace(-0.2, 1.2, 40)[:, None]
KERNEL = Matern32(0.2)


def data(conflict, noise, seed=0):
    """60 places, the first ten of them observed three times, in random order, with values that disagree."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(60, 1)).astype(np.float32)
    X = np.concatenate([X, X[:10], X[:10]])[rng.permutation(80)]
    y = np.sin(6 * X[:, 0]) + conflict * rng.normal(size=80)
    return X, y, noise * np.exp(rng.uniform(-1, 1, size=80))


def matern32(A, B):
    r = np.sqrt(3) * np.abs(A - B.T) / 0.2
    return (1 + r) * np.exp(-r)


def exact(X, y, noise):
    X, x = X.astype(np.float64), QUERIES
    k = matern32(x, X)
    H = matern32(X, X) + np.diag(np.broadcast_to(noise, len(X)))
    return k @ np.linalg.solve(H, y), matern32(x, x) - k @ np.linalg.solve(H, k.T)


def test_places_are_numbered_as_they_occur():
    X = jnp.array([[2.0, 1.0], [0.0, 5.0], [2.0, 1.0], [2.0, 3.0], [0.0, 5.0], [-0.0, 5.0]])
    found = find_duplicates(X)
    assert found is not None
    assert found.number == 3
    assert found.of_row.tolist() == [0, 1, 0, 2, 1, 1]
    assert found.sums(jnp.arange(6.0)[:, None])[:, 0].tolist() == [2, 10, 3]
    assert find_duplicates(jnp.array([[1.0, 2.0], [2.0, 1.0]])) is None


@pytest.mark.parametrize("uneven", [True, False])
def test_the_posterior_is_that_of_all_rows(key, uneven):
    X, y, noise = data(0.3, 0.09)
    noise = noise if uneven else 0.09
    posterior = condition(GP(KERNEL, noise), X, y, solver=Cholesky(), num_samples=4000, key=key)
    mean, covariance = exact(X, y, noise)
    assert posterior.system.size == 60
    np.testing.assert_allclose(posterior.mean(QUERIES), mean, atol=1e-4)
    deviations = np.asarray(posterior.deviations(QUERIES))
    # Monte Carlo: 5 standard errors of the covariance of 4000 samples whose variance is at most one
    np.testing.assert_allclose(deviations @ deviations.T / 4000, covariance, atol=5 * np.sqrt(2 / 4000))
    np.testing.assert_allclose(deviations.var(axis=1)[10:30], np.diag(covariance)[10:30], rtol=0.15)


def test_values_that_disagree_and_hardly_any_noise_are_no_matter_of_rounding(key):
    """Weights of ±0.3/2e-6 would cancel, and in float32 leave an error as large as the disagreement."""
    X = np.repeat(np.linspace(0, 1, 30, dtype=np.float32), 2)[:, None]
    y = np.sin(6 * X[:, 0]) + np.tile([0.3, -0.3], 30)
    posterior = condition(GP(KERNEL, 1e-6), X, y, solver=Cholesky(), num_samples=1, key=key)
    np.testing.assert_allclose(posterior.mean(QUERIES), exact(X, y, 1e-6)[0], atol=3e-4)


@pytest.mark.parametrize("uneven", [True, False])
def test_an_update_with_places_that_are_known_already(key, uneven):
    X, y, noise = data(0.3, 0.09)
    noise = noise if uneven else np.full(80, 0.09)
    first = slice(0, 50)
    given = lambda rows: noise[rows] if uneven else None
    posterior = condition(
        GP(KERNEL, noise[first] if uneven else 0.09), X[first], y[first], solver=Cholesky(), num_samples=4000, key=key
    )
    posterior = posterior.update(X[50:], y[50:], noise=given(slice(50, None)), key=jax.random.key(1))
    assert posterior.system.size == 60
    mean, covariance = exact(X, y, noise)
    np.testing.assert_allclose(posterior.mean(QUERIES), mean, atol=1e-4)
    deviations = np.asarray(posterior.deviations(QUERIES))
    np.testing.assert_allclose(deviations @ deviations.T / 4000, covariance, atol=5 * np.sqrt(2 / 4000))
    np.testing.assert_allclose(deviations.var(axis=1)[10:30], np.diag(covariance)[10:30], rtol=0.15)
    again = posterior.update(X[:5], y[:5], noise=given(slice(0, 5)), key=jax.random.key(2))
    X, y, noise = (np.concatenate([a, a[:5]]) for a in (X, y, noise))
    np.testing.assert_allclose(again.mean(QUERIES), exact(X, y, noise)[0], atol=1e-4)


def test_a_start_is_put_together_as_the_rows_are(key):
    X, y, _ = data(0.3, 0.09)
    H = matern32(X.astype(np.float64), X.astype(np.float64)) + 0.09 * np.eye(80)
    options = {"solver": SAP(tolerance=1e-3), "num_samples": 0, "key": key}
    init = jnp.asarray(np.linalg.solve(H, y)[:, None], dtype=float)
    assert condition(GP(KERNEL, 0.09), X, y, init=init, **options).info.steps == 0
    assert condition(GP(KERNEL, 0.09), X, y, **options).info.steps > 0
