"""Every solver against an independent exact solution."""

import itertools
import re
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import condition
from pathgp.kernels import RBF, Matern52
from pathgp.linalg.factor import factorise, substitute
from pathgp.posterior.gp import GP
from pathgp.posterior.problem import Problem
from pathgp.solvers import (
    CG,
    SAP,
    SDD,
    SGD,
    Cholesky,
    ConvergenceWarning,
    DivergenceError,
    InducingCG,
    InducingSGD,
    Info,
    Iterative,
    Observer,
    Run,
)
from pathgp.solvers.base import warn_unless_converged
from pathgp.system.system import Targets
from tests.support.problems import exact, prediction_error, problem, with_columns

WELL, BADLY = 1e-1, 1e-6
ITERATIVE = {
    "CG": CG(tolerance=1e-4),
    "CG without preconditioner": CG(rank=0, tolerance=1e-4),
    "SAP": SAP(block_size=256, passes=300, tolerance=1e-4),
    "SAP, plain, last iterate": SAP(
        block_size=512, passes=300, tolerance=1e-4, accelerated=False, averaging_exponent=None
    ),
    "SDD": SDD(steps=1500, batch_size=128, tolerance=1e-4),
    "SGD": SGD(steps=1500, batch_size=128, tolerance=1e-4),
}
SHORT = {
    "CG": CG(steps=5, rank=20, tolerance=0.0),
    "SAP": SAP(block_size=150, passes=2, tolerance=0.0),
    "SDD": SDD(steps=30, batch_size=64, tolerance=0.0),
    "SGD": SGD(steps=30, batch_size=64, tolerance=0.0),
}


@pytest.fixture(scope="module", params=[(WELL, False), (WELL, True), (BADLY, False), (BADLY, True)], ids=str)
def case(request):
    noise, uneven = request.param
    system, targets = problem(noise=noise, uneven=uneven)
    return noise, system, targets, *exact(system, targets)


@pytest.mark.parametrize("name", ["CG", "SAP"])
def test_direct_quality(name, case, key):
    _, system, targets, K, W = case
    solution = ITERATIVE[name].solve(system, targets, key=key)
    assert prediction_error(K, solution.weights, W).max() < 1e-3
    assert bool(jnp.all(solution.info.converged))
    assert solution.info.steps < ITERATIVE[name].schedule(system)[0]  # it stopped when it was done


@pytest.mark.parametrize("name", ["CG without preconditioner", "SAP, plain, last iterate"])
def test_the_plain_variants(name, key):
    system, targets = problem(noise=1.0)
    K, W = exact(system, targets)
    solution = ITERATIVE[name].solve(system, targets, key=key)
    assert prediction_error(K, solution.weights, W).max() < 1e-3


def test_cholesky_is_exact(case, key):
    _, system, targets, K, W = case
    solution = Cholesky().solve(system, targets, key=key)
    assert prediction_error(K, solution.weights, W).max() < 1e-5
    assert bool(jnp.all(solution.info.converged))


def test_cholesky_reports_the_residual_of_the_weights_that_it_returns(case, key):
    noise, system, targets, K, W = case
    solution = Cholesky().solve(system, targets, key=key)
    H = K + np.diag(np.broadcast_to(np.asarray(system.noise, dtype=np.float64), len(K)))
    B = np.asarray(targets.total, dtype=np.float64)
    left = B - H @ np.asarray(solution.weights, dtype=np.float64)
    of = lambda residual: np.linalg.norm(residual, axis=0) / np.linalg.norm(B, axis=0)
    # In float64 there is nothing but the rounding of the products, in another order.
    np.testing.assert_allclose(solution.info.relative_residual, of(left), rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(solution.residual, left, rtol=1e-3, atol=1e-6)
    if noise == BADLY and solution.weights.dtype == np.float32:
        assert of(left).min() > 1e3 * of(B - H @ W).max()


def test_stochastic_solvers_predict_well_where_their_weights_are_far(case, key):
    """The paper's point: errors of predictions are small where those of the weights are not."""
    noise, system, targets, K, W = case
    for solver, bound in ((ITERATIVE["SDD"], 0.01), (ITERATIVE["SGD"], 0.25)):
        weights = np.asarray(solver.solve(system, targets, key=key).weights, dtype=np.float64)
        error = prediction_error(K, weights, W)
        assert error.max() < bound
        if noise == BADLY:
            weight_error = np.linalg.norm(weights - W, axis=0) / np.linalg.norm(W, axis=0)
            assert weight_error.min() > 0.5
            assert weight_error.min() > 5 * error.max()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "directions", "slope"), [("SDD", 2000, -1.0), ("SGD", 20, -0.5)])
def test_the_error_of_stochastic_solvers_falls_at_the_expected_slope(name, directions, slope, key):
    """log error against log steps: for SGD t^-1/2 or better along the top spectral directions (Proposition 1)."""
    system, targets = problem(noise=WELL)
    K, W = exact(system, targets)
    U = np.linalg.eigh(K)[1][:, ::-1][:, :directions]
    steps, errors = [100, 400, 1600], []
    for n in steps:
        solver = eqx.tree_at(lambda s: s.steps, ITERATIVE[name], n)
        weights = np.asarray(solver.solve(system, targets, key=key).weights, dtype=np.float64)
        errors.append(np.linalg.norm(U.T @ K @ (weights - W)))
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] < slope


@pytest.mark.parametrize("name", SHORT)
def test_reported_residuals_are_true(name, key):
    system, targets = problem(N=600, noise=0.05, uneven=True)
    K, _ = exact(system, targets)
    solution = SHORT[name].solve(system, targets, key=key)
    W, B = np.asarray(solution.weights, dtype=np.float64), np.asarray(targets.total, dtype=np.float64)
    residual = B - K @ W - np.asarray(system.noise)[:, None] * W
    relative = np.linalg.norm(residual, axis=0) / np.linalg.norm(B, axis=0)
    np.testing.assert_allclose(solution.info.relative_residual, relative, rtol=1e-3)
    if solution.residual is not None:
        np.testing.assert_allclose(solution.residual, residual, atol=1e-4)


@pytest.mark.parametrize("name", SHORT)
def test_the_same_key_gives_the_same_bits_and_another_key_others(name, key):
    system, targets = problem(N=400)
    first = SHORT[name].solve(system, targets, key=key).weights
    assert bool(jnp.all(first == SHORT[name].solve(system, targets, key=key).weights))
    if name != "CG":
        assert bool(jnp.any(first != SHORT[name].solve(system, targets, key=jax.random.key(1)).weights))


@pytest.mark.parametrize("name", SHORT)
def test_tiles_and_padding_change_nothing(name, key):
    weights = []
    for tile in [(512, 2048), (100, 70)]:
        system, targets = problem(N=601, tile=tile)  # 601 is a prime: every block and tile is padded
        weights.append(SHORT[name].solve(system, targets, key=key).weights)
    scale = float(jnp.max(jnp.abs(weights[0])))
    np.testing.assert_allclose(weights[1], weights[0], atol=1e-3 * scale)


@pytest.mark.parametrize(
    "solver",
    [
        CG(rank=5, tolerance=0.1),
        SAP(passes=50, block_size=64, tolerance=0.1),
        SDD(steps=3000, batch_size=64, tolerance=0.1),
        SGD(steps=300, batch_size=64, tolerance=0.5),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_a_column_does_not_depend_on_the_others(solver, key, x64):
    """Also where columns converge at different times: a smooth one stops while a rough one goes on.

    In float64, since the rounding of float32 can decide at which step a column of CG converges.
    """
    system, targets = problem(N=400, columns=2)
    rough = np.random.default_rng(0).normal(size=400)
    columns = jnp.asarray(np.column_stack([rough, np.ones(400)]), dtype=float)
    targets = Targets(columns, jnp.zeros_like(columns))
    together = solver.solve(system, targets, key=key).weights
    alone = [solver.solve(system, with_columns(targets, [i]), key=key) for i in range(2)]
    assert alone[1].info.steps < alone[0].info.steps
    for i, solution in enumerate(alone):
        largest = float(jnp.max(jnp.abs(solution.weights)))
        np.testing.assert_allclose(together[:, i], solution.weights[:, 0], atol=1e-6 * largest)


@pytest.mark.parametrize("name", ["CG", "SAP", "SDD", "SGD"])
def test_a_warm_start_at_the_solution_stays_there(name, key):
    system, targets = problem(N=400, noise=0.5)
    _, W = exact(system, targets)
    init = jnp.asarray(W, dtype=float)
    solver = eqx.tree_at(lambda s: s.tolerance, SHORT[name], 1e-3)
    solution = solver.solve(system, targets, key=key, init=init)
    assert solution.info.steps == 0
    assert bool(jnp.all(solution.info.converged))
    np.testing.assert_allclose(solution.weights, init, rtol=1e-6)


@pytest.mark.parametrize("name", ["CG", "SAP", "SDD"])
def test_a_warm_start_saves_steps(name, key):
    system, targets = problem(N=800, noise=0.1)
    _, W = exact(system, targets)
    near = jnp.asarray(W * (1 + 0.03 * np.random.default_rng(0).normal(size=W.shape)), dtype=float)
    solver = eqx.tree_at(lambda s: s.tolerance, ITERATIVE[name], 0.01)
    cold = solver.solve(system, targets, key=key)
    warm = solver.solve(system, targets, key=key, init=near)
    assert bool(jnp.all(warm.info.converged))
    assert warm.info.steps < cold.info.steps


@pytest.mark.parametrize("name", SHORT)
def test_observers_see_the_run_and_do_not_change_it(name, key):
    system, targets = problem(N=400)
    seen = []
    plain = SHORT[name].solve(system, targets, key=key)
    watched = SHORT[name].solve(system, targets, key=key, run=Run(Observer(2, seen.append), progress=True))
    assert bool(jnp.all(plain.weights == watched.weights))
    assert [s.step for s in seen] == list(range(2, plain.info.steps + 1, 2))
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))
    assert seen[-1].passes == pytest.approx(seen[-1].step * SHORT[name].schedule(system)[2])
    if plain.info.steps % 2 == 0:
        assert bool(jnp.all(seen[-1].weights == plain.weights))


def test_columns_that_stop_at_different_passes_do_not_depend_on_who_looks_on(key):
    """The estimated error of one column depends on the samples, of which some have stopped."""
    X = np.random.default_rng(1).uniform(size=(150, 4))
    gp = GP(Matern52(0.7), noise=0.02)
    solver = SAP(block_size=16, error=0.03, tolerance=1.0)
    alone, watched = (
        condition(gp, X, np.sin(4 * X[:, 0]), solver=solver, num_samples=8, key=key, observe=observe)
        for observe in (None, Observer(1, lambda snapshot: None))
    )
    np.testing.assert_array_equal(alone.solution.weights, watched.solution.weights)
    assert alone.info.steps == watched.info.steps


def test_the_progress_bar_names_solver_and_residual(key, capsys):
    system, targets = problem(N=400)
    SHORT["SAP"].solve(system, targets, key=key, run=Run(progress=True))
    shown = capsys.readouterr().err
    assert "SAP" in shown
    assert "residual" in shown


def test_an_unfinished_solve_says_so_once(key):
    system, targets = problem(N=400)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = SDD(steps=20, batch_size=64).solve(system, targets, key=key)
    messages = [str(w.message) for w in caught if w.category is ConvergenceWarning]
    assert len(messages) == 1
    assert re.search("SDD .*1.0e-02 .* 20 steps", messages[0])
    assert not bool(jnp.any(solution.info.converged))


def test_the_warning_tells_of_the_columns_that_are_above_the_tolerance():
    """A column that met what its solver was asked for in another way, by settling, does not count."""
    residual, converged = jnp.array([0.5, 0.25, 0.125, 1e-3]), jnp.array([True, False, False, True])
    with pytest.warns(ConvergenceWarning, match=r"2 of 4 .*2.5e-01"):
        warn_unless_converged(Info("SAP", 7, 3.5, 1.0, 0.01, residual, converged))


def test_first_steps_whose_residual_rises_are_no_divergence():
    """SGD minimises another objective than the residual, which rises to 1.09 and 1.2 within two steps here."""
    for N, seed in ((600, 1), (2000, 0)):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(N, 1))
        y = np.sin(2 * X[:, 0]) + np.cos(5 * X[:, 0]) + 0.7 * rng.normal(size=N)
        key, solver = jax.random.key(seed), SGD(steps=2, batch_size=64)
        posterior = condition(GP(RBF(0.5), 0.5), X, y, solver=solver, num_samples=16, key=key)
        assert 1 < float(posterior.info.relative_residual.max()) < 2


def test_divergence_is_an_error_and_not_a_result(key):
    system, targets = problem(N=400)
    with pytest.raises(DivergenceError, match="SDD"):
        SDD(steps=2000, batch_size=64, step_size=1e4).solve(system, targets, key=key)


@pytest.mark.parametrize("name", SHORT)
def test_a_time_limit_ends_the_run_and_the_residual_is_that_of_its_weights(name, key):
    system, targets = problem(N=200)
    solver = eqx.tree_at(lambda s: s.max_seconds, SHORT[name], 0.0)
    solution = solver.solve(system, targets, key=key)
    assert 0 < solution.info.steps < SHORT[name].schedule(system)[0]
    K, _ = exact(system, targets)
    B, W = (np.asarray(x, dtype=np.float64) for x in (targets.total, solution.weights))
    left = np.linalg.norm(B - (K + 0.1 * np.eye(200)) @ W, axis=0) / np.linalg.norm(B, axis=0)
    assert np.abs(left - 1).min() > 1e-3
    np.testing.assert_allclose(solution.info.relative_residual, left, rtol=1e-3)


@pytest.mark.xla
@pytest.mark.parametrize("name", SHORT)
def test_one_compilation_serves_every_solve_of_a_shape(name, key):
    from pathgp.solvers import loop

    system, targets = problem(N=400)
    SHORT[name].solve(system, targets, key=key)
    compiled = [f._cached._cache_size() for f in (loop._prepare, loop._start, loop._advance, loop._look)]
    other = eqx.tree_at(
        lambda s: (s.noise, s.kernel.lengthscale), system, (2 * system.noise, 0.7 * system.kernel.lengthscale)
    )
    SHORT[name].solve(other, targets, key=jax.random.key(7), run=Run(Observer(3, lambda s: None)))
    assert compiled == [f._cached._cache_size() for f in (loop._prepare, loop._start, loop._advance, loop._look)]


def test_one_row(key):
    system, targets = problem(N=1)
    for solver in (Cholesky(), CG(), SAP(), SDD(steps=50)):
        W = solver.solve(system, targets, key=key).weights
        np.testing.assert_allclose(W, targets.total / 1.1, rtol=0.05)


def test_cholesky_in_blocks_is_the_factor(key):
    A = np.random.default_rng(0).normal(size=(50, 50))
    H = A @ A.T + np.eye(50)
    L = H.copy()
    factorise(L, block=7)
    np.testing.assert_allclose(np.tril(L), np.linalg.cholesky(H), atol=1e-10)
    B = np.random.default_rng(1).normal(size=(50, 3))
    np.testing.assert_allclose(substitute(L, B, block=7), np.linalg.solve(H, B), atol=1e-9)


def test_cholesky_refuses_what_is_not_positive_definite():
    with pytest.raises(ValueError, match="definite"):
        factorise(np.array([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SGD(steps=0), "SGD.steps"),
        (lambda: SDD(batch_size=0), "SDD.batch_size"),
        (lambda: SDD(step_size=-1.0), "SDD.step_size"),
        (lambda: SAP(passes=0), "SAP.passes"),
        (lambda: SAP(block_size=0), "SAP.block_size"),
        (lambda: SAP(averaging_exponent=-1.0), "SAP.averaging_exponent"),
        (lambda: CG(rank=-1), "CG.rank"),
        (lambda: Observer(0, print), "Observer.steps"),
    ],
)
def test_bad_settings(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_solvers_are_abstract_or_final():
    here = {type(s) for s in ITERATIVE.values()}
    own = lambda cls: {c for c in cls.__subclasses__() if c.__module__.startswith("pathgp.")}  # not those of tests
    assert here | {InducingCG, InducingSGD} == own(Iterative)
    assert not any(own(final) for final in own(Iterative))


def with_draws(N=600, samples=16, noise=0.01):
    """A smooth function of two inputs and samples whose prior functions are known."""
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.uniform(-2, 2, (N, 2)))
    gp = GP(Matern52(1.0), noise)
    y = jnp.sin(3 * X[:, :1]) + noise**0.5 * rng.normal(size=(N, 1))
    posed = Problem.of(gp, X, y, samples, 2000, jax.random.key(1))
    system, targets = posed.system, posed.targets
    return system, targets


def test_sap_ends_when_its_mean_is_as_exact_as_was_asked_for(key):
    """Within three times the error that was asked for, as `SAP.error` is stated; and not much sooner."""
    system, targets = with_draws()
    H = np.asarray(system.kernel(system.X, system.X), np.float64) + 0.01 * np.eye(system.size)
    x = np.random.default_rng(1).uniform(-2, 2, (200, 2))
    k = np.asarray(system.kernel(jnp.asarray(x), system.X), np.float64)
    sd = np.sqrt(1 - np.sum(k * np.linalg.solve(H, k.T).T, axis=1))
    exact_mean = k @ np.linalg.solve(H, np.asarray(targets.total[:, 0], np.float64))

    def solve(error):
        solution = SAP(block_size=64, passes=300, tolerance=1.0, error=error).solve(system, targets, key=key)
        mean = k @ np.asarray(solution.weights[:, 0], np.float64)
        rms = lambda unit: np.sqrt(np.mean(((mean - exact_mean) / unit) ** 2))
        return solution.info, max(rms(np.sqrt(sd**2 + 0.01)), rms(sd) / 2)

    (coarse, coarse_error), (fine, fine_error) = solve(0.3), solve(0.03)
    assert bool(jnp.all(coarse.converged & fine.converged))
    assert coarse.passes < fine.passes < 300
    assert 0.03 < coarse_error < 0.9
    assert 0.003 < fine_error < 0.09
