"""Two hundred fits and predictions leave the memory of the process as it is."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

CYCLES, MOST_GROWTH = 200, 20.0
"""Megabytes: a fifth of what it would be if each cycle left no more than its prior draws, 64 times 2000 weights."""

SCRIPT = """
import gc, pathlib, re, sys
import numpy as np
from pathgp import PathGPRegressor

def megabytes():
    gc.collect()
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", status)[1]) / 1024

def cycle(i):
    rng = np.random.default_rng(i)
    X = rng.normal(size=(60, 3))
    model = PathGPRegressor(random_state=i).fit(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=60))
    model.predict(X, return_std=True)
    model.sample_y(X[:8], 4)

for i in range(20):
    cycle(i)
print(megabytes(), flush=True)
for i in range(int(sys.argv[1])):
    cycle(20 + i)
    if i % 20 == 19:
        print(megabytes(), flush=True)
"""


def test_memory_does_not_grow():
    as_users_run_it = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "OPENBLAS_NUM_THREADS")
    }
    command = [sys.executable, "-c", SCRIPT, str(CYCLES)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=as_users_run_it)
    after_warm_up, *later = map(float, run.stdout.split())
    assert len(later) == CYCLES // 20
    assert later[-1] - after_warm_up < MOST_GROWTH, run.stdout
