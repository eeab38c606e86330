"""The variational distribution q(u) of a function's values at inducing points."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pathgp.kernels import Kernel
from pathgp.linalg.blocks import inverse_factor

MOST_JITTER = 0.1
"""The jitter is raised no further once it exceeds this share of the mean of the diagonal of K_zz."""


class Variational(eqx.Module):
    """The distribution q(u) = N(Lm, L C Cᵀ Lᵀ) in whitened form, where K_zz + jitter · I = LLᵀ.

    Parameters
    ----------
    mean
        The whitened mean m.
    factor
        The lower triangular factor C of the whitened covariance.
    jitter
        Jitter added to the diagonal of K_zz.
    steps
        Steps of the optimiser at which the ELBO curve has a point.
    elbo
        The ELBO curve: the average of the estimates in the steps since the previous point.
    """

    mean: Float[Array, "M"]
    factor: Float[Array, "M M"]
    jitter: Float[Array, ""]
    steps: Int[Array, "k"] | None = None
    elbo: Float[Array, "k"] | None = None

    def weights(
        self, L_inverse: Float[Array, "M M"], f_z: Float[Array, "M s"], xi: Float[Array, "M s"]
    ) -> Float[Array, "M t"]:
        """Return the column of the mean, K_zz⁻¹Lm, followed by K_zz⁻¹(f(z) − LCξ) for each prior draw f.

        With u = L(m + Cξ) and ξ ~ N(0, I), the first column minus one of the others is K_zz⁻¹(u − f(z)).
        """
        columns = jnp.concatenate([self.mean[:, None], L_inverse @ f_z - self.factor @ xi], axis=1)
        return L_inverse.T @ columns


def whitening(kernel: Kernel, z: Float[Array, "M d"], jitter: Float[Array, ""]) -> Float[Array, "M M"]:
    """Return L⁻¹ with K_zz + jitter · I = LLᵀ, or NaN if that is not positive definite in working precision."""
    return inverse_factor(kernel(z, z) + jitter * jnp.eye(z.shape[0], dtype=z.dtype))


def least_jitter(kernel: Kernel, z: Float[Array, "M d"], start: Float[Array, ""]) -> Float[Array, ""]:
    """Return the first of `start`, 10 · `start`, … for which L⁻¹ is finite.

    If there is none, return a value above a tenth of the mean variance.
    """
    limit = MOST_JITTER * jnp.mean(kernel.diag(z))

    def fails(jitter: Float[Array, ""]) -> Array:
        return ~jnp.all(jnp.isfinite(whitening(kernel, z, jitter))) & (jitter <= limit)

    return jax.lax.while_loop(fails, lambda jitter: 10 * jitter, start)
