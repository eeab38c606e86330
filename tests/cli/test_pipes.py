"""A reader of standard output that has seen enough, `head` for instance, is no failure."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")
from tests.support.tables_of_houses import houses, write

COMMAND = [sys.executable, "-m", "pathgp"]


@pytest.mark.parametrize("words", [["--help"], ["data", "list"], ["predict", "--help"]], ids=" ".join)
def test_a_reader_that_is_gone_before_anything_is_written(words):
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (run.returncode, run.stderr) == (0, "")


def test_an_error_is_an_error_whoever_reads(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    words = ["info", str(tmp_path / "nowhere.safetensors")]
    run = subprocess.run([*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1
    assert "nowhere.safetensors" in run.stderr


def test_a_reader_that_takes_the_first_line(fitted, tmp_path):
    new = write(tmp_path / "new.csv", houses(4000, 2))  # predictions are more than a pipe holds
    words = ["predict", str(fitted.model), str(new), "--chunk", "500"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "mean,sd\n"
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(timeout=120), said) == (0, "")
