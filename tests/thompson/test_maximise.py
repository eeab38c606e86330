import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, Local, condition
from pathgp.functions import Canonical, Function
from pathgp.kernels import RBF, Matern32, Tanimoto
from pathgp.solvers import SAP
from pathgp.solvers.local import ProjectionOfUpdate
from pathgp.thompson import Search, maximise
from pathgp.thompson.maximise import Box, candidate_scale, candidates, check_bounds

UNIT = [(0.0, 1.0), (0.0, 1.0)]


@pytest.fixture(scope="module")
def setting():
    """Samples with many local maxima, which a local projection finishes, and where they are largest on a fine grid."""
    X = jax.random.uniform(jax.random.key(1), (300, 2))
    y = jnp.sin(9 * X[:, 0]) * jnp.cos(7 * X[:, 1])
    gp = GP(Matern32(0.2), noise=0.01)
    solver, local = SAP(passes=2, block_size=64, tolerance=0), Local(16)
    posterior = condition(gp, X, y, key=jax.random.key(2), solver=solver, local=local, num_samples=150)
    samples = posterior.samples
    found = maximise(samples, UNIT, key=jax.random.key(3), X=X, y=y, search=Search(candidates=2048))
    return X, y, samples, found


def test_it_finds_the_maxima_of_posterior_samples(setting):
    _, _, samples, (points, values) = setting
    side = jnp.linspace(0, 1, 129)
    grid = samples(jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2))
    highest, lowest = grid.max(axis=0), grid.min(axis=0)
    close = values >= highest - 0.01 * (highest - lowest)
    assert np.mean(close) >= 0.99
    np.testing.assert_allclose(values, np.diag(samples(points)), atol=2e-3)  # float32 in another order


def test_ascent_goes_on_from_the_best_candidate(setting):
    X, y, samples, (_, values) = setting
    few = Search(rounds=1, candidates=64, steps=0)
    _, coarse = maximise(samples, UNIT, key=jax.random.key(3), X=X, y=y, search=few)
    _, climbed = maximise(samples, UNIT, key=jax.random.key(3), X=X, y=y, search=Search(rounds=1, candidates=64))
    assert np.all(climbed >= coarse)
    assert np.mean(climbed - coarse) > 0.2 * np.mean(values - coarse)


def test_many_inputs_need_the_ascent():
    centres = jax.random.uniform(jax.random.key(0), (5, 6))
    bumps = Function(Canonical(RBF(0.4), centres), jnp.eye(5))
    search = Search(rounds=2, candidates=512, steps=100, patience=100)
    points, values = maximise(bumps, [(0, 1)] * 6, key=jax.random.key(1), search=search)
    np.testing.assert_allclose(points, centres, atol=0.02)  # a twentieth of the length scale
    np.testing.assert_allclose(values, 1, atol=5e-3)
    only = Search(rounds=2, candidates=512, steps=0)
    assert np.all(maximise(bumps, [(0, 1)] * 6, key=jax.random.key(1), search=only)[1] < 0.99)


def test_an_ascent_ends_where_nothing_rises_any_more():
    bumps = Function(Canonical(RBF(0.4), jax.random.uniform(jax.random.key(0), (5, 6))), jnp.eye(5))

    def highest(**settings):
        search = Search(rounds=1, candidates=64, **settings)
        return maximise(bumps, [(0, 1)] * 6, key=jax.random.key(1), search=search)[1]

    began, whole = highest(steps=0), highest(steps=200, patience=200)
    at_once = highest(steps=200, patience=1, tolerance=1e6)  # no rise is large enough to go on for
    assert np.all(at_once >= began)
    assert np.mean(at_once - began) < 0.3 * np.mean(whole - began)
    np.testing.assert_allclose(highest(steps=200), whole, atol=0.01)


def test_maxima_in_corners_are_reached_and_not_passed():
    bounds = np.array([(-1.0, 0.5), (2.0, 30.0)])
    hill = Canonical(RBF([2.0, 40.0]), jnp.array([[3.0, 60.0]]))  # rises towards the upper corner of the box
    both = Function(hill, jnp.array([[1.0, -1.0]]))
    points, _ = maximise(both, bounds, key=jax.random.key(0), search=Search(rounds=2, candidates=512))
    np.testing.assert_array_equal(points, [[0.5, 30.0], [-1.0, 2.0]])


def test_bounds_that_are_no_float32_are_not_passed_either():
    bounds = np.array([(0.7, 1.1), (-1.1, -0.7)])
    rounded = bounds.astype(np.float32)
    assert np.all((rounded[:, 0] < bounds[:, 0]) & (rounded[:, 1] > bounds[:, 1]))  # all four are rounded outwards
    hill = Canonical(RBF(1.0), jnp.array([[2.0, 2.0]]))
    points, _ = maximise(Function(hill, jnp.array([[1.0, -1.0]])), bounds, key=jax.random.key(0))
    found = np.asarray(points, np.float64)
    assert np.all((found >= bounds[:, 0]) & (found <= bounds[:, 1]))
    np.testing.assert_allclose(found, [bounds[:, 1], bounds[:, 0]], rtol=1e-6)


@pytest.fixture(scope="module")
def cloud():
    """Four rows far from each other, their values below and above zero, and candidates around them."""
    X = jnp.array([[0.2, 2.0], [0.2, 8.0], [0.8, 2.0], [0.8, 8.0]])
    y = jnp.array([-3.0, -1.0, 0.0, 1.0])
    box, scale = Box(jnp.zeros(2), jnp.array([1.0, 10.0])), jnp.array([0.01, 0.2])
    Z = candidates(jax.random.key(0), box, (X, y), scale, Search(candidates=20_000))
    return np.asarray(X), np.asarray(Z)


def test_rows_are_drawn_with_weight_y_less_its_minimum(cloud):
    X, Z = cloud
    near = Z[2000:]
    row = np.argmin(np.abs((near[:, None] - X) / [1, 10]).sum(axis=2), axis=1)
    share = np.array([0, 2, 3, 4]) / 9
    four_sigma = 4 * np.sqrt(share * (1 - share) / len(near))
    assert np.all(np.abs(np.bincount(row, minlength=4) / len(near) - share) <= four_sigma)
    deviation = near - X[row]
    np.testing.assert_allclose(deviation.std(axis=0), [0.01, 0.2], rtol=0.03)  # 1/√(2n) is half a percent


def test_a_tenth_of_the_candidates_is_uniform(cloud):
    X, Z = cloud
    uniform, far = Z[:2000] / [1, 10], np.abs((Z[:, None] - X) / [0.01, 0.2]).max(axis=2).min(axis=1) > 6
    assert far.sum() == far[:2000].sum()
    np.testing.assert_allclose(far[:2000].mean(), 1 - 4 * 0.12 * 0.24, atol=4 * np.sqrt(0.12 * 0.88 / 2000))
    np.testing.assert_allclose(uniform.mean(axis=0), 0.5, atol=4 / np.sqrt(12 * 2000))


def test_equal_values_draw_all_rows_and_clipping_keeps_the_box():
    X = jnp.array([[0.0], [1.0]])
    box = Box(jnp.zeros(1), jnp.ones(1))
    Z = candidates(jax.random.key(0), box, (X, jnp.ones(2)), jnp.array([0.1]), Search(candidates=1000))
    assert 0.4 < np.mean(Z > 0.5) < 0.6
    assert Z.min() == 0
    assert Z.max() == 1


def test_the_scale_is_half_a_length_scale_or_half_the_spread():
    box, X = Box(jnp.zeros(2), jnp.array([1.0, 4.0])), jnp.array([[0.0, 1.0], [0.4, 3.0]])
    stacked = Function(Canonical(RBF([0.3, 100.0]), X), jnp.ones(2)) + Function(
        RBF().features(jax.random.key(0), 4, 2), jnp.ones(4)
    )
    np.testing.assert_allclose(candidate_scale(stacked.features, box, X, None), [0.15, 2.0])
    np.testing.assert_allclose(candidate_scale(Canonical(RBF() + RBF(), X), box, X, None), [0.1, 0.5])
    np.testing.assert_allclose(candidate_scale(Canonical(Tanimoto(), X), box, None, 0.7), [0.7, 0.7])


def test_the_numbers_of_the_paper():
    search = Search.paper(scale=0.05)
    assert (search.rounds, search.candidates, search.steps) == (30, 50_000, 100)
    assert search.uniform_share == 0.1
    assert search.learning_rate * 0.05 == pytest.approx(0.001)
    assert search.final_rate == 1


def test_each_point_with_its_own_sample_is_the_diagonal(setting):
    _, _, samples, _ = setting
    x = jax.random.uniform(jax.random.key(5), (20, 2))
    own = samples.features.each(x, samples.weights.T[:20])
    np.testing.assert_allclose(own, np.diag(samples(x)[:, :20]), atol=2e-3)


def test_each_point_with_a_residual_on_demand(setting):
    X, _, _, _ = setting
    kernel = Matern32(0.2)
    system = condition(GP(kernel, 0.1), X, jnp.ones(300), key=jax.random.key(0), num_samples=0).system
    projection = ProjectionOfUpdate(Local(8).projection(system), system.X[:30])
    weights = jax.random.normal(jax.random.key(6), (330, 9))
    x = X[40:49] + 0.01
    np.testing.assert_allclose(projection.each(x, weights.T), np.diag(projection(x) @ weights), atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"bounds": [(0, 1)]}, "bounds.*2 inputs"),
        ({"bounds": [(0, 1), (1, 0)]}, "bounds"),
        ({"bounds": [(0, 1), (0, np.inf)]}, "finite"),
        ({"X": np.zeros((3, 2))}, "X and y"),
        ({"X": np.zeros((3, 1)), "y": np.zeros(3)}, "bounds.*2"),
        ({"scale": [1.0, 2.0, 3.0]}, "scale"),
        ({"scale": -1.0}, "scale"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, named):
    f = Function(Canonical(RBF(), jnp.zeros((1, 2))), jnp.ones((1, 1)))
    with pytest.raises(ValueError, match=named):
        maximise(f, **({"bounds": UNIT, "key": jax.random.key(0)} | arguments))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"Search\.rounds"):
        Search(rounds=0)
    with pytest.raises(ValueError, match=r"Search\.uniform_share"):
        Search(uniform_share=1.5)
    assert check_bounds([(0, 1)], None).low.shape == (1,)
