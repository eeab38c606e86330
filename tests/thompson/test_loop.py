"""What is proposed next, and that nothing is proposed twice."""

import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP
from pathgp.kernels import Matern32
from pathgp.thompson import Categorical, Integer, Real, Search, ThompsonSampler, loop
from pathgp.thompson.maximise import Found

QUICK = Search(rounds=2, candidates=512, steps=20)
KNOWN = GP(Matern32(0.5), noise=1e-4)


def new(**settings):
    return ThompsonSampler([(0.0, 1.0), (-2.0, 2.0)], KNOWN, **({"initial": 100, "random_state": 3} | settings))


def test_a_place_that_is_taken_gives_way_to_the_next_best():
    corner, near, told = [1.0, 1.0], [0.9, 1.0], [0.5, 0.5]
    places = np.array([[corner, corner, told], [near, near, told]])
    found = Found(jnp.asarray(places), jnp.array([[3.0, 3.0, 3.0], [2.0, 4.0, 2.0]]))
    chosen, lacking = loop._choose(found, np.array([told]), 3)
    np.testing.assert_allclose(chosen, [corner, near, told], atol=1e-6)
    assert lacking == [2]
    again, lacking = loop._choose(found, np.array([told, corner, near]), 1)
    np.testing.assert_allclose(again, [corner])
    assert lacking == [0]


def test_the_design_goes_on_where_it_ended():
    one, other = new(), new()
    np.testing.assert_array_equal(np.concatenate([one.ask(3), one.ask(5)]), other.ask(8))
    assert not np.array_equal(other.ask(8), new(random_state=4).ask(8))


@pytest.mark.parametrize("random_state", range(5))
def test_a_design_repeats_nothing_as_long_as_the_space_has_anything_else(random_state):
    bounds = [Integer(1, 4, log=True), Categorical(("a", "b", "c"))]
    everything = {(k, c) for k in range(1, 5) for c in "abc"}
    fresh = lambda: ThompsonSampler(bounds, KNOWN, initial=100, random_state=random_state)
    rows = lambda X: [tuple(x) for x in X]
    assert len(set(rows(fresh().ask(8)))) == 8
    whole = rows(fresh().ask(20))
    assert len(whole) == 20
    assert set(whole[:12]) == everything
    parts = fresh()
    assert rows(parts.ask(3)) + rows(parts.ask(5)) + rows(parts.ask(4)) == whole[:12]
    told = fresh()
    told.tell([(1, "a"), (4, "c")], [0.0, 0.0])
    assert set(rows(told.ask(10))) == everything - {(1, "a"), (4, "c")}


def test_a_design_ends_where_rounding_leaves_fewer_points_than_the_space_has():
    s = ThompsonSampler([Real(1.0, np.nextafter(1.0, 2.0))], KNOWN, initial=100)
    assert {float(x) for x in s.ask(5)[:, 0]} == {1.0, np.nextafter(1.0, 2.0)}


def test_a_finite_space_is_visited_whole_before_anything_is_repeated():
    s = ThompsonSampler([Integer(0, 2), Categorical(("a", "b"))], KNOWN, search=QUICK, initial=1)
    s.tell([(1, "a")], [0.0])
    X = s.ask(5)
    assert {tuple(x) for x in X} == {(i, c) for i in range(3) for c in "ab"} - {(1, "a")}
    assert s.ask(1).shape == (1, 2)


def test_a_point_that_failed_is_not_suggested_again():
    """The best of all by the data around it, but nothing can be evaluated there."""
    space = {(i, c) for i in range(4) for c in "ab"}
    s = ThompsonSampler([Integer(0, 3), Categorical(("a", "b"))], KNOWN, search=QUICK, initial=2)
    s.tell([(0, "a"), (2, "b"), (3, "b")], [0.0, 5.0, np.nan])
    asked = []
    for _ in range(5):
        (x,) = s.ask(1).tolist()
        asked.append(tuple(x))
        s.tell([x], [np.nan])
    assert set(asked) == space - {(0, "a"), (2, "b"), (3, "b")}
    assert s.failed == 6


def test_the_last_free_points_of_a_large_space_are_found():
    s = ThompsonSampler([Integer(0, 999)], KNOWN, search=QUICK, initial=2)
    free = [17, 401, 402, 999]
    told = np.setdiff1d(np.arange(1000), free)
    s.tell(told[:, None], np.sin(told / 100))
    assert sorted(s.ask(4)[:, 0]) == free
