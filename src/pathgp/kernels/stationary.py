"""Stationary kernels, one class per formula, as functions of the scaled distance r = ‖(x − z)/ℓ‖."""

from abc import abstractmethod
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels.base import Kernel, Spectrum
from pathgp.kernels.features import clip_to_finite
from pathgp.kernels.student import student_spectrum
from pathgp.linalg.distances import squared_distance


def distance(r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Return √r², with derivative 0 instead of infinity where r² = 0."""
    positive = r2 > 0
    # The inner `where` keeps the derivative of the root finite: 0 times infinity would be NaN in the outer one.
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, r2, 1)), 0)


class Stationary(Kernel):
    """Abstract base class of kernels k(x, z) = variance · correlation(‖(x − z)/lengthscale‖²).

    A subclass defines `correlation` and `unit_spectrum`.

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
    def correlation(self, r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Return the kernel of variance 1 as a function of the squared scaled distance r²."""

    @abstractmethod
    def unit_spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw frequencies from the spectral measure at length scale 1, with powers that sum to 1."""

    def scale(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Return X / lengthscale, clipped by `within_reach`."""
        if self.lengthscale.ndim and self.lengthscale.shape[0] not in (1, X.shape[1]):
            raise ValueError(
                f"the kernel has {self.lengthscale.shape[0]} length scales but the points have {X.shape[1]} inputs: "
                "give one length scale, or one for each input."
            )
        return clip_to_finite(X / self.lengthscale)

    def __call__(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Return the matrix k(X, Z)."""
        return self.variance * self.correlation(squared_distance(self.scale(X), self.scale(Z)))

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, "n"]:
        """Return the variance, which is the same at every point."""
        return jnp.full(X.shape[0], self.variance)

    def scaled(self, factor: Float[Array, ""]) -> "Stationary":
        """Return factor · k, by scaling the variance."""
        return eqx.tree_at(lambda k: k.variance, self, self.variance * factor)

    def coordinates(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
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

    def correlation(self, r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Return exp(−r²/2)."""
        return jnp.exp(-r2 / 2)

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

    degrees = 1

    def correlation(self, r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Return exp(−r)."""
        return jnp.exp(-distance(r2))


@jax.custom_jvp
def _matern32(r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
    r = jnp.sqrt(3 * r2)
    return (1 + r) * jnp.exp(-r)


# By autodiff, the derivative of √ at r² = 0 would be infinite and that of the kernel NaN; the formula is finite.
@_matern32.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    (r2,), (dr2,) = primals, tangents
    return _matern32(r2), -3 / 2 * jnp.exp(-distance(3 * r2)) * dr2


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

    degrees = 3

    def correlation(self, r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Return (1 + √3 r) exp(−√3 r), whose derivative in r² is −3/2 exp(−√3 r), finite at r = 0."""
        return _matern32(r2)


@jax.custom_jvp
def _matern52(r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
    r = jnp.sqrt(5 * r2)
    return (1 + r + r**2 / 3) * jnp.exp(-r)


@_matern52.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    (r2,), (dr2,) = primals, tangents
    return _matern52(r2), -5 / 6 * _matern32(5 / 3 * r2) * dr2


class Matern52(Matern):
    """The Matérn-5/2 kernel, variance · (1 + √5 r + 5r²/3) exp(−√5 r): twice differentiable functions.

    Parameters
    ----------
    lengthscale
        The length scale ℓ: one number, or one per input (ARD).
    variance
        The variance k(x, x) at every point.
    """

    degrees = 5

    def correlation(self, r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Return (1 + √5 r + 5r²/3) exp(−√5 r), whose derivative in r² is −5/6 (1 + √5 r) exp(−√5 r)."""
        return _matern52(r2)


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

    alpha: Float[Array, ""] = eqx.field(converter=partial(checks.as_positive, name="alpha"), default=1.0)

    def correlation(self, r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Return (1 + r²/2α)^−α."""
        # `log1p`, because 1 + r²/2α loses the digits of a small r²/2α.
        return jnp.exp(-self.alpha * jnp.log1p(r2 / (2 * self.alpha)))

    def unit_spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw √τ N(0, I), with τ from a gamma distribution of shape α and mean 1."""
        normal_key, gamma_key = jax.random.split(key)
        tau = jax.random.gamma(gamma_key, self.alpha, (num, 1)) / self.alpha
        return Spectrum(jax.random.normal(normal_key, (num, dim)) * jnp.sqrt(tau), jnp.full(num, 1 / num))
