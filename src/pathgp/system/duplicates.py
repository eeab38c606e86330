"""Merging of duplicate rows, which gives the same posterior from a smaller system."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from pathgp.system.system import System, Targets

logger = logging.getLogger("pathgp")


class DistinctRows(eqx.Module):
    """The distinct row of each row, numbered in order of first occurrence, and their number."""

    of_row: Int[Array, "N"]
    number: int = eqx.field(static=True)

    def sums(self, A: Float[Array, "N s"]) -> Float[Array, "M s"]:
        """Return the sum of the rows of A over each distinct row, by which weights are merged."""
        return jax.ops.segment_sum(A, self.of_row, self.number)


def find_duplicates(X: Shaped[Array | np.ndarray, "N d"]) -> DistinctRows | None:
    """Return the distinct row of each row of X, or None if there are no duplicates.

    Rows are sorted by a random projection, which is equal for equal rows. Adjacent rows in that order are compared.
    """
    Z = np.asarray(X)
    projected = np.zeros(len(Z))
    # Column by column, so that the sums of equal rows are bit-identical.
    for column, factor in zip(Z.T, np.random.default_rng(0).normal(size=Z.shape[1]), strict=True):
        projected += factor * column
    order = np.argsort(projected, kind="stable")
    repeats = np.zeros(len(Z), bool)
    alike = 1 + np.flatnonzero(projected[order[1:]] == projected[order[:-1]])
    repeats[alike] = np.all(Z[order[alike]] == Z[order[alike - 1]], axis=1)
    if not repeats.any():
        return None
    first = order[~repeats]  # the first occurrence of each distinct row, because the sort is stable
    place = np.empty(len(Z), np.int32)
    place[order] = np.argsort(np.argsort(first))[np.cumsum(~repeats) - 1]
    return DistinctRows(jnp.asarray(place), len(first))


def merge_duplicates(system: System, targets: Targets) -> tuple[System, Targets, DistinctRows | None]:
    """Return the system and its right-hand sides with duplicate rows merged, and the map from rows to distinct rows.

    The map is None if there are no duplicates. For the posterior, observations at the same inputs are equivalent to
    one: their mean weighted by 1/σᵢ², with noise variance 1/Σᵢ 1/σᵢ². Unmerged, two observations that differ by Δ
    would have weights ±Δ/2σ². These cancel, and with little noise only their rounding would be left.
    """
    found = find_duplicates(system.X)
    if found is None:
        return system, targets, None
    logger.info("Merged %d duplicate rows.", system.size - found.number)
    precision = 1 / system.noise_diagonal[:, None]
    total = found.sums(precision)
    mean = lambda A: found.sums(precision / total[found.of_row] * A)
    first = np.unique(np.asarray(found.of_row), return_index=True)[1]
    once = System(system.kernel, system.X[first], 1 / total[:, 0], system.tile)
    return once, Targets(mean(targets.signal), mean(targets.noise), targets.draws), found
