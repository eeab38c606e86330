"""The memory that a fit takes, as a function of its sizes (docs/scaling.md)."""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp

from pathgp.estimator.registry import SOLVERS, look_up
from pathgp.likelihood import Auto as AutoFit
from pathgp.likelihood.nearest import POOL_ROWS, PREFIX_ROWS
from pathgp.linalg.factor import BLOCK
from pathgp.solvers import Auto

DOUBLE = 8
"""Bytes of a float64 number."""

AUTO_BLOCK = 1024
"""Rows of a block of `Auto`."""

STARTING_BYTES, LEARNING_BYTES, LEVEL_BYTES = 550_000_000, 280_000_000, 130_000_000
"""Memory of Python, JAX and a compiled solve; of nearest-neighbour fitting; of its programs and leftovers per halving
of the rows.
"""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Expected memory of a fit, and the solver that it is for."""

    bytes: float
    solver: str

    def __str__(self) -> str:
        """Return the estimate in words.

        >>> print(Estimate(2.34e9, "SAP"))
        about 2.3 GB (SAP)
        """
        return f"about {self.bytes / 1e9:.1f} GB ({self.solver})"


class Work(NamedTuple):
    """The memory that a solver needs in addition to the table, the data and the right-hand sides."""

    solver: str
    columns: float
    """Number of arrays with one row per data row and one column per right-hand side."""
    inputs: float
    """Number of arrays with one row per data row and one column per input."""
    bytes: float = 0.0
    """Other memory: factors, and matrices of points."""


def float_bytes() -> int:
    """Return the bytes of a number in JAX's default dtype."""
    return jnp.result_type(float).itemsize


def estimate(
    rows: int,
    inputs: int,
    num_samples: int,
    solver: str = "auto",
    *,
    points: int | None = None,
    held_bytes: float | None = None,
    processes: int = 1,
    itemsize: int | None = None,
) -> Estimate:
    """Return the expected memory of `pathgp fit` on a table of this size.

    Parameters
    ----------
    rows
        Rows to fit.
    inputs
        Number of inputs.
    num_samples
        Number of posterior samples.
    solver
        Name of the solver.
    points
        Number of inducing points. None is the default of the solver.
    held_bytes
        Memory of the table. None is 4 N (d + 2), in float64 8 N (d + 1).
    processes
        Number of processes of a job. The estimate is for each of them, on its own machine.
    itemsize
        Bytes of a number in the solve: 8 for nearly noiseless data, which are solved in float64. None is that of JAX's
        default dtype.

    >>> print(estimate(2_000_000, 10, 16, "inducing", points=2000))
    about 2.6 GB (InducingCG on 2,000 points)
    """
    itemsize = float_bytes() if itemsize is None else itemsize
    work = work_of(solver, rows, num_samples + 1, points, itemsize)
    table = table_bytes(rows, inputs) if held_bytes is None else held_bytes
    solving = solving_bytes(work, rows, inputs, num_samples + 1, processes, itemsize)
    return Estimate(program_bytes(rows) + table + max(search_bytes(rows), solving), work.solver)


def work_of(solver: str, N: int, c: int, points: int | None, itemsize: int) -> Work:
    """Return the memory of the solver of this name for N rows and c columns of `itemsize` bytes per number."""
    look_up(SOLVERS, solver, "solver")
    match solver:
        case "auto" if (Auto.exact_rows_float64 if itemsize == DOUBLE else Auto.exact_rows) >= N:
            return _cholesky(N)
        case "auto" if Auto.projected_rows >= N:
            return _sap(N, itemsize, AUTO_BLOCK)
        case "auto":
            part = _sap(Auto.subset_rows, itemsize, AUTO_BLOCK)
            held = itemsize * Auto.subset_rows * c * part.columns + part.bytes
            return Work(f"{part.solver} on a subset of {Auto.subset_rows:,} rows", 7, 6, held)
        case "sap":
            return _sap(N, itemsize, SOLVERS["sap"]().block_size)
        case "cholesky":
            return _cholesky(N)
        case "subset":
            rows = min(N, SOLVERS["subset"]().rows)
            return _cholesky(rows)._replace(solver=f"Cholesky on a subset of {rows:,} rows", columns=6)
        case "cg":
            return Work("CG", 11, 4, 4 * itemsize * N * SOLVERS["cg"]().rank)
        case "sdd":
            return Work("SDD", 11, 4)
        case "sgd":
            return Work("SGD", 12, 4, 1.5 * itemsize * N * SOLVERS["sgd"]().num_features)
        case _:
            M = SOLVERS["inducing"](points).number(N)
            return Work(f"InducingCG on {M:,} points", 3.5, 3, 2 * itemsize * M**2)


def _cholesky(N: int) -> Work:
    """The matrix is overwritten with its factor, in float64, with a copy of a block of its columns."""
    return Work("Cholesky", 8, 2, DOUBLE * (N**2 + N * min(N, BLOCK)))


def _sap(N: int, itemsize: int, block: int) -> Work:
    return Work("SAP", 18, 4, min(itemsize * N * min(block, N), SOLVERS["sap"]().factor_bytes))


def table_bytes(rows: int, inputs: int) -> float:
    """Return the memory of a table: inputs in JAX's default dtype, and the target in float64."""
    return rows * (float_bytes() * inputs + DOUBLE)


def solving_bytes(work: Work, N: int, d: int, c: int, processes: int, itemsize: int) -> float:
    """Return the memory that is alive at once in a solve of N rows, d inputs and c columns.

    Each of several processes has a share of the rows, but at the start all of the inputs and right-hand sides.
    """
    split = itemsize * N * (work.columns * c + work.inputs * d) / processes
    return split + work.bytes + (0 if processes == 1 else itemsize * N * (2 * c + d))


def levels(N: int) -> int:
    """Return how often the rows are halved down to `PREFIX_ROWS`: a search is compiled for each level."""
    return max(0, math.ceil(math.log2(N / PREFIX_ROWS)))


def program_bytes(N: int) -> float:
    """Return the memory of Python, JAX and compiled programs."""
    return STARTING_BYTES + (LEARNING_BYTES if AutoFit().exact_rows < N else 0) + levels(N) * LEVEL_BYTES


def search_bytes(N: int) -> float:
    """Return the memory of a neighbour search: two arrays of distances from a pool to the last E = N/2^levels rows."""
    return 2 * float_bytes() * 2 * POOL_ROWS * (E := N / 2 ** levels(N)) * E / N if N > PREFIX_ROWS else 0.0
