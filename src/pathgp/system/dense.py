"""K + Σ as a dense float64 matrix on the host, and its Cholesky factor."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from pathgp.kernels import Kernel
from pathgp.linalg.factor import factorise
from pathgp.system.system import System


def cholesky_factor(system: System) -> Float64[np.ndarray, "N N"]:
    """Return the Cholesky factor L of K + Σ = LLᵀ, in the lower triangle of a dense matrix."""
    H = np.empty((system.size, system.size))
    for i, rows in row_tiles(system):
        H[i : i + len(rows)] = rows
    factorise(H)
    return H


def row_tiles(system: System) -> Iterator[tuple[int, Float64[np.ndarray, "t N"]]]:
    """Yield the first row and the values of each tile of rows of K + Σ, in float64."""
    noise = np.asarray(system.noise_diagonal, dtype=np.float64)
    for i in range(0, system.size, system.tile[0]):
        rows = kernel_float64(system.kernel, system.X[i : i + system.tile[0]], system.X)
        rows[:, i : i + len(rows)] += np.diag(noise[i : i + len(rows)])
        yield i, rows


def kernel_float64(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float64[np.ndarray, "n m"]:
    """Return k(A, Z) in float64 on the host, whatever the dtype of the arguments; for factorisations."""
    with jax.enable_x64(True):
        kernel, A, Z = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (kernel, A, Z))
        return np.array(_evaluated(kernel, A, Z))


@jax.jit
def _evaluated(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return kernel(A, Z)
