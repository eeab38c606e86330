"""Files appear whole or not at all."""

import errno
import json
import os
import pathlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

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
    """A path beside `path` to write to. What stands there at the end is on the disk, then moves in one step.

    A reader never sees half a file, whatever writes it and however large it is; a failure leaves the old file alone.
    Of several writers, in threads, processes or on machines that share a disk, the last one's file stays.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} is missing: make it first, or name another place.")
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # the user's own choice, where a library wrote a file for its owner alone
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFullError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Writes beside `path`, then moves it there in one step: a reader never sees half a file."""
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
