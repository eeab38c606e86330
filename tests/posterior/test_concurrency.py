"""Several at once: threads that predict from one model, threads and processes that write one file."""

import hashlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pathgp import PathGPRegressor, kernels
from pathgp.runs.atomic import atomic_path, write_atomically

WRITERS, TIMES = 4, 25


def contents(writer):
    """What a writer writes: large enough to take several system calls, and other than what the others write."""
    return hashlib.sha256(str(writer).encode()).digest() * 50_000


WHOLE = {contents(writer) for writer in range(WRITERS)}

WRITER = """
import pathlib, sys
from pathgp.runs.atomic import write_atomically
content = sys.stdin.buffer.read()
for _ in range(25):
    write_atomically(pathlib.Path(sys.argv[1]), content)
"""


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    fixed = PathGPRegressor(kernels.Matern32(), noise=0.1, hyperparameters="fixed", num_samples=4, random_state=0)
    return fixed.fit(X, np.sin(X[:, 0]))


def test_threads_that_predict_from_one_model_get_the_bits_of_one(model):
    queries = [np.random.default_rng(i).normal(size=(8, 2)) for i in range(6)]
    predict = lambda x: np.concatenate(model.predict(x, return_std=True)).tobytes()
    alone = [predict(x) for x in queries]
    start = threading.Barrier(2)

    def all_of_them(order):
        start.wait()
        return {i: predict(queries[i]) for i in order}

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(all_of_them, ([*range(6)] * 10, [*reversed(range(6))] * 10)):
            assert [found[i] for i in range(6)] == alone


PREDICTING = """
import jax, numpy as np
from concurrent.futures import ThreadPoolExecutor
from pathgp import GP, Local, condition
from pathgp.kernels import Matern32
from pathgp.solvers import SAP
X = np.random.default_rng(0).normal(size=(700, 3))
gp, solver = GP(Matern32(1.0), noise=0.1), SAP(passes=2, tolerance=1.0)
posterior = condition(gp, X, X[:, 0], solver=solver, local=Local(128), num_samples=4, key=jax.random.key(0))
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: np.asarray(posterior.predict(X)[0]), range(8)))
assert all((mean == found[0]).all() for mean in found)
"""


def test_threads_that_predict_do_not_wait_for_each_other_forever():
    """Factorisations of all of them at once are more than the pool of XLA has threads."""
    command, environment = [sys.executable, "-c", PREDICTING], {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run(command, check=True, timeout=300, env=environment)


def test_threads_that_write_one_file_leave_that_of_one_of_them(tmp_path):
    path = tmp_path / "model"

    def write(writer):
        for _ in range(TIMES):
            write_atomically(path, contents(writer))
            assert path.read_bytes() in WHOLE

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    assert path.read_bytes() in WHOLE
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_begins_while_another_writes_does_not_touch_its_file(tmp_path):
    path = tmp_path / "model"
    with atomic_path(path) as first:
        first.write_bytes(b"first, half ")
        with atomic_path(path) as second:
            second.write_bytes(b"second")
        assert path.read_bytes() == b"second"
        with open(first, "ab") as file:
            file.write(b"and whole")
    assert path.read_bytes() == b"first, half and whole"


def test_processes_that_write_one_file_leave_that_of_one_of_them(tmp_path):
    path = tmp_path / "model"
    command = [sys.executable, "-c", WRITER, str(path)]
    running = []
    for i in range(2):
        (tmp_path.parent / str(i)).write_bytes(contents(i))
        with open(tmp_path.parent / str(i), "rb") as content:
            running.append(subprocess.Popen(command, stdin=content, env={"PYTHONPATH": ":".join(sys.path)}))
    while any(process.poll() is None for process in running):
        if path.exists():
            assert path.read_bytes() in WHOLE
    assert [process.returncode for process in running] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]
