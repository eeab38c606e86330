"""SVGP, SGPR and the collapsed bound against closed forms in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, condition
from pathgp.kernels import RBF, Matern32
from pathgp.likelihood import collapsed_bound
from pathgp.solvers import SGPR, SVGP, Cholesky, DivergenceError, InducingCholesky, Observer
from pathgp.system.system import Targets
from tests.support.problems import problem

N, M, S, FEATURES = 300, 24, 1024, 2000
GAUSSIAN = GP(Matern32(0.8, 1.4), noise=np.linspace(0.05, 0.3, N), mean=2.0)
MONTE_CARLO = 3 * 1.4 * (S**-0.5 + FEATURES**-0.5)


def kernel(A, B):
    r = np.sqrt(3 * np.sum((np.asarray(A)[:, None] - np.asarray(B)[None]) ** 2, axis=-1)) / 0.8
    return 1.4 * (1 + r) * np.exp(-r)


def data():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, size=(N, 2))
    y = 2 + np.sin(2 * X[:, 0]) * X[:, 1] + np.sqrt(np.asarray(GAUSSIAN.noise)) * rng.normal(size=N)
    z = rng.uniform(-2, 2, size=(M, 2))
    return X, y, z, rng.uniform(-2.5, 2.5, size=(12, 2))


def titsias(X, y, z, x):
    """Mean and covariance of the KL-optimal posterior at x, through inverses of M x M matrices in float64."""
    precision = 1 / np.asarray(GAUSSIAN.noise, dtype=np.float64)
    K_zX, K_xz = kernel(z, X), kernel(x, z)
    inverse = np.linalg.inv(kernel(z, z) + (K_zX * precision) @ K_zX.T)
    mean = 2 + K_xz @ inverse @ K_zX @ (precision * (y - 2))
    return mean, kernel(x, x) - K_xz @ (np.linalg.inv(kernel(z, z)) - inverse) @ K_xz.T


def log_normal(y, covariance):
    _, log_determinant = np.linalg.slogdet(2 * np.pi * covariance)
    return -(log_determinant + y @ np.linalg.solve(covariance, y)) / 2


def bounds(X, y, z):
    """The collapsed bound and log p(y), from N x N matrices in float64."""
    noise = np.asarray(GAUSSIAN.noise, dtype=np.float64)
    Q = kernel(X, z) @ np.linalg.solve(kernel(z, z), kernel(z, X))
    bound = log_normal(y - 2, Q + np.diag(noise)) - np.sum((1.4 - np.diag(Q)) / noise) / 2
    return bound, log_normal(y - 2, kernel(X, X) + np.diag(noise))


@pytest.fixture(scope="module")
def fitted():
    """All of the data in every batch, so that the ELBO is no estimate."""
    X, y, z, _ = data()
    solver = SVGP(z, steps=1500, batch_size=N, learning_rate=0.1, tolerance=0.02)
    return condition(GAUSSIAN, X, y, solver=solver, num_samples=S, num_features=FEATURES, key=jax.random.key(0))


def test_the_collapsed_bound_is_that_of_the_dense_formula():
    X, y, z, _ = data()
    expected, evidence = bounds(X, y, z)
    assert collapsed_bound(GAUSSIAN, X, y, z) == pytest.approx(expected, abs=2e-3)
    assert collapsed_bound(GAUSSIAN, X, y, X) == pytest.approx(evidence, abs=2e-3)  # float32 data and noise
    assert expected < evidence - 1


def test_the_elbo_approaches_the_collapsed_bound_from_below(fitted):
    X, y, z, _ = data()
    bound, evidence = bounds(X, y, z)
    q = fitted.solution.q
    assert q.steps.shape == q.elbo.shape == (100,)
    assert int(q.steps[-1]) == 1500
    assert float(jnp.max(q.elbo)) < bound + 0.05 < evidence  # float32 sums of hundreds
    assert float(q.elbo[-1]) > bound - 0.2
    assert float(q.elbo[0]) < bound - 50


def test_mean_and_covariance_approach_the_closed_form(fitted):
    X, y, z, x = data()
    mean, covariance = titsias(X, y, z, x)
    np.testing.assert_allclose(fitted.mean(x), mean, atol=0.01)
    np.testing.assert_allclose(np.cov(np.asarray(fitted.samples(x))), covariance, atol=MONTE_CARLO)
    assert fitted.info.solver == "SVGP"
    assert bool(jnp.all(fitted.info.converged))
    assert "K_zz" in fitted.info.reason


def test_the_distribution_is_the_optimal_one(fitted):
    X, _, z, _ = data()
    precision = 1 / np.asarray(GAUSSIAN.noise, dtype=np.float64)
    L = np.linalg.cholesky(kernel(z, z))
    A = np.linalg.solve(L, kernel(z, X)) * np.sqrt(precision)
    C = np.asarray(fitted.solution.q.factor, dtype=np.float64)
    np.testing.assert_allclose(C @ C.T, np.linalg.inv(np.eye(M) + A @ A.T), atol=5e-3)
    assert np.all(np.triu(C, 1) == 0)


def test_the_residual_tells_the_distance_from_the_optimum(fitted):
    X, y, z, _ = data()
    precision = 1 / np.asarray(GAUSSIAN.noise, dtype=np.float64)
    with pytest.warns(UserWarning, match="SVGP"):
        early = condition(GAUSSIAN, X, y, solver=SVGP(z, steps=20, batch_size=N), num_samples=2, key=jax.random.key(0))
    assert not np.any(early.info.converged)
    assert float(jnp.max(fitted.info.relative_residual)) < 0.02
    L = np.linalg.cholesky(kernel(z, z))
    A = np.linalg.solve(L, kernel(z, X)) * np.sqrt(precision)
    right = A @ (np.sqrt(precision) * (y - 2))
    m = np.asarray(early.solution.q.mean, dtype=np.float64)
    gap = np.linalg.norm(right - m - A @ (A.T @ m)) / np.linalg.norm(right)
    assert float(early.info.relative_residual[0]) == pytest.approx(gap, rel=1e-3)


def test_more_samples_come_from_the_same_distribution(fitted):
    _, _, _, x = data()
    more = fitted.with_samples(S, key=jax.random.key(7))
    assert more.info.steps == 1500
    first, second = np.split(np.asarray(more.samples(x)), 2, axis=1)
    np.testing.assert_allclose(first, fitted.samples(x), atol=1e-4)
    np.testing.assert_allclose(np.cov(second), np.cov(first), atol=2 * MONTE_CARLO)
    correlation = np.corrcoef(first[0], second[0])[0, 1]
    assert abs(correlation) < 4 * S**-0.5


def test_minibatches_come_near_too_and_observers_look_on(fitted):
    X, y, z, x = data()
    seen = []
    solver = SVGP(z, steps=1500, batch_size=50, learning_rate=0.03, tolerance=10.0)
    posterior = condition(
        GAUSSIAN, X, y, solver=solver, num_samples=2, key=jax.random.key(1), observe=Observer(500, seen.append)
    )
    np.testing.assert_allclose(posterior.mean(x), fitted.mean(x), atol=0.15)
    assert [s.step for s in seen] == [500, 1000, 1500]
    np.testing.assert_allclose(seen[-1].weights, posterior.solution.weights, atol=1e-4)


def test_an_update_starts_from_the_mean_before_it():
    X, y, z, x = data()
    still = SVGP(z, steps=1, batch_size=50, learning_rate=1e-9, tolerance=1e9)
    posterior = condition(GAUSSIAN, X, y, solver=InducingCholesky(z), num_samples=2, key=jax.random.key(1))
    posterior = eqx.tree_at(lambda p: p.solver, posterior, still)
    updated = posterior.update(X[:50], y[:50], noise=np.asarray(GAUSSIAN.noise[:50]), key=jax.random.key(2))
    np.testing.assert_allclose(updated.mean(x), posterior.mean(x), atol=1e-3)
    assert updated.targets.num_means == 1
    assert updated.samples(x).shape == (12, 2)


def test_points_that_move_raise_the_bound():
    X, y, z, _ = data()
    solver = SVGP(z, steps=600, batch_size=N, learning_rate=0.05, move_points=True, tolerance=10.0)
    posterior = condition(GAUSSIAN, X, y, solver=solver, num_samples=2, key=jax.random.key(0))
    moved = np.asarray(posterior.solution.points, dtype=np.float64)
    start, _ = bounds(X, y, z)
    found, evidence = bounds(X, y, moved)
    last = float(posterior.solution.q.elbo[-1])
    assert start + 5 < last < found + 0.1
    assert found < evidence
    assert posterior.with_samples(2, key=jax.random.key(3)).samples(moved[:4]).shape == (4, 4)


def test_exact_samples_follow_the_closed_form_and_approximate_ones_do_not():
    X, y, z, x = data()
    mean, covariance = titsias(X, y, z, x)
    exact, approximate = (
        condition(GAUSSIAN, X, y, solver=make(z), num_samples=S, num_features=FEATURES, key=jax.random.key(0))
        for make in (SGPR, InducingCholesky)
    )
    np.testing.assert_allclose(exact.mean(x), mean, atol=1e-3)
    np.testing.assert_allclose(np.cov(np.asarray(exact.samples(x))), covariance, atol=MONTE_CARLO)
    np.testing.assert_allclose(approximate.mean(x), exact.mean(x), atol=1e-4)
    # f(X) − f^(z)(X) is left in the paper's sample as if it were noise: its variance at x is larger by as much.
    precision = 1 / np.asarray(GAUSSIAN.noise, dtype=np.float64)
    K_zX = kernel(z, X)
    G = kernel(x, z) @ np.linalg.solve(kernel(z, z) + (K_zX * precision) @ K_zX.T, K_zX * precision)
    left = kernel(X, X) - K_zX.T @ np.linalg.solve(kernel(z, z), K_zX)
    cross = kernel(x, X) - kernel(x, z) @ np.linalg.solve(kernel(z, z), K_zX)
    expected = covariance + G @ left @ G.T - cross @ G.T - G @ cross.T
    np.testing.assert_allclose(np.cov(np.asarray(approximate.samples(x))), expected, atol=MONTE_CARLO)
    more = exact.with_samples(2, key=jax.random.key(1))
    assert more.samples(x).shape == (12, S + 2)


def test_with_the_data_for_points_it_is_the_exact_posterior():
    X, y, _, x = data()
    X, y, gp = X[:100], y[:100], GP(GAUSSIAN.kernel, 0.1, 2.0)
    exact, sparse = (
        condition(gp, X, y, solver=solver, num_samples=8, key=jax.random.key(0)) for solver in (Cholesky(), SGPR(X))
    )
    np.testing.assert_allclose(sparse.mean(x), exact.mean(x), atol=2e-3)
    np.testing.assert_allclose(sparse.samples(x), exact.samples(x), atol=0.02)


POINTS = {
    "more points than rows": np.random.default_rng(0).uniform(-2, 2, size=(40, 3)),
    "one point": np.zeros((1, 3)),
    "repeated points": np.repeat(np.random.default_rng(1).uniform(-2, 2, size=(20, 3)), 2, axis=0),
}


@pytest.mark.parametrize("case", POINTS)
def test_any_number_of_points_and_repeated_ones_agree_with_the_closed_form(key, case):
    system, targets = problem(N=30, columns=1)
    z = POINTS[case]
    fit = lambda solver: system.kernel(system.X, jnp.asarray(z, float)) @ solver.solve(system, targets, key=key).weights
    expected = fit(InducingCholesky(z))
    np.testing.assert_allclose(fit(SGPR(z)), expected, atol=2e-3)
    np.testing.assert_allclose(fit(SVGP(z, steps=1500, learning_rate=0.05)), expected, atol=0.02)


def test_jitter_grows_until_the_factor_is_finite(key):
    system, targets = problem(N=30, columns=1)
    if jnp.finfo(float).bits == 64:
        pytest.skip("its rounding needs no more than the first jitter")
    smooth = RBF(30.0)  # all 40 points are as good as one
    posterior = condition(
        GP(smooth, noise=0.1), system.X, targets.signal[:, 0], key=key, num_samples=0,
        solver=SVGP(POINTS["more points than rows"], steps=300, learning_rate=0.05, tolerance=10.0),
    )  # fmt: skip
    assert float(posterior.solution.q.jitter) > 20 * float(jnp.finfo(float).eps)
    exact = condition(posterior.gp, system.X, targets.signal[:, 0], key=key, num_samples=0, solver=Cholesky())
    np.testing.assert_allclose(posterior.mean(system.X), exact.mean(system.X), atol=0.05)


@pytest.mark.parametrize(
    ("attempt", "named"),
    [
        (lambda: SVGP(np.full((3, 3), np.nan)), "points"),
        (lambda: SGPR(np.zeros((0, 3))), "points"),
        (lambda: SVGP(np.zeros((3, 3)), steps=0), r"SVGP\.steps"),
        (lambda: SVGP(np.zeros((3, 3)), batch_size=0), r"SVGP\.batch_size"),
        (lambda: SVGP(np.zeros((3, 3)), learning_rate=0.0), r"SVGP\.learning_rate"),
        (lambda: run(SVGP(np.zeros((3, 2)))), "points.* 2 .* 3"),
        (lambda: run(SGPR(np.zeros((3, 2)))), "points.* 2 .* 3"),
        (lambda: run(SGPR(np.zeros((3, 3))), 2), r"Targets\.draws"),
        (lambda: run(SVGP(np.zeros((3, 3))), 2), "2 "),
        (lambda: collapsed_bound(GAUSSIAN, np.zeros((N, 2)), np.zeros(N), np.zeros((3, 1))), " 1 "),
        (lambda: collapsed_bound(GAUSSIAN, np.zeros((9, 2)), np.zeros(9), np.zeros((3, 2))), "noise"),
    ],
)
def test_bad_input_gets_a_sentence(attempt, named):
    with pytest.raises(ValueError, match=named):
        attempt()


def run(solver, columns=1):
    system, targets = problem(N=20, columns=columns)
    return solver.solve(system, targets, key=jax.random.key(0))


def test_a_fit_that_diverges_says_so():
    with pytest.raises(DivergenceError, match="SVGP"):
        run(SVGP(np.eye(3), steps=100, learning_rate=1e4))


def test_targets_keep_their_prior_draws(fitted):
    targets = fitted.targets
    assert isinstance(targets, Targets)
    assert targets.num_means == 1
    np.testing.assert_allclose(targets.draws_at(fitted.system.X), targets.signal[:, 1:], atol=1e-4)
