"""Files appear whole or not at all."""

import os
import pathlib


def write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Writes beside `path`, then moves it there in one step: a reader never sees half a file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
