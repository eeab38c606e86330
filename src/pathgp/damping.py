"""Factors of kernel matrices whose noise is below what their precision resolves."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

MOST = 10
"""How often the damping is raised at most, fourfold each time."""


def resolved(K: Float[Array, "b b"]) -> Float[Array, ""]:
    """The rounding of K's largest eigenvalue, from above: smaller noise than this is lost in it."""
    return 2 * jnp.finfo(K.dtype).eps * jnp.max(jnp.sum(jnp.abs(K), axis=1))


def damped(
    factorise: Callable[[Float[Array, "b b"]], Float[Array, "b b"]],
    K: Float[Array, "b b"],
    noise: Float[Array, "b"],
) -> tuple[Float[Array, "b b"], Float[Array, "b"]]:
    """A factor of K + diag(noise), and the noise that it took: no less than K resolves, and than makes it finite.

    Rows far from all others round K by more than `resolved` where there are rows close together too, and a
    factorisation rounds by itself. So the least noise is raised as long as the factor is not finite.
    """

    def failed(state: tuple[Array, Array, Array]) -> Array:
        tries, _, factor = state
        return (tries < MOST) & ~jnp.all(jnp.isfinite(factor))

    def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tries, least, _ = state
        return tries + 1, 4 * least, factorise(K + jnp.diag(jnp.maximum(noise, 4 * least)))

    none = jnp.zeros((), int), resolved(K) / 4, jnp.full_like(K, jnp.nan)
    _, least, factor = jax.lax.while_loop(failed, attempt, none)
    return factor, jnp.maximum(noise, least)
