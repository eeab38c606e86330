"""The negative log marginal likelihood of a dense system and its gradient, in float64 on the host.

    −log p(y) = ½ yᵀH⁻¹y + ½ log|H| + (N/2) log 2π,    ∂(−log p(y)) = ½ tr((H⁻¹ − ααᵀ) ∂H)  with α = H⁻¹y.

An evaluation of both takes one factorisation. Built-in kernels have the last step in closed form (`Kernel.gradient`),
so that JAX compiles nothing. For any other kernel it is the derivative by JAX.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64
from scipy import linalg

from pathgp.kernels import Kernel
from pathgp.likelihood.parameters import Parameters
from pathgp.linalg.factor import factorise
from pathgp.linalg.namespace import AnyArray, on_host


def loss_and_gradient(p: Parameters, X: Float[AnyArray, "N d"], y: Float[AnyArray, "N"]) -> tuple[float, Parameters]:
    """Return −log p(y)/N and its gradient, or NaN if H is not positive definite. Float64 must be enabled in JAX."""
    p, X, y = on_host((p, X, y))
    by_host = p.log_kernel.runs_on_host
    kernel, noise = p.kernel_and_noise()
    H = kernel(X, X) if by_host else np.array(_matrix(kernel, jnp.asarray(X)))
    H[np.diag_indices_from(H)] += noise
    nan = float("nan"), jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), p)
    if not np.all(np.isfinite(H)):
        return nan
    try:
        factorise(H)
    except ValueError:
        return nan
    N = len(X)
    log_determinant = 2 * np.sum(np.log(np.diag(H)))
    inverse = _inverse(H)
    residual = y - p.mean
    alpha = inverse @ residual
    loss = (residual @ alpha + log_determinant + N * np.log(2 * np.pi)) / 2
    G = inverse  # in place of the inverse, of which nothing else is needed
    G -= np.outer(alpha, alpha)
    G /= 2 * N
    by_noise = np.diag(G).copy()
    # The noise has a floor in proportion to the variance k(x, x), which is the same at every row.
    G[np.diag_indices(N)] += p.floor * np.sum(by_noise) / N
    by_kernel = kernel.gradient(X, G) if by_host else _pull_back(kernel, jnp.asarray(X), jnp.asarray(G))
    by_log_kernel = jax.tree.map(lambda by_value, value: np.asarray(value * by_value), by_kernel, kernel)
    by_shape = np.exp(p.log_noise) * (by_noise if p.noise_shape.ndim else np.sum(by_noise))
    by_log_noise, by_mean = np.asarray(np.sum(by_shape * p.noise_shape)), np.asarray(-np.sum(alpha) / N)
    return float(loss) / N, Parameters(by_log_kernel, by_log_noise, by_mean, np.asarray(by_shape), p.floor)


def _inverse(factor: Float64[np.ndarray, "N N"]) -> Float64[np.ndarray, "N N"]:
    """Return (LLᵀ)⁻¹ for L in the lower triangle."""
    (invert,) = linalg.get_lapack_funcs(("potri",), (factor,))
    lower, _ = invert(factor, lower=1)
    return np.tril(lower) + np.tril(lower, -1).T


@eqx.filter_jit
def _matrix(kernel: Kernel, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
    return kernel(X, X)


@eqx.filter_jit
def _pull_back(kernel: Kernel, X: Float[Array, "N d"], G: Float[Array, "N N"]) -> Kernel:
    return jax.vjp(lambda k: k(X, X), kernel)[1](G)[0]
