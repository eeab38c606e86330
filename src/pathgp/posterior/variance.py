"""Posterior variances: exact from a Cholesky factor, or estimated from few samples and a local variance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float64, Shaped
from scipy import linalg

from pathgp._checks import is_concrete
from pathgp.functions import TILE_POINTS, as_points
from pathgp.kernels import Kernel
from pathgp.linalg.namespace import on_device
from pathgp.linalg.precision import cast, evaluate_rows
from pathgp.linalg.threads import one_blas_thread
from pathgp.system.dense import diagonal_float64, kernel_float64


class ExactVariance(eqx.Module):
    """The posterior variance of f(x), k(x, x) − ‖L⁻¹k(X, x)‖² with LLᵀ = K + Σ.

    It is computed in float64, with N² operations per point. An estimate from s samples has a relative error of √(2/s).
    With little noise it also misses the high frequencies that a finite number of random features lacks.
    """

    kernel: Kernel
    X: Float[Array, "N d"]
    noise: Float[Array, "N"]
    factor: Float64[np.ndarray, "N N"]
    """L, in the lower triangle."""

    def __call__(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """Return the variances at the rows of x, which can be differentiated."""
        if is_concrete(x):
            return on_device(self.on_host(as_points(x, self.X.shape[1])), jnp.result_type(float))
        return evaluate_rows(self._traced, np.float64, x)

    def _traced(self, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        # Inside a JAX transformation, LAPACK on the host is not available.
        kernel, X = cast((self.kernel, self.X), np.float64)
        half = jax.scipy.linalg.solve_triangular(jnp.asarray(self.factor), kernel(X, x), lower=True)
        return jnp.maximum(kernel.diag(x) - jnp.sum(half**2, axis=0), 0)

    def on_host(self, x: Float[np.ndarray, "n d"]) -> Float64[np.ndarray, "n"]:
        """Return the variances, computed by LAPACK."""
        return self.moments(x, np.zeros((len(self.X), 0)))[1]

    def moments(
        self, x: Float[np.ndarray, "n d"], weights: Float[np.ndarray, "N t"]
    ) -> tuple[Float64[np.ndarray, "n t"], Float64[np.ndarray, "n"]]:
        """Return k(x, X) @ weights and the variances, computed by LAPACK in tiles of `TILE_POINTS` rows.

        The results at a row do not depend on the other rows.
        """
        padded = np.concatenate([x, np.repeat(x[-1:], -len(x) % TILE_POINTS, axis=0)])
        with one_blas_thread(len(self.X)):
            tiles = [self._tile(padded[i : i + TILE_POINTS], weights) for i in range(0, len(padded), TILE_POINTS)]
        mean, variance = zip(*tiles, strict=True) if tiles else ((np.zeros((0, weights.shape[1])),), (np.zeros(0),))
        return np.concatenate(mean)[: len(x)], np.concatenate(variance)[: len(x)]

    def _tile(
        self, x: Float[np.ndarray, "n d"], weights: Float[np.ndarray, "N t"]
    ) -> tuple[Float64[np.ndarray, "n t"], Float64[np.ndarray, "n"]]:
        k = kernel_float64(self.kernel, self.X, x)
        mean = k.T @ weights.astype(np.float64)
        half = linalg.solve_triangular(self.factor, k, lower=True, overwrite_b=True, check_finite=False)
        return mean, np.maximum(diagonal_float64(self.kernel, x) - np.sum(half**2, axis=0), 0)


class VarianceRatio(eqx.Module):
    """The distribution over points of log(v/u), for the posterior variance v and the variance u of a local prediction.

    u is known in closed form, and v/u is estimated at a point from the samples, whose errors v and u have in common.
    With 64 samples such an estimate is off by some ten per cent, often more than v/u differs from point to point. It is
    therefore shrunk towards the mean over all points, according to its sampling variance (empirical Bayes; Efron and
    Morris, 1973).
    """

    mean: Float[Array, ""]
    """The mean of log(v/u) over points."""
    spread: Float[Array, ""]
    """The variance of log(v/u) between points."""
    error: Float[Array, ""]
    """The sampling variance of the mean. Errors at different points come from the same samples."""

    def shrink(self, ratio: Float[Array, "n"], sampling: Float[Array, "n"]) -> Float[Array, "n"]:
        """Return estimates of log(v/u) with the variances `sampling`, shrunk towards the mean.

        An estimate more than two standard deviations from the mean is shrunk less: far from the data v/u is one.

        >>> ratio = VarianceRatio(jnp.array(-0.2), spread=jnp.array(0.01), error=jnp.array(0.0))
        >>> [round(float(r), 3) for r in ratio.shrink(jnp.array([0.0, -0.2]), sampling=jnp.full(2, 0.01))]
        [-0.1, -0.2]
        """
        off = ratio - self.mean
        spread = jnp.maximum(self.spread, off**2 / 4 - sampling)
        total = spread + sampling
        return self.mean + off * jnp.where(total > 0, spread / jnp.where(total > 0, total, 1), 1)


@jax.jit
def variance_ratio(own: Float[Array, "p s"], local: Float[Array, "p s"]) -> VarianceRatio:
    """Return the distribution of the ratio over p points.

    `own` are the errors of s > 1 samples at the points, and `local` those of their local predictions.
    """
    s = own.shape[1]
    ratio, terms = _expanded(own, local)
    error = jnp.sum(jnp.mean(terms, axis=0) ** 2) / (s * (s - 1))
    # The variance between estimates includes their sampling variance, except for the part that all points share.
    spread = jnp.maximum(jnp.var(ratio) - jnp.mean(_sampling(terms)) + error, 0)
    return VarianceRatio(jnp.mean(ratio), spread, error)


@jax.jit
def log_ratio(own: Float[Array, "n s"], local: Float[Array, "n s"]) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
    """Return log(Σ own² / Σ local²) at each point, and its sampling variance to first order; 0 where a sum is 0.

    >>> ratio, sampling = log_ratio(jnp.array([[2.0, -2.0]]), jnp.array([[1.0, -1.0]]))
    >>> print(ratio.round(3), sampling)
    [1.386] [0.]
    """
    ratio, terms = _expanded(own, local)
    return ratio, _sampling(terms)


def _expanded(own: Float[Array, "n s"], local: Float[Array, "n s"]) -> tuple[Float[Array, "n"], Float[Array, "n s"]]:
    """Return the logarithm, and s times the contribution of each sample to it, to first order."""
    v, u = jnp.mean(own**2, axis=1), jnp.mean(local**2, axis=1)
    known = (v > 0) & (u > 0)  # before the logarithm, whose derivative at 0 would be NaN
    v, u = jnp.where(known, v, 1), jnp.where(known, u, 1)
    terms = own**2 / v[:, None] - local**2 / u[:, None]
    return jnp.log(v) - jnp.log(u), jnp.where(known[:, None], terms, 0)


def _sampling(terms: Float[Array, "n s"]) -> Float[Array, "n"]:
    """Return the variance of the mean of the terms over samples."""
    return jnp.mean(terms**2, axis=1) / max(terms.shape[1] - 1, 1)
