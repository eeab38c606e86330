"""Forked processes: the threads of XLA are not copied by a fork, and a child that waits for one never ends."""

import os
import sys

_has_lost_threads = False


def _after_fork() -> None:
    """Remembers in a child whether JAX had started its threads in the parent."""
    global _has_lost_threads
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX has no public way to ask this
    _has_lost_threads |= bridge is not None and bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)


def check_not_forked() -> None:
    """Raises `RuntimeError` in a process that was forked after JAX was used: computations would hang there."""
    if _has_lost_threads:
        raise RuntimeError(
            "this process was forked after JAX had started its threads, which a fork does not copy, so computations "
            'would hang: start processes by multiprocessing.get_context("spawn") or "forkserver", or by joblib with '
            'its default backend "loky".'
        )
