"""K + Σ as one dense float64 matrix of the host, and its Cholesky factor."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from pathgp.kernels import Kernel
from pathgp.linalg.factor import factorise
from pathgp.system.system import System


def factor_of(system: System) -> Float64[np.ndarray, "N N"]:
    """L in the lower triangle, LLᵀ = K + Σ."""
    H = np.empty((system.size, system.size))
    for i, rows in row_tiles(system):
        H[i : i + len(rows)] = rows
    factorise(H)
    return H


def row_tiles(system: System) -> Iterator[tuple[int, Float64[np.ndarray, "t N"]]]:
    """K + Σ in float64, a tile of rows at a time."""
    noise = np.asarray(system.noise_diagonal, dtype=np.float64)
    for i in range(0, system.size, system.tile[0]):
        rows = wide(system.kernel, system.X[i : i + system.tile[0]], system.X)
        rows[:, i : i + len(rows)] += np.diag(noise[i : i + len(rows)])
        yield i, rows


def wide(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float64[np.ndarray, "n m"]:
    """k(A, Z) in float64 on the host, whatever the precision of its arguments: for factorisations."""
    with jax.enable_x64(True):
        kernel, A, Z = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (kernel, A, Z))
        return np.array(_evaluated(kernel, A, Z))


@jax.jit
def _evaluated(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return kernel(A, Z)
