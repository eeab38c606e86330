"""Columns in units of their own spread: what the estimator does to data on the way in, and undoes on the way out."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64

ROWS = 65_536
"""Rows that are converted at a time: a memory-mapped matrix is never in memory in its own precision."""

SMALLEST = 1e-150
"""A spread whose square float64 still resolves."""


class Scaling(NamedTuple):
    """The linear map x ↦ (x − centre)/scale of each column, in float64."""

    centre: Float64[np.ndarray, "d"]
    scale: Float64[np.ndarray, "d"]

    def apply(self, X: Any) -> Float[np.ndarray, "n d"]:
        """The columns in units of their spread, in JAX's precision; what is too large for it is infinite."""
        out = np.empty(X.shape, jnp.result_type(float))
        with np.errstate(over="ignore"):
            for rows in chunks(len(X)):
                out[rows] = (X[rows] - self.centre) / self.scale
        return out

    def shifted(self, origin: Float64[np.ndarray, "d"]) -> "Scaling":
        """The same map for columns that are not counted from this origin, but from zero."""
        return Scaling(self.centre + origin, self.scale)

    def undo(self, Z: Any) -> Float64[np.ndarray, "n d"]:
        """The columns in their own units."""
        return np.asarray(Z, np.float64) * self.scale + self.centre


def identity(columns: int) -> Scaling:
    """The map that leaves everything as it is."""
    return Scaling(np.zeros(columns), np.ones(columns))


def standardizing(X: Any, weights: Float64[np.ndarray, "n"], name: str = "X") -> Scaling:
    """The map to mean zero and variance one, rows counted by their weights; a constant column keeps its unit."""
    total = weights.sum()
    origin = np.asarray(X[0], np.float64)  # from which a constant column differs by zero, with no rounding of its sum
    with np.errstate(over="ignore", invalid="ignore"):
        centre = origin + sum((weights[rows] @ (X[rows] - origin) for rows in chunks(len(X))), 0.0) / total
        squares = sum((weights[rows] @ (X[rows] - centre) ** 2 for rows in chunks(len(X))), 0.0) / total
    if not np.all(np.isfinite(squares)):
        raise ValueError(f"{name} has values that are too large to be squared: measure it in a larger unit.")
    scale = np.sqrt(squares)
    constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(centre)
    return Scaling(np.asarray(centre), np.where(constant, 1.0, scale))


def standardizing_targets(Y: Float64[np.ndarray, "n t"], weights: Float64[np.ndarray, "n"]) -> Scaling:
    """The map to mean zero and variance one; what does not vary is measured by its size."""
    centre, scale = standardizing(Y, weights, "y")
    spread = np.ptp(Y, axis=0)
    if np.any((spread > 0) & (spread < SMALLEST)):
        raise ValueError(f"y varies by less than {SMALLEST:g}, too little to be squared: measure it in a smaller unit.")
    constant = spread == 0
    return Scaling(centre, np.where(constant, np.where(centre == 0, 1, np.abs(centre)), scale))


def chunks(n: int) -> Iterator[slice]:
    """The rows, some at a time."""
    return (slice(start, start + ROWS) for start in range(0, n, ROWS))
