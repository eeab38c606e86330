"""The error of an approximate solve, estimated at probe points: what `SAP` and `pathgp.posterior.accuracy` share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

BLOCK = 256
"""Rows around a probe whose system is solved exactly: twice as many as a local projection has."""

PARTNERS = 16
"""A probe is displaced from a row by the difference of two of this many nearest rows."""

SLOPE, SLOPE_SPREAD = 1.5, 1.0
"""The slope of the error on ê before the samples are asked, and its standard deviation."""


def partners(nearest: Any) -> tuple[Any, Any]:
    """Two of the rows nearest to each probe's row, which comes first itself; a different pair for each probe."""
    probe, others = np.arange(nearest.shape[0]), max(nearest.shape[1] - 1, 1)
    first = min(1, nearest.shape[1] - 1)
    return nearest[probe, first + probe % others], nearest[probe, first + (probe + others // 2) % others]


def displaced(A: Any, B: Any, C: Any, X: Any) -> Any:
    """A + 0.7 (B − C), within the range of X, for rows A and two neighbours of each, B and C.

    The displacement is about as long as the distance of a new row to the data, and along them. Half-way between two
    neighbours a posterior is narrower than at new rows, above all if there are many inputs.
    """
    return (A + 0.7 * (B - C)).clip(X.min(axis=0), X.max(axis=0))


@jax.jit
def slope(
    deviations: Float[Array, "p s"],
    guess: Float[Array, "p s"],
    prior: float | Float[Array, ""] = SLOPE,
    spread: float | Float[Array, ""] = SLOPE_SPREAD,
) -> Float[Array, ""]:
    """Of the deviations on a guess of their error, with a prior for what the samples cannot tell.

    Samples are independent of each other, points are not: the variance of the slope is that between samples.
    """
    size, products = jnp.sum(guess**2, axis=0), jnp.sum(deviations * guess, axis=0)
    total = jnp.where(jnp.sum(size) > 0, jnp.sum(size), 1)
    found, s = jnp.sum(products) / total, deviations.shape[1]
    if s == 1:
        return jnp.asarray(prior, products.dtype)
    variance = s / (s - 1) * jnp.sum((products - found * size) ** 2) / total**2 + 1e-12
    return jnp.maximum(0.5, (found / variance + prior / spread**2) / (1 / variance + 1 / spread**2))
