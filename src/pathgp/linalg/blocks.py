"""Factors and eigenvalues of the blocks that solvers work with."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from pathgp.parallel.sharding import everywhere, over_rows

LEAF = 256
MOST = 10
"""How often the damping of a block is raised at most, fourfold each time."""


def inverse_factor(A: Float[Array, "b b"]) -> Float[Array, "b b"]:
    """L⁻¹ with LLᵀ = A, by halves:

        [A₁ ·; B A₂]  ↦  [M₁ 0; −M₂ C M₁ M₂],   M₁ = A₁ ↦,   C = B M₁ᵀ,   M₂ = (A₂ − C Cᵀ) ↦.

    It is nearly all matrix products: faster on a CPU than LAPACK's factor and triangular solve, and much faster
    where the numbers of a nearly banded matrix fade into the denormal range, which LAPACK does not flush to zero.
    """
    n = A.shape[0]
    if n <= LEAF:
        return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(A), jnp.eye(n, dtype=A.dtype), lower=True)
    half = n // 2
    M1 = inverse_factor(A[:half, :half])
    C = A[half:, :half] @ M1.T
    M2 = inverse_factor(A[half:, half:] - C @ C.T)
    return jnp.block([[M1, jnp.zeros((half, n - half), A.dtype)], [-M2 @ (C @ M1), M2]])


def damped_inverse_factor(K: Float[Array, "b b"], noise: Float[Array, "b"]) -> Float[Array, "b b"]:
    """L⁻¹ with LLᵀ = K + diag(noise), where noise below a least δ is raised to it, which K resolves.

    Rows far from all others round K by more than its largest eigenvalue is rounded by, where there are rows close
    together too, and a factorisation rounds by itself. So δ is raised until the inverse L⁻ᵀL⁻¹ is no larger than that
    of a positive matrix is, diag((K + δI)⁻¹) ≤ 1/δ, with a factor of two for its own rounding.
    """
    resolved = 2 * jnp.finfo(K.dtype).eps * jnp.max(jnp.sum(jnp.abs(K), axis=1))  # ≥ the top eigenvalue's rounding

    def failed(state: tuple[Array, Array, Array]) -> Array:
        tries, delta, factor = state
        return (tries < MOST) & ~(jnp.max(jnp.sum(factor**2, axis=0)) <= 2 / delta)  # holds for NaN too

    def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tries, delta, _ = state
        return tries + 1, 4 * delta, inverse_factor(K + jnp.diag(jnp.maximum(noise, 4 * delta)))

    none = jnp.zeros((), int), resolved / 4, jnp.full_like(K, jnp.nan)
    return jax.lax.while_loop(failed, attempt, none)[2]


def top_eigenvalue(K: Float[Array, "b b"]) -> Float[Array, ""]:
    """The largest eigenvalue of a positive matrix, from below, by thirty steps of the power method."""

    def power(_: Int[Array, ""], v: Float[Array, "b"]) -> Float[Array, "b"]:
        u = K @ v
        return u / jnp.linalg.norm(u)

    v = jax.lax.fori_loop(0, 30, power, jnp.full(K.shape[0], K.shape[0] ** -0.5, K.dtype))
    return jnp.linalg.norm(K @ v)


def tall_svd(mesh: Mesh | None, A: Float[Array, "N k"]) -> tuple[Float[Array, "N k"], Float[Array, "k"]]:
    """Q and S with A = Q S Vᵀ, for many rows and few columns.

    Each of several devices factorises its own rows, A_p = Q_p R_p, and all do the small R_p (Demmel et al., 2012).
    """
    if mesh is None:
        Q, S, _ = jnp.linalg.svd(A, full_matrices=False)
        return Q, S
    Q, R = over_rows(mesh, jnp.linalg.qr, (A,), (), total=False)
    U, S, _ = jnp.linalg.svd(everywhere(mesh, R), full_matrices=False)
    return over_rows(mesh, jnp.matmul, (Q, U), (), total=False), S
