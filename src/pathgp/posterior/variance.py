"""Posterior variances: exact ones from a factor, and estimates from few samples and a local variance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float64, Shaped
from scipy import linalg

from pathgp._checks import is_concrete
from pathgp.functions import POINTS, padded
from pathgp.kernels import Kernel
from pathgp.linalg.precision import cast, evaluate_rows
from pathgp.system.dense import wide


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


class VarianceRatio(eqx.Module):
    """The distribution over points of log(v/u), of the posterior variance v and the variance u of a local prediction.

    u is known in closed form, and v/u is estimated at a point by the same samples of both errors. With 64 samples such
    an estimate is off by some ten per cent, often more than v/u differs from point to point. So it is shrunk towards
    the mean of all points, by as much as its sampling variance asks for (empirical Bayes; Efron and Morris, 1973).
    """

    mean: Float[Array, ""]
    spread: Float[Array, ""]
    """The variance of log(v/u) between points."""
    error: Float[Array, ""]
    """The sampling variance of the mean: errors at different points come from the same samples."""

    def shrink(self, ratio: Float[Array, "n"], sampling: Float[Array, "n"]) -> Float[Array, "n"]:
        """Estimates of log(v/u) with these sampling variances, shrunk towards the mean.

        An estimate further from it than two standard deviations is shrunk less: far from the data v/u is one.

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
    """The ratio's distribution over p points, from the errors there of s > 1 samples and of their local predictions."""
    s = own.shape[1]
    ratio, terms = _expanded(own, local)
    error = jnp.sum(jnp.mean(terms, axis=0) ** 2) / (s * (s - 1))
    spread = jnp.maximum(jnp.var(ratio) - jnp.mean(_sampling(terms)) + error, 0)
    return VarianceRatio(jnp.mean(ratio), spread, error)


@jax.jit
def log_ratio(own: Float[Array, "n s"], local: Float[Array, "n s"]) -> tuple[Float[Array, "n"], Float[Array, "n"]]:
    """log(Σ own² / Σ local²) at each point, and its sampling variance to first order; 0 where one of them is 0.

    >>> ratio, sampling = log_ratio(jnp.array([[2.0, -2.0]]), jnp.array([[1.0, -1.0]]))
    >>> print(ratio.round(3), sampling)
    [1.386] [0.]
    """
    ratio, terms = _expanded(own, local)
    return ratio, _sampling(terms)


def _expanded(own: Float[Array, "n s"], local: Float[Array, "n s"]) -> tuple[Float[Array, "n"], Float[Array, "n s"]]:
    """The logarithm, and what each sample adds to it to first order, times s."""
    v, u = jnp.mean(own**2, axis=1), jnp.mean(local**2, axis=1)
    known = (v > 0) & (u > 0)  # asked before the logarithm, whose derivative would be NaN
    v, u = jnp.where(known, v, 1), jnp.where(known, u, 1)
    terms = own**2 / v[:, None] - local**2 / u[:, None]
    return jnp.log(v) - jnp.log(u), jnp.where(known[:, None], terms, 0)


def _sampling(terms: Float[Array, "n s"]) -> Float[Array, "n"]:
    return jnp.mean(terms**2, axis=1) / max(terms.shape[1] - 1, 1)
