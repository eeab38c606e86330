"""The error of an approximate solve, estimated at probe points. Shared by `SAP` and `pathgp.posterior.accuracy`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

BLOCK_ROWS = 256
"""Rows around a probe whose system is solved exactly: twice as many as `Local` uses by default."""

NUM_PARTNERS = 16
"""A probe is displaced from a row by the difference of two of this many nearest rows."""

SLOPE, SLOPE_SPREAD = 1.5, 1.0
"""Prior mean and standard deviation of the slope of the error on its estimate ê."""


def pick_neighbour_pairs(nearest: Any) -> tuple[Any, Any]:
    """Return two of the rows nearest to each probe's own row; which two varies from probe to probe.

    `nearest` has the own row of each probe in its first column.
    """
    probe, others = np.arange(nearest.shape[0]), max(nearest.shape[1] - 1, 1)
    first = min(1, nearest.shape[1] - 1)
    return nearest[probe, first + probe % others], nearest[probe, first + (probe + others // 2) % others]


def displace(A: Any, B: Any, C: Any, X: Any) -> Any:
    """Return A + 0.7 (B − C), clipped to the range of X, for rows A and two neighbours of each, B and C.

    The displacement is about as long as the distance of a new row to the data, and runs along the data. Points half-way
    between two neighbours would give too small an error: a posterior is narrower there than at new rows, above all for
    many inputs. On kin40k they gave 0.028 standard deviations where the mean was off by 0.075.
    """
    return (A + 0.7 * (B - C)).clip(X.min(axis=0), X.max(axis=0))


@jax.jit
def estimate_slope(
    deviations: Float[Array, "p s"],
    guess: Float[Array, "p s"],
    prior: float | Float[Array, ""] = SLOPE,
    spread: float | Float[Array, ""] = SLOPE_SPREAD,
) -> Float[Array, ""]:
    """Return the slope of the deviations on the estimates `guess` of their error, combined with a normal prior.

    Samples are independent of each other but points are not, so the variance of the slope is estimated from the
    variation between samples. The slope is at least 0.5; with a single sample it is the prior mean.
    """
    size, products = jnp.sum(guess**2, axis=0), jnp.sum(deviations * guess, axis=0)
    total = jnp.where(jnp.sum(size) > 0, jnp.sum(size), 1)
    found, s = jnp.sum(products) / total, deviations.shape[1]
    if s == 1:
        return jnp.asarray(prior, products.dtype)
    # The small constant keeps the weights finite when all samples agree.
    variance = s / (s - 1) * jnp.sum((products - found * size) ** 2) / total**2 + 1e-12
    return jnp.maximum(0.5, (found / variance + prior / spread**2) / (1 / variance + 1 / spread**2))
