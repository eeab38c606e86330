"""K + Σ as a dense float64 matrix on the host, and its Cholesky factor."""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Float, Float64

from pathgp.kernels import Kernel
from pathgp.linalg.factor import factorise
from pathgp.linalg.namespace import AnyArray, on_device, on_host
from pathgp.system.system import System

HOST_ROWS = 2000
"""Up to this many rows, built-in kernels are evaluated with NumPy, which is slower than a compiled program but need not
be compiled."""


def cholesky_factor(system: System) -> Float64[np.ndarray, "N N"]:
    """Return the Cholesky factor L of K + Σ = LLᵀ, in the lower triangle of a dense matrix."""
    H = np.empty((system.size, system.size))
    for i, rows in row_tiles(system):
        H[i : i + len(rows)] = rows
    factorise(H)
    return H


def row_tiles(system: System) -> Iterator[tuple[int, Float64[np.ndarray, "t N"]]]:
    """Yield the first row and the values of each tile of rows of K + Σ, in float64."""
    X, noise = np.asarray(system.X), np.broadcast_to(np.asarray(system.noise, np.float64), system.X.shape[:1])
    for i in range(0, system.size, system.tile[0]):
        rows = kernel_float64(system.kernel, X[i : i + system.tile[0]], X)
        rows[:, i : i + len(rows)] += np.diag(noise[i : i + len(rows)])
        yield i, rows


def kernel_float64(kernel: Kernel, A: Float[AnyArray, "n d"], Z: Float[AnyArray, "m d"]) -> Float64[np.ndarray, "n m"]:
    """Return k(A, Z) in float64 on the host, whatever the dtype of the arguments; for factorisations."""
    kernel, A, Z = on_host((kernel, A, Z))
    if kernel.runs_on_host and max(len(A), len(Z)) <= HOST_ROWS:
        return np.asarray(kernel(A, Z))
    with jax.enable_x64(True):
        return np.array(_evaluated(*on_device((kernel, A, Z), np.float64)))


@jax.jit
def _evaluated(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return kernel(A, Z)


def diagonal_float64(kernel: Kernel, x: Float[AnyArray, "n d"]) -> Float64[np.ndarray, "n"]:
    """Return the variances k(x, x) in float64 on the host."""
    kernel, x = on_host((kernel, x))
    if kernel.runs_on_host:
        return kernel.diag(x)
    with jax.enable_x64(True):
        return np.asarray(kernel.diag(on_device(x, np.float64)))
