import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits

from pathgp import GP
from pathgp.kernels import RBF, Matern32, RationalQuadratic
from pathgp.likelihood import Exact, Neighbourhoods, Trace, default_gp, exact, fit_hyperparameters
from pathgp.likelihood.marginal import loss_and_gradient
from pathgp.likelihood.parameters import to_parameters
from pathgp.linalg.threads import THREADED_ROWS


def drawn(N, lengthscale, noise, seed=0, mean=0.0):
    """Data drawn from a Matérn-3/2 process of variance one by NumPy."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(N, len(lengthscale)))
    Z = X / lengthscale
    r = np.sqrt(3 * np.maximum(0, np.sum((Z[:, None] - Z[None]) ** 2, axis=-1)))
    K = (1 + r) * np.exp(-r)
    return X, mean + np.linalg.cholesky(K + noise * np.eye(N)) @ rng.normal(size=N), K


@pytest.mark.parametrize("kernel", [Matern32([0.7, 1.5], 1.3), RBF(0.9) + RationalQuadratic([1.0, 2.0], 0.4)])
@pytest.mark.parametrize("uneven", [False, True])
def test_the_gradient_agrees_with_finite_differences(x64, kernel, uneven):
    X, y, _ = drawn(60, np.array([0.7, 1.5]), 0.1)
    noise = np.linspace(0.05, 0.3, 60) if uneven else 0.1
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), kernel)
    flat, unravel = ravel_pytree(to_parameters(GP(kernel, noise, mean=0.2)))
    X, y = jnp.asarray(X), jnp.asarray(y)
    _, gradient = loss_and_gradient(unravel(flat), X, y)
    got = np.asarray(ravel_pytree(gradient)[0])
    for i in range(flat.size):
        step = 1e-5 * jnp.zeros_like(flat).at[i].set(1)
        up, down = (loss_and_gradient(unravel(flat + s), X, y)[0] for s in (step, -step))
        assert got[i] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-8)


def test_the_loss_is_the_density_of_a_normal(x64):
    X, y, K = drawn(50, np.array([0.7, 1.5]), 0.1)
    p = to_parameters(GP(Matern32([0.7, 1.5]), 0.1, mean=0.3))
    expected = -stats.multivariate_normal(np.full(50, 0.3), K + 0.1 * np.eye(50)).logpdf(y) / 50
    assert loss_and_gradient(p, jnp.asarray(X), jnp.asarray(y))[0] == pytest.approx(expected, rel=1e-6)


def test_known_hyperparameters_are_recovered(key):
    X, y, _ = drawn(600, np.array([0.5, 1.5, 50.0]), 0.05, mean=2.0)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=Exact(steps=40))
    assert trace.loss[-1] < trace.loss[0]
    assert float(gp.noise) == pytest.approx(0.05, rel=0.25)
    np.testing.assert_allclose(gp.kernel.lengthscale[:2], [0.5, 1.5], rtol=0.35)
    assert gp.kernel.lengthscale[2] > 5
    assert float(gp.mean) == pytest.approx(2.0, abs=1.5)


def test_the_best_of_several_starts_is_kept(key):
    X, y, _ = drawn(80, np.array([0.5]), 0.01)
    start = GP(Matern32(100.0), noise=1.0)
    one = fit_hyperparameters(start, X, y, key=key, method=Exact(steps=5, restarts=0))[1]
    gp, several = fit_hyperparameters(start, X, y, key=key, method=Exact(steps=5, restarts=3))
    assert len(several.loss) > len(one.loss)
    with jax.enable_x64(True):
        p = jax.tree.map(lambda leaf: leaf.astype(float), to_parameters(gp))
        kept = loss_and_gradient(p, jnp.asarray(X, float), jnp.asarray(y, float))[0]
    assert float(kept) == pytest.approx(min(several.loss), abs=1e-4)


def test_noise_that_differs_between_rows_is_scaled(key):
    X, y, _ = drawn(200, np.array([0.7]), 0.1)
    shape = np.linspace(0.5, 1.5, 200)
    gp, _ = fit_hyperparameters(GP(Matern32(1.0), noise=shape), X, y, key=key, method=Exact(steps=30))
    np.testing.assert_allclose(gp.noise / gp.noise[0], shape / shape[0], rtol=0.01)  # but for the floor
    assert float(jnp.mean(gp.noise)) < 0.3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda X, y: (np.column_stack([X, np.ones(len(X))]), y),
        lambda X, y: (np.concatenate([X, X]), np.concatenate([y, y])),
        lambda X, y: (X, np.sin(X[:, 0])),
        lambda X, y: (X, np.where(np.arange(len(y)) == 3, 1e4, y)),
        lambda X, y: (X[:20], y[:20]),
        lambda X, y: (X, np.zeros_like(y)),
        lambda X, y: (np.random.default_rng(0).normal(size=(len(X), 90)), y),
    ],
    ids=["constant input", "repeated rows", "no noise", "an outlier", "20 rows", "constant target", "90 inputs"],
)
def test_hard_cases_end_in_finite_numbers(key, spoil):
    X, y, _ = drawn(100, np.array([0.7, 1.0]), 0.1)
    X, y = spoil(X, y)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=Exact(steps=15))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gp))
    assert np.all(np.isfinite(trace.loss))
    assert min(trace.loss) < trace.loss[0]


def test_too_many_rows_are_refused(key):
    with pytest.raises(ValueError, match=r"20000.*10000"):
        fit_hyperparameters(GP(RBF(), 0.1), np.zeros((20_000, 1)), np.zeros(20_000), key=key, method=Exact())


def test_time_is_bounded_and_the_best_so_far_returned(key):
    X, y, _ = drawn(100, np.array([0.7]), 0.1)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=Exact(max_seconds=0.0))
    assert len(trace.loss) == 1
    assert float(gp.noise) > 0


def test_ctrl_c_returns_the_best_so_far(key, monkeypatch):
    from pathgp.likelihood import exact

    X, y, _ = drawn(100, np.array([0.7]), 0.1)
    calls, loss = [], exact.loss_and_gradient

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(exact, "loss_and_gradient", interrupted)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=Exact())
    assert trace.interrupted
    assert len(trace.loss) == 3
    assert np.isfinite(float(gp.noise))


def test_neighbourhoods_are_averaged(key):
    X, y, _ = drawn(900, np.array([0.5, 1.5]), 0.05)
    gp, trace = fit_hyperparameters(
        default_gp(X, y), X, y, key=key, method=Neighbourhoods(centroids=3, size=250, steps=25)
    )
    assert len(trace.loss) == 3
    assert float(gp.noise) == pytest.approx(0.05, rel=0.4)
    np.testing.assert_allclose(gp.kernel.lengthscale, [0.5, 1.5], rtol=0.5)


def test_an_input_that_matters_around_one_centroid_only_still_matters(key, monkeypatch):
    X, y, _ = drawn(120, np.array([0.7, 0.7]), 0.05)
    y, start = y / np.std(y), GP(Matern32([1.0, 1.0], variance=1.0), noise=0.1)
    ends = [
        GP(Matern32([0.5, 20_000.0], variance=1.0), noise=1e-8),
        GP(Matern32([0.5, 1.0], variance=3.0), noise=0.2),
        GP(Matern32([np.exp(-10), 1.0], variance=2.0), noise=0.2),  # as short as a descent may make it: run away
    ]
    given = iter(ends)
    monkeypatch.setattr(Exact, "fit_with", lambda *_: (next(given), Trace([0.0], [0.0], [0.0])))
    gp, trace = fit_hyperparameters(start, X, y, key=key, method=Neighbourhoods(centroids=3, size=60))
    assert trace.left_out == 1
    np.testing.assert_allclose(gp.kernel.lengthscale, [0.5, 2.0], rtol=1e-3)
    np.testing.assert_allclose([gp.kernel.variance, gp.noise], [2.0, 0.1], rtol=1e-5)


def test_neighbourhoods_that_fail_are_left_out_and_counted(key, monkeypatch):
    X, y, _ = drawn(120, np.array([0.7]), 0.05)
    calls, fit = [], Exact.fit_with

    def sometimes(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("not finite")
        return fit(self, *arguments)

    monkeypatch.setattr(Exact, "fit_with", sometimes)
    method = Neighbourhoods(centroids=3, size=60, steps=3)
    _, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=method)
    assert trace.left_out == 1
    monkeypatch.setattr(Exact, "fit_with", lambda *_: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(ValueError, match=" 3 "):
        fit_hyperparameters(default_gp(X, y), X, y, key=key, method=method)


@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_the_units_of_the_target_do_not_matter(key, unit):
    X, y, _ = drawn(150, np.array([0.7]), 0.05, mean=3.0)
    method = Exact(steps=20)
    one = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=method)[0]
    other = fit_hyperparameters(default_gp(X, unit * y), X, unit * y, key=key, method=method)[0]
    np.testing.assert_allclose(other.kernel.lengthscale, one.kernel.lengthscale, rtol=0.02)
    np.testing.assert_allclose(other.noise / unit**2, one.noise, rtol=0.02)
    np.testing.assert_allclose(other.kernel.variance / unit**2, one.kernel.variance, rtol=0.05)
    np.testing.assert_allclose(other.mean / unit, one.mean, atol=0.05)


def test_neighbourhoods_scale_noise_by_one_factor(key):
    X, y, _ = drawn(300, np.array([0.7]), 0.1)
    shape = np.where(X[:, 0] > 0, 10.0, 1.0)
    method = Neighbourhoods(centroids=4, size=60, steps=8)
    gp, _ = fit_hyperparameters(GP(Matern32(1.0), noise=0.05 * shape), X, y, key=key, method=method)
    np.testing.assert_allclose(gp.noise / gp.noise[0], shape / shape[0], rtol=0.05)
    assert float(jnp.max(gp.noise)) < 1.0


@pytest.fixture
def two_threads():
    """Tests have one thread of BLAS, which nothing could limit any further."""
    with threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("rows", "single"), [(40, True), (THREADED_ROWS, False)])
def test_few_rows_take_one_thread_of_blas_and_leave_as_many_as_there_were(rows, single, monkeypatch):
    threads = lambda: [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    before, seen = threads(), []
    monkeypatch.setattr(exact, "loss_and_gradient", lambda p, X, y: (seen.append(threads()), (np.nan, p))[1])
    X = np.linspace(0, 1, rows)[:, None]
    with pytest.raises(ValueError, match="not finite at the starting values"):
        fit_hyperparameters(GP(Matern32(1.0), noise=0.1), X, X[:, 0], method=Exact(), key=jax.random.key(0))
    assert seen[0] == ([1] * len(before) if single else before)
    assert threads() == before


def test_noise_falls_to_its_floor_where_there_is_none(key):
    """From a tenth of the variance, a limit on how far a parameter may go once left it at 5e-6 of the variance."""
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.uniform(size=(150, 2)), float)
    y = jnp.sin(3 * X[:, 0]) * jnp.cos(2 * X[:, 1])
    gp, _ = fit_hyperparameters(default_gp(X, y, RBF), X, y, key=key, method=Exact(restarts=0))
    assert float(gp.noise) < 1e-8 * float(jnp.var(y))
