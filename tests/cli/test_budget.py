"""The counts of the cost model against what solvers do, and its growth against exponents that are known."""

import itertools
import json
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.cli import budget as cost
from pathgp.cli.budget import Floor, Rates, estimate, work_of
from pathgp.estimator.registry import SOLVERS
from pathgp.kernels import Matern32
from pathgp.likelihood import NearestNeighbour
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.solvers import CG, SAP, SDD, SGD, Auto, InducingCG
from pathgp.system.system import System

ENTRY, FLOP, DISTANCE = Rates(1.0, 0.0, 0.0), Rates(0.0, 1.0, 0.0), Rates(0.0, 0.0, 1.0)
COMPUTED: list[int] = []


class Counting(Matern32):
    """A kernel that counts the entries of every tile when it is computed."""

    def __call__(self, A, Z):
        jax.debug.callback(lambda: COMPUTED.append(A.shape[0] * Z.shape[0]))
        return super().__call__(A, Z)


@pytest.fixture
def no_check(monkeypatch):
    """Without the estimate of the error after a solve, which is no part of the model."""
    monkeypatch.setattr("pathgp.posterior.posterior._with_errors", lambda posterior: posterior)


@pytest.mark.parametrize(
    ("solver", "work"),
    [
        (lambda X: InducingCG(X[:100], steps=18, tolerance=0.0), cost._inducing(2000, 3, 100)),
        (lambda X: SAP(passes=5, block_size=256, tolerance=0.0), cost._sap(2000, 3, 5, 256)),
    ],
    ids=["inducing", "sap"],
)
@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance")
def test_solvers_compute_as_many_entries_as_the_model_says(solver, work, no_check):
    X = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)
    COMPUTED.clear()
    condition(GP(Counting(1.0), 0.1), X, X[:, 0], solver=solver(X), num_samples=2, key=jax.random.key(0))
    jax.effects_barrier()
    assert sum(COMPUTED) == pytest.approx(work.entries, rel=0.1)  # and some for the factors, which count as flops


@pytest.mark.parametrize(
    ("solver", "work"),
    [
        (lambda X: InducingCG(X[:100], tolerance=0.0, max_seconds=1e-3), cost._inducing(2000, 3, 100)),
        (lambda X: SAP(block_size=64, tolerance=0.0, max_seconds=1e-3), cost._sap(2000, 3, 5, 64)),
        (lambda X: CG(tolerance=0.0, max_seconds=1e-3), cost._cg(2000, 3)),
        (lambda X: SDD(tolerance=0.0, max_seconds=1e-3), cost._sdd(2000, 3)),
        (lambda X: SGD(tolerance=0.0, max_seconds=1e-3), cost._sgd(2000, 3)),
    ],
    ids=["inducing", "sap", "cg", "sdd", "sgd"],
)
@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance")
def test_solvers_that_have_no_time_compute_as_many_entries_as_the_model_says(solver, work, no_check):
    X = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)
    COMPUTED.clear()
    condition(GP(Counting(1.0), 0.1), X, X[:, 0], solver=solver(X), num_samples=2, key=jax.random.key(0))
    jax.effects_barrier()
    factors = 2000 * 64
    assert sum(COMPUTED) == pytest.approx(work.first + work.last, rel=0.1, abs=factors)


@pytest.mark.parametrize("floor", [Floor(5, 10, 20), Floor(5, 40, 20), Floor(50, 10, 5), Floor(0, 0, 30)])
@pytest.mark.parametrize("seconds", [20, 65, 66, 100, 300])
def test_a_budget_is_kept_to_whatever_cannot_be_cut_short(floor, seconds):
    """As the estimator divides it: learning has half, and the solver what that leaves; both take their least."""
    budget = floor.budget(seconds)
    learning = max(budget / 2, floor.learning)
    solving = max(budget - learning, floor.first)
    assert learning + solving + floor.rest <= max(seconds, sum(floor)) + 1e-9
    if seconds >= 2 * max(floor.learning, floor.first) + floor.rest:
        assert learning + solving + floor.rest == pytest.approx(seconds)


def test_processes_share_the_work_and_float64_takes_twice_the_room():
    size = 200_000, 10, 64, "sap"
    one, four = (estimate(*size, rates=ENTRY, processes=p) for p in (1, 4))
    assert four.seconds == pytest.approx(one.seconds / 4)
    columns, inputs, N = 18 * 65, 4 * 10, 200_000
    assert one.bytes - four.bytes == cost.float_bytes() * N * (0.75 * (columns + inputs) - (2 * 65 + 10))
    with jax.enable_x64(False):
        narrow = estimate(*size, rates=ENTRY)
    with jax.enable_x64(True):
        wide = estimate(*size, rates=ENTRY)
    assert wide.bytes - narrow.bytes == pytest.approx(
        4 * N * (columns + inputs + 10)
    )  # and factors as large as they may be


@pytest.mark.parametrize("rows", [4000, 4001, 250_000, 250_001])
def test_the_solver_of_auto_is_the_one_that_it_chooses(rows):
    chosen = Auto().choose(System(Matern32(1.0), jnp.zeros((rows, 1)), jnp.asarray(0.1))).solver
    said = work_of("auto", rows, 2).solver
    assert said.startswith("SAP" if type(chosen).__name__ == "SubsetOfData" else type(chosen).__name__)
    assert ("on a subset of" in said) == (type(chosen).__name__ == "SubsetOfData")


@pytest.mark.parametrize(
    ("solver", "rates", "power"),
    [
        ("sap", ENTRY, 2),
        ("cg", ENTRY, 2),
        ("sdd", ENTRY, 1),
        ("sgd", ENTRY, 1),
        ("cholesky", FLOP, 3),
        ("inducing", DISTANCE, 1),
    ],
)
def test_seconds_grow_by_known_powers_of_the_rows(solver, rates, power):
    of = lambda N: estimate(N, 10, 16, solver, points=1000, rates=rates).seconds
    assert np.log2(of(16_000_000) / of(8_000_000)) == pytest.approx(power, abs=0.03)


@pytest.mark.parametrize(("solver", "power"), [("sap", 1), ("sdd", 1), ("inducing", 1), ("cholesky", 2)])
def test_bytes_grow_by_known_powers_of_the_rows(solver, power):
    of = lambda N: estimate(N, 10, 16, solver, points=100, rates=ENTRY).bytes - cost.compiled_bytes(N)
    assert np.log2((of(4_000_000) - of(2_000_000)) / (of(2_000_000) - of(1_000_000))) == pytest.approx(power, abs=0.02)


def test_the_arrays_of_a_solve_are_counted():
    """Two million rows and 17 columns, by hand: 2 x 136 MB of targets, 80 MB of inputs, 176 MB of a table at least."""
    found = estimate(2_000_000, 10, 16, "inducing", points=2000, rates=ENTRY).bytes
    assert 136e6 * 2 + 80e6 + 176e6 < found < 8e9
    more = estimate(2_000_000, 10, 32, "inducing", points=2000, rates=ENTRY).bytes
    assert 2 * 16 * 8e6 < more - found < 8 * 16 * 8e6
    assert estimate(50_000, 10, 16, "cholesky", rates=ENTRY).bytes > 8 * 50_000**2


def test_settings_are_those_that_solvers_have_unless_they_are_told(monkeypatch):
    monkeypatch.setitem(SOLVERS, "sap", lambda: SAP(block_size=256, factor_bytes=10**6))
    monkeypatch.setitem(SOLVERS, "cg", lambda: CG(rank=7))
    assert work_of("sap", 400, 3).bytes == cost.float_bytes() * 400 * 256
    assert work_of("sap", 5000, 3).bytes == 10**6
    assert work_of("cg", 500, 3).bytes == 4 * cost.float_bytes() * 500 * 7
    monkeypatch.setattr(cost, "NearestNeighbour", lambda: NearestNeighbour(steps=120, batch_size=10))
    assert cost.learning_seconds(10_000, DISTANCE) == 120 * 10 * 10_000
    thrice = cost.learning_seconds(10**8, DISTANCE)  # searched after 0, 50 and 100 steps
    monkeypatch.setattr(cost, "REFRESH", 60)
    assert thrice / cost.learning_seconds(10**8, DISTANCE) == pytest.approx(3 / 2)


def test_a_limit_of_time_bounds_the_estimate():
    whole = estimate(100_000, 10, 16, rates=Rates(1e-9, 2e-11, 1e-8))
    short = estimate(100_000, 10, 16, max_seconds=20, rates=Rates(1e-9, 2e-11, 1e-8))
    assert whole.seconds > 40
    assert short.seconds <= 20 + 2e-11 * 3e12  # and what compiling takes
    assert short.bytes == whole.bytes


@pytest.mark.parametrize(("cores", "flops"), [(1, 2**28), (2, 2**29), (64, 2**29)])
def test_rates_are_seconds_over_counts(cores, flops, monkeypatch):
    """Every run takes a second, with one thread as with all: then others are busy, and two cores would take half."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    rates = cost.measured_rates(2, 3)
    assert 1 / np.array(rates) == pytest.approx([2**24, flops, 2**21])


SCRIPT = """
import pathlib, re, sys
from pathgp.cli import main
assert main(sys.argv[1:]) == 0
status = pathlib.Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("solver", [["inducing", "--points", "500"], ["auto"]])
def test_a_fit_takes_the_memory_that_it_says(tmp_path, solver):
    """Its time is measured by `pathgp_paper.bench.scaling`: here other work beside it would decide."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 5))
    np.save(tmp_path / "train.npy", np.column_stack([X, np.sin(X[:, 0]) + 0.3 * rng.normal(size=30_000)]))
    words = ["fit", str(tmp_path / "train.npy"), "--target", "5", "--num-samples", "16", "--json"]
    words += ["--out", str(tmp_path / "model.safetensors"), "--solver", *solver]
    as_users_run_it = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", SCRIPT, *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=as_users_run_it)
    told, peak = run.stdout.splitlines()
    result = json.loads(told)
    assert int(peak) / 1e9 == pytest.approx(result["expected"]["gigabytes"], rel=0.25)
    assert result["expected"]["seconds"] > 0
