"""Data drawn from known hyperparameters give them back: minutes, so `make test-slow` runs it."""

import numpy as np
import pytest

from pathgp.likelihood import NearestNeighbour, Pathwise, default_gp, fit_hyperparameters

RELEVANT, NOISE = np.array([0.4, 0.6, 0.9]), 0.1


def features_of_matern32(X, rng, num=20_000):
    """A draw of variance one at the rows of X, by cosines of random phase: an approximation of its own, in NumPy."""
    chi2 = rng.chisquare(3, size=num)
    omega = rng.normal(size=(num, X.shape[1])) * np.sqrt(3 / chi2)[:, None] / RELEVANT
    phase, weights = rng.uniform(0, 2 * np.pi, num), rng.normal(size=num) * np.sqrt(2 / num)
    return np.concatenate([np.cos(rows @ omega.T + phase) @ weights for rows in np.array_split(X, 40)])


def sample(N):
    """Five inputs, of which the last two do not matter; more rows in a larger box, as close together.

    In one box, more and more rows tell σ²/ℓ₁ℓ₂ℓ₃ alone (Zhang, 2004). With 20,000 rows in the box of 3000, 300 steps
    end with the length scales 9 to 15 % too short and 1000 with 9 to 14 % too long, both more likely than the truth.
    """
    rng = np.random.default_rng(0)
    side = 2 * (N / 3000) ** (1 / 3)
    X = rng.uniform(-side, side, size=(N, 5))
    return X, 1.0 + features_of_matern32(X[:, :3], rng) + np.sqrt(NOISE) * rng.normal(size=N)


def assert_recovered(gp):
    assert float(gp.noise) == pytest.approx(NOISE, rel=0.15)
    np.testing.assert_allclose(gp.kernel.lengthscale[:3], RELEVANT, rtol=0.15)
    assert np.all(gp.kernel.lengthscale[3:] > 10 * RELEVANT.max())  # ten times: over the range of the data, flat


@pytest.mark.slow
@pytest.mark.parametrize("N", [3000, 20_000])
def test_known_hyperparameters_are_recovered(key, N):
    X, y = sample(N)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=NearestNeighbour())
    assert trace.left_out == 0
    assert_recovered(gp)


@pytest.mark.slow
def test_pathwise_gradients_recover_them_too(key):
    X, y = sample(3000)
    start, _ = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=NearestNeighbour(steps=60))
    gp, trace = fit_hyperparameters(start, X, y, key=key, method=Pathwise())
    assert trace.left_out == 0
    assert_recovered(gp)
