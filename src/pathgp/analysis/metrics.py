"""Metrics of predictions, and errors of a solve compared with the exact solution."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from pathgp.kernels import Kernel
from pathgp.system.dense import kernel_float64

__all__ = ["nll", "rmse", "w2"]


def rmse(y_true: Float[Array | np.ndarray, "n"], mean: Float[Array | np.ndarray, "n"]) -> Float[Array, ""]:
    """Return the root mean square error.

    Parameters
    ----------
    y_true
        True values.
    mean
        Predicted means.

    >>> import jax.numpy as jnp
    >>> print(rmse(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.0, 5.0])) ** 2 * 3)
    8.0
    """
    return jnp.sqrt(jnp.mean((mean - y_true) ** 2))


def nll(y_true: Float[Array, "n"], mean: Float[Array, "n"], variance: Float[Array, "n"]) -> Float[Array, ""]:
    """Return the mean negative log-likelihood −log N(y_true; mean, variance).

    Parameters
    ----------
    y_true
        True values.
    mean
        Predicted means.
    variance
        Predicted variances, noise included.
    """
    return jnp.mean(jnp.log(2 * jnp.pi * variance) + (y_true - mean) ** 2 / variance) / 2


def w2(
    mean: Float[Array, "n"],
    variance: Float[Array, "n"],
    other_mean: Float[Array, "n"],
    other_variance: Float[Array, "n"],
) -> Float[Array, "n"]:
    """Return the 2-Wasserstein distance √((μ₁ − μ₂)² + (σ₁ − σ₂)²) between normal distributions, per point.

    Parameters
    ----------
    mean
        Means μ₁.
    variance
        Variances σ₁².
    other_mean
        Means μ₂.
    other_variance
        Variances σ₂².
    """
    return jnp.hypot(mean - other_mean, jnp.sqrt(variance) - jnp.sqrt(other_variance))


def weight_error(weights: Float[Array, "N *s"], exact: Float[Array, "N *s"]) -> Float64[np.ndarray, "*s"]:
    """Return the error ‖v − v*‖₂ of representer weights, per column.

    Parameters
    ----------
    weights
        Weights v.
    exact
        Exact weights v*.
    """
    return np.asarray(np.linalg.norm(_difference(weights, exact), axis=0))


def rkhs_error(
    kernel: Kernel, points: Float[Array, "N d"], weights: Float[Array, "N *s"], exact: Float[Array, "N *s"]
) -> Float64[np.ndarray, "*s"]:
    """Return the RKHS norm √((v − v*)ᵀK(v − v*)) of the difference of k(·, points) v and k(·, points) v*, per column.

    Parameters
    ----------
    kernel
        The kernel k.
    points
        Points of the representer weights.
    weights
        Weights v.
    exact
        Exact weights v*.
    """
    # In float64, because a solver's error lies mostly along small eigenvalues of K. By tiles of rows, because of
    # memory.
    difference, squares = _difference(weights, exact), 0.0
    for i in range(0, points.shape[0], ROWS):
        rows = kernel_float64(kernel, points[i : i + ROWS], points) @ difference
        squares = squares + np.sum(rows * difference[i : i + ROWS], axis=0)
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


ROWS = 1024
"""Rows of K held at a time."""


def _difference(weights: Float[Array, "N *s"], exact: Float[Array, "N *s"]) -> Float64[np.ndarray, "N *s"]:
    return np.asarray(weights, dtype=np.float64) - np.asarray(exact, dtype=np.float64)
