"""How good a prediction is."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def rmse(mean: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, ""]:
    """The root mean square error.

    >>> import jax.numpy as jnp
    >>> print(rmse(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.0, 5.0])) ** 2 * 3)
    8.0
    """
    return jnp.sqrt(jnp.mean((mean - y) ** 2))


def nll(mean: Float[Array, "n"], variance: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, ""]:
    """The mean negative log-likelihood −log N(y; mean, variance), the variance with the noise in it."""
    return jnp.mean(jnp.log(2 * jnp.pi * variance) + (y - mean) ** 2 / variance) / 2


def w2(
    mean: Float[Array, "n"],
    variance: Float[Array, "n"],
    other_mean: Float[Array, "n"],
    other_variance: Float[Array, "n"],
) -> Float[Array, "n"]:
    """The 2-Wasserstein distance between normal distributions, point by point: √((μ₁ − μ₂)² + (σ₁ − σ₂)²)."""
    return jnp.hypot(mean - other_mean, jnp.sqrt(variance) - jnp.sqrt(other_variance))
