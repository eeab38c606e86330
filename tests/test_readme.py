"""Every example and command of the README runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.split("\n")[2][:20])
def test_example(example):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", example.replace("(5000", "(500")],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 0, run.stderr


def test_each_command_is_a_target_of_the_makefile():
    assert COMMANDS == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        assert re.search(rf"^{command}: .venv/.done$", makefile, flags=re.MULTILINE)


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
