import jax
import numpy as np
import pytest

from pathgp import GP, PathGPRegressor, condition, kernels
from pathgp.posterior.exact import exact_predictor
from pathgp.solvers import Cholesky
from pathgp.solvers.base import AccuracyWarning
from tests.support.compilations import counted_compilations


def data(N, noise=0.01, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (N, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + noise**0.5 * rng.normal(size=N)


def dense(kernel, X, noise, y, x):
    """The posterior mean and variance of a zero-mean GP by NumPy."""
    r = lambda A, B: np.sqrt(3 * np.sum((A[:, None] - B[None]) ** 2, axis=-1)) / float(kernel.lengthscale)
    k = lambda A, B: float(kernel.variance) * (1 + r(A, B)) * np.exp(-r(A, B))
    solved = np.linalg.solve(k(X, X) + np.diag(np.broadcast_to(noise, len(X))), np.column_stack([y, k(X, x)]))
    return k(x, X) @ solved[:, 0], float(kernel.variance) - np.sum(k(X, x) * solved[:, 1:], axis=0)


@pytest.mark.parametrize("noise", [0.1, 1e-3, 1e-7, "rows"])
@pytest.mark.parametrize("repeated", [False, True])
def test_mean_and_variance_are_those_of_dense_algebra(noise, repeated):
    X, y = data(60, 0.1)
    noise = np.linspace(0.01, 0.2, 60) if noise == "rows" else noise
    if repeated:
        X[30:] = X[:30]
        y[30:] = y[:30] + (0.1 if np.max(noise) > 1e-6 else 0)
    kernel, x = kernels.Matern32(0.8, 1.5), np.random.default_rng(1).uniform(-2, 2, (20, 2))
    predictor, info = exact_predictor(GP(kernel, noise), X, y[:, None])
    mean, variance = predictor.predict(x)
    expected = dense(kernel, X.astype(predictor.exact.X.dtype).astype(float), noise, y, x)
    np.testing.assert_allclose(mean, expected[0], atol=2e-3 * np.sqrt(expected[1]).min())
    np.testing.assert_allclose(variance, expected[1], rtol=1e-3, atol=1e-9)
    assert info.mean_error < 0.01
    assert info.relative_residual.max() < 1e-3


@pytest.mark.parametrize("noise", [0.01, 1e-8])
def test_condition_predicts_the_same_bits(noise):
    X, y = data(90, noise)
    X[80:] = X[:10]
    gp, x = GP(kernels.Matern52([0.8, 2.0]), noise, 0.3), data(25, seed=1)[0]
    posterior = condition(gp, X, y, num_samples=5, solver=Cholesky(), key=jax.random.key(0))
    predictor, info = exact_predictor(gp, X, y[:, None])
    for ours, theirs in zip(predictor.predict(x), posterior.predict(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert info.precision == posterior.info.precision


def test_inputs_that_the_kernel_refuses_are_refused():
    X, y = data(20)
    with pytest.raises(ValueError, match="X must be counts"):
        PathGPRegressor(kernels.Tanimoto(), hyperparameters="fixed", standardize=False).fit(X, y)


def test_rounding_that_matters_is_said():
    X = np.linspace(0, 1, 200)[:, None]
    with pytest.warns(AccuracyWarning):
        _, info = exact_predictor(GP(kernels.RBF(0.5), 1e-12), X, np.sin(6 * X) + 0.1 * np.cos(90 * X))
    assert max(info.mean_error, info.variance_error) > 0.1


def test_samples_drawn_later_belong_to_the_same_posterior():
    X, y = data(70)
    model = PathGPRegressor(random_state=0, num_samples=400, hyperparameters="fixed").fit(X, y)
    before = model.predict(X[:7], return_std=True)
    draws = model.sample_y(X[:7], 400)
    assert model.posterior_.num_samples == 400
    for a, b in zip(model.predict(X[:7], return_std=True), before, strict=True):
        np.testing.assert_array_equal(a, b)
    spread = np.sqrt(before[1] ** 2 - model.noise_variance_)
    np.testing.assert_array_less(np.abs(draws.mean(axis=1) - before[0]), 5 * spread / 20)
    np.testing.assert_allclose(draws.std(axis=1), spread, rtol=0.2)


@pytest.mark.xla
def test_few_rows_of_any_number_are_fitted_and_predicted_without_compiling():
    X, y = data(60)
    PathGPRegressor(random_state=0).fit(X, y).predict(X, return_std=True)
    with counted_compilations() as compiled:
        PathGPRegressor(random_state=0).fit(X[:47], y[:47]).predict(X[:11], return_std=True)
    assert len(compiled) == 0
