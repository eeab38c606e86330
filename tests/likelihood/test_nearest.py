import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from scipy.spatial.distance import cdist

from pathgp import GP
from pathgp.kernels import RBF, Matern32
from pathgp.likelihood import NearestNeighbour, default_gp, fit_hyperparameters, nearest
from pathgp.likelihood.marginal import loss_and_gradient
from pathgp.likelihood.nearest import Pool, batch_loss, draw_pool, nearest_earlier
from pathgp.likelihood.parameters import to_parameters
from tests.likelihood.test_exact import drawn


def every_row(points, m):
    rows = jnp.arange(points.shape[0])
    return Pool(rows, *nearest_earlier(points, rows, m))


@pytest.mark.parametrize("uneven", [False, True])
def test_with_all_earlier_rows_it_is_the_exact_likelihood(x64, uneven):
    X, y, _ = drawn(70, np.array([0.7, 1.5]), 0.1)
    X, y = jnp.asarray(X), jnp.asarray(y)
    p = to_parameters(GP(Matern32([0.6, 1.0], 1.2), np.linspace(0.05, 0.2, 70) if uneven else 0.1, mean=0.2))
    exact, exact_gradient = loss_and_gradient(p, X, y)
    loss, gradient = jax.jit(jax.value_and_grad(batch_loss))(p, X, y, every_row(X, 69))
    assert float(loss) == pytest.approx(exact, rel=1e-8)
    got, expected = (ravel_pytree((g.log_kernel, g.log_noise, g.mean))[0] for g in (gradient, exact_gradient))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


def test_the_estimate_of_the_loss_is_near_the_exact_one(key):
    X, y, K = drawn(400, np.array([0.7, 1.5]), 0.1)
    noise = np.linspace(0.05, 0.15, 400)
    exact = -stats.multivariate_normal(np.full(400, 0.3), K + np.diag(noise)).logpdf(y) / 400
    # A row's loss has a standard deviation of about 0.7, and 400 are drawn with replacement.
    assert nearest.estimate(GP(Matern32([0.7, 1.5]), noise, 0.3), X, y, key=key) == pytest.approx(exact, abs=0.1)


def test_batches_are_unbiased_for_the_whole_sum(x64):
    X, y, _ = drawn(64, np.array([0.7, 1.5]), 0.1)
    X, y = jnp.asarray(X), jnp.asarray(y)
    p, m = to_parameters(GP(Matern32([0.6, 1.0], 1.2), 0.1)), 8
    gradient = jax.jit(jax.grad(batch_loss))
    whole = gradient(p, X, y, every_row(X, m)).log_noise
    parts = [jnp.arange(i, 64, 4) for i in range(4)]  # a partition: its average must be the whole
    pools = [Pool(rows, *nearest_earlier(X, rows, m)) for rows in parts]
    average = np.mean([float(gradient(p, X, y, pool).log_noise) for pool in pools])
    assert average == pytest.approx(float(whole), rel=1e-8)


def test_the_nearest_earlier_rows_by_hand():
    points = jnp.array([[0.0], [10.0], [1.0], [9.0], [2.0]])
    found, valid = nearest_earlier(points, jnp.array([0, 3, 4]), 3)
    assert not np.any(valid[0])
    assert np.asarray(found[1]).tolist() == [1, 2, 0]
    assert np.asarray(found[2]).tolist() == [2, 0, 3]
    assert np.all(valid[1:])


def test_a_pool_of_many_rows_has_the_nearest_earlier_ones(monkeypatch, key):
    monkeypatch.setattr(nearest, "PREFIX_ROWS", 200)
    X = jax.random.uniform(key, (3000, 2))
    pool = draw_pool(Matern32([0.5, 2.0]), X, 10, key, size=300)
    assert pool.rows.shape == (300,)
    scaled = np.asarray(X) / [0.5, 2.0]
    for row, earlier, valid in zip(*map(np.asarray, (pool.rows, pool.earlier, pool.valid)), strict=True):
        distance = np.linalg.norm(scaled[:row] - scaled[row], axis=1)
        expected = np.sort(distance)[:10]
        assert valid.sum() == min(10, row)
        np.testing.assert_allclose(np.sort(distance[earlier[valid]]), expected, rtol=1e-4, atol=1e-6)
    assert float(jnp.mean(pool.rows)) == pytest.approx(1500, rel=0.15)  # from the whole order, not from its end


@pytest.mark.parametrize("pooled", [False, True])
def test_known_hyperparameters_are_recovered(key, pooled, monkeypatch):
    if pooled:
        monkeypatch.setattr(nearest, "PREFIX_ROWS", 500)
        monkeypatch.setattr(nearest, "POOL_ROWS", 1000)
    X, y, _ = drawn(2000, np.array([0.5, 1.5, 50.0]), 0.05, mean=1.0)
    method = NearestNeighbour(steps=150, neighbours=30)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=method)
    assert trace.left_out == 0
    if np.max(np.abs(y)) < 100:  # an outlier counts for more than all else, and is in few of the batches
        assert nearest.estimate(gp, X, y, key=key) < nearest.estimate(default_gp(X, y), X, y, key=key) + 0.02


def test_noise_that_differs_between_rows_is_scaled(key):
    X, y, _ = drawn(200, np.array([0.7]), 0.1)
    shape = np.linspace(0.5, 1.5, 200)
    method = NearestNeighbour(steps=20, neighbours=8, batch_size=64)
    gp, _ = fit_hyperparameters(GP(Matern32(1.0), noise=shape), X, y, key=key, method=method)
    np.testing.assert_allclose(gp.noise / gp.noise[0], shape / shape[0], rtol=0.01)  # but for the floor
    assert not np.allclose(gp.noise, shape)


def test_ctrl_c_and_time_return_what_there_is(key, monkeypatch):
    X, y, _ = drawn(100, np.array([0.7]), 0.1)
    _, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=NearestNeighbour(max_seconds=0.0))
    assert len(trace.loss) == 1
    calls, step = [], nearest._step

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(nearest, "_step", interrupted)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=NearestNeighbour())
    assert trace.interrupted
    assert len(trace.loss) == 3
    assert np.isfinite(float(gp.noise))


@pytest.mark.parametrize("name", ["steps", "neighbours", "batch_size"])
def test_settings_that_make_no_sense_are_refused(name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        NearestNeighbour(**{name: 0})


def test_a_noiseless_function_is_predicted_better_after_the_refinement(x64, key):
    """Sixteen neighbours miss a smooth function by far more than the other rows do, and say nothing of its noise."""
    rng = np.random.default_rng(0)
    f = lambda X: np.sin(2 * X[:, 0]) * np.exp(X[:, 1] / 2)
    X, x = rng.uniform(-2, 2, (500, 2)), rng.uniform(-2, 2, (200, 2))
    start = GP(RBF([1.0, 1.0], 1.0), 1e-4)

    def score(refinement):
        method = NearestNeighbour(steps=100, neighbours=16, batch_size=64, refinement=refinement)
        gp, _ = fit_hyperparameters(start, X, f(X), key=key, method=method)
        lengthscale, v = np.asarray(gp.kernel.lengthscale), float(gp.kernel.variance)
        k = lambda A, B: v * np.exp(-cdist(A / lengthscale, B / lengthscale, "sqeuclidean") / 2)
        H = k(X, X) + float(gp.noise) * np.eye(500)
        mean = float(gp.mean) + k(x, X) @ np.linalg.solve(H, f(X) - float(gp.mean))
        variance = v - np.sum(k(x, X) * np.linalg.solve(H, k(X, x)).T, axis=1) + float(gp.noise)
        return -np.mean(stats.norm.logpdf(f(x), mean, np.sqrt(variance)))

    assert score(NearestNeighbour().refinement) < score(None) - 1
