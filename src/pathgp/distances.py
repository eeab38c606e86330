"""Squared distances of points, as exact as the precision allows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pathgp import checks

FEW_INPUTS = 10
"""Up to here differences cost about as much as a product; `pathgp bench kernel --inputs D` times what is taken."""

ROUNDINGS = 4
"""Of ‖x‖² + ‖z‖², within which the product of equal points ends."""


def squared_distance(X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """‖x − z‖² for every pair.

    Of a few inputs the differences are formed, input by input, which is as fast as a matrix product and does not
    cancel: in few dimensions data often spread over hundreds of length scales. Of more it is one product of the
    extended vectors (−2x, ‖x‖², 1) and (z, 1, ‖z‖²). That cancels where x and z are close and far from the origin, so
    both are centred on the mean of Z first, and what is left of a distance within the rounding is zero: a root of it
    would be many times as large.
    """
    checks.same_inputs(X, Z)
    if X.shape[1] <= FEW_INPUTS:
        # A transpose alone is fused into the loop over pairs, which then reads Z with strides: five times slower.
        inputs = jnp.matmul(jnp.eye(Z.shape[1], dtype=Z.dtype), Z.T, precision="highest")
        squares = ((X[:, j, None] - inputs[j]) ** 2 for j in range(X.shape[1]))
        return sum(squares, jnp.zeros((), X.dtype))
    centre = jax.lax.stop_gradient(jnp.mean(Z, axis=0))
    X, Z = X - centre, Z - centre
    ones_X, ones_Z = jnp.ones((X.shape[0], 1), X.dtype), jnp.ones((Z.shape[0], 1), Z.dtype)
    size_X, size_Z = jnp.sum(X**2, axis=1, keepdims=True), jnp.sum(Z**2, axis=1, keepdims=True)
    left = jnp.concatenate([-2 * X, size_X, ones_X], axis=1)
    right = jnp.concatenate([Z, ones_Z, size_Z], axis=1)
    rounding = ROUNDINGS * float(jnp.finfo(X.dtype).eps) * jax.lax.stop_gradient(size_X + size_Z.T)
    return _resolved(jnp.matmul(left, right.T, precision="highest"), rounding)


@jax.custom_jvp
def _resolved(r2: Float[Array, "n m"], rounding: Float[Array, "n m"]) -> Float[Array, "n m"]:
    return jnp.where(r2 > rounding, r2, 0)


@_resolved.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    """The derivative is that of the distance, also where it is zero."""
    return _resolved(*primals), tangents[0]
