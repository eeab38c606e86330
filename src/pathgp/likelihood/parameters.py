"""Hyperparameters as unconstrained numbers, for an optimiser."""

import equinox as eqx
import jax
from jaxtyping import Float

from pathgp.kernels import Kernel
from pathgp.linalg.namespace import AnyArray, namespace
from pathgp.linalg.precision import in_own_precision
from pathgp.posterior.gp import GP

NOISE_FLOOR = 1e-11
"""The smallest noise variance, as a share of the kernel's.

A float64 Cholesky factorisation of 6000 rows succeeds down to 1e-12 for an RBF kernel of any length scale. Its rounding
grows in proportion to the number of rows.
"""

NOISE_FLOOR_FLOAT32 = 1e-4
"""The same for float32, which resolves it in every block of a few hundred rows."""


class Parameters(eqx.Module):
    """The logarithms of all positive hyperparameters, and the mean.

    Every array of a kernel is a positive parameter. Noise that differs between rows is multiplied by one fitted factor,
    and the floor is added to it.
    """

    log_kernel: Kernel
    log_noise: Float[AnyArray, ""]
    mean: Float[AnyArray, ""]
    noise_shape: Float[AnyArray, "..."]
    """The noise of the rows relative to their mean, which is not fitted."""
    floor: float = eqx.field(static=True, default=NOISE_FLOOR)
    """The smallest noise variance, as a share of the kernel's."""

    @in_own_precision
    def gp(self) -> GP:
        """Return the GP with these hyperparameters, its noise at least `floor` times the kernel's variance."""
        return GP(*self.kernel_and_noise(), self.mean)

    def kernel_and_noise(self) -> tuple[Kernel, Float[AnyArray, "..."]]:
        """Return the kernel, and the noise that is at least `floor` times its variance."""
        exp = namespace(self.log_noise).exp
        kernel = jax.tree.map(exp, self.log_kernel)
        return kernel, exp(self.log_noise) * self.noise_shape + self.floor * kernel_variance(kernel)


def kernel_variance(kernel: Kernel) -> Float[AnyArray, ""]:
    """Return k(x, x) of a kernel with the same variance everywhere."""
    leaves = jax.tree.leaves(kernel)
    return kernel.diag(namespace(leaves[0] if leaves else None).zeros((1, 1)))[0]


def to_parameters(gp: GP, floor: float = NOISE_FLOOR) -> Parameters:
    """Return the parameters of a GP. `Parameters.gp` gives it back, unless its noise is near the floor or below."""
    xp = namespace(gp.noise)
    scale = xp.mean(gp.noise)
    # The part of the noise above the floor; it stays positive, so that its logarithm is finite.
    free = xp.maximum(scale - floor * kernel_variance(gp.kernel), 0.01 * scale)
    kernel, array = jax.tree.map(xp.log, gp.kernel), xp.asarray
    return Parameters(kernel, array(xp.log(free)), array(gp.mean), array(gp.noise / scale), floor)


def trainable_mask(p: Parameters) -> Parameters:
    """Return a mask of the parameters that an optimiser may change: all but `noise_shape`."""
    mask = jax.tree.map(lambda _: True, p)
    return eqx.tree_at(lambda q: q.noise_shape, mask, False)
