"""Two triangular factors in one M x M array: FALKON's preconditioner (Rudi et al., 2017; Meanti et al., 2020)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from scipy import linalg

from pathgp.kernels import Kernel
from pathgp.solvers.cholesky import factorise
from pathgp.solvers.variational import MOST_JITTER
from pathgp.system import wide

BLOCK, ROWS = 1024, 256
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

    T comes a block of columns at a time. Those of LᵀL need what stands below and right of them, which is L still, and
    T's own need what stands above and left, which is T already.
    """
    factorise(H, block)
    D = np.empty(len(H), H.dtype)
    for j in range(0, len(H), block):
        k = j + block
        L = np.tril(H[j:, j:k])
        Y, corner = ratio * (H[j:, :j].T @ L), ratio * (L.T @ L)
        corner[np.diag_indices_from(corner)] += 1
        for i in range(0, j, block):
            own = slice(i, i + block)
            rest = Y[own] - H[:i, own].T @ Y[:i]
            Y[own] = linalg.solve_triangular(H[own, own], rest, trans=1, unit_diagonal=True, check_finite=False)
        H[:j, j:k] = Y / D[:j, None]
        R = linalg.cholesky(corner - Y.T @ H[:j, j:k], check_finite=False)
        diagonal = np.diag(R)
        D[j:k] = diagonal**2
        H[j:k, j:k] = L[: len(R)] + np.triu(R / diagonal[:, None], 1)
    return D


def _evaluate(kernel: Kernel, z: Float[Array, "M d"], H: Float[np.ndarray, "M M"]) -> None:
    """Writes k(z, z), evaluated in float64, into H."""
    M = len(H)
    for i in range(0, M, ROWS):
        start = max(0, min(i, M - ROWS))  # tiles of one shape, so that one is compiled
        H[start : start + ROWS] = wide(kernel, z[start : start + ROWS], z)


def _aligned(M: int, dtype: np.dtype) -> Float[np.ndarray, "M M"]:
    """An array whose memory JAX takes over without a copy: it begins at a multiple of 64 bytes."""
    size = M * M * dtype.itemsize
    buffer = np.empty(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(M, M)
