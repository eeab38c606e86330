import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tqdm.auto
from scipy import optimize, stats

from pathgp import GP
from pathgp.kernels import RBF, Matern32, Tanimoto
from pathgp.likelihood import (
    Bounds,
    Exact,
    LogNormal,
    NearestNeighbour,
    Neighbourhoods,
    Pathwise,
    Prior,
    default_gp,
    fit_hyperparameters,
)
from pathgp.likelihood.parameters import to_parameters
from tests.likelihood.test_exact import drawn
from tests.likelihood.test_pathwise import dense_loss, slopes

METHODS = [
    Exact(steps=15),
    Neighbourhoods(centroids=2, size=60, steps=8),
    NearestNeighbour(steps=25, neighbours=8, batch_size=32, learning_rate=0.3),
    Pathwise(steps=25, probes=8, passes=2, num_features=200, block_size=64, learning_rate=0.3),
]
NAMES = ["exact", "neighbourhoods", "nearest", "pathwise"]


@pytest.fixture(scope="module")
def data():
    X, y, _ = drawn(100, np.array([0.7, 1.5]), 0.1)
    return X, 10 * y  # so that a prior in the unit of the method, not of the user, would be far off


def test_a_penalty_is_the_density_of_the_logarithm():
    belief = LogNormal(median=2.0, spread=0.7)
    x = np.array([0.3, 2.0, 9.0])
    density = stats.norm(np.log(2.0), 0.7).logpdf(np.log(x))
    np.testing.assert_allclose(belief.penalty(jnp.asarray(x)), density[1] - density, atol=1e-5)


def test_every_part_of_a_kernel_counts():
    gp = GP(RBF([1.0, 2.0], 3.0) + Matern32(5.0, 0.5), 0.1)
    wide = lambda median: LogNormal(median, 1.0)
    expected = sum(np.log(x) ** 2 / 2 for x in (1.0, 2.0, 5.0)) + np.log(3.0) ** 2 / 2 + np.log(0.5) ** 2 / 2
    assert float(Prior(wide(1.0), wide(1.0)).penalty(gp)) == pytest.approx(expected, rel=1e-5)
    in_tens = Prior(variance=wide(1.0), noise=wide(1.0), unit=10.0)
    expected = sum(np.log(100 * x) ** 2 / 2 for x in (3.0, 0.5, 0.1))
    assert float(in_tens.penalty(gp)) == pytest.approx(expected, rel=1e-5)
    product = GP(RBF(1.0, 2.0) * RBF(1.0, 3.0), 0.1)  # the unit belongs to one factor alone
    expected = np.log(200.0) ** 2 / 2 + np.log(3.0) ** 2 / 2
    assert float(Prior(variance=wide(1.0), unit=10.0).penalty(product)) == pytest.approx(expected, rel=1e-5)


def test_bounds_move_what_is_beyond_them():
    gp = GP(Matern32([0.1, 5.0], 2.0), np.array([0.1, 0.3]), mean=1.0)
    moved = Prior(Bounds([1.0, 1.0], [2.0, 9.0]), Bounds(50.0, 100.0), Bounds(1.0, 10.0), unit=10.0).nearest(gp)
    np.testing.assert_allclose(moved.kernel.lengthscale, [1.0, 5.0])
    assert float(moved.kernel.variance) == pytest.approx(1.0)  # a hundred in the unit of the bounds
    np.testing.assert_allclose(moved.noise, [0.05, 0.15], rtol=1e-5)  # their average is ten in that unit


LOW, HIGH = np.array([0.2, 2.5, 10.0, 20.0]), np.array([0.4, 9.0, 30.0, 50.0])


@pytest.fixture(scope="module")
def bounded_optimum(data):
    """The best length scales, variance and noise within the bounds, and the slopes there, by SciPy and NumPy."""
    X, y = data
    loss = lambda theta: dense_loss(theta, X, y, np.ones(len(y)))
    box = [*zip(np.log(LOW), np.log(HIGH), strict=True), (-50.0, 50.0)]
    start = np.append((np.log(LOW) + np.log(HIGH)) / 2, 0.0)
    theta = optimize.minimize(loss, start, jac=lambda t: slopes(loss, t), method="L-BFGS-B", bounds=box).x
    return np.exp(theta[:4]), slopes(loss, theta)[:4]


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_bounds_hold_in_every_method(key, data, bounded_optimum, method):
    X, y = data
    prior = Prior(
        lengthscale=Bounds(LOW[:2], HIGH[:2]), variance=Bounds(LOW[2], HIGH[2]), noise=Bounds(LOW[3], HIGH[3])
    )
    gp, _ = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=method, prior=prior)
    found = np.concatenate([np.ravel(x) for x in (gp.kernel.lengthscale, gp.kernel.variance, gp.noise)])
    assert np.all(found >= LOW * (1 - 1e-5))
    assert np.all(found <= HIGH * (1 + 1e-5))
    best, slope = bounded_optimum
    pressed = np.abs(slope) > 0.02  # the likelihood would clearly go beyond the bound
    assert np.any(pressed)
    np.testing.assert_allclose(found[pressed], best[pressed], rtol=0.03)
    if isinstance(method, Exact):
        np.testing.assert_allclose(found, best, rtol=0.03)


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_narrow_prior_decides_in_every_method(key, data, method):
    X, y = data
    prior = Prior(lengthscale=LogNormal(3.0, 0.003), noise=LogNormal(40.0, 0.003))
    start = GP(Matern32([2.5, 2.5], 100.0), 35.0)
    gp, trace = fit_hyperparameters(start, X, y, key=key, method=method, prior=prior)
    np.testing.assert_allclose(gp.kernel.lengthscale, 3.0, rtol=0.03)
    assert float(gp.noise) == pytest.approx(40.0, rel=0.03)
    assert trace.left_out == 0


def test_the_exact_result_is_the_mode_of_the_posterior(key, data):
    X, y = data
    prior = Prior(LogNormal(2.0, 0.3), LogNormal(50.0, 0.5), LogNormal(30.0, 0.2))
    gp, _ = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=Exact(steps=60), prior=prior)
    normals = [stats.norm(np.log(m), s) for m, s in ((2.0, 0.3), (2.0, 0.3), (50.0, 0.5))]

    def objective(theta):
        total_noise = np.exp(theta[3]) + 1e-4 * np.exp(theta[2])
        density = sum(normal.logpdf(t) for normal, t in zip(normals, theta[:3], strict=True))
        density += stats.norm(np.log(30.0), 0.2).logpdf(np.log(total_noise))
        return dense_loss(theta, X, y, np.ones(len(y))) - density / len(y)

    p = to_parameters(gp)
    theta = np.concatenate(
        [np.ravel(x) for x in (p.log_kernel.lengthscale, p.log_kernel.variance, p.log_noise, p.mean)]
    )
    without = slopes(lambda t: dense_loss(t, X, y, np.ones(len(y))), theta)
    assert np.max(np.abs(slopes(objective, theta))) < 1e-3
    assert np.max(np.abs(without)) > 0.01  # the prior has moved the optimum


def test_beliefs_that_make_no_sense_are_refused(key, data):
    X, y = data
    with pytest.raises(ValueError, match=r"Bounds\.low"):
        Bounds(2.0, 1.0)
    with pytest.raises(ValueError, match=r"LogNormal\.median"):
        LogNormal(-1.0, 1.0)
    fit = lambda gp, prior: fit_hyperparameters(gp, X, y, key=key, prior=prior)
    with pytest.raises(ValueError, match=r"Tanimoto.*lengthscale"):
        fit(GP(Tanimoto(), 0.1), Prior(lengthscale=Bounds(1.0, 2.0)))
    with pytest.raises(ValueError, match=r"\(3,\).*lengthscale.*\(2,\)"):
        fit(default_gp(X, y), Prior(lengthscale=LogNormal([1.0, 1.0, 1.0])))
    with pytest.raises(ValueError, match=r"prior\.noise"):
        fit(default_gp(X, y), Prior(noise=LogNormal([1.0, 1.0])))


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_progress_shows_the_loss_the_gradient_and_the_time_left(key, data, method, capsys, monkeypatch):
    monkeypatch.setattr("tqdm.auto.tqdm", functools.partial(tqdm.auto.tqdm, ncols=80))
    X, y = data
    _, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=method, progress=True)
    shown = capsys.readouterr().err
    assert re.search("−(Δ )?log p\\(y\\)/N", shown)
    assert any(f"|∇| {gradient:.1e}, " in shown for gradient in trace.gradient)
    assert re.search(r"\d+ s left\]", shown)
    assert len(trace.loss) == len(trace.gradient) == len(trace.seconds)
    assert trace.seconds == sorted(trace.seconds)


@pytest.mark.parametrize("method", [Exact(), Neighbourhoods(size=50)], ids=["exact", "neighbourhoods"])
def test_ctrl_c_before_the_first_step_gives_back_the_start(key, data, method, monkeypatch):
    from pathgp.likelihood import exact

    X, y = data
    monkeypatch.setattr(exact, "loss_and_gradient", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    start = default_gp(X, y)
    gp, trace = fit_hyperparameters(start, X, y, key=key, method=method)
    assert trace.interrupted
    assert trace.loss == []
    for found, given in zip(jax.tree.leaves(gp), jax.tree.leaves(start), strict=True):
        np.testing.assert_allclose(found, given, rtol=1e-3, atol=1e-5)
