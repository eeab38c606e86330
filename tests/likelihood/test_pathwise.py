import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pathgp import GP, condition
from pathgp.kernels import RBF, Matern32
from pathgp.likelihood import Exact, Pathwise, Prior, default_gp, fit_hyperparameters, pathwise
from pathgp.likelihood.marginal import loss_and_gradient
from pathgp.likelihood.parameters import to_parameters
from pathgp.likelihood.pathwise import gradient_per_row, quadratic_gradient
from pathgp.posterior.problem import Problem
from pathgp.solvers import SAP
from pathgp.solvers.base import DivergenceError
from tests.likelihood.test_exact import drawn

N = 120


def matrix(theta, X, shape):
    """K + Σ of a Matérn-3/2 process by NumPy, from log (ℓ₁, ℓ₂, variance, noise without its floor)."""
    l1, l2, variance, noise = np.exp(theta[:4])
    difference = (X[:, None] - X[None]) / np.array([l1, l2])
    r = np.sqrt(3 * np.einsum("ijk,ijk->ij", difference, difference))
    return variance * (1 + r) * np.exp(-r) + np.diag(noise * shape + 1e-4 * variance)


def dense_loss(theta, X, y, shape):
    """−log p(y)/N in float64, the mean last in theta."""
    H, residual = matrix(theta, X, shape), y - theta[4]
    _, log_determinant = np.linalg.slogdet(H)
    return (residual @ np.linalg.solve(H, residual) + log_determinant + len(y) * np.log(2 * np.pi)) / (2 * len(y))


def slopes(f, theta, step=1e-5):
    return np.array([(f(theta + e) - f(theta - e)) / (2 * step) for e in step * np.eye(len(theta))])


def as_vector(p):
    return np.concatenate(
        [np.ravel(leaf) for leaf in (p.log_kernel.lengthscale, p.log_kernel.variance, p.log_noise, p.mean)]
    )


@pytest.mark.parametrize("uneven", [False, True])
def test_the_expected_gradient_is_that_of_the_likelihood(x64, uneven):
    X, y, _ = drawn(N, np.array([0.7, 1.5]), 0.1)
    gp = GP(Matern32([0.5, 1.0], 1.3), np.linspace(0.05, 0.4, N) if uneven else 0.2, mean=0.3)
    p = to_parameters(gp)
    theta, shape = as_vector(p), np.broadcast_to(np.asarray(p.noise_shape), N)
    expected = slopes(lambda t: dense_loss(t, X, y, shape), theta)
    H = matrix(theta, X, shape)
    draw = jax.jit(
        lambda key: Problem.of(p.gp(), jnp.asarray(X), jnp.asarray(y)[:, None], 100, 2000, key).targets.total
    )
    estimates = []
    for i in range(24):  # frequencies differ between keys: with those of one key the estimate has their error
        weights = np.linalg.solve(H, np.asarray(draw(jax.random.key(i))))
        estimates.append(as_vector(gradient_per_row(p, jnp.asarray(X), jnp.asarray(weights), Prior())))
    error = np.std(estimates, axis=0, ddof=1) / np.sqrt(len(estimates))
    off = np.abs(np.mean(estimates, axis=0) - expected)
    assert np.all(off[:4] < 4 * error[:4])
    assert off[4] < 1e-6  # no randomness in the mean
    assert np.all(error[:4] < 0.05 * np.max(np.abs(expected)))  # or the comparison would mean nothing


@pytest.mark.parametrize("rows", [32, 50, 2048])
def test_the_gradient_of_tiles_is_that_of_the_whole(x64, rows, monkeypatch):
    monkeypatch.setattr(pathwise, "TILE_ROWS", rows)
    X, _, _ = drawn(N, np.array([0.7, 1.5]), 0.1)
    rng = np.random.default_rng(1)
    W, a = rng.normal(size=(N, 3)), np.array([-0.5, 0.2, 0.7])
    kernel = Matern32(jnp.array([0.5, 1.0]), jnp.array(1.3))
    got = quadratic_gradient(kernel, jnp.asarray(X), jnp.asarray(W), jnp.asarray(a))
    theta = np.log([0.5, 1.0, 1.3, 1e-300])
    K = lambda t: matrix(t, X, np.zeros(N)) - 1e-4 * np.exp(t[2]) * np.eye(N)
    expected = slopes(lambda t: np.einsum("nc,c,nm,mc->", W, a, K(t), W), theta)[:3] / np.exp(theta[:3])
    np.testing.assert_allclose([*got.lengthscale, got.variance], expected, rtol=1e-6)


def test_the_gradient_in_float32_of_many_inputs(x64):
    """Float32 keeps three digits, although ‖x − z‖² of more than a few inputs is formed by a product that cancels."""
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(N, 12)), rng.normal(size=(N, 5))
    a = np.array([-0.5, 0.1, 0.1, 0.1, 0.1])
    both = [
        quadratic_gradient(RBF(jnp.full(12, 3.0, t), jnp.ones((), t)), *(jnp.asarray(v, t) for v in (X, W, a)))
        for t in (jnp.float32, jnp.float64)
    ]
    narrow, wide = (np.asarray(ravel_pytree(g)[0], float) for g in both)
    np.testing.assert_allclose(narrow, wide, atol=1e-3 * np.max(np.abs(wide)))


def shapes(jaxpr):
    """The shapes of all arrays of a computation, those of its loops and branches included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jax.tree.leaves(tuple(equation.params.values())):
            program = getattr(inner, "jaxpr", inner)
            if hasattr(program, "eqns"):
                yield from shapes(program)


@pytest.mark.xla
def test_there_is_never_a_matrix_of_all_pairs():
    rows = 20_000
    gp = GP(Matern32(jnp.ones(9)), 0.1)
    X, y, W = jnp.zeros((rows, 9)), jnp.zeros(rows), jnp.zeros((rows, 9))
    p, solver = to_parameters(gp), SAP(block_size=1024, factor_bytes=0)

    def step(X, y, W):
        posed = Problem.of(p.gp(), X, y[:, None], 8, 200, jax.random.key(0))
        system, targets, key = posed.system, posed.targets, posed.key
        plan = solver.prepare(system, targets, key)
        state = solver.step(plan, system, targets, solver.start(plan, system, targets, key, W))
        return solver.weights(plan, state), gradient_per_row(p, X, W, Prior())

    largest = max(np.prod(shape) for shape in shapes(jax.make_jaxpr(step)(X, y, W).jaxpr))
    assert rows * 9 < largest < rows**2 / 20


@pytest.fixture(scope="module")
def poor_start():
    """Learned from a start that is wrong in every hyperparameter, in units that are not those of the method."""
    X, y, _ = drawn(500, np.array([0.5, 1.5]), 0.1)
    start, key = GP(Matern32([5.0, 0.3], 300.0), noise=100.0, mean=20.0), jax.random.key(3)
    method = Pathwise(steps=60, probes=32, passes=6, tolerance=1e-3, learning_rate=0.2, block_size=128)
    return X, 10 * y, start, key, fit_hyperparameters(start, X, 10 * y, key=key, method=method)


def exact_loss(gp, X, y):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), gp)
        return loss_and_gradient(to_parameters(wide), jnp.asarray(X), jnp.asarray(y))[0]


def test_from_a_poor_start_it_ends_near_the_optimum(poor_start):
    X, y, _, key, (gp, trace) = poor_start
    best = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=Exact(steps=40))[0]
    assert exact_loss(gp, X, y) < exact_loss(best, X, y) + 0.02
    assert trace.left_out == 0


def test_the_trace_is_the_change_of_the_loss(poor_start):
    X, y, start, _, (gp, trace) = poor_start
    assert trace.since_start
    assert trace.loss[0] == 0
    assert trace.loss[-1] == pytest.approx(exact_loss(gp, X, y) - exact_loss(start, X, y), rel=0.15)


def test_the_last_solution_is_that_of_the_posterior(poor_start):
    X, y, _, key, (gp, trace) = poor_start
    solver = SAP(tolerance=0.01)
    posterior = condition(gp, X, y, key=key, num_samples=32, solver=solver, init=trace.weights)
    assert posterior.info.steps == 0
    assert float(jnp.max(posterior.info.relative_residual)) < 0.01
    with pytest.raises(ValueError, match=r"init.*\(500, 65\)"):
        condition(gp, X, y, key=key, num_samples=64, init=trace.weights)


SMALL = Pathwise(steps=12, probes=8, passes=2, num_features=200, block_size=64)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda X, y: (np.column_stack([X[:, :1], np.ones(len(X))]), y),
        lambda X, y: (np.concatenate([X[:50], X[:50]]), y),
        lambda X, y: (X, np.sin(X[:, 0])),
        lambda X, y: (X, np.where(np.arange(len(y)) == 3, 1e4, y)),
        lambda X, y: (X[:20], y[:20]),
        lambda X, y: (np.random.default_rng(0).normal(size=(len(X), 90)), y),
    ],
    ids=["constant input", "repeated rows", "no noise", "an outlier", "20 rows", "90 inputs"],
)
def test_hard_cases_end_in_finite_numbers(key, spoil):
    X, y, _ = drawn(100, np.array([0.7, 1.0]), 0.1)
    X, y = spoil(X, y)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=SMALL)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gp))
    assert trace.loss[-1] < 0
    assert trace.left_out == 0


def test_noise_that_differs_between_rows_is_scaled(key):
    X, y, _ = drawn(100, np.array([0.7, 1.0]), 0.1)
    shape = np.linspace(0.5, 1.5, 100)
    gp, _ = fit_hyperparameters(GP(Matern32([1.0, 1.0]), noise=shape), X, y, key=key, method=SMALL)
    np.testing.assert_allclose(gp.noise / gp.noise[0], shape / shape[0], rtol=0.01)  # but for the floor
    assert float(jnp.mean(gp.noise)) < 0.7


def test_ctrl_c_and_time_return_what_there_is(key, monkeypatch):
    X, y, _ = drawn(100, np.array([0.7, 1.0]), 0.1)
    hurried = Pathwise(probes=8, passes=2, num_features=200, block_size=64, max_seconds=0.0)
    _, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=hurried)
    assert len(trace.loss) == 1
    assert not trace.interrupted
    calls, gradient = [], pathwise.gradient_per_row

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return gradient(*arguments)

    monkeypatch.setattr(pathwise, "gradient_per_row", interrupted)
    gp, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=SMALL)
    assert trace.interrupted
    assert len(trace.loss) == 3
    assert trace.weights.shape == (100, 9)
    assert np.isfinite(float(gp.noise))


def test_a_solve_that_diverges_goes_half_way_back(key, monkeypatch):
    X, y, _ = drawn(100, np.array([0.7, 1.0]), 0.1)
    calls, solve = [], SAP.solve

    def sometimes(self, *arguments, **named):
        calls.append(1)
        if len(calls) == 3:
            raise DivergenceError
        return solve(self, *arguments, **named)

    monkeypatch.setattr(SAP, "solve", sometimes)
    _, trace = fit_hyperparameters(default_gp(X, y), X, y, key=key, method=SMALL)
    assert trace.left_out == 1
    assert len(trace.loss) == 11
    monkeypatch.setattr(SAP, "solve", lambda *_, **__: (_ for _ in ()).throw(DivergenceError))
    with pytest.raises(ValueError, match="not finite at the starting values: start from more noise"):
        fit_hyperparameters(default_gp(X, y), X, y, key=key, method=SMALL)


@pytest.mark.parametrize("name", ["steps", "probes", "passes"])
def test_settings_that_make_no_sense_are_refused(name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        Pathwise(**{name: 0})
