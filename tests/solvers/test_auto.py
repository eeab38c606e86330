import dataclasses
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import Local
from pathgp.kernels import Matern32, Tanimoto
from pathgp.solvers import SAP, Auto, Cholesky, SubsetOfData
from pathgp.system.system import System
from tests.support.problems import exact, prediction_error, problem


def test_it_names_its_choice_and_the_reason(key, caplog):
    system, targets = problem(N=300)
    with caplog.at_level(logging.INFO, logger="pathgp"):
        solution = Auto().solve(system, targets, key=key)
    assert solution.info.solver == "Cholesky"
    assert "Auto chose Cholesky: 300 rows are few enough" in caplog.text
    assert prediction_error(exact(system, targets)[0], solution.weights, exact(system, targets)[1]).max() < 1e-4


def test_more_rows_take_block_projections_within_the_users_limits():
    system, _ = problem(N=10)
    many = eqx.tree_at(lambda s: s.X, system, jnp.zeros((Auto().exact_rows + 1, 3)))
    solver, local, reason = Auto(local=None, error=0.1, tolerance=0.2, max_seconds=7.0).choose(many)
    assert local is None
    assert isinstance(solver, SAP)
    assert (solver.error, solver.tolerance, solver.max_seconds) == (0.1, 0.2, 7.0)
    assert "4001 rows" in reason
    assert isinstance(Auto().choose(eqx.tree_at(lambda s: s.X, system, jnp.zeros((Auto().exact_rows, 3))))[0], Cholesky)


def test_a_kernel_without_neighbours_is_solved_without_them():
    system, _ = problem(N=10)
    many = eqx.tree_at(lambda s: (s.X, s.kernel), system, (jnp.zeros((Auto().exact_rows + 1, 3)), Tanimoto()))
    solver, local, reason = Auto().choose(many)
    assert isinstance(solver, SAP)
    assert solver.local is None
    assert local is None
    assert "Tanimoto has no coordinates" in reason


def test_the_choice_goes_by_the_number_of_rows():
    system, _ = problem(N=10)
    rows = lambda n: eqx.tree_at(lambda s: s.X, system, jnp.zeros((n, 3)))
    assert isinstance(Auto().choose(rows(Auto().exact_rows + 1)).solver, SAP)
    assert Auto().choose(rows(Auto().exact_rows + 1)).local == Local()
    assert isinstance(Auto().choose(rows(Auto().projected_rows + 1)).solver, SubsetOfData)


def test_blocks_are_neighbourhoods_where_a_local_projection_follows(key):
    """A tenth of the rows has a tenth of the range if they are neighbours, and nearly all of it if they are random."""
    X = jax.random.uniform(key, (5000, 1))
    system = System(Matern32(0.1), X, jnp.array(0.1))
    ranges = {}
    for local in (None, Local(20)):
        blocks = X[SAP(local=local).partition(system, key), 0].reshape(10, 500)
        ranges[local is None] = float(jnp.mean(jnp.ptp(blocks, axis=1)))
    assert ranges[True] > 0.9
    assert ranges[False] < 0.3


@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance")
def test_projections_stop_early_where_the_error_will_stay_too_large(key):
    system, targets = problem(N=600, columns=2)
    out_of_reach = SAP(passes=40, block_size=32, error=1e-9, tolerance=1e-9)
    passes = lambda solver, targets: float(solver.solve(system, targets, key=key).info.passes)
    assert passes(out_of_reach, targets) == 40
    assert passes(dataclasses.replace(out_of_reach, may_give_up=True), targets) in (8, 16, 32)
    within_reach = SAP(passes=40, block_size=32, error=0.1, tolerance=1.0, may_give_up=True)
    assert bool(jnp.all(within_reach.solve(system, targets, key=key).info.converged))


@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance")
def test_a_mean_that_is_exact_from_the_start_is_not_extrapolated(key):
    system, targets = problem(N=300, columns=2)
    targets = targets.map_columns(lambda columns: columns * jnp.array([0.0, 1.0]))
    solver = SAP(passes=10, block_size=32, error=1e-9, tolerance=1e-9, may_give_up=True)
    assert not np.any(np.isnan(solver.solve(system, targets, key=key).weights))
