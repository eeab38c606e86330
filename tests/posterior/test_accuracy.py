"""The estimated error of a posterior against the exact posterior, from dense float64 matrices."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, Local, condition
from pathgp.kernels import RBF, Matern32, Tanimoto
from pathgp.solvers import CG, SAP, SDD, SGD, AccuracyWarning, Cholesky, InducingCholesky, SubsetOfData
from pathgp.solvers.error import estimate_slope

CASES = {
    "CG, cut short": (CG(steps=6, rank=20), None),
    "SAP, cut short": (SAP(passes=2, block_size=64), None),
    "SAP and a local projection": (SAP(passes=1, block_size=64), Local(40)),
    "SDD, cut short": (SDD(steps=300, batch_size=64), None),
    "SGD, cut short": (SGD(steps=200, batch_size=64), None),
    "a subset": (SubsetOfData(150), None),
}


def data(N=500, noise=0.01):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (N, 2)).astype(np.float32)
    return X, (np.sin(2 * X[:, 0]) * X[:, 1] + noise**0.5 * rng.normal(size=N)).astype(np.float32)


def matern32(A, B):
    r = np.sqrt(3 * np.sum((A[:, None].astype(np.float64) - B[None].astype(np.float64)) ** 2, axis=-1))
    return (1 + r) * np.exp(-r)


def true_error(posterior, X, y, noise):
    """Rms in posterior standard deviations, at points between the data."""
    x = np.random.default_rng(1).uniform(-1.9, 1.9, (300, 2)).astype(np.float32)
    H, k = matern32(X, X) + noise * np.eye(len(X)), matern32(x, X)
    mean, sd = k @ np.linalg.solve(H, y), np.sqrt(1 - np.sum(k * np.linalg.solve(H, k.T).T, axis=1))
    return np.sqrt(np.mean(((np.asarray(posterior.mean(x), np.float64) - mean) / sd) ** 2))


@pytest.mark.parametrize("name", CASES)
def test_the_error_that_is_told_is_about_the_true_one(name, key):
    solver, local = CASES[name]
    X, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = condition(GP(Matern32(1.0), 0.01), X, y, solver=solver, local=local, num_samples=32, key=key)
    true = true_error(posterior, X, y, 0.01)
    assert true > 0.01
    assert true / 3 < posterior.info.mean_error < 3 * true


def test_an_exact_posterior_has_none_and_says_nothing(key):
    X, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = condition(GP(Matern32(1.0), 0.01), X, y, solver=Cholesky(), num_samples=64, key=key)
    assert posterior.info.mean_error < 0.01
    assert posterior.info.variance_error < 1e-5
    sampled = condition(GP(Matern32(1.0), 0.01), X, y, solver=SAP(), num_samples=64, key=key)
    assert 0.1 < sampled.info.variance_error < 0.25  # of 64 samples, √(2/64)


def test_a_posterior_that_is_off_is_warned_of_with_the_number(key):
    X, y = data()
    with pytest.warns(AccuracyWarning) as caught:
        posterior = condition(GP(Matern32(1.0), 0.01), X, y, solver=SDD(steps=100), num_samples=8, key=key)
    assert f"{posterior.info.mean_error:.2g}" in str(caught.list[-1].message)


def test_a_mean_alone_and_several_targets_have_an_error_too(key):
    X, y = data()
    solve = lambda y, samples: condition(
        GP(Matern32(1.0), 0.01), X, y, solver=CG(steps=6, rank=20), num_samples=samples, key=key
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert solve(y, 0).info.mean_error > 0.02
        assert solve(np.stack([y, -y], axis=1), 4).info.mean_error > 0.02


def test_kernels_without_coordinates_and_inducing_points(key):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 2, (60, 12)).astype(float), rng.normal(size=60)
    posterior = condition(GP(Tanimoto(max_count=1), 0.1), X, y, num_samples=8, key=key)
    assert posterior.info.mean_error < 0.01
    induced = condition(GP(RBF(1.0), 0.1), X, y, solver=InducingCholesky(X[:20]), num_samples=4, key=key)
    assert induced.info.mean_error is None


def test_the_slope_is_that_of_the_error_which_deviations_hide(key):
    """Deviations are independent of the guess, and the error is four times the guess."""
    deviation_key, guess_key = jax.random.split(key)
    exact, guess = jax.random.normal(deviation_key, (40, 64)), 0.3 * jax.random.normal(guess_key, (40, 64))
    assert 3.5 < float(estimate_slope(exact + 4 * guess, guess)) < 4.5
    small = 1e-6 * guess
    assert float(estimate_slope(exact + 4 * small, small)) == pytest.approx(
        1.5, abs=0.01
    )  # too small to tell: the prior
    assert float(estimate_slope(jnp.zeros((3, 2)), jnp.zeros((3, 2)))) > 0
