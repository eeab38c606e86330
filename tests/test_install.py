"""The environment that `make` sets up: what was interrupted is not taken for whole, and what is whole is kept."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PYTHON = """#!/bin/sh
# In the place of Python: `-m venv DIR` makes an environment with itself in it, all else is noted.
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit; fi
echo "$@" >> noted
if [ -e interrupted ]; then kill -INT $$; fi
"""


@pytest.fixture
def make(tmp_path):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    def run():
        command = ["make", "PYTHON=./python", ".venv/.done"]
        code = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True).returncode
        noted = tmp_path / "noted"
        return code, noted.read_text().splitlines() if noted.exists() else []

    return run


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_install_that_was_interrupted_is_done_again_and_then_kept(make, tmp_path):
    (tmp_path / "interrupted").touch()
    code, noted = make()
    assert code != 0
    assert len(noted) == 1
    assert not (tmp_path / ".venv" / ".done").exists()
    (tmp_path / "interrupted").unlink()
    code, noted = make()
    assert code == 0
    assert [line.split()[-1] for line in noted] == ["requirements.lock", "requirements.lock", "."]
    assert (tmp_path / ".venv" / ".done").exists()
    assert make() == (0, noted)  # nothing is done a third time
    os.utime(tmp_path / "requirements.lock", (2e9, 2e9))
    assert len(make()[1]) > len(noted)  # unless the versions have changed
