"""Exact variances by the factor, against dense linear algebra in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from pathgp import GP, PathGPRegressor, condition, storage
from pathgp.kernels import Matern52
from pathgp.solvers import SAP, Cholesky

LENGTHSCALE, NOISE = 3.0, 1e-9


def kernel(A, Z):
    r = np.sqrt(5 * np.sum((A[:, None] - Z[None]) ** 2, axis=2)) / LENGTHSCALE
    return (1 + r + r**2 / 3) * np.exp(-r)


def exact(X, x):
    H = kernel(X, X) + NOISE * np.eye(len(X))
    return 1 - np.sum(kernel(x, X) * np.linalg.solve(H, kernel(X, x)).T, axis=1)


@pytest.fixture(scope="module")
def points():
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (400, 4)), rng.uniform(-1, 1, (150, 4))


@pytest.fixture(scope="module")
def posterior(points):
    gp = GP(Matern52(LENGTHSCALE), NOISE)
    return condition(gp, points[0], points[0][:, 0], num_samples=4, num_features=50, key=jax.random.key(0))


def test_variances_are_exact_with_few_samples_of_few_features(posterior, points):
    X, x = points
    np.testing.assert_allclose(posterior.variance(x), exact(X, x), rtol=1e-5)
    sampled = dataclasses.replace(posterior.predictor, exact=None).variance(x)
    assert np.median(np.abs(np.log(np.asarray(sampled) / exact(X, x)))) > 0.2


def test_a_variance_does_not_depend_on_how_many_are_asked_for(posterior, points):
    _, x = points
    together = posterior.predictor.exact.on_host(x)
    np.testing.assert_array_equal(posterior.predictor.exact.on_host(x[64:100]), together[64:100])


def test_derivatives_are_those_of_the_exact_variance(posterior, points):
    X, x = points
    step, at = 1e-4, x[:1]
    steps = step * np.eye(4)
    numerical = (exact(X, at + steps) - exact(X, at - steps)) / (2 * step)
    gradient = jax.grad(lambda x: posterior.variance(x[None])[0])(jnp.asarray(x[0]))
    np.testing.assert_allclose(gradient, numerical, rtol=1e-3)
    np.testing.assert_allclose(jax.jit(lambda x: posterior.variance(x))(jnp.asarray(x)), exact(X, x), rtol=1e-4)


def test_a_posterior_without_samples_has_variances(points):
    X, x = points
    posterior = condition(
        GP(Matern52(LENGTHSCALE), NOISE), X, X[:, 0], solver=Cholesky(), num_samples=0, key=jax.random.key(0)
    )
    np.testing.assert_allclose(posterior.variance(x), exact(X, x), rtol=1e-5)


def test_more_samples_and_more_data_keep_them_exact(posterior, points):
    X, x = points
    np.testing.assert_array_equal(posterior.with_samples(2, key=jax.random.key(1)).variance(x), posterior.variance(x))
    updated = posterior.update(x[:50], x[:50, 0], key=jax.random.key(2))
    np.testing.assert_allclose(updated.variance(x[50:]), exact(np.concatenate([X, x[:50]]), x[50:]), rtol=1e-5)


@pytest.mark.parametrize("slim", [False, True])
def test_a_file_has_no_factor_and_predicts_the_same_bits(points, tmp_path, slim):
    X, x = points
    model = PathGPRegressor(Matern52(LENGTHSCALE), noise=NOISE, hyperparameters="fixed").fit(X, X[:, 0])
    model.save(tmp_path / "model.safetensors", slim=slim)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert [len(X), len(X)] not in [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    loaded = PathGPRegressor.load(tmp_path / "model.safetensors")
    for a, b in zip(model.predict(x, return_std=True), loaded.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_iterative_solvers_have_no_factor(points, tmp_path):
    X, _ = points
    posterior = condition(GP(Matern52(1.0), 0.1), X, X[:, 0], solver=SAP(), num_samples=4, key=jax.random.key(0))
    assert posterior.predictor.exact is None
    storage.save(tmp_path / "posterior.safetensors", posterior)
