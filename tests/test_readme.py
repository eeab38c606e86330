"""Every example and command of the README runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from pathgp.cli import main

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)
PATHGP = re.findall(r"^pathgp ([^#\n]+)", README, flags=re.MULTILINE)
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.split("\n")[2][:20])
def test_example(example, tmp_path):
    command = [sys.executable, "-W", "error", "-c", example]
    run = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_commands_run_one_after_the_other(tmp_path, monkeypatch):
    """The last of them in a process of its own; the others compile the same programs again and again, so here."""
    assert len(PATHGP) == 4
    *others, last = PATHGP
    monkeypatch.chdir(tmp_path)
    for command in others:
        assert main(command.split()) == 0, command
    words = [sys.executable, "-m", "pathgp", *last.split()]
    run = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert run.returncode == 0, (last, run.stderr)
    for made in ("first-run/predictions.csv", "model.safetensors", "predictions.csv", "relevance.png"):
        assert (tmp_path / made).stat().st_size > 100, made


def test_each_command_is_a_target_of_the_makefile():
    assert COMMANDS == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        assert re.search(rf"^{command}: .venv/.done$", makefile, flags=re.MULTILINE)


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
