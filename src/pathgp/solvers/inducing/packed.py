"""FALKON's preconditioner, two triangular factors in one M x M array (Rudi et al., 2017; Meanti et al., 2020)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy import linalg

from pathgp.kernels import Kernel
from pathgp.linalg.factor import factorise, flush
from pathgp.linalg.jitter import LARGEST_SHARE, raise_jitter
from pathgp.system.dense import kernel_float64

BLOCK, ROWS = 512, 256
"""Columns that are factorised together, and rows of K_zz that are evaluated together."""


class Packed(eqx.Module):
    """(K + ratio · K²)⁻¹ in the memory of K, by the factors of K + jitter · I = LLᵀ and I + ratio · LᵀL = TᵀDT.

    `factors` has L in its lower triangle and T strictly above it. The diagonal of T is one and is not stored.
    """

    factors: Float[Array, "M M"]
    D: Float[Array, "M"]
    jitter: Float[Array, ""]

    @classmethod
    def of(cls, kernel: Kernel, z: Float[Array, "M d"], ratio: float, jitter: float) -> "Packed":
        """Return the factors of K = k(z, z), for the least jitter from `jitter` on for which both exist.

        Raises `ValueError` if no jitter up to a tenth of the mean variance is enough.
        """
        H = _aligned(z.shape[0], z.dtype)

        def factorise(jitter: float) -> Float[np.ndarray, "M"]:
            # A failed attempt has overwritten H, so the next one evaluates it again.
            _evaluate(kernel, z, H)
            H[np.diag_indices_from(H)] += jitter
            return pack(H, ratio)

        jitter, D = raise_jitter(factorise, jitter, LARGEST_SHARE * float(jnp.mean(kernel.diag(z))))
        return cls(jax.device_put(jnp.from_dlpack(H), z.sharding), jnp.asarray(D), jnp.asarray(jitter, z.dtype))

    def __call__(self, r: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """Return L⁻ᵀ T⁻¹ D⁻¹ T⁻ᵀ L⁻¹ r."""
        columns = self.factors.T  # column-major as in LAPACK; otherwise XLA copies the whole array
        u = solve_triangular(columns, r, trans=1)
        u = solve_triangular(columns, u, lower=True, unit_diagonal=True) / self.D[:, None]
        u = solve_triangular(columns, u, trans=1, lower=True, unit_diagonal=True)
        return solve_triangular(columns, u)


def pack(H: Float[np.ndarray, "M M"], ratio: float, block: int = BLOCK) -> Float[np.ndarray, "M"]:
    """Overwrite H = LLᵀ with L, and above its diagonal with T, and return D, where I + ratio · LᵀL = TᵀDT.

    Both factors are computed a block of columns at a time. A block of LᵀL needs the entries below and to the right of
    it, which are still L. A block of T needs the entries above and to the left of it, which are T already. All but the
    diagonal blocks are matrix products.
    """
    starts, D, inverses = range(0, len(H), block), np.empty(len(H), H.dtype), []
    factorise(H, block)
    for j in starts:
        k = j + block
        L = np.tril(H[j:, j:k])
        Y, corner = flush(ratio * (H[j:, :j].T @ L)), ratio * (L.T @ L)
        corner[np.diag_indices_from(corner)] += 1
        for i, inverse in zip(starts, inverses, strict=False):
            own = slice(i, i + block)
            Y[own] = flush(inverse @ (Y[own] - H[:i, own].T @ Y[:i]))
        H[:j, j:k] = flush(Y / D[:j, None])
        R = linalg.cholesky(corner - Y.T @ H[:j, j:k], check_finite=False)
        diagonal = np.diag(R)
        D[j:k] = diagonal**2
        unit = flush(R / diagonal[:, None])
        H[j:k, j:k] = L[: len(R)] + np.triu(unit, 1)
        inverses.append(_inverse(unit.T))
    return D


def _inverse(L: Float[np.ndarray, "b b"]) -> Float[np.ndarray, "b b"]:
    """Return the inverse of a lower triangular matrix."""
    return flush(linalg.solve_triangular(L, np.eye(len(L), dtype=L.dtype), lower=True, check_finite=False))


def _evaluate(kernel: Kernel, z: Float[Array, "M d"], H: Float[np.ndarray, "M M"]) -> None:
    """Write k(z, z), evaluated in float64, into H."""
    M = len(H)
    for i in range(0, M, ROWS):
        start = max(0, min(i, M - ROWS))  # the last tile overlaps, so that only one shape is compiled
        H[start : start + ROWS] = flush(kernel_float64(kernel, z[start : start + ROWS], z).astype(H.dtype))


def _aligned(M: int, dtype: np.dtype) -> Float[np.ndarray, "M M"]:
    """Return an empty M x M array that starts at a multiple of 64 bytes, which JAX takes over without a copy."""
    size = M * M * dtype.itemsize
    buffer = np.empty(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(M, M)
