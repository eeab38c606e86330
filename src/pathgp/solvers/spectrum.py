"""The top of a spectrum."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def top_eigenvalue(K: Float[Array, "b b"], iterations: int = 10) -> Float[Array, ""]:
    """The largest eigenvalue of a positive matrix, from below, by the power method."""

    def power(_: Int[Array, ""], v: Float[Array, "b"]) -> Float[Array, "b"]:
        u = K @ v
        return u / jnp.linalg.norm(u)

    v = jax.lax.fori_loop(0, iterations, power, jnp.full(K.shape[0], K.shape[0] ** -0.5, K.dtype))
    return jnp.linalg.norm(K @ v)
