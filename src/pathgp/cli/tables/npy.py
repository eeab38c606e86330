"""A matrix in a .npy file as a table, memory-mapped: its columns are named "0", "1" and so on."""

import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the header by version of the format."""


class Header(NamedTuple):
    """The header of a matrix."""

    rows: int
    columns: int
    dtype: np.dtype


def is_npy(path: pathlib.Path) -> bool:
    """Return whether a file is a .npy file, by its name."""
    return path.name.lower().endswith(".npy")


def header(path: pathlib.Path) -> Header:
    """Return shape and dtype of the matrix; raise `ValueError` if the file is not a whole matrix of real numbers.

    Nothing in the file is executed.
    """
    with open(path, "rb") as file:
        try:
            shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
        except (ValueError, KeyError):  # also a truncated file, or another format
            raise ValueError(f"{path} is not a .npy file: save the matrix with numpy.save.") from None
        offset = file.tell()
    if len(shape) != 2:
        raise ValueError(
            f"{path} has an array of shape {shape}: save a matrix with one row per observation, whose columns are the "
            "inputs and the target."
        )
    if dtype.kind not in "biuf":
        what = "Python objects" if dtype.hasobject else f"numbers of type {dtype}" if dtype.kind == "c" else str(dtype)
        raise ValueError(f"{path} holds {what}: save a matrix of real numbers.")
    size, present = shape[0] * shape[1] * dtype.itemsize, path.stat().st_size - offset
    if present < size:
        raise ValueError(f"{path} is truncated: it has {present} of the {size} bytes of its numbers. Copy it again.")
    return Header(*shape, dtype)


def rows_of(path: pathlib.Path, start: int, stop: int) -> Shaped[np.ndarray, "n d"]:
    """Return a copy of some rows. The memory map ends with the call, so no more of the file stays in memory."""
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[start:stop], order="F")
