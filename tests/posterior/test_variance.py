"""The pooled ratio of variances against ratios that are known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, condition
from pathgp.kernels import Matern32
from pathgp.posterior.variance import VarianceRatio, log_ratio, variance_ratio
from pathgp.solvers import SAP
from pathgp.solvers.local import Local

POINTS, SAMPLES = 2000, 64


def errors(key, spread, correlation=0.8):
    """Errors of samples and of their local predictions, with log ratios of mean −0.3 and this standard deviation."""
    ratio_key, own_key, other_key = jax.random.split(key, 3)
    ratio = -0.3 + spread * jax.random.normal(ratio_key, (POINTS, 1))
    local, other = (jax.random.normal(k, (POINTS, SAMPLES)) for k in (own_key, other_key))
    own = jnp.exp(ratio / 2) * (correlation * local + (1 - correlation**2) ** 0.5 * other)
    return own, local, ratio[:, 0]


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.3])
def test_ratios_that_are_drawn_together_are_nearer_to_the_truth(key, spread):
    own, local, truth = errors(key, spread)
    estimate, sampling = log_ratio(own, local)
    pooled = variance_ratio(own, local)
    assert float(jnp.std(estimate - truth)) == pytest.approx(float(jnp.mean(sampling)) ** 0.5, rel=0.15)
    assert float(pooled.mean) == pytest.approx(-0.3, abs=0.05)
    assert float(pooled.spread) ** 0.5 == pytest.approx(spread, abs=0.03)
    rms = lambda a: float(jnp.sqrt(jnp.mean((a - truth) ** 2)))
    best = (1 / (1 / spread**2 + 1 / float(jnp.mean(sampling)))) ** 0.5 if spread else 0.0
    assert rms(pooled.shrink(estimate, sampling)) < min(best + 0.04, rms(estimate))


@pytest.mark.parametrize("modes", [2, 5, 20])
def test_the_mean_is_as_uncertain_as_the_samples_that_all_points_share(key, modes):
    """Errors that are few functions of x differ little between points, and do not average out."""
    size, trials = 100, 40

    def found(key):
        at_key, own_key, other_key = jax.random.split(key, 3)
        at = jax.random.normal(at_key, (size, modes)) / modes**0.5
        local, other = (at @ jax.random.normal(k, (modes, SAMPLES)) for k in (own_key, other_key))
        return variance_ratio(0.3 * local + 0.91**0.5 * other, local)

    ratios = jax.vmap(found)(jax.random.split(key, trials))
    actual = float(jnp.std(ratios.mean))
    assert float(jnp.mean(ratios.error)) ** 0.5 == pytest.approx(actual, rel=0.35)


def test_a_ratio_that_chance_does_not_explain_is_kept():
    pooled = VarianceRatio(jnp.array(-0.3), jnp.array(1e-4), jnp.array(0.0))
    far = pooled.shrink(jnp.array([0.7, 0.0]), jnp.array([1e-4, 0.0]))
    np.testing.assert_allclose(far, [0.7, 0.0], atol=0.01)


def test_errors_that_are_zero_have_no_ratio():
    ratio, sampling = log_ratio(jnp.zeros((2, 4)), jnp.ones((2, 4)))
    assert not np.any(ratio)
    assert not np.any(sampling)


def test_pooled_variances_of_eight_inputs_are_nearer_to_the_exact_ones(key):
    rng = np.random.default_rng(0)
    X, x = rng.uniform(-1, 1, (1200, 8)), rng.uniform(-1, 1, (200, 8))
    k = lambda A, B: (1 + (r := np.sqrt(3 * np.sum((A[:, None] - B[None]) ** 2, axis=2)) / 2)) * np.exp(-r)
    exact = 1 - np.sum(k(x, X) * np.linalg.solve(k(X, X) + 0.01 * np.eye(1200), k(X, x)).T, axis=1)
    gp = GP(Matern32(2.0), 0.01)
    pooled = condition(gp, X, X[:, 0], solver=SAP(error=1e-3), local=Local(64), num_samples=64, key=key)
    error = lambda posterior: np.median(np.abs(np.log(np.asarray(posterior.variance(x)) / exact)))
    assert error(pooled) < 0.8 * error(dataclasses.replace(pooled.predictor, ratio=None))
    assert error(pooled) / 3 < pooled.info.variance_error < 3 * error(pooled)
