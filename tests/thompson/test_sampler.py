import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, Local, condition, storage
from pathgp.kernels import Matern32
from pathgp.solvers import SAP, SDD, SGPR, ConvergenceWarning
from pathgp.thompson import Categorical, Integer, Real, Search, ThompsonSampler, loop
from pathgp.thompson.loop import Model, State, observe, propose, rotate_samples

QUICK = Search(rounds=2, candidates=512, steps=20)
KNOWN = GP(Matern32(0.5), noise=1e-4)


def bowl(X):
    return (X[:, 0] - 0.3) ** 2 + (X[:, 1] + 1.0) ** 2


def sampler(**settings):
    given = {"gp": KNOWN, "direction": "minimise", "search": QUICK, "random_state": 3}
    return ThompsonSampler([(0.0, 1.0), (-2.0, 2.0)], **(given | settings))


@pytest.fixture(scope="module")
def after():
    """Three batches of eight, the last of them still pending."""
    s = sampler(batch_size=8)
    for _ in range(2):
        X = s.ask()
        s.tell(X, bowl(X))
    return s, s.ask()


def test_the_minimum_of_a_bowl_is_found_with_learned_hyperparameters():
    s = sampler(gp="learn", batch_size=8)
    for _ in range(6):
        X = s.ask()
        assert X.shape == (8, 2)
        assert np.all((X >= [0, -2]) & (X <= [1, 2]))
        s.tell(X, 1e6 + 50 * bowl(X))  # far from zero: float32 alone would see steps
    x, y = s.best()
    np.testing.assert_allclose(x, [0.3, -1.0], atol=0.05)
    assert y == pytest.approx(1e6 + 50 * bowl(x[None])[0], abs=1e-6, rel=0)
    assert s.gp is not None


@pytest.mark.filterwarnings("ignore:in float32 the mean is rounded")  # of values that contradict each other
def test_hyperparameters_are_learned_again_when_the_data_have_grown_by_half(monkeypatch):
    learned_from = []

    def learn(gp, X, y, **_):
        learned_from.append(len(y))
        return KNOWN, None

    monkeypatch.setattr(loop, "fit_hyperparameters", learn)
    s = sampler(gp="learn", batch_size=4)
    X = np.random.default_rng(0).uniform([0, -2], [1, 2], (24, 2))
    for rows in (20, 2, 2):  # 20 rows, then 22 and 24
        s.tell(X[:rows], bowl(X[:rows]) + rows)
        s.ask()
    assert learned_from == [20]
    s.tell(X[:6] + 0.001, bowl(X[:6]))  # 30 rows
    s.ask()
    assert learned_from == [20, 30]


def test_both_directions_go_where_they_should(after):
    s, X = after
    other = sampler(direction="maximise", batch_size=8)
    for _ in range(2):
        A = other.ask()
        other.tell(A, -bowl(A))
    evenly = np.mean(bowl(s._settings.space.decode(loop.design(s._settings, 0, 64, np.zeros((0, 2)))[0])))
    assert np.mean(bowl(X)) < 0.5 * evenly
    assert np.mean(bowl(other.ask())) < 0.5 * evenly


def test_what_is_pending_is_not_proposed_again(after):
    s, X = after
    state, settings = s._state, s._settings
    assert len(s.pending) == 8
    np.testing.assert_allclose(s.pending, X)
    again, _ = propose(settings, state, 8)
    everything = np.concatenate([state.X, state.pending, again])
    apart = np.abs(everything[:, None] - everything).max(axis=2) + np.eye(len(everything))
    assert np.min(apart) > loop.SAME


def test_told_points_are_pending_no_more_in_any_order(after):
    s, X = after
    told = observe(s._state, s._settings.space.encode(X[[5, 2]]), np.array([1.0, np.nan]))
    assert len(told.pending) == 6
    np.testing.assert_allclose(told.failed, s._settings.space.encode(X[[2]]))
    assert told.y.size == 17


def test_failed_evaluations_are_counted_and_left_out():
    s = sampler()
    X = s.ask(4)
    s.tell(X, [1.0, np.nan, np.inf, -1.0])
    assert s.failed == 2
    assert s.best().y == -1.0
    np.testing.assert_allclose(s.best().x, X[3])


def test_nothing_but_failures_has_no_best():
    s = sampler()
    s.tell(s.ask(3), [np.nan] * 3)
    with pytest.raises(ValueError, match=" 3 "):
        s.best()
    assert s.ask(2).shape == (2, 2)


def test_points_from_outside_are_data_but_not_the_best():
    s = sampler()
    s.tell([[0.5, 5.0], [0.5, 1.0]], [-10.0, 0.0])
    assert s.best().x.tolist() == [0.5, 1.0]
    assert s._state.y.size == 2


def test_numbers_categories_and_a_small_space():
    bounds = [Real(1e-3, 1.0, log=True), Integer(1, 4), Categorical(("slow", "fast"))]
    s = ThompsonSampler(bounds, GP(Matern32(0.5), noise=1e-3), search=QUICK, initial=8)
    for _ in range(3):
        X = s.ask(8)
        assert all(isinstance(k, int) and 1 <= k <= 4 for k in X[:, 1])
        assert set(X[:, 2]) <= {"slow", "fast"}
        assert all(1e-3 <= x <= 1 for x in X[:, 0])
        s.tell(X, [-(np.log10(x / 0.03) ** 2) - (k - 3) ** 2 + (c == "fast") for x, k, c in X])
    x, k, c = s.best().x
    assert (k, c) == (3, "fast")
    assert 0.01 < x < 0.1


def test_rows_that_fill_up_change_nothing():
    """256 samples given 40 rows, of 48 with the filling, beside mean and variance by NumPy."""
    rng = np.random.default_rng(0)
    X = rng.random((40, 2))
    y = np.sin(4 * X[:, 0]) + X[:, 1]
    s = sampler()
    state = dataclasses.replace(State.empty(s._settings.space), X=X, y=y)
    samples, _ = loop._samples(Model(KNOWN, 0.0, 1.0, 40), s._settings, state, 256, jax.random.key(0))
    assert samples.weights.shape[1] == 256
    x = rng.random((20, 2))
    k = lambda A, B: (lambda r: (1 + r) * np.exp(-r))(np.sqrt(3) * np.linalg.norm(A[:, None] - B, axis=2) / 0.5)
    inverse = np.linalg.inv(k(X, X) + 1e-4 * np.eye(40))
    mean, variance = k(x, X) @ inverse @ y, 1 - np.sum(k(x, X) @ inverse * k(x, X), axis=1)
    values = np.asarray(samples(x), dtype=np.float64)
    assert np.all(np.abs(values.mean(axis=1) - mean) < 5 * np.sqrt(variance / 256) + 1e-3)
    ratio = np.mean((values - mean[:, None]) ** 2, axis=1) / variance
    assert np.all(np.abs(ratio - 1) < 5 * np.sqrt(2 / 256))


def test_repeated_places_neither_change_the_posterior_nor_the_sizes(monkeypatch):
    """Ten of 40 rows repeat others, with other values: the mean by NumPy from all rows."""
    rng = np.random.default_rng(0)
    X = np.concatenate([(places := rng.random((30, 2))), places[:10]])
    y = np.sin(4 * X[:, 0]) + 0.1 * rng.normal(size=40)
    s, sizes = sampler(), []

    def noting(*given, **options):
        posterior = condition(*given, **options)
        sizes.append(posterior.system.size)
        return posterior

    monkeypatch.setattr(loop, "condition", noting)
    for rows in (33, 37, 40):
        state = dataclasses.replace(State.empty(s._settings.space), X=X[:rows], y=y[:rows])
        samples, _ = loop._samples(Model(KNOWN, 0.0, 1.0, 40), s._settings, state, 256, jax.random.key(0))
    assert set(sizes) == {s._settings.rows(30)}  # there is one program for all of them
    k = lambda A, B: (lambda r: (1 + r) * np.exp(-r))(np.sqrt(3) * np.linalg.norm(A[:, None] - B, axis=2) / 0.5)
    mean = k(places, X) @ np.linalg.solve(k(X, X) + 1e-4 * np.eye(40), y)
    # The noise has standard deviation 0.01, so that means over 256 samples are within 0.003.
    np.testing.assert_allclose(np.asarray(samples(places)).mean(axis=1), mean, atol=5e-3)


def test_sizes_are_few_and_only_for_exact_solvers():
    settings = sampler()._settings
    assert len({settings.rows(n) for n in range(1, 4001)}) == 13
    assert all(n <= settings.rows(n) <= min(4000, max(32, 1.5 * n)) for n in range(1, 4001))
    assert settings.rows(4001) is None
    assert sampler(solver=SDD())._settings.rows(100) is None


@pytest.fixture
def kept():
    """An optimisation that keeps its posterior, as large ones do, and has been told more since."""
    s = sampler(batch_size=8)
    s._settings = dataclasses.replace(s._settings, recomputed_rows=10)
    for _ in range(3):
        X = s.ask()
        s.tell(X, bowl(X))
    return s


def test_a_kept_posterior_grows_with_the_data(kept):
    assert kept._state.posterior.system.size == 16
    kept.ask(12)
    assert kept._state.posterior.system.size == 24
    assert kept._state.posterior.num_samples == 12
    mean = kept._state.posterior.mean(kept._state.X)
    np.testing.assert_allclose(mean, bowl(kept._settings.space.decode(kept._state.X)), atol=0.05)


def test_a_kept_posterior_is_given_every_row_once(kept):
    X = kept._state.X[:5]
    repeated = kept._settings.space.decode(X)
    kept.tell(repeated, bowl(repeated) + 1)
    for _ in range(3):
        kept.ask(4)
        assert kept._state.posterior.system.size == 24
        noise = np.asarray(kept._state.posterior.system.noise_diagonal)
        np.testing.assert_allclose(noise[:5], noise[6] / 2, rtol=1e-5)  # two rows, not more with every ask
        np.testing.assert_allclose(noise[6:], noise[6], rtol=1e-5)


def test_mixed_samples_are_others_with_the_same_covariance(key):
    X = jax.random.uniform(key, (30, 2))
    posterior = condition(KNOWN, X, jnp.sin(5 * X[:, 0]), key=key, num_samples=12)
    other = rotate_samples(posterior, jax.random.key(9))
    x = jax.random.uniform(jax.random.key(8), (25, 2))
    before, after = np.asarray(posterior.deviations(x)), np.asarray(other.deviations(x))
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=2e-3)
    np.testing.assert_allclose(other.mean(x), posterior.mean(x), atol=1e-5)
    assert np.abs(np.corrcoef(before.T, after.T)[:12, 12:]).max() < 0.95
    system = posterior.system
    np.testing.assert_allclose(system @ other.solution.weights, other.targets.total, atol=2e-3)


@pytest.mark.parametrize("solver", [SAP(passes=2, block_size=8, tolerance=0.0), SGPR(np.eye(2))], ids=["SAP", "SGPR"])
def test_mixed_samples_take_all_that_belongs_to_them_along(solver, key):
    """What is left to a local projection, and the draws that an update looks at."""
    X = jax.random.uniform(key, (30, 2))
    local = Local(8) if isinstance(solver, SAP) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = condition(KNOWN, X, jnp.sin(5 * X[:, 0]), key=key, num_samples=12, solver=solver, local=local)
    other = rotate_samples(posterior, jax.random.key(9))
    x = jax.random.uniform(jax.random.key(8), (25, 2))
    before, after = np.asarray(posterior.deviations(x)), np.asarray(other.deviations(x))
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=2e-3)
    np.testing.assert_allclose(other.targets.draws(X), other.targets.signal[:, 1:], atol=1e-4)


@pytest.mark.parametrize("fixture", ["after", "kept"])
def test_a_saved_optimisation_goes_on_in_the_same_way(fixture, request, tmp_path):
    s = request.getfixturevalue(fixture)
    s = s[0] if fixture == "after" else s
    s.save(tmp_path / "state.safetensors")
    resumed = ThompsonSampler.load(tmp_path / "state.safetensors")
    assert resumed.batch_size == s.batch_size
    np.testing.assert_array_equal(resumed.pending, s.pending)
    expected, _ = propose(s._settings, s._state, 8)
    np.testing.assert_array_equal(resumed.ask(8), s._settings.space.decode(expected))


def test_files_that_hold_something_else_are_refused(tmp_path):
    storage.save(tmp_path / "solver", SDD())
    storage.save(tmp_path / "model", SDD(), metadata={"kind": "PathGPRegressor"})
    for name in ("solver", "model"):
        with pytest.raises(ValueError, match=rf"{name} .*ThompsonSampler"):
            ThompsonSampler.load(tmp_path / name)


KILLED = """
import sys, time
from tests.thompson.test_sampler import bowl, sampler
s = sampler(batch_size=8)
for _ in range(2):
    X = s.ask()
    s.tell(X, bowl(X))
print(s.ask().tolist())
s.save(sys.argv[1])
print("saved", flush=True)
time.sleep(600)
"""


def test_a_process_that_is_killed_between_ask_and_tell_loses_nothing(after, tmp_path):
    """The state is saved, the process killed, and another one is told and asks: as if there had been only one."""
    _, asked = after
    state, own = tmp_path / "state.safetensors", os.environ | {"JAX_ENABLE_X64": str(jax.config.read("jax_enable_x64"))}
    own["PYTHONPATH"] = os.pathsep.join([str(pathlib.Path(__file__).parents[2]), *sys.path])
    command = [sys.executable, "-c", KILLED, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own) as process:
        assert process.stdout is not None
        handed_out = json.loads(process.stdout.readline())
        assert process.stdout.readline() == "saved\n"
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
    np.testing.assert_array_equal(handed_out, asked)
    whole = sampler(batch_size=8)
    for _ in range(3):
        X = whole.ask()
        whole.tell(X, bowl(X))
    resumed = ThompsonSampler.load(state)
    np.testing.assert_array_equal(resumed.pending, asked)
    resumed.tell(handed_out, bowl(np.asarray(handed_out)))
    assert len(resumed.pending) == 0
    np.testing.assert_array_equal(resumed.ask(), whole.ask())


@pytest.mark.slow
def test_a_large_optimisation_keeps_its_posterior_from_ask_to_ask_and_from_file_to_file(tmp_path):
    """Above 4000 rows, by the default solver: a few passes and a local projection."""
    s, rows = sampler(batch_size=8), np.random.default_rng(0).uniform([0, -2], [1, 2], (4100, 2))
    s.tell(rows, bowl(rows))
    X = s.ask()
    assert s._state.posterior.info.solver == "SAP"
    assert s._state.posterior.local is not None
    s.tell(X, bowl(X))
    s.save(tmp_path / "large")
    other = ThompsonSampler.load(tmp_path / "large")
    X = s.ask()
    np.testing.assert_array_equal(other.ask(), X)
    assert s._state.posterior.system.size == 4108
    assert np.max(bowl(X)) < 0.05  # the noise is 0.01, and samples are known no better; values go up to 9.5


@pytest.mark.slow
def test_another_process_goes_on_in_the_same_way(tmp_path):
    s = sampler(gp="learn", batch_size=8)
    X = s.ask()
    s.tell(X, bowl(X))
    s.save(tmp_path / "state.safetensors")
    code = (
        "import sys, numpy; from pathgp.thompson import ThompsonSampler\n"
        "numpy.save(sys.argv[2], ThompsonSampler.load(sys.argv[1]).ask())"
    )
    files = [str(tmp_path / "state.safetensors"), str(tmp_path / "next.npy")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, timeout=300)
    np.testing.assert_array_equal(np.load(tmp_path / "next.npy"), s.ask())


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda s: s.ask(0), r"\bn\b"),
        (lambda s: s.tell([[0.1, 0.2, 0.3]], [1.0]), "X.*2.*3"),
        (lambda s: s.tell([[0.1, 0.2]], [1.0, 2.0]), "y "),
        (lambda s: s.tell([0.1, 0.2], [1.0]), "X "),
        (lambda s: s.tell([[0.1, 0.2]], ["good"]), r"\by\b"),
        (lambda s: s.tell([[0.1, np.nan]], [1.0]), "X.*NaN"),
        (lambda s: s.best(), "no best point yet"),
        (lambda _: sampler(direction="up"), "direction.*up"),
        (lambda _: sampler(gp="guess"), "gp.*guess"),
        (lambda _: sampler(gp=GP(Matern32(), noise=jnp.ones(3))), "gp "),
        (lambda _: sampler(batch_size=0), "batch_size"),
        (lambda _: sampler(initial=0), "initial"),
        (lambda _: sampler(random_state=-1), "random_state.*-1"),
        (lambda _: sampler(random_state=2**32), "random_state.*4294967296"),
        (lambda _: ThompsonSampler([(1.0, 0.0)]), "low"),
    ],
)
def test_bad_input_gets_a_sentence(call, named):
    with pytest.raises(ValueError, match=named):
        call(sampler())


@pytest.mark.parametrize(("american", "british"), [("minimize", "minimise"), ("maximize", "maximise")])
def test_either_spelling_of_the_direction_is_the_same(american, british):
    values = np.array([3.0, 1.0, 2.0])
    found = []
    for direction in (american, british):
        s = ThompsonSampler([(0.0, 1.0)], direction=direction)
        s.tell([[0.1], [0.2], [0.3]], values)
        found.append(s.best().y)
    assert found[0] == found[1] == (min(values) if american == "minimize" else max(values))
