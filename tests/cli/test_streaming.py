"""Predictions for a file of a million rows, in a process of its own."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.csv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SCRIPT = """
import pathlib, re, sys
from pathgp.cli import main
assert main(sys.argv[1:]) == 0
status = pathlib.Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 2**20)
"""


def test_a_million_rows_are_predicted_in_less_than_a_gigabyte(fitted, tmp_path):
    rows, rng = 1_000_000, np.random.default_rng(0)
    data, out = tmp_path / "new.csv", tmp_path / "predictions.csv"
    columns = {"size": rng.uniform(50, 200, rows), "age": rng.uniform(0, 90, rows)}
    pyarrow.csv.write_csv(pa.table({**columns, "colour": rng.choice(["red", "blue"], rows)}), data)
    command = [sys.executable, "-c", SCRIPT, "predict", str(fitted.model), str(data), "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 1.0
    with open(out) as file:
        assert sum(1 for _ in file) == rows + 1
