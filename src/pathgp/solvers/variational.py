"""The variational distribution q(u) of a function's values at inducing points."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pathgp.kernels import Kernel
from pathgp.linalg.blocks import inverse_factor
from pathgp.linalg.jitter import LARGEST_SHARE, raise_traced_jitter


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


def with_jitter(
    kernel: Kernel, z: Float[Array, "M d"], start: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, "M M"]]:
    """Return the first jitter from `start` on for which L⁻¹ is accurate, and L⁻¹."""
    matrix = lambda jitter: kernel(z, z) + jitter * jnp.eye(z.shape[0], dtype=z.dtype)
    return raise_traced_jitter(matrix, start, LARGEST_SHARE * jnp.mean(kernel.diag(z)))
