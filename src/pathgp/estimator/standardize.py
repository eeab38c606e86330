"""Standardisation of inputs and targets, and its inverse."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64

ROWS = 65_536
"""Rows converted at a time, so that a memory-mapped matrix is never held in memory in its own dtype."""

SMALLEST = 1e-150
"""Smallest spread of a target whose square float64 still resolves."""


class Scaling(NamedTuple):
    """The linear map x ↦ (x − centre)/scale of each column, in float64."""

    centre: Float64[np.ndarray, "d"]
    scale: Float64[np.ndarray, "d"]

    def apply(self, X: Any) -> Float[np.ndarray, "n d"]:
        """Return the standardised columns in JAX's default dtype; values beyond its range become infinite."""
        out = np.empty(X.shape, jnp.result_type(float))
        with np.errstate(over="ignore"):
            for rows in chunks(len(X)):
                out[rows] = (X[rows] - self.centre) / self.scale
        return out

    def shifted(self, origin: Float64[np.ndarray, "d"]) -> "Scaling":
        """Return the same map for columns that are measured from zero instead of from `origin`."""
        return Scaling(self.centre + origin, self.scale)

    def inverse(self, Z: Any) -> Float64[np.ndarray, "n d"]:
        """Return the columns in their original units."""
        return np.asarray(Z, np.float64) * self.scale + self.centre


def identity(columns: int) -> Scaling:
    """Return the identity map."""
    return Scaling(np.zeros(columns), np.ones(columns))


def fit_scaling(X: Any, weights: Float64[np.ndarray, "n"], name: str = "X") -> Scaling:
    """Return the map to mean zero and variance one over weighted rows; a constant column keeps its unit.

    Raise `ValueError` if squares of the values overflow.
    """
    total = weights.sum()
    origin = np.asarray(X[0], np.float64)  # relative to it a constant column is exactly zero, so its sum does not round
    with np.errstate(over="ignore", invalid="ignore"):
        centre = origin + sum((weights[rows] @ (X[rows] - origin) for rows in chunks(len(X))), 0.0) / total
        squares = sum((weights[rows] @ (X[rows] - centre) ** 2 for rows in chunks(len(X))), 0.0) / total
    if not np.all(np.isfinite(squares)):
        raise ValueError(f"{name} has values that are too large to square: use a larger unit.")
    scale = np.sqrt(squares)
    # A spread of a few ulps of the mean is rounding: dividing by it would amplify noise.
    constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(centre)
    return Scaling(np.asarray(centre), np.where(constant, 1.0, scale))


def fit_target_scaling(Y: Float64[np.ndarray, "n t"], weights: Float64[np.ndarray, "n"]) -> Scaling:
    """Return the map to mean zero and variance one; a constant target is divided by its absolute value.

    Raise `ValueError` if a target varies by less than `SMALLEST`.
    """
    centre, scale = fit_scaling(Y, weights, "y")
    spread = np.ptp(Y, axis=0)
    if np.any((spread > 0) & (spread < SMALLEST)):
        raise ValueError(f"y varies by less than {SMALLEST:g}, which is too small to square: use a smaller unit.")
    constant = spread == 0
    return Scaling(centre, np.where(constant, np.where(centre == 0, 1, np.abs(centre)), scale))


def chunks(n: int) -> Iterator[slice]:
    """Return slices of at most `ROWS` rows that cover `n` rows."""
    return (slice(start, start + ROWS) for start in range(0, n, ROWS))
