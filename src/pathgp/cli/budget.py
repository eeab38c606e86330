"""Estimates of the seconds and bytes that a fit takes, as functions of sizes (docs/scaling.md).

Bytes follow from the arrays that are alive at once. Seconds are counted operations over rates that a short measurement
gives for the machine. The number of passes or steps that a solver needs depends on the data. The assumed numbers are
those measured in docs/benchmarks.md, and the estimate states them.
"""

import dataclasses
import inspect
import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from threadpoolctl import threadpool_limits

from pathgp.estimator.registry import SOLVERS, look_up
from pathgp.kernels import Matern32
from pathgp.likelihood import Auto as AutoFit
from pathgp.likelihood.nearest import POOL_ROWS, PREFIX_ROWS, REFRESH, NearestNeighbour
from pathgp.linalg.neighbours import Exhaustive
from pathgp.linalg.tiles import tiled_product
from pathgp.posterior.condition import condition
from pathgp.solvers import Auto
from pathgp.solvers.sap import PROBES

DOUBLE = 8
"""Bytes of a float64 number."""

PASSES, SAP_PASSES, CG_STEPS = 3, 20, 60
"""Assumed passes of Auto (it took two to four), passes of SAP to its own tolerance, and steps of CG."""

FEATURES, SINE = int(inspect.signature(condition).parameters["num_features"].default), 7
"""Random features per prior draw, and the time of one of them in kernel entries."""

STARTING_BYTES, LEARNING_BYTES, LEVEL_BYTES = 550_000_000, 280_000_000, 130_000_000
"""Memory of Python, JAX and a compiled solve; of nearest-neighbour fitting; of its programs and leftovers per halving
of the rows.
"""

STARTING_FLOPS, LEVEL_FLOPS = 1.4e12, 2.3e11
"""Time of compilation, and its increase per halving of the rows, in flops of a matrix product."""

LEARNING_SHARE, DRAWING_SHARE, SOLVING_SHARE, JUDGING_SHARE = 0.6, 0.2, 0.2, 0.3
"""Shares of the compilation time for fitting, prior draws and the solve. That for held-out rows comes on top."""

BLOCK_FLOPS, LOOK_STEPS = 12, 10
"""Time of the inverse factor of a block relative to a matrix product of equal flops; steps between checks of the clock.
"""

JUDGED_FLOPS = 4e7
"""Time of predicting one row, in flops of a matrix product; most of it is a small factorisation."""


def float_bytes() -> int:
    """Return the bytes of a number in JAX's default dtype."""
    return jnp.result_type(float).itemsize


class Rates(NamedTuple):
    """Seconds per operation on a machine."""

    entry: float
    """Seconds per kernel entry, computed and used in a product with all columns of the solve."""
    flop: float
    """Seconds per operation of a float64 matrix product."""
    distance: float
    """Seconds per distance in a neighbour search."""


class Work(NamedTuple):
    """The operations of a solver, and the memory that it needs in addition to the data and the right-hand sides."""

    solver: str
    entries: float = 0.0
    """Kernel entries that are computed, each for one product with all columns."""
    again: float = 0.0
    """Entries that are used in a second product."""
    flops: float = 0.0
    """Operations of factorisations, as in float64."""
    columns: float = 0.0
    """Number of arrays with one row per data row and one column per right-hand side."""
    inputs: float = 0.0
    """Number of arrays with one row per data row and one column per input."""
    bytes: float = 0.0
    """Other memory: factors, and matrices of points."""
    prepared: float = 0.0
    """Operations before the first step."""
    first: float = 0.0
    """Entries computed before the solver first checks the clock."""
    last: float = 0.0
    """Entries computed after the time is up, for a last residual."""


class Floor(NamedTuple):
    """Seconds that a time limit cannot cut short."""

    learning: float = 0.0
    """Compilation of hyperparameter fitting."""
    first: float = 0.0
    """The solver, until it first checks the clock."""
    rest: float = 0.0
    """Prior draws, the last residual, and predictions of held-out rows."""

    def budget(self, seconds: float) -> float:
        """Return the `max_seconds` of an estimator with which everything takes this many seconds, if they are enough.

        Half of it is for hyperparameter fitting, and the solver gets the rest, but never less than its `first`.

        >>> Floor(0, first=10, rest=20).budget(100), Floor(0, first=30, rest=20).budget(60)
        (80, 20)
        """
        # After fitting for half of the limit, `first` seconds of the solver must fit into what is left.
        left = seconds - self.rest
        return min(left, 2 * (left - self.first))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Expected time and memory of a fit, and the solver and number of passes assumed for it."""

    seconds: float
    bytes: float
    solver: str
    floor: Floor = dataclasses.field(default_factory=Floor)

    def __str__(self) -> str:
        """Return the estimate in words.

        >>> print(Estimate(95.0, 2.34e9, "SAP with 5 passes"))
        about 2 min and 2.3 GB (SAP with 5 passes)
        """
        return f"about {_time(self.seconds)} and {self.bytes / 1e9:.1f} GB ({self.solver})"


def estimate(
    rows: int,
    inputs: int,
    num_samples: int,
    solver: str = "auto",
    *,
    points: int | None = None,
    max_seconds: float | None = None,
    held_bytes: float | None = None,
    rates: Rates | None = None,
    processes: int = 1,
    judged: int = 0,
) -> Estimate:
    """Return the expected time and memory of `pathgp fit` on a table of this size.

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
    max_seconds
        Time limit of the fit. None means no limit.
    held_bytes
        Memory of the table. None is 4 N (d + 2), in float64 8 N (d + 1).
    rates
        Rates of the machine. None measures them first, which takes a second.
    processes
        Number of processes of a job. The estimate is for each of them, on its own machine.
    judged
        Rows that are predicted after the fit.

    >>> found = estimate(2_000_000, 10, 16, "inducing", points=2000, rates=Rates(1e-9, 2e-11, 1e-8))
    >>> print(found.solver)
    InducingCG on 2,000 points, 29 steps
    """
    rates = rates or measured_rates(inputs, num_samples + 1)
    work, size = work_of(solver, rows, num_samples + 1, points), (rows, inputs, num_samples + 1)
    compiling, judging = compiling_seconds(rows, rates), judging_seconds(judged, rows, rates)
    solving = solving_seconds(work, size, rates) / processes
    seconds = compiling + learning_seconds(rows, rates) + solving + judging
    floor = Floor(
        LEARNING_SHARE * compiling,
        SOLVING_SHARE * compiling + (rates.entry * work.first + rates.flop * work.prepared) / processes,
        DRAWING_SHARE * compiling + rates.entry * (work.last / processes + SINE * FEATURES * rows) + judging,
    )
    if max_seconds is not None:
        seconds = min(seconds, max(max_seconds, sum(floor)))
    table = table_bytes(rows, inputs) if held_bytes is None else held_bytes
    kept = compiled_bytes(rows) + table
    most = max(learning_bytes(rows), solving_bytes(work, size, processes))
    return Estimate(seconds, kept + most, work.solver, floor)


def table_bytes(rows: int, inputs: int) -> float:
    """Return the memory of a table: inputs in JAX's default dtype, and the target in float64."""
    return rows * (float_bytes() * inputs + DOUBLE)


def work_of(solver: str, N: int, c: int, points: int | None = None) -> Work:
    """Return the work of the solver of this name for N rows and c columns."""
    look_up(SOLVERS, solver, "solver")
    if solver == "auto":
        return _auto(N, c)
    return WORKS[solver](N, c) if solver != "inducing" else _inducing(N, c, SOLVERS["inducing"](points).number(N))


def _cholesky(N: int, c: int) -> Work:
    flops = N**3 / 3 + 4 * N**2 * c
    uncut = {"prepared": flops, "first": 2 * N**2}
    return Work("Cholesky", entries=2 * N**2, flops=flops, columns=8, inputs=2, bytes=DOUBLE * N**2, **uncut)


def _sap(N: int, c: int, passes: int = SAP_PASSES, block: int | None = None) -> Work:
    """A pass computes N² entries. Blocks are factorised once, or in every pass if the factors are too large to keep."""
    s = SOLVERS["sap"]()
    block, kept = min(s.block_size if block is None else block, N), s.factor_bytes
    factors = float_bytes() * N * block
    visits = 1 if factors <= kept else passes
    flops = visits * N * block**2 + passes * N * block * c  # two float32 operations take the time of one in float64
    name = f"SAP, {passes} passes"
    prepared = BLOCK_FLOPS * N * block**2 * (1 if visits == 1 else 0.1)
    probes = 3 * PROBES * N  # set-up of the error estimate, which then takes PROBES * N per pass
    entries = passes * (N**2 + PROBES * N) + probes
    uncut = {"prepared": prepared, "first": 0.1 * N**2 + probes + PROBES * N}  # no last residual: it is kept up to date
    return Work(
        name,
        entries=entries,
        flops=flops,
        columns=18,
        inputs=4,
        bytes=min(factors, kept),
        **uncut,
    )


def _auto(N: int, c: int) -> Work:
    auto = Auto()
    if auto.exact_rows >= N:
        return _cholesky(N, c)
    if auto.projected_rows >= N:
        return _sap(N, c, PASSES, 1024)
    rows = auto.subset_rows
    part = _sap(rows, c, PASSES, 1024)
    held = float_bytes() * rows * c * part.columns + part.bytes
    name, entries = f"{part.solver} on a subset of {rows:,} rows", part.entries + N * rows
    uncut = {"prepared": part.prepared, "first": part.first, "last": part.last + N * rows}
    return Work(name, entries=entries, flops=part.flops, columns=7, inputs=6, bytes=held, **uncut)


def _subset(N: int, c: int) -> Work:
    rows = min(N, SOLVERS["subset"]().rows)
    return _cholesky(rows, c)._replace(solver=f"Cholesky on a subset of {rows:,} rows", columns=6)


def _cg(N: int, c: int) -> Work:
    rank = SOLVERS["cg"]().rank
    name, held = f"CG, {CG_STEPS} steps", 4 * float_bytes() * N * rank
    flops, uncut = 6 * N * rank**2, {"first": N**2, "last": N**2}
    return Work(name, entries=CG_STEPS * N**2, flops=flops, columns=11, inputs=4, bytes=held, prepared=flops, **uncut)


def _sdd(N: int, c: int) -> Work:
    s = SOLVERS["sdd"]()
    entries, flops = s.steps * s.batch_size * N, s.steps * 4 * N * c
    uncut = {"first": N**2 + LOOK_STEPS * N * s.batch_size, "last": N**2}
    return Work(f"SDD, {s.steps:,} steps", entries=entries, flops=flops, columns=11, inputs=4, **uncut)


def _sgd(N: int, c: int) -> Work:
    s = SOLVERS["sgd"]()
    entries, again = s.steps * N * (2 * s.batch_size + s.num_features), s.steps * N * s.num_features
    name, flops, held = f"SGD, {s.steps:,} steps", s.steps * 8 * N * c, 1.5 * float_bytes() * N * s.num_features
    uncut = {"first": N**2 + LOOK_STEPS * N * (2 * s.batch_size + s.num_features), "last": N**2}
    return Work(name, entries=entries, again=again, flops=flops, columns=12, inputs=4, bytes=held, **uncut)


def _inducing(N: int, c: int, M: int) -> Work:
    """A step passes over all pairs of a row and a point, every tenth step twice; the right-hand side takes one pass
    more.
    """
    steps = round(min(50, 12 * (N / M) ** 0.13))  # measured: 15, 18, 30 and 27 with 10, 50, 250 and 1000 rows per point
    passes = 1.1 * steps
    entries = (passes + 1) * N * M + passes * M**2
    flops = M**3 + steps * 4 * M**2 * c
    name, held = f"InducingCG on {M:,} points, {steps} steps", 2 * float_bytes() * M**2
    uncut = {"prepared": 1.5 * M**3, "first": 2 * N * M}
    return Work(name, entries=entries, again=passes * N * M, flops=flops, columns=3.5, inputs=3, bytes=held, **uncut)


WORKS: dict[str, Callable[[int, int], Work]] = {
    "cholesky": _cholesky,
    "sap": _sap,
    "cg": _cg,
    "sdd": _sdd,
    "sgd": _sgd,
    "subset": _subset,
}
"""Work of each solver with N rows and c columns. `work_of` has "auto" and "inducing" too."""


def solving_bytes(work: Work, size: tuple[int, int, int], processes: int = 1) -> float:
    """Return the memory that is alive at once in a solve of N rows, d inputs and c columns.

    Each of several processes has a share of the rows, but at the start all of the inputs and right-hand sides.
    """
    N, d, c = size
    split = float_bytes() * N * (work.columns * c + work.inputs * d) / processes
    return split + work.bytes + (0 if processes == 1 else float_bytes() * N * (2 * c + d))


def solving_seconds(work: Work, size: tuple[int, int, int], rates: Rates) -> float:
    """Return the time of kernel entries, second products, factorisations, and prior draws at the data."""
    N, _, c = size
    return rates.entry * (work.entries + SINE * FEATURES * N) + rates.flop * (work.again * c + work.flops)


LOOK_SECONDS = 0.3
"""Shortest time for which each rate is measured."""

STEP_FLOPS = 3e9
"""Time of one step of `NearestNeighbour`, in flops of a matrix product; most of it are small factorisations."""


def learning_seconds(N: int, rates: Rates) -> float:
    """Return the time of hyperparameter fitting.

    Each step has a cost that does not depend on N. Above `PREFIX_ROWS` rows there is a neighbour search every `REFRESH`
    steps: half of a pool of rows is searched among N rows, a quarter among N/2, and so on, 2/3 `POOL_ROWS` · N
    distances in all. Below, every step searches among all rows. The exact likelihood of few rows is factorised about 60
    times.
    """
    if AutoFit().exact_rows >= N:
        return rates.flop * 60 * 3 * N**3
    method = NearestNeighbour()
    searched = method.steps * method.batch_size * N
    if N > PREFIX_ROWS:
        searched = math.ceil(method.steps / REFRESH) * POOL_ROWS * (N * 2 / 3 + 2 * PREFIX_ROWS)
    return rates.flop * method.steps * STEP_FLOPS + rates.distance * searched


def levels(N: int) -> int:
    """Return how often the rows are halved down to `PREFIX_ROWS`: a search is compiled for each level."""
    return max(0, math.ceil(math.log2(N / PREFIX_ROWS)))


def compiling_seconds(N: int, rates: Rates) -> float:
    """Return the time of all compilations."""
    return rates.flop * (STARTING_FLOPS + levels(N) * LEVEL_FLOPS)


def judging_seconds(judged: int, N: int, rates: Rates) -> float:
    """Return the time to predict `judged` rows with variances, each from N rows and a local projection."""
    if judged == 0:
        return 0.0
    compiling = JUDGING_SHARE * compiling_seconds(N, rates)
    return compiling + judged * (rates.entry * (N + SINE * FEATURES) + rates.flop * JUDGED_FLOPS)


def compiled_bytes(N: int) -> float:
    """Return the memory of Python, JAX and compiled programs."""
    return STARTING_BYTES + (LEARNING_BYTES if AutoFit().exact_rows < N else 0) + levels(N) * LEVEL_BYTES


def learning_bytes(N: int) -> float:
    """Return the memory of a neighbour search: two arrays of distances from a pool to the last E = N/2^levels rows."""
    return 2 * float_bytes() * 2 * POOL_ROWS * (E := N / 2 ** levels(N)) * E / N if N > PREFIX_ROWS else 0.0


def measured_rates(inputs: int, columns: int) -> Rates:
    """Return the rates of this machine, from the fastest of a few runs of small parts of the work."""
    rng = np.random.default_rng(0)
    numbers = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype=float)
    A, Z, V, many = numbers(2048, inputs), numbers(8192, inputs), numbers(8192, columns), numbers(65_536, inputs)
    square = rng.normal(size=(512, 512))
    by_all = _best(lambda: square @ square)
    with threadpool_limits(1, user_api="blas"):  # other work on one core would delay all threads
        by_one = _best(lambda: square @ square)
    return Rates(
        _best(lambda: _product(A, Z, V)) / (2048 * 8192),
        min(by_all, by_one / min(2, os.cpu_count() or 1)) / (2 * 512**3),
        _best(lambda: _search(many, A[:32])) / (32 * 65_536),
    )


@jax.jit
def _product(A: Float[Array, "n d"], Z: Float[Array, "m d"], V: Float[Array, "m s"]) -> Float[Array, "n s"]:
    return tiled_product(Matern32(1.0), A, Z, V)


@jax.jit
def _search(points: Float[Array, "N d"], Q: Float[Array, "n d"]) -> Int[Array, "n m"]:
    return Exhaustive(points).nearest(Q, 192)


def _best(f: Callable[[], Any]) -> float:
    """Return the shortest of many run times, compilation excluded: other work on the machine only adds time."""
    jax.block_until_ready(f())
    seconds = []
    while len(seconds) < 3 or (sum(seconds) < LOOK_SECONDS and len(seconds) < 50):
        start = time.perf_counter()
        jax.block_until_ready(f())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _time(seconds: float) -> str:
    """Return a time in words.

    >>> _time(40.4), _time(150), _time(9000), _time(3e6)
    ('40 s', '2 min', '2.5 h', '35 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} days"
