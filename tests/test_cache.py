import os
import subprocess
import sys
import time

import jax
import pytest

from pathgp import _cache

FIT = """
import jax, numpy as np
from pathgp import GP, condition, kernels
X = np.random.default_rng(0).normal(size=(40, 2))
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
posterior = condition(GP(kernels.Matern32(1.0), 0.1), X, X[:, 0], num_samples=2, num_features=10, key=jax.random.key(0))
print(sum(event == "/jax/compilation_cache/cache_hits" for event in hits), float(posterior.mean(X[:1])[0]))
"""


def run(cache):
    environment = os.environ | {_cache.SETTING: str(cache)}
    return subprocess.run([sys.executable, "-c", FIT], env=environment, capture_output=True, text=True, check=True)


@pytest.mark.xla
def test_a_second_process_compiles_nothing_that_the_first_has_compiled(tmp_path):
    first, second = (run(tmp_path / "cache").stdout.split() for _ in range(2))
    assert int(first[0]) < 5  # a program may be needed twice
    assert int(second[0]) > 20
    assert second[1] == first[1]
    for path in tmp_path.rglob("*-cache"):
        path.write_bytes(path.read_bytes()[:10])  # as if another process were writing it
    damaged = run(tmp_path / "cache")
    assert damaged.stdout.split()[1] == first[1]
    assert damaged.stderr == ""


@pytest.mark.parametrize("setting", ["off", "0", "OFF"])
def test_it_can_be_turned_off(setting):
    assert _cache.use_compilation_cache({_cache.SETTING: setting}) is None


def test_a_directory_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert _cache.use_compilation_cache({_cache.SETTING: str(tmp_path / "file" / "below")}) is None


@pytest.mark.parametrize("hours", [1, 25])
def test_the_size_is_looked_at_once_a_day(tmp_path, hours):
    program = tmp_path / "jaxlib-0.1" / "large"
    program.parent.mkdir()
    with program.open("wb") as file:
        file.truncate(_cache.MOST_BYTES + 1)  # takes no room on the disk
    looked = tmp_path / ".trimmed"
    looked.touch()
    os.utime(looked, (time.time() - 3600 * hours,) * 2)
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert _cache.use_compilation_cache({_cache.SETTING: str(tmp_path)}) is not None
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    assert program.exists() == (hours == 1)


def test_the_oldest_programs_are_deleted_when_there_are_too_many(tmp_path):
    for i in range(10):
        path = tmp_path / "jaxlib" / str(i)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (i, i))
    _cache.trim(tmp_path, most_bytes=1000)
    assert len(list(tmp_path.rglob("?"))) == 10
    _cache.trim(tmp_path, most_bytes=999)
    assert sorted(path.name for path in tmp_path.rglob("?")) == ["6", "7", "8", "9"]
