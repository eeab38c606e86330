import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.functions import Canonical
from pathgp.kernels import RBF
from pathgp.solvers import SGPR, SubsetOfData
from pathgp.system.system import System, Targets
from tests.support.problems import exact, prediction_error, problem


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
    alone = System(system.kernel, system.X[rows], system.noise), targets.map_columns(lambda columns: columns[rows])
    K, truth = exact(*alone)
    assert prediction_error(K, solution.weights, truth).max() < 1e-4


def test_another_key_draws_other_rows(key):
    system, targets = problem(N=200)
    one, other = (SubsetOfData(rows=50).solve(system, targets, key=k).rows for k in jax.random.split(key))
    assert one is not None
    assert other is not None
    assert len(set(one.tolist()) & set(other.tolist())) < 40


def test_a_place_that_many_rows_share_is_drawn_as_often_as_they_would_be():
    """Each of 200 draws of one place: rows 0 and 1, with a quarter and a half of the noise of the other six."""
    noise = jnp.array([0.25, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    system, targets = System(RBF(), jnp.arange(8.0)[:, None], noise), Targets(jnp.ones((8, 1)), jnp.zeros((8, 1)))
    keys = jax.random.split(jax.random.key(0), 200)
    drawn = [int(SubsetOfData(rows=1).solve(system, targets, key=key).rows[0]) for key in keys]
    share = np.bincount(drawn, minlength=8) / len(drawn)
    chances = np.array([4, 2, 1, 1, 1, 1, 1, 1]) / 12
    np.testing.assert_allclose(share, chances, atol=4 * np.sqrt(1 / 3 * 2 / 3 / len(drawn)))
    assert share[0] > 2 * np.mean(share[2:])


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match=r"SubsetOfData\.rows"):
        SubsetOfData(rows=0)


def test_the_info_counts_the_share_of_a_pass(key):
    system, targets = problem(N=200)
    assert isinstance(targets, Targets)
    assert SubsetOfData(rows=100).solve(system, targets, key=key).info.passes == pytest.approx(0.25)


def test_a_solver_with_points_of_its_own_is_refused():
    with pytest.raises(ValueError, match="SGPR"):
        SubsetOfData(rows=10, solver=SGPR(jnp.zeros((2, 1))))
