"""What a kernel is, and sums and products of kernels."""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp._checks import at_least
from pathgp.kernels.features import Features, Fourier, Stacked


class Spectrum(NamedTuple):
    """A random draw from a spectral measure: k(x, z) = E Σ_j power_j cos(frequencies_j · (x − z))."""

    frequencies: Float[Array, "p d"]
    power: Float[Array, "p"]


class Kernel(eqx.Module):
    """A covariance k(x, z). Kernels are values: they add, multiply and pass through JAX transformations.

    A new kernel is a subclass with `__call__` and `diag`, and with `spectrum` (stationary) or `features` (any other),
    so that prior functions can be drawn from it.
    """

    @abstractmethod
    def __call__(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """The matrix k(X, Z)."""

    @abstractmethod
    def diag(self, X: Float[Array, "n d"]) -> Float[Array, "n"]:
        """The variances k(x, x)."""

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """`num` frequencies from the spectral measure of a stationary kernel."""
        raise TypeError(
            f"{type(self).__name__} is not stationary, so it has no spectral measure and a product with it has no "
            "random features: draw prior functions from each factor alone, or define `features` for the product."
        )

    def features(self, key: PRNGKeyArray, num: int, dim: int) -> Features:
        """Random features with E φ(X) φ(Z)ᵀ = k(X, Z), `num` of them (an even number)."""
        at_least(num, 2, "num_features")
        if num % 2:
            raise ValueError(
                f"num_features must be even, since features are pairs of a sine and a cosine, but it is {num}."
            )
        return Fourier(*self.spectrum(key, num // 2, dim))

    def scaled(self, factor: Float[Array, ""]) -> "Kernel":
        """factor · k: the covariance of a function in other units."""
        raise TypeError(f"{type(self).__name__} does not say what it is in other units: define `scaled`.")

    def coordinates(self, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """X in coordinates whose Euclidean distance tells how strongly points are correlated, to find neighbours by."""
        raise TypeError(
            f"{type(self).__name__} has no coordinates in which near points are those that are strongly correlated, "
            "so what looks for neighbours (a local projection, NearestNeighbour(), elimination) does not work with it: "
            "learn by likelihood.Exact(), and in PathGPRegressor above 1000 rows take hyperparameters='fixed'."
        )

    def check_inputs(self, X: Float[Array, "n d"]) -> None:
        """Refuses data that are nothing for this kernel; of most kernels any finite numbers are something."""

    def __repr__(self) -> str:
        return eqx.tree_pformat(self, short_arrays=False)

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class Sum(Kernel):
    """k₁ + k₂: the covariance of the sum of two independent functions."""

    left: Kernel
    right: Kernel

    def __call__(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """k₁(X, Z) + k₂(X, Z)."""
        return self.left(X, Z) + self.right(X, Z)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, "n"]:
        """k₁(x, x) + k₂(x, x)."""
        return self.left.diag(X) + self.right.diag(X)

    def scaled(self, factor: Float[Array, ""]) -> "Sum":
        """Both of them in other units."""
        return Sum(self.left.scaled(factor), self.right.scaled(factor))

    def check_inputs(self, X: Float[Array, "n d"]) -> None:
        """What either of them refuses."""
        self.left.check_inputs(X)
        self.right.check_inputs(X)

    def coordinates(self, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """Those of both kernels: near are points that are near for both."""
        return jnp.concatenate([self.left.coordinates(X), self.right.coordinates(X)], axis=1)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Half of the frequencies from each kernel."""
        at_least(2 * num, 4, "num_features of a sum")
        left_key, right_key = jax.random.split(key)
        left = self.left.spectrum(left_key, num // 2, dim)
        right = self.right.spectrum(right_key, num - num // 2, dim)
        return Spectrum(*map(jnp.concatenate, zip(left, right, strict=True)))

    def features(self, key: PRNGKeyArray, num: int, dim: int) -> Features:
        """Half of the features from each kernel."""
        at_least(num, 4, "num_features of a sum")
        half = num // 4 * 2
        left_key, right_key = jax.random.split(key)
        return Stacked((self.left.features(left_key, half, dim), self.right.features(right_key, num - half, dim)))


class Product(Kernel):
    """k₁ · k₂. Its spectral measure is the convolution of theirs, so a frequency is the sum of two."""

    left: Kernel
    right: Kernel

    def __call__(self, X: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """k₁(X, Z) k₂(X, Z)."""
        return self.left(X, Z) * self.right(X, Z)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, "n"]:
        """k₁(x, x) k₂(x, x)."""
        return self.left.diag(X) * self.right.diag(X)

    def scaled(self, factor: Float[Array, ""]) -> "Product":
        """One of them in other units."""
        return Product(self.left.scaled(factor), self.right)

    def check_inputs(self, X: Float[Array, "n d"]) -> None:
        """What either of them refuses."""
        self.left.check_inputs(X)
        self.right.check_inputs(X)

    def coordinates(self, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """Those of both kernels: near are points that are near for both."""
        return jnp.concatenate([self.left.coordinates(X), self.right.coordinates(X)], axis=1)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Sums of frequencies, paired at random so that each part of a sum meets each part of the other."""
        left_key, right_key, pair_key = jax.random.split(key, 3)
        left = self.left.spectrum(left_key, num, dim)
        right = self.right.spectrum(right_key, num, dim)
        pair = jax.random.permutation(pair_key, num)
        return Spectrum(left.frequencies + right.frequencies[pair], num * left.power * right.power[pair])


def has_coordinates(kernel: Kernel, X: Float[Array, "n d"]) -> bool:
    """Whether neighbours can be found with this kernel."""
    try:
        kernel.coordinates(X[:1])
    except TypeError:
        return False
    return True
