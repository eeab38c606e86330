"""Files appear whole or not at all."""

import os
import pathlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path beside `path` to write to. What stands there at the end is on the disk, then moves in one step.

    A reader never sees half a file, whatever writes it and however large it is; a failure leaves the old file alone.
    Of several writers, in threads, processes or on machines that share a disk, the last one's file stays.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # the user's own choice, where a library wrote a file for its owner alone
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Writes beside `path`, then moves it there in one step: a reader never sees half a file."""
    with replacing(path) as beside:
        beside.write_bytes(content)
