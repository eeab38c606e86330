"""Stationary kernels, one class per formula, as functions of the scaled distance r = ‖(x − z)/ℓ‖."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels.base import Kernel, Spectrum
from pathgp.kernels.features import clip_to_finite
from pathgp.kernels.student import student_spectrum
from pathgp.linalg.distances import squared_distance
from pathgp.linalg.namespace import AnyArray, namespace


def distance(r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
    """Return √r², with derivative 0 instead of infinity where r² = 0."""
    if isinstance(r2, np.ndarray):
        return np.sqrt(r2)
    positive = r2 > 0
    # The inner `where` keeps the derivative of the root finite: 0 times infinity would be NaN in the outer one.
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, r2, 1)), 0)


def _with_slope(slope: Callable[[Any], Any]) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Decorate a function of r² with its derivative, which autodiff would take through √r², infinite at 0."""

    def decorate(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        traced = jax.custom_jvp(f)
        traced.defjvps(lambda tangent, _, r2: slope(r2) * tangent)
        return lambda r2: f(r2) if isinstance(r2, np.ndarray) else traced(r2)

    return decorate


def _matern32_slope(r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
    return -3 / 2 * namespace(r2).exp(-distance(3 * r2))


def _matern52_slope(r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
    return -5 / 6 * _matern32(5 / 3 * r2)


@_with_slope(_matern32_slope)
def _matern32(r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
    xp = namespace(r2)
    r = xp.sqrt(3 * r2)
    return (1 + r) * xp.exp(-r)


@_with_slope(_matern52_slope)
def _matern52(r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
    xp = namespace(r2)
    r = xp.sqrt(5 * r2)
    return (1 + r + r**2 / 3) * xp.exp(-r)


class Stationary(Kernel):
    """Abstract base class of kernels k(x, z) = variance · correlation(‖(x − z)/lengthscale‖²).

    A subclass defines `correlation` and `unit_spectrum`. Those of this module also define `slope`.

    Parameters
    ----------
    lengthscale
        The length scale ℓ: one number, or one per input (ARD).
    variance
        The variance k(x, x) at every point.

    Raises
    ------
    ValueError
        If a parameter is not positive and finite, or has the wrong shape.
    """

    lengthscale: Float[Array, "..."] = eqx.field(converter=partial(checks.as_positive, name="lengthscale"), default=1.0)
    variance: Float[Array, ""] = eqx.field(converter=partial(checks.as_positive, name="variance"), default=1.0)

    def __check_init__(self) -> None:
        if self.lengthscale.ndim > 1:
            raise ValueError(
                f"lengthscale must be one number or one for each input, but its shape is {self.lengthscale.shape}."
            )
        checks.as_scalar(self.variance, "variance")

    @abstractmethod
    def correlation(self, r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
        """Return the kernel of variance 1 as a function of the squared scaled distance r²."""

    def slope(self, r2: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "n m"]:
        """Return the derivative of `correlation` in r², on the host; any finite number where r² = 0."""
        raise TypeError(f"{type(self).__name__} has no analytic gradient: define `slope`.")

    @abstractmethod
    def unit_spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw frequencies from the spectral measure at length scale 1, with powers that sum to 1."""

    def scale(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n d"]:
        """Return X / lengthscale, clipped by `clip_to_finite`."""
        if self.lengthscale.ndim and self.lengthscale.shape[0] not in (1, X.shape[1]):
            raise ValueError(
                f"the kernel has {self.lengthscale.shape[0]} length scales but the points have {X.shape[1]} inputs: "
                "give one length scale, or one for each input."
            )
        return clip_to_finite(X / self.lengthscale)

    def __call__(self, X: Float[AnyArray, "n d"], Z: Float[AnyArray, "m d"]) -> Float[AnyArray, "n m"]:
        """Return the matrix k(X, Z)."""
        return self.variance * self.correlation(squared_distance(self.scale(X), self.scale(Z)))

    def diag(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n"]:
        """Return the variance, which is the same at every point."""
        return namespace(X).full(X.shape[0], self.variance)

    def gradient(self, X: Float64[np.ndarray, "n d"], G: Float64[np.ndarray, "n n"]) -> "Stationary":
        """Return Σᵢⱼ Gᵢⱼ ∂k(xᵢ, xⱼ)/∂θ for every parameter θ, see `Kernel.gradient`.

        With S = variance · G ∘ slope(r²), the sum for the length scale of input j is −2/ℓ_j Σ S_ik (a_ij − a_kj)², for
        points a in units of the length scales. The sum of squares is two products with the matrix S.
        """
        A = self.scale(X)
        A = A - A.mean(axis=0)  # the squares cancel an offset, which would cost digits
        r2 = squared_distance(A, A)
        S = self.variance * G * self.slope(r2)
        squares = 2 * (S.sum(axis=1) @ A**2 - np.sum(A * (S @ A), axis=0))
        by_input = -2 / self.lengthscale * squares
        lengthscale = by_input if self.lengthscale.shape == by_input.shape else by_input.sum(keepdims=True)
        variance, *others = np.asarray(np.sum(G * self.correlation(r2))), *jax.tree.leaves(self)[2:]
        return self._with_leaves(lengthscale.reshape(self.lengthscale.shape), variance, *others)

    def _with_leaves(self, *leaves: AnyArray) -> Any:
        """Return a kernel of the same structure with other numbers, in a tenth of the time of `eqx.tree_at`."""
        return jax.tree.unflatten(jax.tree.structure(self), leaves)

    def scaled(self, factor: float | Float[AnyArray, ""]) -> "Stationary":
        """Return factor · k, by scaling the variance."""
        return eqx.tree_at(lambda k: k.variance, self, self.variance * factor)

    def coordinates(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n d"]:
        """Return X / lengthscale."""
        return self.scale(X)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw frequencies from the spectral measure at the kernel's length scales."""
        frequencies, power = self.unit_spectrum(key, num, dim)
        return Spectrum(self.scale(frequencies), self.variance * power)


class RBF(Stationary):
    """The squared exponential kernel, variance · exp(−r²/2) with r = ‖(x − z)/ℓ‖: infinitely differentiable.

    Parameters
    ----------
    lengthscale
        The length scale ℓ: one number, or one per input (ARD).
    variance
        The variance k(x, x) at every point.

    >>> import jax.numpy as jnp
    >>> float(RBF(lengthscale=2.0)(jnp.array([[0.0]]), jnp.array([[2.0]]))[0, 0]) == float(jnp.exp(-0.5))
    True
    """

    is_analytic = True

    def correlation(self, r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
        """Return exp(−r²/2)."""
        return namespace(r2).exp(-r2 / 2)

    def slope(self, r2: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "n m"]:
        """Return −½ exp(−r²/2)."""
        return -np.exp(-r2 / 2) / 2

    def unit_spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw frequencies from N(0, I)."""
        return Spectrum(jax.random.normal(key, (num, dim)), jnp.full(num, 1 / num))


class Matern(Stationary):
    """Abstract base class of half-integer Matérn kernels.

    Their spectral measure is a multivariate t distribution with 2ν degrees of freedom.
    """

    degrees: ClassVar[int]
    """The degrees of freedom 2ν."""

    def unit_spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw N(0, I) √(2ν/χ²), with one χ² per frequency vector: one per coordinate would be another kernel."""
        return Spectrum(*student_spectrum(key, num, dim, self.degrees))


class Matern12(Matern):
    """The exponential kernel, variance · exp(−r): continuous functions, nowhere differentiable.

    Parameters
    ----------
    lengthscale
        The length scale ℓ: one number, or one per input (ARD).
    variance
        The variance k(x, x) at every point.
    """

    is_analytic = True
    degrees = 1

    def correlation(self, r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
        """Return exp(−r)."""
        return namespace(r2).exp(-distance(r2))

    def slope(self, r2: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "n m"]:
        """Return −exp(−r)/2r, and 0 where r = 0."""
        r = np.sqrt(r2)
        return np.divide(-np.exp(-r), 2 * r, out=np.zeros_like(r), where=r > 0)


class Matern32(Matern):
    """The Matérn-3/2 kernel, variance · (1 + √3 r) exp(−√3 r): once differentiable functions.

    It is the kernel of the paper's experiments.

    Parameters
    ----------
    lengthscale
        The length scale ℓ: one number, or one per input (ARD).
    variance
        The variance k(x, x) at every point.

    >>> import jax.numpy as jnp
    >>> k = Matern32(lengthscale=[0.5, 2.0], variance=2.0)
    >>> k(jnp.zeros((3, 2)), jnp.ones((4, 2))).shape
    (3, 4)
    """

    is_analytic = True
    degrees = 3

    def correlation(self, r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
        """Return (1 + √3 r) exp(−√3 r)."""
        return _matern32(r2)

    def slope(self, r2: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "n m"]:
        """Return −3/2 exp(−√3 r)."""
        return _matern32_slope(r2)


class Matern52(Matern):
    """The Matérn-5/2 kernel, variance · (1 + √5 r + 5r²/3) exp(−√5 r): twice differentiable functions.

    Parameters
    ----------
    lengthscale
        The length scale ℓ: one number, or one per input (ARD).
    variance
        The variance k(x, x) at every point.
    """

    is_analytic = True
    degrees = 5

    def correlation(self, r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
        """Return (1 + √5 r + 5r²/3) exp(−√5 r)."""
        return _matern52(r2)

    def slope(self, r2: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "n m"]:
        """Return −5/6 (1 + √5 r) exp(−√5 r)."""
        return _matern52_slope(r2)


class RationalQuadratic(Stationary):
    """The rational quadratic kernel, variance · (1 + r²/2α)^−α.

    It is a mixture of RBF kernels of many length scales, and tends to the RBF kernel as α → ∞.

    Parameters
    ----------
    lengthscale
        The length scale ℓ: one number, or one per input (ARD).
    variance
        The variance k(x, x) at every point.
    alpha
        The shape α; the smaller it is, the wider the mixture.
    """

    is_analytic = True
    alpha: Float[Array, ""] = eqx.field(converter=partial(checks.as_positive, name="alpha"), default=1.0)

    def correlation(self, r2: Float[AnyArray, "n m"]) -> Float[AnyArray, "n m"]:
        """Return (1 + r²/2α)^−α."""
        xp = namespace(r2)
        # `log1p`, because 1 + r²/2α loses the digits of a small r²/2α.
        return xp.exp(-self.alpha * xp.log1p(r2 / (2 * self.alpha)))

    def slope(self, r2: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "n m"]:
        """Return −½ (1 + r²/2α)^(−α−1)."""
        return -np.exp(-(self.alpha + 1) * np.log1p(r2 / (2 * self.alpha))) / 2

    def gradient(self, X: Float64[np.ndarray, "n d"], G: Float64[np.ndarray, "n n"]) -> "RationalQuadratic":
        """Return the gradient, where that of α is Σ Gᵢⱼ k(xᵢ, xⱼ) (u/(1 + u) − log(1 + u)) with u = r²/2α."""
        A = self.scale(X)
        r2 = squared_distance(A, A)
        u = r2 / (2 * self.alpha)
        alpha = np.sum(G * self.variance * self.correlation(r2) * (u / (1 + u) - np.log1p(u)))
        others = super().gradient(X, G)
        return self._with_leaves(others.lengthscale, others.variance, np.asarray(alpha))

    def unit_spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw √τ N(0, I), with τ from a gamma distribution of shape α and mean 1."""
        normal_key, gamma_key = jax.random.split(key)
        tau = jax.random.gamma(gamma_key, self.alpha, (num, 1)) / self.alpha
        return Spectrum(jax.random.normal(normal_key, (num, dim)) * jnp.sqrt(tau), jnp.full(num, 1 / num))
