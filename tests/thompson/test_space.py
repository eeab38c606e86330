import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.functions import Canonical
from pathgp.kernels import RBF
from pathgp.thompson import Categorical, Integer, Real
from pathgp.thompson.space import Snapped, Space

MIXED = Space.of([(-2.0, 2.0), Real(1e-4, 1.0, log=True), Integer(3, 7), Categorical(("a", "b", None))])
ROWS = [(-2.0, 1e-4, 3, "a"), (0.0, 1e-2, 5, None), (2.0, 1.0, 7, "b")]


def test_codes_of_known_points():
    expected = [[0, 0, 0.1, 1, 0, 0], [0.5, 0.5, 0.5, 0, 0, 1], [1, 1, 0.9, 0, 1, 0]]
    np.testing.assert_allclose(MIXED.encode(ROWS), expected, atol=1e-12)
    assert MIXED.width == 6


def test_a_journey_there_and_back():
    back = MIXED.decode(MIXED.encode(ROWS))
    assert back.dtype == object
    for row, expected in zip(back, ROWS, strict=True):
        assert row[0] == pytest.approx(expected[0])
        assert row[1] == pytest.approx(expected[1])
        assert row[2:].tolist() == list(expected[2:])
        assert isinstance(row[2], int)


@pytest.mark.parametrize("log", [False, True])
def test_the_ends_are_the_bounds_whatever_rounding_does(log):
    rng = np.random.default_rng(0)
    for low, factor in zip(np.exp(rng.normal(size=300)), 1 + np.exp(rng.normal(size=300)), strict=True):
        dimension = Real(low, low * factor, log)
        values = np.array(dimension.decode(np.array([[0.0], [1e-17], [0.5], [1 - 1e-16], [1.0]])))
        assert low <= values.min() < values.max() <= low * factor
        np.testing.assert_allclose(values[[0, -1]], [low, low * factor], rtol=1e-12)


def test_arrays_of_floats_and_of_integers():
    assert Space.of([(0, 1), (2, 3)]).decode(np.full((4, 2), 0.5)).dtype == np.float64
    assert Space.of([Integer(0, 9)]).decode(np.array([[0.0], [1.0]])).tolist() == [[0], [9]]
    assert Space.of([Integer(0, 9)]).decode(np.zeros((1, 1))).dtype == np.int64


@pytest.mark.parametrize("dimension", [Integer(-2, 5), Integer(1, 64, log=True), Integer(4, 4)])
def test_snapping_agrees_with_the_codes_of_whole_numbers(dimension):
    u = np.linspace(0, 1, 401)[:, None]
    values = dimension.decode(u)
    assert set(values) == set(range(dimension.low, dimension.high + 1))
    inside = np.ones(len(u), bool)  # at the edges between two numbers float32 may take either
    inside[1:-1] = (np.array(values[:-2]) == values[1:-1]) & (np.array(values[2:]) == values[1:-1])
    np.testing.assert_allclose(dimension.snap(jnp.asarray(u))[inside], dimension.encode(values, "x")[inside], atol=1e-5)


def test_whole_numbers_have_equal_shares():
    counts = np.bincount(Integer(0, 4).decode(np.random.default_rng(0).random((5000, 1))))
    assert np.all(np.abs(counts / 5000 - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 5000))


def test_categories_snap_to_the_largest_and_zero_is_not_false():
    choice = Categorical((0, False, "x"))
    assert choice.decode(np.asarray(choice.snap(jnp.array([[0.2, 0.7, 0.69]])), dtype=np.float64)) == [False]
    assert choice.encode([0, np.bool_(False), "x"], "x").tolist() == np.eye(3).tolist()


def test_a_function_of_snapped_points_is_constant_in_between():
    space = Space.of([(0, 1), Integer(0, 3)])
    points = jnp.array([[0.3, 0.125], [0.3, 0.875]])
    phi, plain = Snapped(Canonical(RBF(0.5), points), space), Canonical(RBF(0.5), points)
    x = jnp.array([[0.4, 0.01], [0.4, 0.24], [0.4, 0.26]])
    valid = jnp.array([[0.4, 0.125], [0.4, 0.125], [0.4, 0.375]])
    weights = jnp.array([[1.0, 0.0, 2.0], [-1.0, 1.0, 0.0]])
    np.testing.assert_allclose(phi(x), plain(valid), rtol=1e-5)
    np.testing.assert_allclose(phi.apply(x, weights), plain(valid) @ weights, rtol=1e-5)
    np.testing.assert_allclose(phi.each(x, weights.T), np.diag(plain(valid) @ weights), rtol=1e-5)
    assert (phi.num, phi.inputs) == (2, 2)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Real(1, 0), r"Real\.low"),
        (lambda: Real(1, 1), "Real"),
        (lambda: Real(0, 1, log=True), "Real"),
        (lambda: Real(0, float("nan")), "finite"),
        (lambda: Integer(5, 2), r"Integer\.low"),
        (lambda: Integer(0.5, 2), r"0\.5"),
        (lambda: Categorical(("a",)), r"Categorical\.choices"),
        (lambda: Categorical(("a", "a")), r"Categorical\.choices.*'a'.*'a'"),
        (lambda: Categorical(("a", [1])), r"Categorical\.choices.*\[1\]"),
        (lambda: Space.of([]), "bounds"),
        (lambda: Space.of([(0, 1), (0, 1, 2)]), r"bounds\[1\]"),
    ],
)
def test_bounds_that_make_no_sense(make, named):
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ((0.0, 0.1, 5), "4.*3"),
        ((0.0, -0.1, 5, "a"), r"X\[:, 1\]"),
        ((np.nan, 0.1, 5, "a"), r"X\[:, 0\]"),
        ((0.0, 0.1, 5.5, "a"), r"X\[:, 2\].*5\.5"),
        ((0.0, 0.1, 5, "z"), r"X\[:, 3\].*'z'"),
        (("zero", 0.1, 5, "a"), r"X\[:, 0\]"),
    ],
)
def test_points_that_make_no_sense(row, named):
    with pytest.raises(ValueError, match=named):
        MIXED.encode([row])
