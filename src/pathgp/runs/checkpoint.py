"""Checkpoints: the state of a long run, and a digest of all that it depends on, in a file that is replaced atomically.

A file holds the arrays of the run's state, and none of its plan, which is computed again from the data and the key. It
is a safetensors file, as model files are: reading it executes nothing.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from types import FrameType, TracebackType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open

from pathgp import _checks as checks
from pathgp.parallel.sharding import all_equal, all_max, on_host, placed_like, spans_processes
from pathgp.runs.atomic import locked, write_tensors

FORMAT = "pathgp checkpoint 1"
SUFFIX = ".checkpoint"

Numbers = dict[str, np.ndarray]


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the run continues, and the last good checkpoint is kept."""


class Checkpoint(eqx.Module):
    """A directory in which a long run stores its state, at intervals and when it ends or is stopped.

    The same call with the same checkpoint resumes from there, with the same result as an uninterrupted run: it is
    bit-identical on the same machine and number of devices. After the end it returns at once. A call with other data,
    another GP, other settings or another version raises `ValueError`; other devices are allowed.

    The files stay until `clear()`. Only one run at a time may use the directory, which `reserve()` ensures. The
    processes of a job share one directory, in which only the first process writes.

    Parameters
    ----------
    directory
        The directory; it is created if needed.
    every_seconds
        The least number of seconds between two writes.
    part
        A prefix of the file names, if a run has several files of the same kind.

    >>> import tempfile
    >>> from pathgp import GP, condition, solvers
    >>> from pathgp.kernels import Matern32
    >>> X = jnp.linspace(0, 1, 50)[:, None]
    >>> checkpoint = Checkpoint(tempfile.mkdtemp(), every_seconds=30)
    >>> settings = {"solver": solvers.SAP(), "key": jax.random.key(0), "checkpoint": checkpoint}
    >>> posterior = condition(GP(Matern32(0.3), noise=0.01), X, jnp.sin(6 * X[:, 0]), **settings)
    >>> [path.name for path in checkpoint.files]
    ['solve.checkpoint']
    >>> checkpoint.clear()
    """

    directory: pathlib.Path = eqx.field(converter=pathlib.Path)
    every_seconds: float = 60.0
    part: str = ""

    def __check_init__(self) -> None:
        checks.require_at_least(self.every_seconds, 0, "Checkpoint.every_seconds")

    @property
    def files(self) -> list[pathlib.Path]:
        """The checkpoint files in the directory, sorted."""
        return sorted(self.directory.glob(f"*{SUFFIX}"))

    def with_part(self, part: str) -> "Checkpoint":
        """Return the checkpoint with another `part`, the prefix of its file names."""
        return dataclasses.replace(self, part=part)

    @property
    def _lock(self) -> pathlib.Path:
        return self.directory / ".lock"

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Reserve the directory, created if needed, for this run.

        The reservation ends with the block, and also if the run is killed. In a job, the first process holds it for
        all processes.

        Raises
        ------
        BlockingIOError
            If another run has reserved the directory.
        FileExistsError
            If the directory is a file.
        PermissionError
            If the directory cannot be written to.
        """
        with ExitStack() as stack:
            taken = 0
            if jax.process_index() == 0:
                self._make_directory()
                try:
                    stack.enter_context(locked(self._lock))
                    stack.callback(self._release)
                except BlockingIOError:
                    taken = 1
            if jax.process_count() > 1:
                (taken,) = all_max(taken)
            if taken:
                raise BlockingIOError(
                    f"the checkpoint directory {self.directory} is in use by another run: wait until it ends, or "
                    "choose another directory."
                )
            yield

    def _release(self) -> None:
        self._lock.unlink(missing_ok=True)
        with suppress(OSError):  # the directory is not empty
            self.directory.rmdir()

    def clear(self) -> None:
        """Delete the checkpoint files, and the directory if it is then empty; in a job only the first process does."""
        if jax.process_index() > 0 or not self.directory.is_dir():
            return
        for path in (*self.files, *self.directory.glob(f".*{SUFFIX}.*")):
            path.unlink()
        with suppress(BlockingIOError), locked(self._lock):  # if another holds it, `reserve` does this at its end
            self._release()

    def _make_directory(self) -> None:
        if self.directory.exists() and not self.directory.is_dir():
            raise FileExistsError(f"the checkpoint directory {self.directory} is a file: give a directory.")
        self.directory.mkdir(parents=True, exist_ok=True)
        if not os.access(self.directory, os.W_OK):
            raise PermissionError(f"the checkpoint directory {self.directory} is not writable: choose another.")

    def slot(self, kind: str, identity: Mapping[str, Any]) -> "Slot":
        """Return the file of a run.

        `kind` names the kind of run, and `identity` maps names that the user knows to all that its result depends on.
        Raises `ValueError` if the file belongs to another run.
        """
        self._make_directory()
        path = self.directory / f"{self.part}{'-' * bool(self.part)}{kind}{SUFFIX}"
        versions = {"the version of pathgp": version("pathgp"), "the version of jax": jax.__version__}
        known = versions | {name: v if isinstance(v, str) else digest(v) for name, v in identity.items()}
        slot = Slot(path, known, self.every_seconds)
        slot.check()
        return slot


class Slot:
    """One file of a checkpoint. As a context manager it writes the last kept state, however the run ends.

    In a job of several processes, Ctrl-C or SIGTERM in one of them ends all. They end at the next `keep` if the state
    is sharded over the processes, otherwise at the end of the run. A second signal ends its process at once.
    """

    def __init__(self, path: pathlib.Path, identity: dict[str, str], every_seconds: float) -> None:
        self.path, self.identity, self.every_seconds = path, identity, every_seconds
        self._unwritten: tuple[Any, Numbers] | None = None
        self._written_at = time.monotonic()
        self._signal = 0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "Slot":
        if jax.process_count() > 1 and threading.current_thread() is threading.main_thread():
            stops = (signal.SIGINT, signal.SIGTERM)
            self._handlers = {number: signal.signal(number, self._is_asked_to_stop) for number in stops}
        return self

    def _is_asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            self._give_back_signals()
            signal.raise_signal(number)
        self._signal = number

    def _give_back_signals(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        in_job = bool(self._handlers)
        self._give_back_signals()
        if error is None or not spans_processes(
            self._unwritten
        ):  # after an error, the others may not take part in writing
            self._write()
        if error is None and in_job:
            self._stop(*all_max(self._signal))

    def _stop(self, number: int) -> None:
        if number:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def save(self, state: Any, **numbers: Any) -> None:
        """Keep the state of the run, a pytree of arrays, and numbers or lists of numbers; write them if it is time."""
        # Copied, because a list may grow before it is written; one assignment, because Ctrl-C may come between two.
        copied = {name: np.array(value, np.float64) for name, value in numbers.items()}
        self._unwritten = jax.block_until_ready(state), copied
        is_time, stop = time.monotonic() - self._written_at >= self.every_seconds, 0
        if spans_processes(state):
            is_time, stop = all_max(is_time, self._signal)
        if is_time or stop:
            self._write()
        self._stop(stop)

    def restore(self, like: Any) -> tuple[Any, Numbers] | None:
        """Return the stored state, in the structure and on the devices of `like`, and the numbers; None without a file.

        Raises `ValueError` if the file is damaged.
        """
        if not self.path.is_file():
            return None
        with _opened(self.path) as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dictionary
        leaves, structure = jax.tree.flatten(like)
        stored = [tensors.pop(f"state.{i}", None) for i in range(len(leaves))]
        numbers = {name.removeprefix("number."): value for name, value in tensors.items()}
        restored = [_as(a, b) for a, b in zip(stored, leaves, strict=True)]
        if header.get("content") != digest((stored, numbers)) or any(leaf is None for leaf in restored):
            raise _damaged(self.path)
        return jax.tree.unflatten(structure, restored), numbers

    def check(self) -> None:
        """Raise `ValueError` if the file belongs to another run, or is not the same for all processes of a job."""
        header = {}
        if self.path.exists():
            with _opened(self.path) as file:
                header = file.metadata()
        if not all_equal(header.get("content", "")):
            raise ValueError(
                f"{self.path} is not the same file in all processes of the job: give a directory that all of them see."
            )
        if not header:
            return
        try:
            before = json.loads(header["identity"])
        except (KeyError, json.JSONDecodeError):
            raise _damaged(self.path) from None
        changed = [name for name, value in self.identity.items() if before.get(name) != value]
        if changed:
            told = [_told(name, before.get(name), self.identity[name]) for name in changed]
            raise ValueError(
                f"{self.path} is the checkpoint of a different run: {_listed(told)} changed. To resume, use the "
                "original values; to start again, delete the file or choose another directory."
            )

    def _write(self) -> None:
        if self._unwritten is None:
            return
        state, numbers = self._unwritten
        # Every process takes part in gathering sharded arrays; then only the first one writes.
        leaves = [_whole(leaf) for leaf in jax.tree.leaves(state)]
        if jax.process_index() > 0:
            self._unwritten = None
            return
        self._unwritten = leaves, numbers  # on the host: a retry needs no other process
        tensors = {f"state.{i}": leaf for i, leaf in enumerate(leaves)}
        tensors |= {f"number.{name}": value for name, value in numbers.items()}
        header = {"format": FORMAT, "identity": json.dumps(self.identity), "content": digest((leaves, numbers))}
        try:
            write_tensors(self.path, tensors, header)
            self._unwritten = None
        except OSError as error:
            kept = "the previous one is intact" if self.path.exists() else "there is no previous one"
            warnings.warn(
                f"the checkpoint {self.path} could not be written ({error.strerror or error}); {kept}, and the run "
                "continues. Free some space, or stop the run and choose another directory.",
                CheckpointWarning,
                stacklevel=3,
            )
        self._written_at = time.monotonic()


def open_slot(
    checkpoint: Checkpoint | None, kind: str, identity: Callable[[], Mapping[str, Any]]
) -> AbstractContextManager[Slot | None]:
    """Return the file of a run, or a null context if `checkpoint` is None, without calling `identity`."""
    if checkpoint is None:
        return nullcontext()
    checks.require_instance(checkpoint, Checkpoint, "checkpoint", "a Checkpoint such as Checkpoint('folder'), or None")
    return checkpoint.slot(kind, identity())


def digest(tree: Any) -> str:
    """Return a digest of the structure and the values of a pytree, the same in every process.

    It ignores the time limit `max_seconds` and the mesh, so that a run can resume with others. A function counts by its
    qualified name: neither its code nor the values that it encloses are compared.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(_without_mesh(tree))
    # Addresses, which a `repr` of a function contains, differ between processes.
    hashed = hashlib.blake2b(re.sub(r" at 0x[0-9a-f]+", "", repr(structure)).encode(), digest_size=16)
    for path, leaf in leaves:
        if getattr(path[-1] if path else None, "name", None) == "max_seconds":
            continue
        if callable(leaf):
            hashed.update(_qualified_name(leaf).encode())
            continue
        array = _whole(leaf)
        hashed.update(f"{array.dtype.str}{array.shape}".encode())
        hashed.update(array.reshape(-1).view(np.uint8).data if array.dtype.kind in "biufc" else repr(leaf).encode())
    return hashed.hexdigest()


def _qualified_name(function: Any) -> str:
    while hasattr(function, "__wrapped__") or isinstance(function, partial):  # for instance by `jax.jit`
        function = function.func if isinstance(function, partial) else function.__wrapped__
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _without_mesh(tree: Any) -> Any:
    has_mesh = lambda node: isinstance(getattr(node, "mesh", None), Mesh)
    alone = lambda node: dataclasses.replace(node, mesh=None) if has_mesh(node) else node
    return jax.tree.map(alone, tree, is_leaf=has_mesh)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _whole(leaf: Any) -> np.ndarray:
    """Return a leaf of a pytree as a whole array on the host; for a random key, its data."""
    host = on_host(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return np.ascontiguousarray(host).reshape(host.shape)


def _as(stored: np.ndarray | None, like: Any) -> Any:
    """Return a stored array as a leaf of the same kind and on the same devices as `like`, or None if it does not fit.

    The number of rows may differ by rows of padding, which depend on the number of devices: zeros at the end.
    """
    if _is_key(like):
        data = _as(stored, jax.random.key_data(like))
        return None if data is None else jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
    shape, dtype = np.shape(like), like.dtype if isinstance(like, jax.Array) else np.asarray(like).dtype
    if stored is None or stored.dtype != dtype or stored.ndim != len(shape) or stored.shape[1:] != shape[1:]:
        return None
    if stored.shape != shape:
        missing = max(0, shape[0] - stored.shape[0])
        if np.any(stored[shape[0] :]):
            return None
        stored = np.pad(stored[: shape[0]], [(0, missing)] + [(0, 0)] * (stored.ndim - 1))
    return placed_like(stored, like)


def _told(name: str, before: str | None, now: str) -> str:
    """Return the name, with both values if it is a version."""
    return f"{name} ({before}, now {now})" if name.startswith("the version") else name


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _opened(path: pathlib.Path) -> Any:
    try:
        file = safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise _damaged(path) from error
    if (file.metadata() or {}).get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of pathgp: delete it to start again.")
    return file


def _damaged(path: pathlib.Path) -> ValueError:
    return ValueError(f"{path} is damaged: delete it to start again.")
