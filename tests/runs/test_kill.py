"""`kill -9` at twenty random moments of a solve, of learning and of a Thompson loop; and a disk that is really full."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors import safe_open

ROOT = pathlib.Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
KILLS = 20


def start(kind, folder, pause, environment):
    command = [sys.executable, "-m", "tests.support.killed", kind, str(folder), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def result(folder):
    with np.load(folder / "result.npz") as stored:
        return [stored[name] for name in stored.files]


def kill_at_random(kind, folder, pause, environment, rng):
    """Kills a run, one in four while it starts, else when it has come further; whether it had."""
    with start(kind, folder, pause, environment) as process:
        came_on = False
        if rng.random() < 0.75:
            assert process.stdout is not None
            came_on = process.stdout.readline() == "on\n"
            time.sleep(rng.uniform(0, 1.5))
        else:
            time.sleep(rng.uniform(0, 5))
        assert process.poll() is None, "it ended before it was killed"
        process.kill()
    return came_on


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["solve", "learn", "thompson"])
def test_a_run_that_is_killed_twenty_times_ends_at_the_same_bits(kind, tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    environment = ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    all_said = start(kind, undisturbed, 0, environment).communicate()[0].splitlines()
    expected = result(undisturbed)
    rng = np.random.default_rng()
    came_on = 0
    for _ in range(KILLS):
        came_on += kill_at_random(kind, killed, 0.25, environment, rng)
        for path in killed.iterdir():
            if not path.name.startswith("."):  # a final name
                with safe_open(path, framework="numpy") as file:
                    assert [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118, not a dictionary
    assert came_on > KILLS / 3
    last = start(kind, killed, 0, environment)
    said = last.communicate()[0].splitlines()
    assert last.returncode == 0
    assert 0 < len(said) < len(all_said)  # it did not begin anew
    for a, b in zip(result(killed), expected, strict=True):
        np.testing.assert_array_equal(a, b)


FULL = """
import sys, warnings, jax, numpy as np
sys.argv = ["killed.py"]
from tests.support.killed import GIVEN, X, y
from pathgp import Checkpoint, condition, storage
from pathgp.solvers import SDD
settings = dict(solver=SDD(steps=50, batch_size=32, tolerance=0.0), num_samples=8, key=jax.random.key(0))
warnings.filterwarnings("ignore", message=".*did not reach the tolerance")
whole = condition(GIVEN, X, y, **settings)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    posterior = condition(GIVEN, X, y, checkpoint=Checkpoint(sys.path[-1], every_seconds=0), **settings)
said = {str(warning.message) for warning in caught}
assert any("solve.checkpoint could not be written (No space left on device)" in s for s in said), said
np.testing.assert_array_equal(whole.solution.weights, posterior.solution.weights)
try:
    storage.save(sys.path[-1] + "/model", posterior)
except OSError as error:
    assert error.strerror == "No space left on device", error
else:
    raise AssertionError("the disk was meant to be full")
again = condition(GIVEN, X, y, checkpoint=Checkpoint(sys.path[-1], every_seconds=3600), **settings)
np.testing.assert_array_equal(whole.solution.weights, again.solution.weights)
"""


@pytest.mark.slow
def test_a_full_disk_gives_sentences_and_keeps_the_last_good_checkpoint(tmp_path):
    """On a file system of its own, with room for one checkpoint and no second beside it."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.skip("file systems cannot be mounted here")
    size = 3_500_000
    mount = f'mount -t tmpfs -o size={size} tmpfs {tmp_path} && exec {sys.executable} -c "$CODE"'
    environment = ENVIRONMENT | {"CODE": f"import sys; sys.path += [{str(ROOT)!r}, {str(tmp_path)!r}]\n" + FULL}
    run = subprocess.run(["unshare", "-rm", "sh", "-c", mount], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
