"""Minibatches of row indices: a new permutation each epoch, and a probe of the residual on a fixed set of rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pathgp.system.system import System, Targets

PROBE_ROWS = 2048


class Batches(eqx.Module):
    """Batches without replacement; the rows that do not fill a batch are left out, others in each epoch."""

    key: PRNGKeyArray
    order: Int[Array, "N"]
    position: Int[Array, ""]

    @classmethod
    def start(cls, key: PRNGKeyArray, size: int) -> "Batches":
        """The first epoch."""
        key, subkey = jax.random.split(key)
        return cls(key, jax.random.permutation(subkey, size), jnp.zeros((), int))

    def next(self, batch_size: int) -> tuple[Int[Array, "b"], "Batches"]:
        """The next batch, of the next epoch if this one is used up."""
        size = self.order.shape[0]
        fits = self.position + batch_size <= size
        batches = jax.lax.cond(fits, lambda b: b, lambda b: Batches.start(b.key, size), self)
        batch = jax.lax.dynamic_slice_in_dim(batches.order, batches.position, batch_size)
        return batch, Batches(batches.key, batches.order, batches.position + batch_size)


def probe_rows(key: PRNGKeyArray, size: int) -> Int[Array, "p"]:
    """Rows on which residuals are estimated: all of them where there are few."""
    if size <= PROBE_ROWS:
        return jnp.arange(size)
    return jax.random.choice(key, size, (PROBE_ROWS,), replace=False)


def probed_residual(
    system: System, targets: Targets, W: Float[Array, "N s"], rows: Int[Array, "p"]
) -> Float[Array, "s"]:
    """‖b − HW‖ / ‖b‖ of each column, estimated without bias (in the square) from a random set of rows."""
    residual = system.residual_rows(rows, targets, W)
    return jnp.linalg.norm(residual, axis=0) * jnp.sqrt(system.size / rows.shape[0]) / targets.norms
