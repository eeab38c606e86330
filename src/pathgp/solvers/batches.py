"""Minibatches of row indices without replacement, and an estimate of the residual on a fixed random set of rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pathgp.system.system import System, Targets

PROBE_ROWS = 2048
"""Rows on which the residual is estimated; with fewer rows it is computed on all of them."""


class Batches(eqx.Module):
    """Minibatches without replacement, from a new random permutation in each epoch.

    Rows that do not fill a batch at the end of an epoch are skipped; they are different rows in each epoch.
    """

    key: PRNGKeyArray
    order: Int[Array, "N"]
    position: Int[Array, ""]

    @classmethod
    def start(cls, key: PRNGKeyArray, size: int) -> "Batches":
        """Return the state at the start of an epoch."""
        key, subkey = jax.random.split(key)
        return cls(key, jax.random.permutation(subkey, size), jnp.zeros((), int))

    def next(self, batch_size: int) -> tuple[Int[Array, "b"], "Batches"]:
        """Return the next batch and the following state; a new epoch starts if too few rows are left."""
        size = self.order.shape[0]
        fits = self.position + batch_size <= size
        # A conditional, so that a permutation is drawn only at the end of an epoch.
        batches = jax.lax.cond(fits, lambda b: b, lambda b: Batches.start(b.key, size), self)
        batch = jax.lax.dynamic_slice_in_dim(batches.order, batches.position, batch_size)
        return batch, Batches(batches.key, batches.order, batches.position + batch_size)


def probe_rows(key: PRNGKeyArray, size: int) -> Int[Array, "p"]:
    """Return the rows on which residuals are estimated: `PROBE_ROWS` random ones, or all if there are fewer."""
    if size <= PROBE_ROWS:
        return jnp.arange(size)
    return jax.random.choice(key, size, (PROBE_ROWS,), replace=False)


def probed_residual(
    system: System, targets: Targets, W: Float[Array, "N s"], rows: Int[Array, "p"]
) -> Float[Array, "s"]:
    """Return ‖b − HW‖ / ‖b‖ of each column, estimated from a random set of rows. Its square is unbiased."""
    residual = system.residual_rows(rows, targets, W)
    return jnp.linalg.norm(residual, axis=0) * jnp.sqrt(system.size / rows.shape[0]) / targets.norms
