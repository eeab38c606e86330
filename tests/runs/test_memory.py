"""What a machine says of its memory; and that memory stays linear in N, measured in a process of its own."""

import os
import subprocess
import sys

import pytest

from pathgp.runs.memory import memory_limit

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def machine(tmp_path):
    """A function that writes the files of a machine, and the folder that they are in."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


MEMORY = {
    "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n",
    "proc/self/status": "Name: python\nVmRSS:\t 1000 kB\n",
}


def test_without_control_groups_it_is_what_is_free_and_its_own(machine):
    assert memory_limit(machine(**MEMORY)) == 6000 * 1024
    assert memory_limit(machine(**{"proc/self/status": "Name: python\n"})) == 5000 * 1024


def test_a_machine_that_does_not_say_has_no_limit(machine):
    assert memory_limit(machine()) is None
    assert memory_limit(machine(**(MEMORY | {"proc/meminfo": "MemTotal: 9000 kB\n"}))) is None


def test_the_tightest_control_group_counts_of_either_version_and_those_around_it(machine):
    groups = {"proc/self/cgroup": "4:memory:/jobs/mine\n3:cpu:/\n0::/other\n"}
    assert memory_limit(machine(**MEMORY, **groups)) == 6000 * 1024  # groups that say nothing
    first = "sys/fs/cgroup/memory/jobs"
    limits = {f"{first}/memory.limit_in_bytes": "5000000\n", f"{first}/mine/memory.limit_in_bytes": f"{2**63 - 4096}\n"}
    assert memory_limit(machine(**limits)) == 5_000_000
    second = {"sys/fs/cgroup/other/memory.max": "max\n", "sys/fs/cgroup/memory.max": "3000000\n"}
    assert memory_limit(machine(**second)) == 3_000_000
    of_the_processor = {"sys/fs/cgroup/cpu/memory.limit_in_bytes": "1\n"}
    assert memory_limit(machine(**of_the_processor)) == 3_000_000


@on_linux
def test_this_machine_has_no_more_than_it_is_built_with():
    limit = memory_limit()
    assert limit is not None
    assert 10**7 < limit <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


PEAK = """
import pathlib, re
status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss would count the process that started this one
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 2**20)
"""

MANY_ROWS = """
import warnings
import jax, jax.numpy as jnp
from pathgp import GP, condition
from pathgp.kernels import Matern32
from pathgp.solvers import SAP, SDD
warnings.simplefilter("ignore")
key = jax.random.key(0)
X = jax.random.normal(key, (ROWS, 8))
y = jnp.sin(X[:, 0])
solver = SOLVER
posterior = condition(GP(Matern32(2.0), 0.1), X, y, solver=solver, num_samples=8, key=key)
assert posterior.info.steps > 0
"""

MANY_CANDIDATES = """
import jax
from pathgp.functions import Canonical, Function
from pathgp.kernels import Matern32
from pathgp.thompson import Search, maximise
key = jax.random.key(0)
X = jax.random.uniform(key, (200, 8))
samples = Function(Canonical(Matern32(0.5), X), jax.random.normal(key, (200, 1000)))
search = Search(rounds=30, candidates=50_000, steps=1)
points, values = maximise(samples, [(0, 1)] * 8, key=key, X=X, y=X[:, 0], search=search)
assert points.shape == (1000, 8)
"""


def peak_of(script):
    """The most gigabytes that a process which runs the script had, as users run it."""
    as_users_run_it = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "OPENBLAS_NUM_THREADS")
    }
    command = [sys.executable, "-c", script + PEAK]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=as_users_run_it)
    return float(run.stdout)


@on_linux
@pytest.mark.parametrize(
    ("solver", "rows", "gigabytes"),
    [
        ("SAP(max_seconds=0.0)", 80_000, 1.25),  # of a matrix of all pairs, which would take 26
        pytest.param("SAP(max_seconds=0.0)", 200_000, 1.5, marks=pytest.mark.slow),
        pytest.param("SDD(steps=3)", 200_000, 1.5, marks=pytest.mark.slow),
    ],
)
def test_many_rows_fit_in_little_memory(solver, rows, gigabytes):
    assert peak_of(MANY_ROWS.replace("SOLVER", solver).replace("ROWS", str(rows))) < gigabytes


@on_linux
@pytest.mark.slow
def test_a_thousand_samples_and_a_million_and_a_half_candidates_fit_in_little_memory():
    assert peak_of(MANY_CANDIDATES) < 1.25  # their values alone would take 6
