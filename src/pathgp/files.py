"""Files appear whole or not at all."""

import errno
import json
import os
import pathlib
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import numpy as np

try:
    import fcntl
except ModuleNotFoundError:  # Windows: nothing is locked, and nothing counts as stale
    fcntl = None

TENSOR_TYPES = {
    **{"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64"},
    **{f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)},
}
"""What safetensors calls the types of NumPy."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a system says of a disk, or of a share of it, that is full."""


class DiskFullError(OSError):
    """There is no room for a file."""

    def __str__(self) -> str:
        return (
            f"{self.filename} could not be written, since the disk is full; what was there before is unchanged. Make "
            "room, or name another place."
        )


@contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a temporary path next to `path`; on success fsync it and rename it over `path`, on failure delete it.

    A reader never sees half a file, however large it is. Of several writers, in threads, processes or on machines that
    share a disk, the last one's file stays.
    """
    with _temporary(path) as beside:
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # the user's own choice, where a library wrote a file for its owner alone
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)


@contextmanager
def _temporary(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A new file next to `path`, locked while it is written and gone at the end."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} is missing: make it first, or name another place.")
    _remove_stale(path)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with locked(beside, wait=True):  # for a moment, while another writer looks whether it is stale
            yield beside
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFullError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def _is_temporary(name: str, of: str) -> bool:
    """Whether `_temporary` makes such names of a file of that name."""
    return re.fullmatch(rf"\.{re.escape(of)}\.[0-9a-f]{{12}}", name) is not None


def _remove_stale(path: pathlib.Path) -> None:
    """Delete temporary files of `path` whose writers were killed: the kernel has released their locks."""
    if fcntl is None:
        return
    with suppress(OSError):  # a folder that may be written to but not listed
        for entry in [entry for entry in path.parent.iterdir() if _is_temporary(entry.name, of=path.name)]:
            with suppress(OSError), open(entry, "rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                entry.unlink()


@contextmanager
def locked(path: pathlib.Path, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file, created if need be, which the kernel releases however the process ends.

    Raises BlockingIOError if another process, or another caller in this one, holds it, unless it is to `wait`. Where
    the operating system or the file system has no such locks, none is held.
    """
    if fcntl is None:
        path.touch()
        yield
        return
    while True:
        with open(path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
            if os.fstat(file.fileno()).st_nlink:  # else it was deleted before it was locked: try again
                yield
                return


def write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Write a file whole, see `replacing`."""
    with replacing(path) as beside:
        beside.write_bytes(content)


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], header: Mapping[str, str]) -> None:
    """Arrays, and a header of texts, as a safetensors file: straight from their memory, without a copy of it.

    The library's own writer puts its unfinished files under names that nobody knows again, and hides what the system
    said about a disk that is full.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)  # so that every array is aligned
    index: dict[str, object] = {"__metadata__": dict(header)}
    end = 0
    for name, array in ordered:
        offsets = [end, end := end + array.nbytes]
        index[name] = {"dtype": TENSOR_TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
    head = json.dumps(index).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path) as beside, open(beside, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
