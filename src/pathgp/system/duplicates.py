"""Merging of duplicate rows, which gives the same posterior from a smaller system."""

import logging

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from pathgp.linalg.namespace import on_device
from pathgp.system.system import System, Targets

logger = logging.getLogger("pathgp")


class DistinctRows(eqx.Module):
    """The distinct row of each row, numbered in order of first occurrence, and their number."""

    of_row: Int[Array, "N"]
    number: int = eqx.field(static=True)

    def sums(self, A: Float[Array, "N s"]) -> Float[Array, "M s"]:
        """Return the sum of the rows of A over each distinct row, by which weights are merged."""
        return jax.ops.segment_sum(A, self.of_row, self.number)

    def sums_on_host(self, A: Float[np.ndarray, "N s"]) -> Float[np.ndarray, "M s"]:
        """Return the same for an array of NumPy."""
        total = np.zeros((self.number, A.shape[1]), A.dtype)
        np.add.at(total, np.asarray(self.of_row), A)
        return total


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
    return DistinctRows(jax.device_put(place), len(first))


def merge_rows(
    X: Float[np.ndarray, "N d"], noise: Float[np.ndarray, "..."], columns: Float[np.ndarray, "N s"]
) -> tuple[Float[np.ndarray, "M d"], Float[np.ndarray, "..."], Float[np.ndarray, "M s"]]:
    """Return the rows, their noise and their right-hand sides with duplicates merged, see `merge_duplicates`."""
    found = find_duplicates(X)
    if found is None:
        return X, noise, columns
    precision = np.broadcast_to(1 / noise, len(X))[:, None]
    total = found.sums_on_host(precision)
    of_row = np.asarray(found.of_row)
    first = np.unique(of_row, return_index=True)[1]
    return X[first], 1 / total[:, 0], found.sums_on_host(precision / total[of_row] * columns)


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
    both = np.concatenate([np.asarray(targets.signal), np.asarray(targets.noise)], axis=1)
    X, noise, both = merge_rows(np.asarray(system.X), np.asarray(system.noise), both)
    signal, noise_columns = np.split(both, 2, axis=1)
    X, noise, signal, noise_columns = on_device((X, noise, signal, noise_columns), system.X.dtype)
    return System(system.kernel, X, noise, system.tile), Targets(signal, noise_columns, targets.draws), found
