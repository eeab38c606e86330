"""Memory stays linear in N: measured in a process of its own."""

import os
import subprocess
import sys

import pytest
from conftest import FOR_TESTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SCRIPT = """
import pathlib, re, warnings
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
status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss would count the process that started this one
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 2**20)
"""


@pytest.mark.parametrize(
    ("solver", "rows", "gigabytes"),
    [
        ("SAP(max_seconds=0.0)", 80_000, 1.25),  # of a matrix of all pairs, which would take 26
        pytest.param("SAP(max_seconds=0.0)", 200_000, 1.5, marks=pytest.mark.slow),
        pytest.param("SDD(steps=3)", 200_000, 1.5, marks=pytest.mark.slow),
    ],
)
def test_many_rows_fit_in_little_memory(solver, rows, gigabytes):
    as_users_run_it = {name: value for name, value in os.environ.items() if name not in FOR_TESTS}
    command = [sys.executable, "-c", SCRIPT.replace("SOLVER", solver).replace("ROWS", str(rows))]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=as_users_run_it)
    assert float(run.stdout) < gigabytes
