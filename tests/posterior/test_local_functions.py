"""The functions that a local projection finishes: at, between and far from the data, and what is done with them."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, Local, condition
from pathgp.kernels import RBF, Matern32, Matern52
from pathgp.linalg import neighbours
from pathgp.solvers import SAP, Auto, InducingCholesky
from tests.support.problems import matern32

ONE_PASS = SAP(passes=1, block_size=128, averaging_exponent=None)


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(900, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=900)
    return condition(
        GP(Matern32(0.7), noise=0.04, mean=0.5),
        X,
        y,
        solver=ONE_PASS,
        local=Local(neighbours=50),
        num_samples=8,
        key=jax.random.key(0),
    )


def test_far_from_the_data_a_sample_is_its_prior_draw(posterior):
    x = jnp.array([[60.0, 10.0], [-80.0, 5.0]])
    np.testing.assert_allclose(posterior.samples(x), posterior.prior(x) + 0.5, atol=1e-5)


def test_predictions_do_not_depend_on_which_others_are_asked_for(posterior):
    x = jax.random.uniform(jax.random.key(4), (300, 2), minval=-2, maxval=2)
    together = posterior.samples(x)
    np.testing.assert_allclose(posterior.samples(x[37:41]), together[37:41], atol=2e-4)
    np.testing.assert_allclose(
        jnp.concatenate([posterior.samples(x[i : i + 70]) for i in range(0, 300, 70)]), together, atol=2e-4
    )


def test_mean_variance_and_both_at_once_agree(posterior):
    x = jax.random.uniform(jax.random.key(4), (20, 2), minval=-2, maxval=2)
    mean, variance = posterior.predict(x)
    np.testing.assert_allclose(mean, posterior.mean(x), atol=2e-4)
    np.testing.assert_allclose(variance, posterior.variance(x), atol=2e-4)
    np.testing.assert_allclose(posterior.samples(x) - mean[:, None], posterior.deviations(x), atol=5e-4)


def exact_variance(p, x):
    """k(x, x) − k(x, X)(K + Σ)⁻¹k(X, x) of a process with Matérn 3/2 and length scale 0.7."""
    k_x = matern32(x, p.system.X, 0.7)
    H = matern32(p.system.X, p.system.X, 0.7) + 0.04 * np.eye(p.system.size)
    return 1 - np.sum(k_x * np.linalg.solve(H, k_x.T).T, axis=1)


def test_variances_are_more_precise_than_samples_alone(posterior):
    x = jax.random.uniform(jax.random.key(4), (200, 2), minval=-2, maxval=2)
    truth = exact_variance(posterior, x)
    error = lambda v: np.sqrt(np.mean(np.log(np.asarray(v) / truth) ** 2))
    sampled = np.mean(np.asarray(posterior.deviations(x)) ** 2, axis=1)
    assert error(posterior.variance(x)) < 0.15
    assert error(posterior.variance(x)) < error(sampled) / 3  # eight samples: about 0.5


def test_the_variance_is_exact_where_all_rows_are_neighbours(posterior):
    X, y = posterior.system.X[:120], posterior.targets.signal[:120, 0]
    few = condition(GP(Matern32(0.7), noise=0.04), X, y, num_samples=2, key=jax.random.key(1))
    x = jnp.concatenate([X[:5], jnp.array([[0.1, 0.2], [60.0, 10.0]])])
    np.testing.assert_allclose(few.variance(x), exact_variance(few, x), rtol=1e-3)
    assert few.local_residual is None  # an exact solve leaves nothing, so samples do not pay for a projection


@pytest.mark.filterwarnings("ignore:in float32 the mean is rounded")
def test_a_variance_lost_in_rounding_is_left_to_the_samples():
    X = jnp.linspace(0, 1, 60)[:, None]
    tiny = condition(GP(RBF(0.5), noise=1e-9), X, jnp.sin(X[:, 0]), num_samples=8, key=jax.random.key(0))
    deviations = np.asarray(tiny.deviations(X))
    np.testing.assert_allclose(tiny.variance(X), np.mean(deviations**2, axis=1), rtol=0.1, atol=1e-9)


def test_the_variance_has_a_derivative_where_its_factor_is_lost_in_rounding():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 2))
    posterior = condition(GP(Matern52(0.5), noise=1e-5), X, np.sin(5 * X[:, 0]), key=jax.random.key(0))
    x, step = jnp.asarray(X[0] + 0.01), 1e-3
    variance = lambda x: posterior.variance(x[None])[0]
    differences = [(variance(x + step * e) - variance(x - step * e)) / (2 * step) for e in jnp.eye(2)]
    np.testing.assert_allclose(jax.grad(variance)(x), differences, rtol=0.05)


def largest_jump(function, steps):
    x = jnp.column_stack([jnp.linspace(-1, 1, steps), jnp.full(steps, 0.3)])
    return float(jnp.max(jnp.abs(jnp.diff(function(x)))))


def test_samples_are_continuous_where_neighbours_change(x64):
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.5, 1.5, size=(400, 2))
    y = np.sin(5 * X[:, 0]) + 0.3 * rng.normal(size=400)
    make = lambda taper: condition(
        GP(Matern32(0.5), noise=0.09),
        X,
        y,
        solver=SAP(passes=1, block_size=50, averaging_exponent=None),
        local=Local(12, taper),
        num_samples=1,
        key=jax.random.key(0),
    ).sample(0)
    faded, cut = make(0.5), make(0.0)
    jumps = [largest_jump(faded, n) for n in (4001, 8001, 16001)]
    assert 0.4 < jumps[1] / jumps[0] < 0.6
    assert 0.4 < jumps[2] / jumps[1] < 0.6
    assert largest_jump(cut, 16001) > 10 * jumps[2]  # what the fading is for


def test_the_gradient_agrees_with_finite_differences(x64):
    rng = np.random.default_rng(2)
    X = rng.uniform(-1.5, 1.5, size=(200, 2))
    y = np.sin(5 * X[:, 0]) + 0.3 * rng.normal(size=200)
    f = condition(
        GP(Matern32(0.5), noise=0.09),
        X,
        y,
        solver=SAP(passes=1, block_size=50, averaging_exponent=None),
        local=Local(20),
        num_samples=2,
        key=jax.random.key(0),
    ).sample(1)
    value = lambda x: f(x[None])[0]
    for x in rng.uniform(-1, 1, size=(5, 2)):
        steps = 1e-6 * np.eye(2)
        finite = [(value(x + h) - value(x - h)) / 2e-6 for h in steps]
        np.testing.assert_allclose(jax.grad(value)(jnp.asarray(x)), finite, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kernel", "noise"), [(RBF(2.0), 1e-6), (Matern32(1.0), 1e-6)])
def test_rows_that_all_but_repeat_others_and_hardly_any_noise_are_no_trouble(kernel, noise):
    rng = np.random.default_rng(4)
    X = np.repeat(rng.normal(size=(20, 2)), 50, axis=0) + 1e-6 * rng.normal(size=(1000, 2))
    y = np.sin(X[:, 0])
    posterior = condition(
        GP(kernel, noise), X, y, solver=ONE_PASS, local=Local(64), num_samples=4, key=jax.random.key(0)
    )
    x = jnp.asarray(np.concatenate([X[::50], rng.normal(size=(10, 2))]), dtype=float)
    np.testing.assert_allclose(posterior.samples(x[:20]), np.broadcast_to(np.sin(x[:20, :1]), (20, 4)), atol=0.01)
    assert bool(jnp.all(jnp.isfinite(posterior.samples(x))))
    gradient = jax.grad(lambda q: jnp.sum(posterior.samples(q)))(x)
    assert bool(jnp.all(jnp.isfinite(gradient)))


def test_it_is_pickled_whole(posterior):
    x = jnp.array([[0.1, 0.2], [1.0, -1.0]])
    again = pickle.loads(pickle.dumps(posterior.samples))
    assert np.array_equal(again(x), posterior.samples(x))


def test_more_samples_and_more_data_are_finished_too(posterior):
    x = jnp.array([[0.1, 0.2], [1.0, -1.0]])
    more = posterior.with_samples(3, key=jax.random.key(8))
    np.testing.assert_allclose(more.samples(x)[:, :8], posterior.samples(x), atol=1e-4)
    assert more.samples(x).shape == (2, 11)
    X_new = np.array([[0.1, 0.2]] * 30)
    updated = posterior.update(X_new, np.full(30, 3.0), key=jax.random.key(9))
    assert updated.mean(x)[0] > posterior.mean(x)[0] + 1
    assert updated.local_residual.values.shape == (901, 9)  # the 30 new rows are one place


def test_a_tree_of_neighbours_gives_the_same_functions(monkeypatch, posterior):
    monkeypatch.setattr(neighbours, "EXHAUSTIVE_ROWS", 100)
    monkeypatch.setattr(neighbours, "LEAF", 32)
    monkeypatch.setattr(neighbours, "MOST", 2.0)
    projection = Local(50).projection(posterior.system)
    assert isinstance(projection.index, neighbours.Tree)
    x = jax.random.uniform(jax.random.key(4), (30, 2), minval=-2, maxval=2)
    by_tree, finish = map(posterior.local_residual.function, (projection, posterior.predictor.correction.projection))
    np.testing.assert_allclose(by_tree(x), finish(x), atol=1e-4)


def test_it_works_through_jit_and_vmap(posterior):
    x = jax.random.uniform(jax.random.key(4), (6, 2), minval=-2, maxval=2)
    one = jax.jit(jax.vmap(lambda q: posterior.samples(q[None])[0]))(x)
    np.testing.assert_allclose(one, posterior.samples(x), atol=2e-4)


def test_a_solver_that_settles_by_it_gets_it(posterior):
    solver = SAP(passes=1, block_size=128, averaging_exponent=None, local=Local(30))
    made = condition(
        posterior.gp,
        posterior.system.X,
        posterior.targets.signal[:, 0],
        solver=solver,
        num_samples=1,
        key=jax.random.key(0),
    )
    assert made.local == Local(30)
    assert made.local_residual is not None
    assert Auto().with_local(Local(30)).local == Local(30)


def test_inducing_points_refuse_it(posterior):
    X = posterior.system.X
    with pytest.raises(ValueError, match=r"local.*InducingCholesky"):
        condition(posterior.gp, X, X[:, 0], solver=InducingCholesky(X[:20]), local=Local(), key=jax.random.key(0))


def test_a_solve_that_ends_by_its_estimated_error_is_finished_too(key):
    X = np.random.default_rng(0).normal(size=(300, 2))
    settled = SAP(block_size=64, passes=9, tolerance=1.0, error=0.5)
    posterior = condition(
        GP(Matern32(1.0), noise=0.1), X, np.sin(X[:, 0]), solver=settled, local=Local(20), num_samples=2, key=key
    )
    assert bool(posterior.info.converged.all())
    assert posterior.local_residual is not None
