"""The distribution q(u) of a function's values at inducing points."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pathgp.kernels import Kernel
from pathgp.linalg.blocks import inverse_factor

MOST_JITTER = 0.1


class Variational(eqx.Module):
    """q(u) = N(Lm, L C Cᵀ Lᵀ), whitened: K_zz + jitter · I = LLᵀ, with C lower triangular."""

    mean: Float[Array, "M"]
    factor: Float[Array, "M M"]
    jitter: Float[Array, ""]
    steps: Int[Array, "k"] | None = None
    elbo: Float[Array, "k"] | None = None
    """The curve of the ELBO: the average of its estimates in the steps up to each of `steps`, since the one before."""

    def weights(
        self, L_inverse: Float[Array, "M M"], f_z: Float[Array, "M s"], xi: Float[Array, "M s"]
    ) -> Float[Array, "M t"]:
        """The column of the mean, K_zz⁻¹Lm, and one K_zz⁻¹(f(z) − LCξ) for each prior draw f.

        With u = L(m + Cξ), ξ ~ N(0, I), the first less the other is K_zz⁻¹(u − f(z)).
        """
        columns = jnp.concatenate([self.mean[:, None], L_inverse @ f_z - self.factor @ xi], axis=1)
        return L_inverse.T @ columns


def whitening(kernel: Kernel, z: Float[Array, "M d"], jitter: Float[Array, ""]) -> Float[Array, "M M"]:
    """L⁻¹ with K_zz + jitter · I = LLᵀ: NaN where it is not positive definite to working precision."""
    return inverse_factor(kernel(z, z) + jitter * jnp.eye(z.shape[0], dtype=z.dtype))


def least_jitter(kernel: Kernel, z: Float[Array, "M d"], start: Float[Array, ""]) -> Float[Array, ""]:
    """The first of `start`, 10 · start, … with which L⁻¹ is finite, or one above a tenth of the variance if none is."""
    limit = MOST_JITTER * jnp.mean(kernel.diag(z))

    def fails(jitter: Float[Array, ""]) -> Array:
        return ~jnp.all(jnp.isfinite(whitening(kernel, z, jitter))) & (jitter <= limit)

    return jax.lax.while_loop(fails, lambda jitter: 10 * jitter, start)
