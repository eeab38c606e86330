"""How good a prediction is, and how far a solve is from the exact one."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from pathgp.kernels import Kernel
from pathgp.system.dense import wide


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


def weight_error(weights: Float[Array, "N *s"], exact: Float[Array, "N *s"]) -> Float64[np.ndarray, "*s"]:
    """The error ‖v − v*‖₂ of representer weights, of each column."""
    return np.asarray(np.linalg.norm(_difference(weights, exact), axis=0))


def rkhs_error(
    kernel: Kernel, points: Float[Array, "N d"], weights: Float[Array, "N *s"], exact: Float[Array, "N *s"]
) -> Float64[np.ndarray, "*s"]:
    """The RKHS norm √((v − v*)ᵀK(v − v*)) of the difference of k(·, points) v and k(·, points) v*, of each column.

    In float64, a tile of rows at a time: what a solver leaves is mostly along small eigenvalues of K.
    """
    difference, squares = _difference(weights, exact), 0.0
    for i in range(0, points.shape[0], ROWS):
        rows = wide(kernel, points[i : i + ROWS], points) @ difference
        squares = squares + np.sum(rows * difference[i : i + ROWS], axis=0)
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


ROWS = 1024


def _difference(weights: Float[Array, "N *s"], exact: Float[Array, "N *s"]) -> Float64[np.ndarray, "N *s"]:
    return np.asarray(weights, dtype=np.float64) - np.asarray(exact, dtype=np.float64)
