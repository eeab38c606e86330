"""The dense Cholesky factor of K + Σ, in float64 on the host, and the exact posterior variance that it gives."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float64, Shaped
from scipy import linalg

from pathgp.checks import is_concrete
from pathgp.functions import POINTS, padded
from pathgp.kernels import Kernel
from pathgp.precision import cast, evaluate_rows
from pathgp.system import System, wide

BLOCK = 2048


class ExactVariance(eqx.Module):
    """k(x, x) − ‖L⁻¹k(X, x)‖², the posterior variance of f(x), with LLᵀ = K + Σ.

    In float64, at N² operations per point. Samples estimate it up to a relative error of √(2/s); and where there is
    little noise, they miss the high frequencies that a finite number of random features lacks.
    """

    kernel: Kernel
    X: Float[Array, "N d"]
    noise: Float[Array, "N"]
    factor: Float64[np.ndarray, "N N"]
    """L, in the lower triangle."""

    def __call__(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """The variances at the rows of x; they can be differentiated."""
        return evaluate_rows(self._evaluate, np.float64, x)

    def _evaluate(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        if is_concrete(x):
            points, n = padded(x, self.X.shape[1])
            return jnp.asarray(self.on_host(np.asarray(points))[:n])
        kernel, X = cast((self.kernel, self.X), np.float64)
        half = jax.scipy.linalg.solve_triangular(jnp.asarray(self.factor), kernel(X, x), lower=True)
        return jnp.maximum(kernel.diag(x) - jnp.sum(half**2, axis=0), 0)

    def on_host(self, x: Float[np.ndarray, "n d"]) -> Float64[np.ndarray, "n"]:
        """The variances by LAPACK, `POINTS` rows at a time: a row's does not depend on how many there are."""
        tiles = [self._tile(x[i : i + POINTS]) for i in range(0, len(x), POINTS)]
        return np.concatenate(tiles) if tiles else np.zeros(0)

    def _tile(self, x: Float[np.ndarray, "n d"]) -> Float64[np.ndarray, "n"]:
        with jax.enable_x64(True):
            prior = np.asarray(cast(self.kernel, np.float64).diag(jnp.asarray(x, jnp.float64)))
        k = wide(self.kernel, self.X, jnp.asarray(x))
        half = linalg.solve_triangular(self.factor, k, lower=True, overwrite_b=True, check_finite=False)
        return np.maximum(prior - np.sum(half**2, axis=0), 0)


def factor_of(system: System) -> Float64[np.ndarray, "N N"]:
    """L in the lower triangle, LLᵀ = K + Σ."""
    H = np.empty((system.size, system.size))
    for i, rows in row_tiles(system):
        H[i : i + len(rows)] = rows
    factorise(H)
    return H


def row_tiles(system: System) -> Iterator[tuple[int, Float64[np.ndarray, "t N"]]]:
    """K + Σ in float64, a tile of rows at a time."""
    noise = np.asarray(system.noise_diagonal, dtype=np.float64)
    for i in range(0, system.size, system.tile[0]):
        rows = wide(system.kernel, system.X[i : i + system.tile[0]], system.X)
        rows[:, i : i + len(rows)] += np.diag(noise[i : i + len(rows)])
        yield i, rows


def factorise(H: Float64[np.ndarray, "N N"], block: int = BLOCK) -> None:
    """Overwrites the lower triangle of H with its Cholesky factor, a block of columns at a time.

    All but the small diagonal blocks is matrix products, so it is as fast as LAPACK's own factorisation of the whole,
    which crashes on some processors from about 15,000 rows on (the OpenBLAS that SciPy 1.17 carries).
    """
    for j in range(0, len(H), block):
        k = j + block
        H[j:, j:k] -= H[j:, :j] @ H[j:k, :j].T
        try:
            H[j:k, j:k] = linalg.cholesky(H[j:k, j:k], lower=True, check_finite=False)
        except linalg.LinAlgError as error:
            raise ValueError(
                "K + noise is not positive definite to working precision: give a larger noise variance, or remove "
                "rows that repeat others."
            ) from error
        H[k:, j:k] = linalg.solve_triangular(H[j:k, j:k], H[k:, j:k].T, lower=True, check_finite=False).T


def substitute(
    L: Float64[np.ndarray, "N N"], B: Float64[np.ndarray, "N s"], block: int = BLOCK
) -> Float64[np.ndarray, "N s"]:
    """L⁻ᵀL⁻¹B, where only the lower triangle of L is looked at."""
    W = B.copy()
    starts = range(0, len(L), block)
    for j in starts:
        k = j + block
        W[j:k] = linalg.solve_triangular(L[j:k, j:k], W[j:k] - L[j:k, :j] @ W[:j], lower=True, check_finite=False)
    for j in reversed(starts):
        k = j + block
        rest = W[j:k] - L[k:, j:k].T @ W[k:]
        W[j:k] = linalg.solve_triangular(L[j:k, j:k], rest, lower=True, trans=1, check_finite=False)
    return W
