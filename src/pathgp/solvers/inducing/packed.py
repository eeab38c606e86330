"""Two triangular factors in one M x M array: FALKON's preconditioner (Rudi et al., 2017; Meanti et al., 2020)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy import linalg

from pathgp.kernels import Kernel
from pathgp.solvers.variational import MOST_JITTER
from pathgp.system.dense import wide

BLOCK, ROWS = 512, 256
"""The columns that are factorised together, and the rows of K_zz that are evaluated together."""


class Packed(eqx.Module):
    """(K + ratio · K²)⁻¹ in the memory of K, through K + jitter · I = LLᵀ and I + ratio · LᵀL = TᵀDT.

    `factors` has L in its lower triangle. The diagonal of T is one, and the rest of it stands above that of L.
    """

    factors: Float[Array, "M M"]
    D: Float[Array, "M"]
    jitter: Float[Array, ""]

    @classmethod
    def of(cls, kernel: Kernel, z: Float[Array, "M d"], ratio: float, jitter: float) -> "Packed":
        """The factors of K = k(z, z), with the first of `jitter`, 10 · jitter, … with which both of them exist."""
        most = MOST_JITTER * float(jnp.mean(kernel.diag(z)))
        H = _aligned(z.shape[0], z.dtype)
        while True:
            _evaluate(kernel, z, H)
            H[np.diag_indices_from(H)] += jitter
            try:
                D = pack(H, ratio)
            except ValueError as error:
                if jitter > most:
                    raise ValueError(
                        f"K_zz is not positive definite to working precision, even with {jitter:.0e} added to its "
                        "diagonal: choose fewer points, or points that lie further apart."
                    ) from error
                jitter *= 10
                continue
            return cls(jax.device_put(jnp.from_dlpack(H), z.sharding), jnp.asarray(D), jnp.asarray(jitter, z.dtype))

    def __call__(self, r: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """L⁻ᵀ T⁻¹ D⁻¹ T⁻ᵀ L⁻¹ r."""
        columns = self.factors.T  # as LAPACK wants them: otherwise XLA gives it a copy of the whole
        u = solve_triangular(columns, r, trans=1)
        u = solve_triangular(columns, u, lower=True, unit_diagonal=True) / self.D[:, None]
        u = solve_triangular(columns, u, trans=1, lower=True, unit_diagonal=True)
        return solve_triangular(columns, u)


def pack(H: Float[np.ndarray, "M M"], ratio: float, block: int = BLOCK) -> Float[np.ndarray, "M"]:
    """Overwrites H = LLᵀ with L in the lower triangle and T strictly above, and returns D: I + ratio · LᵀL = TᵀDT.

    Both come a block of columns at a time. Those of LᵀL need what stands below and right of them, which is L still,
    and T's own need what stands above and left, which is T already. All but the blocks of the diagonal is matrix
    products, of numbers that are zero or large enough that no product of two is denormal: where those of a nearly
    banded matrix fade, they would take a hundred times as long.
    """
    starts, D, inverses = range(0, len(H), block), np.empty(len(H), H.dtype), []
    for j in starts:
        k = j + block
        panel = H[j:, j:k] - H[j:, :j] @ H[j:k, :j].T
        L = linalg.cholesky(panel[:block], lower=True, check_finite=False)
        H[j:k, j:k] = L
        H[k:, j:k] = _flushed(panel[block:] @ _inverse(L).T)
    for j in starts:
        k = j + block
        L = np.tril(H[j:, j:k])
        Y, corner = _flushed(ratio * (H[j:, :j].T @ L)), ratio * (L.T @ L)
        corner[np.diag_indices_from(corner)] += 1
        for i, inverse in zip(starts, inverses, strict=False):
            own = slice(i, i + block)
            Y[own] = _flushed(inverse @ (Y[own] - H[:i, own].T @ Y[:i]))
        H[:j, j:k] = _flushed(Y / D[:j, None])
        R = linalg.cholesky(corner - Y.T @ H[:j, j:k], check_finite=False)
        diagonal = np.diag(R)
        D[j:k] = diagonal**2
        unit = _flushed(R / diagonal[:, None])
        H[j:k, j:k] = L[: len(R)] + np.triu(unit, 1)
        inverses.append(_inverse(unit.T))
    return D


def _inverse(L: Float[np.ndarray, "b b"]) -> Float[np.ndarray, "b b"]:
    return _flushed(linalg.solve_triangular(L, np.eye(len(L), dtype=L.dtype), lower=True, check_finite=False))


def _flushed(A: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m n"]:
    """A, with zeros in it where a product of two such numbers would be denormal."""
    A[np.abs(A) < np.sqrt(np.finfo(A.dtype).tiny)] = 0
    return A


def _evaluate(kernel: Kernel, z: Float[Array, "M d"], H: Float[np.ndarray, "M M"]) -> None:
    """Writes k(z, z), evaluated in float64, into H."""
    M = len(H)
    for i in range(0, M, ROWS):
        start = max(0, min(i, M - ROWS))  # tiles of one shape, so that one is compiled
        H[start : start + ROWS] = _flushed(wide(kernel, z[start : start + ROWS], z).astype(H.dtype))


def _aligned(M: int, dtype: np.dtype) -> Float[np.ndarray, "M M"]:
    """An array whose memory JAX takes over without a copy: it begins at a multiple of 64 bytes."""
    size = M * M * dtype.itemsize
    buffer = np.empty(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(M, M)
