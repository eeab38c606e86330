"""The preconditioner and its pivoted Cholesky factorisation, against dense matrices by NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, condition
from pathgp.kernels import RBF
from pathgp.solvers import CG
from pathgp.solvers.cg import pivoted_cholesky
from pathgp.solvers.inducing import points as inducing
from tests.support.problems import exact, problem

RANK = 25
factor = eqx.filter_jit(pivoted_cholesky)


@pytest.fixture(scope="module")
def factorised():
    system, targets = problem(N=300)
    return system, exact(system, targets)[0], *factor(system, RANK)


def assert_greedy(K, chosen):
    """Each has the largest variance given those before."""
    for i in range(len(chosen)):
        before = chosen[:i]
        left = np.diag(K) - np.sum(K[:, before] * np.linalg.solve(K[np.ix_(before, before)], K[before]).T, axis=1)
        assert left[chosen[i]] > left.max() - 1e-5  # float32


def test_every_pivot_has_the_largest_variance_given_those_before(factorised):
    _, K, _, pivots = factorised
    assert_greedy(K, np.asarray(pivots))


def test_the_factor_is_that_of_the_projection_on_the_pivots(factorised):
    _, K, L, pivots = factorised
    L, pivots = np.asarray(L, dtype=np.float64), np.asarray(pivots)
    np.testing.assert_allclose(L @ L.T, K[:, pivots] @ np.linalg.solve(K[np.ix_(pivots, pivots)], K[pivots]), atol=1e-5)


@pytest.mark.parametrize("uneven", [False, True])
def test_the_preconditioner_is_the_inverse_of_the_factor_and_the_noise(uneven, key):
    system, targets = problem(N=300, uneven=uneven)
    L, _ = factor(system, RANK)
    L, noise = np.asarray(L, dtype=np.float64), np.asarray(system.noise_diagonal, dtype=np.float64)
    expected = np.linalg.solve(L @ L.T + np.diag(noise), np.asarray(targets.total, dtype=np.float64))
    apply = CG(rank=RANK).make_plan(system, targets, key)
    np.testing.assert_allclose(apply(targets.total), expected, atol=1e-3 * np.abs(expected).max())


def test_greedy_inducing_points_are_such_pivots(factorised, key):
    system, K, *_ = factorised
    chosen = inducing.greedy(system.kernel, system.X, RANK, key=key)
    assert_greedy(K, np.array([np.flatnonzero(np.all(z == system.X, axis=1))[0] for z in chosen]))


def test_rows_that_repeat_others_are_pivots_last_and_add_nothing(factorised):
    system = factorised[0]
    repeated = eqx.tree_at(lambda s: s.X, system, jnp.tile(system.X[:10], (30, 1)))
    L, pivots = factor(repeated, RANK)
    assert {int(i) % 10 for i in pivots[:10]} == set(range(10))
    assert len(set(pivots.tolist())) == RANK
    assert np.all(np.asarray(L)[:, 10:] == 0)


@pytest.mark.parametrize("noise", [1e-2, 1e-4])
def test_the_residual_is_that_of_the_weights_and_not_of_the_recursion(noise):
    X = np.random.default_rng(0).uniform(0, 10, (600, 1)).astype(np.float32)
    y = jnp.asarray(np.sin(X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=600))
    gp = GP(RBF(1.0), noise)
    tight = condition(gp, X, y, key=jax.random.key(0), num_samples=3, solver=CG(tolerance=1e-6, steps=600))
    H = np.exp(-((X.astype(float) - X.T) ** 2) / 2) + noise * np.eye(600)
    left = np.asarray(tight.targets.total, float) - H @ np.asarray(tight.solution.weights, float)
    true = np.linalg.norm(left, axis=0) / np.asarray(tight.targets.norms)
    np.testing.assert_allclose(tight.info.relative_residual, true, rtol=1.0, atol=1e-7)  # float32 measures it so far
    assert np.array_equal(tight.info.converged, np.asarray(tight.info.relative_residual) <= 1e-6)
    assert tight.info.steps < 600  # precision is used up before
    assert tight.info.passes > tight.info.steps
