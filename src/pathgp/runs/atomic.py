"""Atomic writes: a file appears complete or not at all."""

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
except ModuleNotFoundError:  # Windows: no file is locked, and none counts as stale
    fcntl = None

TENSOR_TYPES = {
    **{"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64"},
    **{f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)},
}
"""The names of NumPy dtypes in safetensors files."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk and of an exceeded quota."""


class DiskFullError(OSError):
    """The disk is full, so the file could not be written."""

    def __str__(self) -> str:
        return (
            f"{self.filename} could not be written, because the disk is full; an existing file is unchanged. Free some "
            "space, or choose another path."
        )


@contextmanager
def atomic_path(path: pathlib.Path, force: bool = True) -> Iterator[pathlib.Path]:
    """Yield a temporary path next to `path`; on success fsync it and rename it over `path`, on failure delete it.

    A reader never sees half a file, however large it is. Of several writers, in threads, processes or on machines that
    share a disk, the last one wins. Without `force`, a file that exists at the end is kept: the new one gets a free
    name next to it, and a `FileExistsError` names it.
    """
    if _is_temporary(path.name) and path.exists():  # of an enclosing `replacing`, which renames it
        yield path
        return
    with _temporary(path) as temporary:
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # as the umask says: a library may have made the file private
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, path)
        elif (taken := _rename_to_free_name(temporary, path)) != path:
            raise FileExistsError(
                f"{path} was written by another process in the meantime and is kept: this result is in {taken}."
            )


def check_writable(path: pathlib.Path) -> None:
    """Raise `OSError` unless a file can be created and written next to `path`."""
    try:
        with _temporary(path) as temporary, open(temporary, "wb") as file:
            file.write(bytes(4096))  # a full disk still creates files
            file.flush()
            os.fsync(file.fileno())
    except DiskFullError:
        raise
    except OSError as error:
        raise type(error)(f"{path} cannot be written ({error.strerror or error}): choose another path.") from error


@contextmanager
def _temporary(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a new file next to `path`, locked while it is written and deleted at the end."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it first, or choose another path.")
    _remove_stale(path)
    temporary, is_locked = path, False
    try:
        while not is_locked:
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
            with locked(temporary, wait=True):  # another writer may be testing whether it is stale
                # Between its creation and the lock, another writer may have taken it for stale and deleted it.
                if is_locked := temporary.exists():
                    yield temporary
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFullError(error.errno, error.strerror, str(path)) from error
    finally:
        if temporary != path:
            temporary.unlink(missing_ok=True)


def _is_temporary(name: str, of: str = "") -> bool:
    """Return whether `name` is a temporary name from `_temporary`, for any file or for the file named `of`."""
    return re.fullmatch(rf"\.{re.escape(of) or '.+'}\.[0-9a-f]{{12}}", name) is not None


def _remove_stale(path: pathlib.Path) -> None:
    """Delete temporary files of `path` whose writers were killed, because the kernel has released their locks."""
    if fcntl is None:
        return
    with suppress(OSError):  # the folder may be writable but not readable
        for entry in [entry for entry in path.parent.iterdir() if _is_temporary(entry.name, of=path.name)]:
            with suppress(OSError), open(entry, "rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                entry.unlink()


@contextmanager
def locked(path: pathlib.Path, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file, created if needed; the kernel releases it however the process ends.

    If another process, or another caller in this one, holds the lock, it raises `BlockingIOError`, or waits if `wait`.
    If the operating system or the file system has no such locks, none is held.
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
            if os.fstat(file.fileno()).st_nlink:  # otherwise deleted before it was locked: try again
                yield
                return


def _rename_to_free_name(source: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Rename to `path`, or else to the first free name of 2-name, 3-name, …, without replacing any file."""
    place, number = path, 1
    while True:
        try:
            _rename_unless_exists(source, place)
            return place
        except FileExistsError:
            number += 1
            place = path.with_name(f"{number}-{path.name}")


def _rename_unless_exists(source: pathlib.Path, path: pathlib.Path) -> None:
    try:
        os.link(source, path)  # atomic, and the caller deletes the other name
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: claim the name first
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.replace(source, path)


def write_atomically(path: pathlib.Path, content: bytes, force: bool = True) -> None:
    """Write `content` to a file atomically; see `replacing`."""
    with atomic_path(path, force) as temporary:
        temporary.write_bytes(content)


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], header: Mapping[str, str]) -> None:
    """Write arrays and a header of strings to a safetensors file atomically, without copying the arrays.

    The writer of safetensors leaves unfinished files under names that cannot be recognised later, and hides the error
    number of a full disk.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)  # so that every array is aligned
    index: dict[str, object] = {"__metadata__": dict(header)}
    end = 0
    for name, array in ordered:
        offsets = [end, end := end + array.nbytes]
        index[name] = {"dtype": TENSOR_TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
    head = json.dumps(index).encode()
    head += b" " * (-len(head) % 8)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
