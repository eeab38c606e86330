"""Rows that repeat a place, put together: the same posterior from a smaller system."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from pathgp.system.system import System, Targets

logger = logging.getLogger("pathgp")


class Places(eqx.Module):
    """The place of each row, numbered in the order in which they first occur, and how many there are."""

    of_row: Int[Array, "N"]
    number: int = eqx.field(static=True)

    def sums(self, A: Float[Array, "N s"]) -> Float[Array, "M s"]:
        """The sum of the rows at each place: what weights become."""
        return jax.ops.segment_sum(A, self.of_row, self.number)


def places(X: Shaped[Array, "N d"]) -> Places | None:
    """Which rows of X are equal to which; None where no two are.

    Rows are sorted by a random projection, which is one number for equal rows; neighbours in that order are compared.
    """
    Z = np.asarray(X)
    projected = np.zeros(len(Z))
    for column, factor in zip(Z.T, np.random.default_rng(0).normal(size=Z.shape[1]), strict=True):
        projected += factor * column
    order = np.argsort(projected, kind="stable")
    repeats = np.zeros(len(Z), bool)
    alike = 1 + np.flatnonzero(projected[order[1:]] == projected[order[:-1]])
    repeats[alike] = np.all(Z[order[alike]] == Z[order[alike - 1]], axis=1)
    if not repeats.any():
        return None
    first = order[~repeats]  # of each place, since the order is stable
    place = np.empty(len(Z), np.int32)
    place[order] = np.argsort(np.argsort(first))[np.cumsum(~repeats) - 1]
    return Places(jnp.asarray(place), len(first))


def put_together(system: System, targets: Targets) -> tuple[System, Targets, Places | None]:
    """The system and its right-hand sides with each place once.

    To the posterior, observations at one place are one observation: their mean, each counted as its 1/σᵢ², with the
    noise variance 1/Σ 1/σᵢ². Two of them that disagree would have weights ±Δ/2σ² otherwise, which cancel, and with
    little noise nothing but their rounding is left.
    """
    found = places(system.X)
    if found is None:
        return system, targets, None
    logger.info("%d rows repeat the inputs of others, and were put together with them.", system.size - found.number)
    precision = 1 / system.noise_diagonal[:, None]
    total = found.sums(precision)
    mean = lambda A: found.sums(precision / total[found.of_row] * A)
    first = np.unique(np.asarray(found.of_row), return_index=True)[1]
    once = System(system.kernel, system.X[first], 1 / total[:, 0], system.tile)
    return once, Targets(mean(targets.signal), mean(targets.noise), targets.draws), found
