"""Blocked Cholesky factorisation of a dense matrix on the host, and solves with its factor."""

import numpy as np
from jaxtyping import Float, Float64
from scipy import linalg

BLOCK = 2048
"""Columns that are factorised at a time."""


def factorise(H: Float[np.ndarray, "N N"], block: int = BLOCK) -> None:
    """Overwrite the lower triangle of H with its Cholesky factor, one block of columns at a time.

    Except for the small diagonal blocks, all of it is matrix products, so it is as fast as LAPACK's factorisation of
    the whole matrix. That one crashes on some processors from about 15,000 rows on (the OpenBLAS that SciPy 1.17
    carries). The entries of a nearly banded matrix fade into the denormal range, where products take a hundred times as
    long; they are flushed to zero. Raises `ValueError` if H is not positive definite to working precision.
    """
    for j in range(0, len(H), block):
        k = j + block
        # Left-looking: one product subtracts all finished columns.
        H[j:, j:k] -= H[j:, :j] @ H[j:k, :j].T
        try:
            H[j:k, j:k] = linalg.cholesky(H[j:k, j:k], lower=True, check_finite=False)
        except linalg.LinAlgError as error:
            raise ValueError(
                "K + noise is not positive definite to working precision: increase the noise variance, or remove "
                "duplicate rows."
            ) from error
        below = linalg.solve_triangular(H[j:k, j:k], H[k:, j:k].T, lower=True, check_finite=False)
        H[k:, j:k] = flush(below).T


def flush(A: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m n"]:
    """Set entries of A to zero, in place, if the product of two such numbers would be denormal; return A."""
    A[np.abs(A) < np.sqrt(np.finfo(A.dtype).tiny)] = 0
    return A


def substitute(
    L: Float64[np.ndarray, "N N"], B: Float64[np.ndarray, "N s"], block: int = BLOCK
) -> Float64[np.ndarray, "N s"]:
    """Return L⁻ᵀL⁻¹B, reading only the lower triangle of L."""
    W = B.copy()
    starts = range(0, len(L), block)
    for j in starts:
        k = j + block
        W[j:k] = linalg.solve_triangular(L[j:k, j:k], W[j:k] - L[j:k, :j] @ W[:j], lower=True, check_finite=False)
    for j in reversed(starts):
        k = j + block
        rest = W[j:k] - L[k:, j:k].T @ W[k:]
        W[j:k] = linalg.solve_triangular(L[j:k, j:k], rest, lower=True, trans=1, check_finite=False)
    return W
