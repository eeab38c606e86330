"""The tiled kernel product compared with one naive jitted expression, in the same run: `pathgp bench kernel`.

The kernel is Matérn-3/2 with 512 x 16384 entries and 18 inputs by default. The contestants take turns of several runs
each, and ratios are those of the medians. The tiled product is compiled with wide vectors, as in the solvers. The naive
one is compiled both with default `jax.jit` and with wide vectors. KeOps is included if it is installed.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pathgp.kernels import Matern32
from pathgp.linalg.tiles import tiled_product

ROWS, POINTS, INPUTS = 512, 16384, 18
ROUNDS, TURN = 8, 6
WIDE = {"xla_cpu_prefer_vector_width": "512"}


class Row(NamedTuple):
    """Medians for one number of columns."""

    columns: int
    naive_ms: float
    naive_wide_ms: float
    tiled_ms: float
    ratio: float
    ratio_wide: float
    giga_entries_per_second: float
    keops_ms: float | None = None


def naive(A: Float[Array, "n d"], X: Float[Array, "m d"], V: Float[Array, "m s"]) -> Float[Array, "n s"]:
    """Return the product with the whole kernel matrix, in the most direct implementation."""
    r2 = jnp.sum(A**2, axis=1)[:, None] + jnp.sum(X**2, axis=1)[None, :] - 2 * A @ X.T
    positive = r2 > 0  # rounding makes some negative, and the derivative of a square root at zero is infinite
    r = jnp.where(positive, jnp.sqrt(3 * jnp.where(positive, r2, 1)), 0)
    return ((1 + r) * jnp.exp(-r)) @ V


def run(columns: tuple[int, ...] = (1, 64), rounds: int = ROUNDS, inputs: int = INPUTS) -> list[Row]:
    """Time all three products for each number of columns."""
    A, X = jax.random.normal(jax.random.key(0), (ROWS, inputs)), jax.random.normal(jax.random.key(1), (POINTS, inputs))
    tiled = jax.jit(partial(tiled_product, Matern32()), compiler_options=WIDE)
    contestants = (jax.jit(naive), jax.jit(naive, compiler_options=WIDE), tiled)
    rows = []
    for s in columns:
        V = jax.random.normal(jax.random.key(2), (POINTS, s))
        for f in contestants:
            f(A, X, V)
        turns = [[[_seconds(f, A, X, V) for _ in range(TURN)] for f in contestants] for _ in range(rounds)]
        plain, wide, fast = np.median(np.array(turns), axis=(0, 2))
        rate = ROWS * POINTS / fast / 1e9
        rows.append(Row(s, 1e3 * plain, 1e3 * wide, 1e3 * fast, plain / fast, wide / fast, rate, _keops_ms(A, X, V)))
    return rows


def _keops_ms(A: Float[Array, "n d"], X: Float[Array, "m d"], V: Float[Array, "m s"]) -> float | None:
    """Return the median time of KeOps for the same product, timed separately; None if it is not installed."""
    try:
        from pykeops.numpy import LazyTensor  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return None
    a, x, v = (np.ascontiguousarray(M) for M in (A, X, V))
    r = (3 * ((LazyTensor(a[:, None]) - LazyTensor(x[None])) ** 2).sum(-1)).sqrt()
    K = (1 + r) * (-r).exp()
    np.testing.assert_allclose(K @ v, naive(A, X, V), rtol=1e-2, atol=1e-2)
    times = []
    for _ in range(TURN):
        start = time.perf_counter()
        _ = K @ v
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def _seconds(f: Callable[..., Array], *arguments: Array) -> float:
    start = time.perf_counter()
    f(*arguments).block_until_ready()
    return time.perf_counter() - start


def table(rows: list[Row]) -> str:
    """Return the table as text."""
    head = (
        f"{'columns':>8} {'naive ms':>9} {'wide ms':>8} {'tiled ms':>9} {'ratio':>6} {'to wide':>8} {'G entries/s':>12}"
    )
    keops = lambda r: "" if r.keops_ms is None else f" KeOps {r.keops_ms:.1f} ms"
    lines = [
        f"{r.columns:8d} {r.naive_ms:9.1f} {r.naive_wide_ms:8.1f} {r.tiled_ms:9.1f} {r.ratio:6.2f} {r.ratio_wide:8.2f} "
        f"{r.giga_entries_per_second:12.2f}{keops(r)}"
        for r in rows
    ]
    return "\n".join([head, *lines])
