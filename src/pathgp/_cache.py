"""The compilation cache: programs that JAX has compiled are kept between processes, in the user's cache directory."""

import hashlib
import logging
import os
import pathlib
import platform
import sys
import time
import warnings
from collections.abc import Mapping
from importlib.metadata import version

import jax

logger = logging.getLogger("pathgp")

SETTING = "PATHGP_COMPILATION_CACHE"
"""Environment variable: a directory, or "off" for no cache."""

MOST_BYTES = 512 * 2**20
"""Size above which the oldest programs are deleted."""

TRIM_SECONDS = 86_400
"""Time between two looks at the size, which take long if there are many programs."""


def use_compilation_cache(environment: Mapping[str, str] = os.environ) -> pathlib.Path | None:
    """Let JAX keep compiled programs in a directory, and return it; None without a cache.

    There is no cache if the environment variable `PATHGP_COMPILATION_CACHE` is "off", or if the directory cannot be
    written. A cache that the user has set in JAX stays as it is.
    """
    setting = environment.get(SETTING, "")
    present = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if setting.lower() in ("off", "0", "false", "no") or present is not None:
        return None
    root = pathlib.Path(setting) if setting else _user_cache(environment) / "pathgp"
    directory = root / _identity()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        looked = root / ".trimmed"
        if not looked.exists() or time.time() - looked.stat().st_mtime > TRIM_SECONDS:
            looked.touch()
            trim(root)
    except OSError as error:
        logger.debug("No compilation cache: %s", error)
        return None
    if not os.access(directory, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(directory))
    # Most programs are small: together they take longer to compile than the few large ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # An entry that another process has not finished writing, or a full disk, costs a compilation and nothing else.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    return directory


def trim(root: pathlib.Path, most_bytes: int = MOST_BYTES) -> None:
    """Delete the oldest files below `root` until at most half of `most_bytes` is left, if there are more than that."""
    found = []
    for path in root.rglob("*"):
        try:  # another process may delete the file meanwhile
            if path.is_file():
                found.append((path.stat().st_mtime, path.stat().st_size, path))
        except OSError:
            continue
    total = sum(size for _, size, _ in found)
    if total <= most_bytes:
        return
    for _, size, path in sorted(found):
        if total <= most_bytes / 2:
            break
        path.unlink(missing_ok=True)
        total -= size


def _user_cache(environment: Mapping[str, str]) -> pathlib.Path:
    if sys.platform == "darwin":
        return pathlib.Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return pathlib.Path(environment.get("LOCALAPPDATA", pathlib.Path.home() / "AppData" / "Local"))
    return pathlib.Path(environment.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")


def _identity() -> str:
    """Return a name for this version of JAX and this processor: programs contain its instructions.

    A home directory may be shared by computers with different processors.
    """
    processor = platform.machine() + platform.processor()
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        processor += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:
        pass
    return f"jaxlib-{version('jaxlib')}-{hashlib.sha256(processor.encode()).hexdigest()[:12]}"
