"""One result, many layouts: devices of one process, processes of one job; N is divisible by none of their numbers."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, PathGPRegressor, condition, storage
from pathgp.cli import main
from pathgp.kernels import Matern32
from pathgp.parallel import jobs
from pathgp.solvers import Auto, Cholesky
from tests.conftest import QUICK_TO_COMPILE
from tests.support import layouts
from tests.support.layouts import TIMEOUT, free_address

SCRIPT = pathlib.Path(layouts.__file__)
SOLVERS = list(layouts.SOLVERS)
# Sums in another order: float32 rounds differently, and a few steps of CG make the most of it.
ROUNDING = 5e-4


def start(folder, *arguments, devices=1):
    """A process, whose output goes to a file: two of one job must not wait for one another's pipe to be read."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("JAX_") or "X64" in name},
        "XLA_FLAGS": f"{QUICK_TO_COMPILE} --xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "SHARED_FOLDER": str(folder),
    }
    out = folder / f"{arguments[1]} of {arguments[2:]}".replace("/", "")
    with out.open("w") as file:
        command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT), out


def result(out):
    lines = [line for line in out.read_text().splitlines() if line.startswith("{")]
    assert lines, out.read_text()[-3000:]
    return json.loads(lines[0])


@contextlib.contextmanager
def running(folder, solvers, number, lost=1, doing="solves"):
    """One process with so many devices, and a job of two processes over the loopback, all at the same time.

    Yields the processes, and the files of their output.
    """
    names, address = ";".join(solvers), free_address()
    started = [] if number is None else [start(folder, names, number, devices=number)]
    started += [start(folder, names, i, 2, address, lost, doing) for i in range(2)]
    try:
        yield started
    finally:
        for process, _ in started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What four devices and two processes find, how the job ended after one of the two was killed, and its folder."""
    folder = tmp_path_factory.mktemp("layouts")
    with running(folder, [], 4) as started:
        (alone, _), *job = started
        assert job[1][0].wait(TIMEOUT) == -9, job[1][1].read_text()[-3000:]
        clock = time.perf_counter()
        code = job[0][0].wait(TIMEOUT)
        end = code, time.perf_counter() - clock, job[0][1].read_text()
        assert alone.wait(TIMEOUT) == 0, started[0][1].read_text()[-3000:]
        yield [result(out) for _, out in started], end, folder


@pytest.fixture(scope="module")
def devices(results):
    return results[0][0]


@pytest.fixture(scope="module")
def job(results):
    return results[0][1:]


def assert_same(found, expected, name):
    scale = np.max(np.abs(expected))
    np.testing.assert_allclose(found, expected, atol=ROUNDING * scale, err_msg=name)


def assert_resumed(found, name):
    """The same bits where it goes on on the same devices, and the solution of one device everywhere."""
    assert found["from"] == [layouts.STOP] * len(found["resumed"])
    assert np.shape(found["alone"]) == (layouts.N, layouts.S)  # rows that repeat others are put together
    for weights in (found["undisturbed"], *found["resumed"]):
        assert_same(weights, found["alone"], name)
    assert found["resumed"][0] == found["undisturbed"], name


def test_four_devices_and_two_processes_give_the_posterior_of_one(devices, job):
    assert [(part["devices"], part["local"]) for part in job] == [(2, 1), (2, 1)]
    one, four = devices["predictions"]
    for found in (four, *(part["predictions"] for part in job)):
        assert_same(found, one, "SAP")
    assert job[0]["predictions"] == job[1]["predictions"]


def assert_ended(code, seconds, said):
    assert code != 0
    assert seconds < 6 * layouts.HEARTBEAT  # the heartbeat, the end of JAX, and a machine that is busy
    assert jobs.LOST in said or "JAX distributed service detected fatal errors" in said  # JAX aborts, or raises


def test_a_process_that_is_killed_ends_the_other_with_a_message(results):
    assert_ended(*results[1])


def test_what_a_killed_job_of_two_processes_kept_is_gone_on_from_by_one(results, devices):
    seen = []
    alone = layouts.kept(None, results[2] / "lost", lambda snapshot: seen.append(snapshot.step))
    assert seen[0] == layouts.STOP  # the step in which it was killed is done again
    assert seen[-1] > seen[0]
    assert_same(layouts.predictions(alone), devices["predictions"][0], "SAP")


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_killed_ends_the_other_whatever_that_is_doing(lost, tmp_path):
    with running(tmp_path, [], None, lost, "rests") as started:
        assert started[lost][0].wait(TIMEOUT) == -9
        clock = time.perf_counter()
        other, out = started[1 - lost]
        assert_ended(other.wait(TIMEOUT), time.perf_counter() - clock, out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("asked", [0, 1])
def test_one_process_that_is_asked_to_stop_ends_all_and_what_they_had_is_kept(asked, tmp_path, devices):
    with running(tmp_path, [], None, asked, "stops") as started:
        assert [process.wait(TIMEOUT) for process, _ in started] == [143, 143]
    seen = []
    alone = layouts.kept(None, tmp_path / "stopped", lambda snapshot: seen.append(snapshot.step))
    assert seen[0] == layouts.STOP + 1  # it goes on after the step in which it was asked
    assert_same(layouts.predictions(alone), devices["predictions"][0], "SAP")


@pytest.fixture(scope="module", params=[2, 3, 4])
def layout(request, tmp_path_factory):
    """So many devices, and what all solvers find on them and in a job of two processes."""
    with running(tmp_path_factory.mktemp("layout"), SOLVERS, request.param) as started:
        for process, _ in started:
            process.wait(TIMEOUT)
        return request.param, [result(out) for _, out in started]


@pytest.mark.slow
def test_every_solver_on_every_layout(layout):
    one_process, *several = layout[1]
    for name in SOLVERS:
        one, split = one_process["solvers"][name]
        for found in (split, *(part["solvers"][name] for part in several)):
            assert_same(found, one, name)
    one, split = one_process["posteriors"]
    for found in (split, *(part["posteriors"] for part in several)):
        for name in one:
            assert_same(found[name], one[name], name)
    one, split = one_process["learned"]
    for found in (split, *(part["learned"] for part in several)):
        assert_same(found["Pathwise"], one["Pathwise"], "Pathwise")
        np.testing.assert_allclose(found["NearestNeighbour"], one["NearestNeighbour"], rtol=1e-4, atol=1e-5)
    for name, found in one_process["resumed"].items():
        assert_resumed(found, name)
    for part in several:
        assert_resumed(part["resumed"], "SAP")


def exact_products(lengthscale=0.7):
    r = np.sqrt(3) * np.linalg.norm(layouts.X[:, None] - layouts.X[None], axis=-1) / lengthscale
    K, V, B = (1 + r) * np.exp(-r), layouts.V, layouts.ROWS
    H = K + np.diag(layouts.NOISE)
    return {
        "whole": H @ V,
        "columns": K[:, B] @ V[: len(B)],
        "block": H[np.ix_(B, B)],
        "residual": (3 * V - H @ V)[B],
        "misfit": (K @ V - 2 * V)[B],
        "mean noise": np.mean(layouts.NOISE),
        "quadratic": V[:, 0] @ H @ V[:, 0],
    }


def test_every_product_is_that_of_the_dense_matrix(devices):
    found, exact = devices["products"], exact_products()
    for name in ("whole", "columns", "block", "residual", "misfit", "mean noise"):
        np.testing.assert_allclose(found[name], exact[name], atol=2e-4, err_msg=name)
    difference = exact_products(0.7 + 1e-5)["quadratic"] - exact_products(0.7 - 1e-5)["quadratic"]
    np.testing.assert_allclose(found["derivative"], difference / 2e-5, rtol=1e-3)


def test_rows_are_really_split(devices, job):
    local, columns = 126, layouts.S
    for shards, width in zip(devices["shards"], (layouts.D, columns, columns, columns), strict=True):
        assert shards == [[local, width]] * 4
    assert [part["shards"] for part in job] == [[[252, columns]]] * 2


def reduced(*shapes):
    return sorted(["all-reduce", *shape] for shape in shapes)


@pytest.mark.xla
def test_a_step_reduces_block_by_columns_once_and_nothing_of_size_n(devices):
    block, inputs, columns = 63, layouts.D, layouts.S
    assert devices["steps"]["SAP"] == reduced((block, inputs), (block,), (block, columns))


@pytest.mark.slow
@pytest.mark.xla
def test_steps_of_every_solver_reduce_batches_and_nothing_of_size_n(layout):
    number, (one_process, *_) = layout
    steps = one_process["steps"]
    batch, inputs, columns = layouts.BATCH, layouts.D, layouts.S
    assert steps["SDD"] == reduced((batch, inputs), (batch, columns))
    # also the noise of the batch and its mean, the features, the norms of the gradient, which columns are samples
    others = [(batch,), (), (), (100, columns), (columns,), (columns,)]
    assert steps["SGD"] == reduced((batch, inputs), (batch, columns), *others)
    local, rank = -(-layouts.N // number), 20
    sums = reduced((columns,), (columns,), (rank, columns))  # two inner products, and the preconditioner's
    assert steps["CG"] == [*sums, ["collective-permute", local, inputs], ["collective-permute", local, columns]]
    for name in ("InducingCG", "InducingSGD"):  # points, batches and features: none grows with the rows
        assert steps[name]
        assert all(max(told[1:], default=0) <= max(batch, 100) < local for told in steps[name])


@pytest.mark.xla
def test_a_whole_product_passes_rows_round_and_a_prediction_is_reduced_once(devices):
    local, columns = 126, layouts.S
    assert devices["steps"]["product"] == [
        ["collective-permute", local, layouts.D],
        ["collective-permute", local, columns],
    ]
    assert devices["communication"] == [["all-reduce", 8, columns]]


def test_a_gathered_posterior_is_whole_can_be_saved_and_predicts_the_same(devices, job):
    shape, loaded = devices["loaded"]
    assert shape == [layouts.N, layouts.S]
    assert_same(loaded, [row[0] for row in devices["predictions"][0]], "loaded")
    assert [np.shape(part["gathered"]) for part in job] == [(layouts.N, layouts.S)] * 2
    assert job[0]["gathered"] == job[1]["gathered"]


def test_a_solve_that_is_stopped_goes_on_on_the_same_devices_and_on_others(devices):
    assert_resumed(devices["resumed"]["SAP"], "SAP")


def data():
    X = jnp.linspace(0, 1, 20)[:, None]
    return GP(Matern32(0.3), 0.1), X, jnp.sin(X[:, 0])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"keep_bytes": 10**6}, "keep_bytes"),
        ({"mesh": jax.make_mesh((1, 1), ("a", "b"))}, "mesh"),
    ],
)
def test_what_a_mesh_does_not_do_is_refused(settings, named, key):
    with pytest.raises(ValueError, match=named):
        condition(*data(), key=key, **{"mesh": jobs.mesh(1), **settings})


def test_what_is_split_is_saved_when_it_is_gathered(tmp_path, key):
    posterior = condition(*data(), solver=Cholesky(), num_samples=1, key=key, mesh=jobs.mesh(1))
    with pytest.raises(ValueError, match=r"posterior\.gathered"):
        storage.save(tmp_path / "model", posterior)


def test_auto_chooses_the_same_where_rows_are_split():
    system = layouts.System(Matern32(0.3), jnp.linspace(0, 1, 5001)[:, None], jnp.asarray(0.1))
    assert Auto().choose(system.shard(jobs.mesh(1))) == Auto().choose(system)


def test_the_estimator_splits_rows_over_devices_that_there_are():
    _, X, y = data()
    with pytest.raises(ValueError, match=r"devices.*1000"):
        PathGPRegressor(devices=1000).fit(X, y)


def test_the_command_line_asks_for_all_of_a_process(tmp_path, capsys):
    arguments = ["fit", "train.csv", "--target", "price", "--out", str(tmp_path / "m")]
    assert main([*arguments, "--coordinator", "localhost:1"]) == 2
    assert re.search("process_id.*num_processes", capsys.readouterr().err)
    assert main([*arguments, "--devices", "0"]) == 2
    assert re.search("--devices.* 0", capsys.readouterr().err)


def test_the_command_line_splits_rows_over_devices(tmp_path):
    """In a process of its own: nothing may settle which devices there are before it has asked for two."""
    np.save(tmp_path / "train.npy", np.random.default_rng(0).normal(size=(60, 2)))
    settings = ["--target", "1", "--num-samples", "2", "--max-seconds", "1", "--noise", "0.1", "--json"]
    command = [sys.executable, "-m", "pathgp", "fit", "train.npy", *settings, "--devices", "2", "--out", "model"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["rows"] == 60
    assert PathGPRegressor.load(tmp_path / "model").predict(np.zeros((1, 1))).shape == (1,)


@pytest.mark.slow
def test_the_command_line_fits_one_model_by_two_processes(tmp_path):
    """Process 0 alone speaks and writes, and the model predicts as one of a single process does."""
    X = np.random.default_rng(0).uniform(-1, 1, size=(120, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * np.random.default_rng(1).normal(size=120)
    np.save(tmp_path / "train.npy", np.column_stack([X, y]))
    fit = [sys.executable, "-m", "pathgp", "fit", "train.npy", "--target", "2", "--num-samples", "4", "--json", "--out"]
    address, several = free_address(), ["--num-processes", "2", "--coordinator"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_") or "X64" in name}
    commands = [[*fit, "together", *several, address, "--process-id", str(i)] for i in (0, 1)]
    started = []
    for i, command in enumerate([*commands, [*fit, "alone"]]):
        with (tmp_path / f"{i}.out").open("w") as out, (tmp_path / f"{i}.err").open("w") as err:
            settings = {"stdout": out, "stderr": err, "cwd": tmp_path, "env": {**environment, "JAX_PLATFORMS": "cpu"}}
            started.append(subprocess.Popen(command, **settings))
    try:
        codes = [process.wait(TIMEOUT) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    said = [(tmp_path / f"{i}.err").read_text() for i in range(3)]
    assert codes == [0, 0, 0], said
    told = [(tmp_path / f"{i}.out").read_text() for i in range(3)]
    assert json.loads(told[0])["rows"] == 120
    assert told[1] == ""
    assert "fitting" in said[0]
    assert "fitting" not in said[1]
    together, alone = (PathGPRegressor.load(tmp_path / name) for name in ("together", "alone"))
    assert_same(together.predict(X), alone.predict(X), "predictions")
    assert np.sqrt(np.mean((together.predict(X) - np.sin(3 * X[:, 0]) - X[:, 1]) ** 2)) < 0.06  # the noise is 0.1
