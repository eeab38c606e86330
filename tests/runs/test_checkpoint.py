"""A run that is stopped goes on to the same bits, and a checkpoint of another run is refused."""

import dataclasses
import functools
import json
import re
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors import safe_open

from pathgp import GP, Checkpoint, condition, likelihood
from pathgp.kernels import RBF, Matern32
from pathgp.likelihood import Exact, NearestNeighbour, Neighbourhoods, Pathwise, descent, exact, fit_hyperparameters
from pathgp.parallel import jobs
from pathgp.runs import checkpoint
from pathgp.runs.checkpoint import CheckpointWarning, digest
from pathgp.solvers import CG, SAP, SDD, SGD, SVGP, Auto, InducingCG, InducingSGD, Observer, SubsetOfData

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(203, 2)).astype(np.float32)
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=203).astype(np.float32)
PROCESS = GP(Matern32(1.0), noise=0.05)
SOLVERS = {
    "SAP": SAP(block_size=20, passes=6, tolerance=0.16),  # a column each ends after 1, 3 and 5 passes of 11 steps
    "SDD": SDD(steps=250, batch_size=32, tolerance=1e-2),
    "SVGP": SVGP(X[:20], steps=130, batch_size=50),
}
OTHERS = {
    "CG": CG(rank=20, steps=12, tolerance=1e-4),
    "SGD": SGD(steps=250, batch_size=32),
    "InducingSGD": InducingSGD(X[:20], steps=250, descent=SGD(batch_size=32)),
    "InducingCG": InducingCG(X[:20], steps=9, tolerance=1e-6),
    "SubsetOfData": SubsetOfData(150, SAP(block_size=20, passes=6, tolerance=1e-3)),
}


@pytest.fixture
def kept(tmp_path):
    return Checkpoint(tmp_path / "run", every_seconds=0)


def solve(solver=SOLVERS["SAP"], *, gp=PROCESS, X=X, y=y, seed=0, num_samples=3, **settings):
    return condition(gp, X, y, solver=solver, num_samples=num_samples, key=jax.random.key(seed), **settings)


def stopping_at(step, seen=None, error=KeyboardInterrupt):
    def look(snapshot):
        if seen is not None:
            seen.append(snapshot.step)
        if snapshot.step == step:
            raise error

    return Observer(1, look)


def numbers(posterior):
    """All that a solve gives, but the time it took."""
    info = dataclasses.replace(posterior.info, seconds=0.0)
    return [
        np.asarray(leaf) for leaf in jax.tree.leaves((posterior.solution.weights, posterior.solution.residual, info))
    ]


def assert_same_bits(a, b):
    for left, right in zip(a, b, strict=True):
        np.testing.assert_array_equal(left, right)


def stored(kept, name):
    with safe_open(kept.directory / "solve.checkpoint", framework="numpy") as file:
        return float(file.get_tensor(f"number.{name}"))


def files(folder):
    return [path.name for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("name", [*SOLVERS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_solve_that_is_stopped_again_and_again_ends_at_the_same_bits(name, kept):
    solver = (SOLVERS | OTHERS)[name]
    undisturbed = solve(solver)
    steps = undisturbed.info.steps
    assert steps > 8
    seen = []
    for stop in (3, steps // 2, steps - 1):
        with pytest.raises(KeyboardInterrupt):
            solve(solver, checkpoint=kept, observe=stopping_at(stop, seen))
        assert files(kept.directory) == ["solve.checkpoint"]
    resumed = solve(solver, checkpoint=kept, observe=stopping_at(None, seen))
    assert_same_bits(numbers(resumed), numbers(undisturbed))
    assert seen == sorted([*range(1, steps + 1), 3, steps // 2, steps - 1])  # a step which was stopped is repeated
    assert resumed.info.seconds > 0
    seen.clear()
    again = solve(solver, checkpoint=kept, observe=stopping_at(None, seen))
    assert seen == []
    assert_same_bits(numbers(again), numbers(undisturbed))
    assert again.info.seconds > stored(kept, "seconds")  # all runs count
    kept.clear()
    assert not kept.directory.exists()


def test_between_two_writes_nothing_is_written_and_the_last_state_is_at_the_end(tmp_path):
    kept = Checkpoint(tmp_path / "run", every_seconds=3600)
    seen = []
    look = Observer(1, lambda snapshot: seen.extend(files(kept.directory)))
    with pytest.raises(ZeroDivisionError):
        solve(checkpoint=kept, observe=stopping_at(7, error=ZeroDivisionError))
    assert stored(kept, "steps") == 6
    kept.clear()
    solve(checkpoint=kept, observe=look)
    assert seen == []


def test_time_is_counted_over_all_runs(kept):
    slow = dataclasses.replace(SOLVERS["SAP"], tolerance=0.0, passes=1000, max_seconds=0.2)
    first = solve(slow, checkpoint=kept)
    assert 0 < first.info.steps < 11_000
    again = solve(slow, checkpoint=kept)
    assert again.info.steps == first.info.steps
    further = solve(dataclasses.replace(slow, max_seconds=again.info.seconds + 0.5), checkpoint=kept)
    assert further.info.steps > first.info.steps


METHODS = {
    "Exact": Exact(steps=6, restarts=1),
    "NearestNeighbour": NearestNeighbour(steps=12, neighbours=8, batch_size=16),
    "Pathwise": Pathwise(steps=5, probes=4, block_size=64, num_features=50),
    "Neighbourhoods": Neighbourhoods(centroids=3, size=40, steps=4),
}


def learn(method, **settings):
    return fit_hyperparameters(PROCESS, X, y, key=jax.random.key(1), method=method, **settings)


def stop_at_advance(monkeypatch, count):
    """Ctrl-C at one of the next points of the trace."""
    advance, calls = descent.Record.advance, []

    def stop(self):
        calls.append(self)
        if len(calls) == count:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(descent.Record, "advance", stop)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "Pathwise")) for name in METHODS]
)
def test_learning_that_is_stopped_ends_at_the_same_bits(name, kept, monkeypatch):
    method = METHODS[name]
    if name == "NearestNeighbour":  # with pools that are searched for again, as with many rows
        monkeypatch.setattr(likelihood.nearest, "PREFIX_ROWS", 128)
        monkeypatch.setattr(likelihood.nearest, "REFRESH", 5)
    found, trace = learn(method)
    for count, every in ((2, 3600), (1, 0)):  # written when it is left, and before
        with monkeypatch.context() as patched:
            stop_at_advance(patched, count)
            with pytest.raises(KeyboardInterrupt):
                learn(method, checkpoint=dataclasses.replace(kept, every_seconds=every))
        assert files(kept.directory) == ["learning.checkpoint"]
    work = counted(monkeypatch)
    again, trace_again = learn(method, checkpoint=kept)
    assert_same_bits(jax.tree.leaves(again), jax.tree.leaves(found))
    assert trace_again.loss == trace.loss
    assert trace_again.gradient == trace.gradient
    assert trace_again.left_out == trace.left_out
    assert trace_again.seconds == sorted(trace_again.seconds)
    assert not trace_again.interrupted
    if trace.weights is not None:
        np.testing.assert_array_equal(trace_again.weights, trace.weights)
    assert work
    done = len(work)
    assert_same_bits(jax.tree.leaves(learn(method, checkpoint=kept)[0]), jax.tree.leaves(found))
    assert len(work) == done  # nothing is evaluated a second time
    work.clear()
    learn(method)
    assert len(work) > done  # and what was before the interruption was not either


def counted(monkeypatch):
    """A list that grows with every evaluation of a likelihood."""
    calls = []
    for module, name in (
        (exact, "loss_and_gradient"),
        (likelihood.nearest, "_step"),
        (likelihood.pathwise, "_problem"),
    ):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, original=original: calls.append(1) or original(*a))
    return calls


REFUSED = {
    "X": {"X": X + np.float32(1e-6)},
    "X and y": {"X": X[:-1], "y": y[:-1]},
    "y": {"y": y[::-1]},
    "the kernel": {"gp": GP(RBF(1.0), noise=0.05)},
    "the noise": {"gp": GP(Matern32(1.0), noise=0.06)},
    "the mean": {"gp": GP(Matern32(1.0), noise=0.05, mean=0.1)},
    "the solver": {"solver": dataclasses.replace(SOLVERS["SAP"], tolerance=1e-4)},
    "the key": {"seed": 1},
    "num_samples": {"num_samples": 2},
    "init": {"init": jnp.ones((203, 4))},
    "keep_bytes": {"keep_bytes": 10**9},
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    kept = Checkpoint(tmp_path_factory.mktemp("stopped"))
    with pytest.raises(KeyboardInterrupt):
        solve(checkpoint=kept, observe=stopping_at(5))
    return kept


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_changed_is_named(name, stopped):
    path = stopped.directory / "solve.checkpoint"
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"solve\.checkpoint .*{name}"):
        solve(checkpoint=stopped, **REFUSED[name])
    assert path.read_bytes() == before


def test_another_version_is_refused(stopped, monkeypatch):
    monkeypatch.setattr(checkpoint, "version", lambda _: "99.0")
    now = json.loads(header(stopped)["identity"])["the version of pathgp"]
    with pytest.raises(ValueError, match=rf"pathgp \({now}, now 99.0\)"):
        solve(checkpoint=stopped)


def header(kept):
    with safe_open(kept.directory / "solve.checkpoint", framework="numpy") as file:
        return file.metadata()


def test_learning_refuses_other_data_methods_and_priors(kept):
    learn(METHODS["Exact"], checkpoint=kept)
    with pytest.raises(ValueError, match="the method"):
        learn(Exact(steps=7), checkpoint=kept)
    learn(dataclasses.replace(METHODS["Exact"], max_seconds=1e9), checkpoint=kept)
    prior = likelihood.Prior(noise=likelihood.Bounds(0.1, 1.0))
    with pytest.raises(ValueError, match="the prior"):
        learn(METHODS["Exact"], checkpoint=kept, prior=prior)


def halved(step):
    return 0.1 / 2**step


def constant(step):
    return 0.1


def test_the_identity_of_a_solver_is_made_of_class_names_and_field_values():
    assert digest(SAP(max_seconds=1.0)) == digest(SAP())
    assert digest(SubsetOfData(9, SAP(max_seconds=1.0))) == digest(SubsetOfData(9, SAP()))
    assert digest(SAP(passes=3)) != digest(SAP())
    assert digest(Auto()) != digest(SAP())
    assert digest(jnp.zeros(2)) != digest(jnp.zeros((2, 1)))


def test_a_function_is_identified_by_its_qualified_name():
    assert digest(halved) != digest(constant)
    assert digest(jax.jit(halved)) == digest(halved) == digest(functools.partial(halved))
    assert digest(optax.sgd(0.1, momentum=0.5)) == digest(optax.sgd(0.1, momentum=0.5))
    assert digest(SGD(optimizer=optax.sgd(0.1))) != digest(SGD())


def test_files_that_are_no_checkpoints_are_refused_with_a_sentence(stopped, tmp_path):
    whole = (stopped.directory / "solve.checkpoint").read_bytes()
    kept = Checkpoint(tmp_path)
    path = tmp_path / "solve.checkpoint"
    flipped = bytearray(whole)
    flipped[-40] ^= 1
    for content in (whole[:-9], b"text", flipped):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"solve\.checkpoint"):
            solve(checkpoint=kept)
    from pathgp.runs.atomic import write_tensors

    write_tensors(path, {"a": np.ones(3)}, {"format": "pathgp"})
    with pytest.raises(ValueError, match=r"solve\.checkpoint"):
        solve(checkpoint=kept)
    with pytest.raises(FileExistsError, match=r"solve\.checkpoint"):
        solve(checkpoint=Checkpoint(path))
    with pytest.raises(ValueError, match=r"Checkpoint\.every_seconds"):
        Checkpoint(tmp_path, every_seconds=-1)


def test_what_a_killed_run_was_writing_is_cleared_away(kept):
    kept.directory.mkdir()
    (kept.directory / ".solve.checkpoint.0123456789ab").write_bytes(b"half")
    (kept.directory / "mine.txt").write_text("precious")
    solve(checkpoint=kept)
    assert files(kept.directory) == ["mine.txt", "solve.checkpoint"]
    kept.clear()
    assert files(kept.directory) == ["mine.txt"]


HOLDER = """
import sys
from pathgp import Checkpoint
with Checkpoint(sys.argv[1]).reserve():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_directory_has_one_holder_until_that_ends_or_is_killed(kept):
    command, environment = [sys.executable, "-c", HOLDER, str(kept.directory)], {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match=re.escape(str(kept.directory))), kept.reserve():
            pass
        process.kill()
    assert kept.directory.exists()
    with kept.reserve():
        (kept.directory / "solve.checkpoint").touch()
    assert files(kept.directory) == ["solve.checkpoint"]
    with kept.reserve():
        kept.clear()
        with pytest.raises(BlockingIOError), kept.reserve():
            pass
    assert not kept.directory.exists()


def test_a_disk_that_is_full_gives_a_sentence_and_keeps_the_last_good_one(kept):
    undisturbed = solve()
    with pytest.raises(KeyboardInterrupt):
        solve(checkpoint=kept, observe=stopping_at(5))
    path = kept.directory / "solve.checkpoint"
    good = path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, limit[1]))
    try:
        with pytest.warns(CheckpointWarning, match=r"solve\.checkpoint.*File too large"):
            result = solve(checkpoint=kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert_same_bits(numbers(result), numbers(undisturbed))
    assert path.read_bytes() == good
    assert files(kept.directory) == ["solve.checkpoint"]
    assert_same_bits(numbers(solve(checkpoint=kept)), numbers(undisturbed))


@pytest.mark.parametrize("kind", ["samples", "update"])
def test_more_samples_and_more_data_go_on_from_a_checkpoint(kind, kept, monkeypatch):
    posterior = solve()
    given = {
        "samples": lambda seed=1, **settings: posterior.with_samples(2, key=jax.random.key(seed), **settings),
        "update": lambda seed=1, **settings: posterior.update(
            X[:50] + 0.01, y[:50], key=jax.random.key(seed), **settings
        ),
    }[kind]
    undisturbed, keep, times = given(), checkpoint.Slot.save, []

    def keep_then_stop(slot, state, **values):
        keep(slot, state, **values)
        times.append(values["steps"])
        if len(times) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Slot, "save", keep_then_stop)
    with pytest.raises(KeyboardInterrupt):
        given(checkpoint=kept)
    assert files(kept.directory) == [f"{kind}.checkpoint"]
    resumed = given(checkpoint=kept)
    assert times[5] == times[4] + 1  # it did not begin anew
    assert_same_bits(numbers(resumed), numbers(undisturbed))
    with pytest.raises(ValueError, match=rf"{kind}\.checkpoint .*\bkey\b"):
        given(seed=2, checkpoint=kept)


def test_rows_of_padding_come_and_go_with_the_number_of_devices_and_no_others_do(kept):
    state = np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 0.0]], np.float32)
    with kept.slot("solve", {}) as slot:
        slot.save(state)
    for rows in (2, 3, 5):
        found, _ = slot.restore(np.zeros((rows, 2), np.float32))
        np.testing.assert_array_equal(found, [[1, 2], [3, 0], *[[0, 0]] * (rows - 2)])
    for other in (np.zeros((1, 2), np.float32), np.zeros((3, 3), np.float32), np.zeros((3, 2), int), np.float32(0)):
        with pytest.raises(ValueError, match=r"solve\.checkpoint"):
            slot.restore(other)


def test_where_it_is_computed_does_not_change_what_is_asked_for():
    mesh = jobs.mesh(1)
    for method in (NearestNeighbour, Pathwise):
        assert digest(method(mesh=mesh)) == digest(method()) != digest(method(steps=7))
