"""Factorisations and eigenvalue estimates that the iterative solvers use."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from pathgp.parallel.sharding import replicate, shard_map_rows

LEAF = 256
"""Size up to which `inverse_factor` calls LAPACK instead of recursing."""


def inverse_factor(A: Float[Array, "b b"]) -> Float[Array, "b b"]:
    """Return L⁻¹, where LLᵀ = A is the Cholesky factorisation, by recursion on halves.

        A = [A₁ Bᵀ; B A₂],   L⁻¹ = [M₁ 0; −M₂CM₁ M₂],

    with M₁ the result for A₁, C = B M₁ᵀ, and M₂ the result for A₂ − C Cᵀ.

    Nearly all of it is matrix products, which on a CPU are faster than LAPACK's factorisation and triangular solve.
    It is much faster for a nearly banded matrix whose entries decay into the denormal range, because LAPACK does not
    flush those to zero.
    """
    n = A.shape[0]
    if n <= LEAF:
        return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(A), jnp.eye(n, dtype=A.dtype), lower=True)
    half = n // 2
    M1 = inverse_factor(A[:half, :half])
    C = A[half:, :half] @ M1.T
    M2 = inverse_factor(A[half:, half:] - C @ C.T)
    return jnp.block([[M1, jnp.zeros((half, n - half), A.dtype)], [-M2 @ (C @ M1), M2]])


def top_eigenvalue(K: Float[Array, "b b"]) -> Float[Array, ""]:
    """Return a lower bound of the largest eigenvalue of a positive matrix, by thirty power iterations."""

    def power(_: Int[Array, ""], v: Float[Array, "b"]) -> Float[Array, "b"]:
        u = K @ v
        return u / jnp.linalg.norm(u)

    v = jax.lax.fori_loop(0, 30, power, jnp.full(K.shape[0], K.shape[0] ** -0.5, K.dtype))
    return jnp.linalg.norm(K @ v)


def tall_svd(mesh: Mesh | None, A: Float[Array, "N k"]) -> tuple[Float[Array, "N k"], Float[Array, "k"]]:
    """Return Q and S of the thin SVD A = Q S Vᵀ, for a matrix with many rows and few columns.

    On a mesh, each device factorises its own rows, A_p = Q_p R_p, and every device takes the SVD of the stacked small
    factors R_p (Demmel et al., 2012).
    """
    if mesh is None:
        Q, S, _ = jnp.linalg.svd(A, full_matrices=False)
        return Q, S
    Q, R = shard_map_rows(mesh, jnp.linalg.qr, (A,), (), total=False)
    U, S, _ = jnp.linalg.svd(replicate(mesh, R), full_matrices=False)
    return shard_map_rows(mesh, jnp.matmul, (Q, U), (), total=False), S
