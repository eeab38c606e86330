import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import exact, prediction_error, problem

from pathgp.functions import Canonical
from pathgp.solvers import SGPR, SubsetOfData
from pathgp.system import System, Targets


def test_all_rows_are_the_exact_solution(key):
    system, targets = problem(N=200)
    solution = SubsetOfData(rows=500).solve(system, targets, key=key)
    H, truth = exact(system, targets)
    assert prediction_error(H, solution.weights, truth).max() < 1e-4


@pytest.mark.parametrize("uneven", [False, True])
def test_the_subset_is_solved_as_if_there_were_no_other_rows(key, uneven):
    system, targets = problem(N=200)
    if uneven:
        system = System(system.kernel, system.X, jnp.linspace(0.05, 0.5, 200))
    solution = SubsetOfData(rows=50).solve(system, targets, key=key)
    rows = np.asarray(solution.rows)
    assert len(set(rows)) == 50
    np.testing.assert_array_equal(solution.points, system.X[rows])
    noise = np.asarray(system.noise_diagonal)[rows]
    fitted = Canonical(system.kernel, solution.points)(solution.points) @ solution.weights
    np.testing.assert_allclose(fitted + noise[:, None] * solution.weights, targets.total[rows], atol=1e-3)


def test_a_subset_of_a_subset_is_some_rows_of_the_data_with_their_own_weights(key):
    system, targets = problem(N=200)
    solution = SubsetOfData(rows=100, solver=SubsetOfData(rows=30)).solve(system, targets, key=key)
    rows = np.asarray(solution.rows)
    assert len(set(rows)) == 30
    np.testing.assert_array_equal(solution.points, system.X[rows])
    alone = System(system.kernel, system.X[rows], system.noise), targets.each(lambda columns: columns[rows])
    K, truth = exact(*alone)
    assert prediction_error(K, solution.weights, truth).max() < 1e-4


def test_another_key_draws_other_rows(key):
    system, targets = problem(N=200)
    one, other = (SubsetOfData(rows=50).solve(system, targets, key=k).rows for k in jax.random.split(key))
    assert one is not None
    assert other is not None
    assert len(set(one.tolist()) & set(other.tolist())) < 40


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match=r"SubsetOfData\.rows must be at least 1"):
        SubsetOfData(rows=0)


def test_the_info_counts_the_share_of_a_pass(key):
    system, targets = problem(N=200)
    assert isinstance(targets, Targets)
    assert SubsetOfData(rows=100).solve(system, targets, key=key).info.passes == pytest.approx(0.25)


def test_a_solver_with_points_of_its_own_is_refused():
    with pytest.raises(ValueError, match="SGPR has points of its own: give it to condition itself"):
        SubsetOfData(rows=10, solver=SGPR(jnp.zeros((2, 1))))
