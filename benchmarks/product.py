"""The tiled kernel product beside the same as one naive jitted expression, in one run.

    python benchmarks/product.py

512 x 16384 entries, 18 inputs, Matérn-3/2. The two take turns of several runs each, and the ratio is that of the
medians. The tiled product is compiled as the solvers compile it, with wide vectors; the naive one both with `jax.jit`
as it is and with wide vectors too.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pathgp.kernels import Matern32
from pathgp.tiles import tiled_product

ROUNDS, TURN = 8, 6
WIDE = {"xla_cpu_prefer_vector_width": "512"}


def naive(A, X, V):
    """Distances, kernel and product of the whole matrix, as one would first write it."""
    r2 = jnp.sum(A**2, axis=1)[:, None] + jnp.sum(X**2, axis=1)[None, :] - 2 * A @ X.T
    positive = r2 > 0  # rounding makes some negative, and the derivative of a square root at zero is infinite
    r = jnp.where(positive, jnp.sqrt(3 * jnp.where(positive, r2, 1)), 0)
    return ((1 + r) * jnp.exp(-r)) @ V


@partial(jax.jit, compiler_options=WIDE)
def tiled(A, X, V):
    return tiled_product(Matern32(), A, X, V)


plain_naive = jax.jit(naive)
wide_naive = jax.jit(naive, compiler_options=WIDE)


def seconds(f, *arguments):
    start = time.perf_counter()
    f(*arguments).block_until_ready()
    return time.perf_counter() - start


def main():
    key = jax.random.key(0)
    A, X = jax.random.normal(key, (512, 18)), jax.random.normal(jax.random.key(1), (16384, 18))
    print("product of a 512 x 16384 block, 18 inputs, Matern32, milliseconds (median)")
    print(f"{'columns':>8} {'naive':>8} {'wide':>8} {'tiled':>8} {'ratio':>6} {'to wide':>8} {'G entries/s':>12}")
    for columns in (1, 64):
        V = jax.random.normal(key, (16384, columns))
        error = jnp.max(jnp.abs(plain_naive(A, X, V) - tiled(A, X, V))) / jnp.max(jnp.abs(tiled(A, X, V)))
        assert error < 1e-3, error
        turns = [
            [[seconds(f, A, X, V) for _ in range(TURN)] for f in (plain_naive, wide_naive, tiled)]
            for _ in range(ROUNDS)
        ]
        plain, wide, fast = np.median(np.array(turns), axis=(0, 2))
        rate = 512 * 16384 / fast / 1e9
        print(
            f"{columns:8d} {1e3 * plain:8.1f} {1e3 * wide:8.1f} {1e3 * fast:8.1f} {plain / fast:6.2f} "
            f"{wide / fast:8.2f} {rate:12.2f}"
        )


if __name__ == "__main__":
    main()
