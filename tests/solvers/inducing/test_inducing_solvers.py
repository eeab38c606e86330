"""Solvers on inducing points against the closed form in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, condition
from pathgp.functions import Canonical
from pathgp.kernels import RBF, Matern32
from pathgp.likelihood import collapsed_bound
from pathgp.solvers import SGD, SGPR, ConvergenceWarning, InducingCG, InducingCholesky, InducingSGD
from pathgp.solvers.inducing.base import gram_product
from pathgp.solvers.inducing.cg import REFRESH
from pathgp.system.system import System, Targets
from tests.support.problems import exact, prediction_error, problem


def matern32(A, B):
    r = np.sqrt(3 * np.maximum(0, np.sum((A[:, None] - B[None]) ** 2, axis=-1)))
    return (1 + r) * np.exp(-r)


def closed_form(system, targets, z):
    """K_Xz (K_zz + K_zX Σ⁻¹ K_Xz)⁻¹ K_zX Σ⁻¹ B, predictions at the data, in float64 through K_zz^−½."""
    X, z = np.asarray(system.X, dtype=np.float64), np.asarray(z, dtype=np.float64)
    precision = 1 / np.asarray(system.noise_diagonal, dtype=np.float64)
    L = np.linalg.cholesky(matern32(z, z) + 1e-10 * np.eye(len(z)))
    A = np.linalg.solve(L, matern32(z, X)) * np.sqrt(precision)
    inner = np.linalg.solve(np.eye(len(z)) + A @ A.T, A @ (np.sqrt(precision)[:, None] * np.asarray(targets.total)))
    return (A / np.sqrt(precision)).T @ inner


def error(system, solution, truth):
    fitted = np.asarray(Canonical(system.kernel, solution.points)(system.X) @ solution.weights)
    return np.linalg.norm(fitted - truth, axis=0) / np.linalg.norm(truth, axis=0)


@pytest.mark.parametrize("M", [50, 300])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("make", [InducingCholesky, InducingCG])
def test_the_direct_and_the_deterministic_solver_agree_with_the_closed_form(key, make, M, uneven):
    system, targets = problem(N=2000, uneven=uneven)
    z = system.X[:: 2000 // M][:M]
    solution = make(z).solve(system, targets, key=key)
    wrong = error(system, solution, closed_form(system, targets, z))
    assert wrong.max() < 0.003
    assert bool(jnp.all(solution.info.converged))
    if make is InducingCG:  # its residual is the error of predictions, to within how well the preconditioner does
        np.testing.assert_allclose(np.log(solution.info.relative_residual / wrong), 0, atol=np.log(4))
    assert solution.points.shape == (M, 3)


@pytest.mark.parametrize("uneven", [pytest.param(False, marks=pytest.mark.slow), True])
def test_gradient_descent_comes_near_the_closed_form(key, uneven):
    system, targets = problem(N=2000, uneven=uneven)
    z = system.X[::20]
    truth = closed_form(system, targets, z)
    few, many = (
        error(system, InducingSGD(z, steps, SGD(batch_size=256), tolerance=0).solve(system, targets, key=key), truth)
        for steps in (300, 6000)
    )
    assert many[0] < 0.1  # the mean, with the larger learning rate
    assert many.max() < 0.2
    assert np.all(many < 0.6 * few)


def test_the_stochastic_gradient_has_the_mean_of_the_exact_one(x64, key):
    system, targets = problem(N=60, uneven=True)
    z = system.X[:15] + 0.1
    solver = InducingSGD(z, descent=SGD(batch_size=20, num_features=2000))
    plan = solver.prepare(system, targets, key)
    v = jax.random.normal(key, (15, 4))
    K_zX, K_zz = matern32(np.asarray(z), np.asarray(system.X)), matern32(np.asarray(z), np.asarray(z))
    precision = 1 / np.asarray(system.noise_diagonal)[:, None]
    whole = K_zX @ (precision * (K_zX.T @ np.asarray(v) - np.asarray(targets.total))) + K_zz @ np.asarray(v)
    expected = float(system.mean_noise) * whole / 60
    batches = jnp.arange(60).reshape(3, 20)
    keys = jax.random.split(key, 30)
    draw = jax.jit(lambda batch, k: solver.gradient(plan, system, targets, v, batch, k))
    average = np.mean([draw(batch, k) for batch in batches for k in keys], axis=0)
    np.testing.assert_allclose(average, expected, atol=0.02 * np.abs(expected).max())


def test_with_the_data_for_points_it_is_the_exact_posterior(key):
    system, targets = problem(N=400)
    K, truth = exact(system, targets)
    for solver in (InducingCholesky(system.X), InducingCG(system.X, tolerance=1e-4)):
        solution = solver.solve(system, targets, key=key)
        assert prediction_error(K, solution.weights, truth).max() < 0.01


@pytest.mark.parametrize("make", [InducingCholesky, InducingCG, lambda z: InducingSGD(z, steps=300)])
def test_condition_takes_them_and_far_away_a_sample_is_its_prior_draw(key, make):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(500, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=500)
    posterior = condition(GP(Matern32(1.0), noise=0.01), X, y, solver=make(X[:60]), num_samples=4, key=key)
    far = jnp.array([[50.0, 60.0]])
    np.testing.assert_allclose(posterior.samples(far), posterior.prior(far), atol=1e-4)
    more = posterior.with_samples(2, key=key)
    assert more.samples(far).shape == (1, 6)
    assert posterior.info.relative_residual.shape == (5,)


def test_repeated_points_and_a_single_one(key):
    system, targets = problem(N=300)
    for z, number in ((jnp.repeat(system.X[:20], 3, axis=0), 20), (system.X[:1], 1)):
        for make in (InducingCholesky, InducingCG):
            solution = make(z).solve(system, targets, key=key)
            assert error(system, solution, closed_form(system, targets, system.X[:number])).max() < 0.005


class Dented(RBF):
    """A kernel that lacks `depth` on its diagonal, as one does that rounds more than float64."""

    depth: float = eqx.field(static=True, default=0.0)

    def __call__(self, X, Z):
        same = jnp.all(X[:, None] == Z[None], axis=-1)
        return super().__call__(X, Z) - self.depth * same


@pytest.mark.parametrize("make", [InducingCholesky, SGPR])
def test_jitter_is_raised_until_the_points_can_be_factorised(key, make):
    X = np.linspace(-1, 1, 200)[:, None]
    y, z = np.sin(3 * X[:, 0]), np.linspace(-0.99, 0.99, 40)[:, None]
    targets = Targets(jnp.asarray(y[:, None], float), jnp.zeros((200, 1)))
    system = System(Dented(1.0, depth=1e-4), jnp.asarray(X, float), jnp.asarray(0.01))
    solution = make(z).solve(system, targets, key=key)
    K_zz, K_zX = (np.exp(-((z - A.T) ** 2) / 2) for A in (z, X))
    weights = np.linalg.solve(K_zz + 1e-5 * np.eye(40) + K_zX @ K_zX.T / 0.01, K_zX @ y / 0.01)
    fitted = np.asarray(RBF(1.0)(system.X, solution.points) @ solution.weights)[:, 0]
    np.testing.assert_allclose(fitted, K_zX.T @ weights, atol=2e-3)  # float32 weights

    def bound(jitter):
        Q = K_zX.T @ np.linalg.solve(K_zz + jitter * np.eye(40), K_zX) + 0.01 * np.eye(200)
        return -(np.linalg.slogdet(2 * np.pi * Q)[1] + y @ np.linalg.solve(Q, y) + (202 - np.trace(Q)) / 0.01) / 2

    # The first jitter that is more than what lacks is less than four times that, so at most 3e-4 are left.
    found = collapsed_bound(GP(system.kernel, 0.01), X, y, z)
    assert bound(3e-4) - 0.05 < found < bound(1e-9) + 0.05  # float32 data
    hopeless = System(Dented(1.0, depth=0.5), system.X, system.noise)
    with pytest.raises(ValueError, match="not positive definite"):
        make(z).solve(hopeless, targets, key=key)


def test_a_warm_start_goes_on_where_it_was(key):
    system, targets = problem(N=1000)
    z = system.X[::10]
    first = InducingCG(z, tolerance=1e-4).solve(system, targets, key=key)
    again = InducingCG(z, tolerance=1e-3).solve(system, targets, key=key, init=first.weights)
    assert again.info.steps == 0


@pytest.mark.parametrize(
    ("points", "named"),
    [
        (np.zeros((3, 2)), "points.* 2 .* 3"),
        (np.full((3, 3), np.nan), "points"),
        (np.zeros((0, 3)), "points"),
    ],
)
def test_bad_points_are_refused(key, points, named):
    system, targets = problem(N=50)
    for make in (InducingCholesky, InducingCG, InducingSGD):
        with pytest.raises(ValueError, match=named):
            make(points).solve(system, targets, key=key)


def test_the_objective_with_noise_in_the_targets_is_refused():
    with pytest.raises(ValueError, match=r"InducingSGD\.descent.*low_variance=False"):
        InducingSGD(np.zeros((3, 1)), descent=SGD(low_variance=False))


def test_a_column_of_zeros_gives_zero(key):
    system, targets = problem(N=200)
    zero = Targets(0 * targets.signal, 0 * targets.noise)
    for make in (InducingCholesky, InducingCG):
        assert float(jnp.max(jnp.abs(make(system.X[:30]).solve(system, zero, key=key).weights))) == 0


@pytest.mark.parametrize("make", [InducingCholesky, InducingCG])
def test_a_smooth_kernel_and_little_noise_stay_finite(key, make):
    system, targets = problem(N=3000, noise=1e-4)
    smooth = System(RBF(1.5), system.X, system.noise, system.tile)
    solution = make(system.X[:250]).solve(smooth, targets, key=key)
    fitted = Canonical(smooth.kernel, solution.points)(smooth.X) @ solution.weights
    assert bool(jnp.all(jnp.isfinite(fitted)))
    assert float(jnp.sqrt(jnp.mean((fitted[:, 0] - targets.total[:, 0]) ** 2))) < 0.1


def test_the_residual_of_gradient_descent_vanishes_at_the_solution(key):
    system, targets = problem(N=5000)
    z = system.X[:100]
    solver = InducingSGD(z, steps=1, tolerance=0)
    plan = solver.prepare(system, targets, key)
    exact_weights = InducingCholesky(z).solve(system, targets, key=key).weights
    state = solver.start(plan, system, targets, key, exact_weights)
    at_the_solution, _ = solver.residual(plan, system, targets, state)
    at_zero, _ = solver.residual(plan, system, targets, solver.start(plan, system, targets, key, None))
    np.testing.assert_allclose(at_zero, 1, rtol=1e-4)
    assert float(jnp.max(at_the_solution)) < 0.005


def test_an_update_goes_on_from_the_same_points(key):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=300)
    for z in (X[:60], X):
        posterior = condition(GP(Matern32(1.0), noise=0.1), X, y, solver=InducingCG(z), num_samples=2, key=key)
        updated = posterior.update(X[:50] + 0.01, y[:50], key=key)
        assert updated.solution.points.shape == z.shape
        X_all, y_all = np.concatenate([X, X[:50] + 0.01]), np.concatenate([y, y[:50]])
        cold = condition(GP(Matern32(1.0), noise=0.1), X_all, y_all, solver=InducingCG(z), num_samples=2, key=key)
        assert updated.info.steps <= cold.info.steps
        np.testing.assert_allclose(updated.mean(X[:9]), cold.mean(X[:9]), atol=0.01)


def normal_residual(system, targets, z, V):
    """K_zX Σ⁻¹ (B − K_Xz V) in float64."""
    X, z, V, B = (np.asarray(a, dtype=np.float64) for a in (system.X, z, V, targets.total))
    K = matern32(z, X)
    return K @ ((B - K.T @ V) / np.asarray(system.noise_diagonal, dtype=np.float64)[:, None])


def test_a_product_that_takes_the_difference_first(key):
    system, targets = problem(N=999, uneven=True)
    system = System(system.kernel, system.X, system.noise, tile=(16, 64))  # several tiles in several sums
    z, V = system.X[:20], jax.random.normal(key, (20, targets.signal.shape[1]))
    found = -gram_product(z, system, V, targets.total)
    expected = normal_residual(system, targets, z, V)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_the_residual_that_is_told_is_the_true_one_after_many_steps_with_hardly_any_noise(key):
    """A residual updated from step to step has drifted to a hundredth of the true one here."""
    system, targets = problem(N=5000, noise=1e-6)
    z = system.X[::50]
    solver = InducingCG(z, steps=4 * REFRESH, tolerance=0.0)
    with pytest.warns(ConvergenceWarning):
        solution = solver.solve(system, targets, key=key)
    plan, V = solver.prepare(system, targets, key), np.asarray(solution.weights, dtype=np.float64)
    z = np.asarray(z, dtype=np.float64)
    r = normal_residual(system, targets, z, V) - (matern32(z, z) + float(plan.ridge) * np.eye(len(z))) @ V
    relative = np.sqrt(np.sum(r * np.asarray(plan.precondition(jnp.asarray(r, jnp.float32))), axis=0)) / plan.norms
    np.testing.assert_allclose(np.log(solution.info.relative_residual / relative), 0, atol=np.log(2))
