"""The step size of stochastic dual descent; its solutions are in test_solvers.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.kernels import Matern32
from pathgp.solvers import SDD
from pathgp.solvers.sdd import automatic_step_size
from pathgp.system.system import System, Targets


def system_of(X, noise=0.5):
    return System(Matern32(1.0), jnp.asarray(X, dtype=float), jnp.asarray(noise))


def test_rows_far_apart_are_solved_each_by_itself(key):
    """H = (1 + σ²)I, so W = B/(1 + σ²): a row is seen once in fifty steps and coasts between."""
    system = system_of(100.0 * np.arange(1000)[:, None])
    b = jnp.asarray(np.random.default_rng(0).normal(size=(1000, 2)), dtype=float)
    solver = SDD(steps=3000, batch_size=20, averaging=300.0, tolerance=1e-3)
    solution = solver.solve(system, Targets(b, jnp.zeros_like(b)), key=key)
    error = jnp.linalg.norm(solution.weights - b / 1.5, axis=0) / jnp.linalg.norm(b / 1.5, axis=0)
    assert float(jnp.max(error)) < 2e-3  # the residual is a proportion of it, estimated on some rows


@pytest.mark.parametrize(
    ("spacing", "bound"),
    [pytest.param(100.0, 50 * 0.1 / 1.5, id="D(1-ρ)/h"), pytest.param(1e-3, 1.0, id="1/λ, of rows nearly alike")],
)
def test_the_step_is_below_the_bound_that_counts_but_not_far(spacing, bound):
    system = system_of(spacing * np.arange(500)[:, None])
    step = float(automatic_step_size(system, jax.random.key(0), batch_size=50, momentum=0.9))
    assert 0.6 * bound < step < bound
