"""The memory of the cost model against runs, and what is computed after the last step of a solve with a time limit."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.cli import budget as cost
from pathgp.cli.budget import estimate, work_of
from pathgp.estimator.registry import SOLVERS
from pathgp.kernels import Matern32
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.solvers import CG, SAP, SDD, Auto, InducingCG, Observer
from pathgp.system.system import System

COMPUTED: list[int] = []


class Counting(Matern32):
    """A kernel that counts the entries of every tile when it is computed."""

    def __call__(self, A, Z):
        jax.debug.callback(lambda: COMPUTED.append(A.shape[0] * Z.shape[0]))
        return super().__call__(A, Z)


@pytest.mark.parametrize(
    "solver",
    [
        lambda X: InducingCG(X[:100], tolerance=0.0, max_seconds=1e-3),
        lambda X: SAP(block_size=64, tolerance=0.0, max_seconds=1e-3),
        lambda X: CG(tolerance=0.0, max_seconds=1e-3),
        lambda X: SDD(tolerance=0.0, max_seconds=1e-3),
    ],
    ids=["inducing", "sap", "cg", "sdd"],
)
@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance")
def test_after_the_last_step_a_solver_computes_only_the_passes_that_it_reserves(solver, monkeypatch):
    monkeypatch.setattr("pathgp.posterior.posterior._with_errors", lambda posterior: posterior)
    N, at_steps = 6144, []  # a whole number of tiles

    def look(snapshot):
        jax.effects_barrier()
        at_steps.append(sum(COMPUTED))

    X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    chosen, gp = solver(X), GP(Counting(1.0), 0.1)
    COMPUTED.clear()
    condition(gp, X, X[:, 0], solver=chosen, num_samples=2, key=jax.random.key(0), observe=Observer(1, look))
    jax.effects_barrier()
    last_check = 2048 if isinstance(chosen, SDD) else 256 if isinstance(chosen, SAP) else 0  # a few steps
    assert sum(COMPUTED) - at_steps[-1] == pytest.approx(chosen.final_passes * N**2 + last_check * N, rel=0.1)


def test_processes_share_the_work_and_float64_takes_twice_the_room():
    size = 200_000, 10, 64, "sap"
    one, four = (estimate(*size, processes=p) for p in (1, 4))
    columns, inputs, N = 18 * 65, 4 * 10, 200_000
    assert one.bytes - four.bytes == cost.float_bytes() * N * (0.75 * (columns + inputs) - (2 * 65 + 10))
    with jax.enable_x64(False):
        narrow, mixed = estimate(*size), estimate(*size, itemsize=8)
    with jax.enable_x64(True):
        wide = estimate(*size)
    assert mixed.bytes - narrow.bytes == pytest.approx(4 * N * (columns + inputs))  # the factors have a limit
    assert wide.bytes - mixed.bytes == pytest.approx(4 * N * 10)  # the table, too, is in float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [4000, 4001, 8000, 8001, 250_000, 250_001])
def test_the_solver_of_auto_is_the_one_that_it_chooses(rows, dtype):
    with jax.enable_x64(True):
        system = System(Matern32(1.0), jnp.zeros((rows, 1), dtype), jnp.asarray(0.1, dtype))
        chosen = Auto().choose(system).solver
    said = work_of("auto", rows, 2, None, np.dtype(dtype).itemsize).solver
    assert said.startswith("SAP" if type(chosen).__name__ == "SubsetOfData" else type(chosen).__name__)
    assert ("on a subset of" in said) == (type(chosen).__name__ == "SubsetOfData")


def test_the_blocks_of_auto_are_those_that_it_takes():
    system = System(Matern32(1.0), jnp.zeros((30_000, 1)), jnp.asarray(0.1))
    assert Auto().choose(system).solver.block_size == cost.AUTO_BLOCK


@pytest.mark.parametrize(("solver", "power"), [("sap", 1), ("sdd", 1), ("inducing", 1), ("cholesky", 2)])
def test_bytes_grow_by_known_powers_of_the_rows(solver, power):
    of = lambda N: estimate(N, 10, 16, solver, points=100).bytes - cost.program_bytes(N)
    assert np.log2((of(4_000_000) - of(2_000_000)) / (of(2_000_000) - of(1_000_000))) == pytest.approx(power, abs=0.02)


def test_the_arrays_of_a_solve_are_counted():
    """Two million rows and 17 columns, by hand: 2 x 136 MB of targets, 80 MB of inputs, 176 MB of a table at least."""
    found = estimate(2_000_000, 10, 16, "inducing", points=2000).bytes
    assert 136e6 * 2 + 80e6 + 176e6 < found < 8e9
    more = estimate(2_000_000, 10, 32, "inducing", points=2000).bytes
    assert 2 * 16 * 8e6 < more - found < 8 * 16 * 8e6
    assert estimate(50_000, 10, 16, "cholesky").bytes > 8 * 50_000**2


def test_settings_are_those_that_solvers_have_unless_they_are_told(monkeypatch):
    monkeypatch.setitem(SOLVERS, "sap", lambda: SAP(block_size=256, factor_bytes=10**6))
    monkeypatch.setitem(SOLVERS, "cg", lambda: CG(rank=7))
    assert work_of("sap", 400, 3, None, 4).bytes == 4 * 400 * 256
    assert work_of("sap", 5000, 3, None, 4).bytes == 10**6
    assert work_of("cg", 500, 3, None, 8).bytes == 4 * 8 * 500 * 7


SCRIPT = """
import pathlib, re, sys
assert main(sys.argv[1:]) == 0
status = pathlib.Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("rows", "solver"), [(30_000, ["inducing", "--points", "500"]), (30_000, ["auto"]), (12_000, ["cholesky"])]
)
def test_a_fit_takes_the_memory_that_it_says(tmp_path, rows, solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 5))
    np.save(tmp_path / "train.npy", np.column_stack([X, np.sin(X[:, 0]) + 0.3 * rng.normal(size=rows)]))
    words = ["fit", str(tmp_path / "train.npy"), "--target", "5", "--num-samples", "16", "--json"]
    words += ["--out", str(tmp_path / "model.safetensors"), "--solver", *solver]
    as_users_run_it = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "OPENBLAS_NUM_THREADS")
    }
    command = [sys.executable, "-c", SCRIPT, *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=as_users_run_it)
    told, peak = run.stdout.splitlines()
    result = json.loads(told)
    assert int(peak) / 1e9 == pytest.approx(result["expected"]["gigabytes"], rel=0.25)
