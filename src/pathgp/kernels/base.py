"""The base class of kernels, and sums and products of kernels."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from pathgp._checks import require_at_least
from pathgp.kernels.features import Features, Fourier, Stacked
from pathgp.linalg.namespace import AnyArray, namespace


class Spectrum(NamedTuple):
    """A random draw from the spectral measure of a kernel.

        k(x, z) = E Σ_j power_j cos(frequencies_j · (x − z)).

    Parameters
    ----------
    frequencies
        The frequency vectors, one per row.
    power
        The contribution of each frequency to k(x, x).
    """

    frequencies: Float[Array, "p d"]
    power: Float[Array, "p"]


class Kernel(eqx.Module):
    """Abstract base class of covariance functions k(x, z).

    Kernels are immutable pytrees: they can be added, multiplied and passed through JAX transformations.

    A subclass defines `__call__` and `diag`, and `spectrum` (if stationary) or `features` (any other), from which
    prior functions are drawn. `coordinates` is needed for a local correction and the nearest-neighbour likelihood,
    and `scaled` for hyperparameter fitting. Those of this package also have a `gradient` on the host.
    """

    is_analytic: ClassVar[bool] = False
    """Whether instances of exactly this class, with arrays of NumPy as parameters, evaluate arrays of NumPy without
    JAX, and have a `gradient`."""

    @property
    def runs_on_host(self) -> bool:
        """Whether this kernel is analytic with all its parts. A subclass has to state it again."""
        return "is_analytic" in vars(type(self)) and self.is_analytic

    def gradient(self, X: Float64[np.ndarray, "n d"], G: Float64[np.ndarray, "n n"]) -> "Kernel":
        """Return Σᵢⱼ Gᵢⱼ ∂k(xᵢ, xⱼ)/∂θ for every parameter θ, in its place in a kernel of the same structure.

        It runs on the host, for a kernel whose parameters are arrays of NumPy (`linalg.namespace.on_host`).

        Parameters
        ----------
        X
            The points.
        G
            The derivative of a function of the matrix k(X, X): a symmetric matrix.

        Raises
        ------
        TypeError
            If the kernel does not define it.
        """
        raise TypeError(f"{type(self).__name__} has no analytic gradient: define `gradient`.")

    @abstractmethod
    def __call__(self, X: Float[AnyArray, "n d"], Z: Float[AnyArray, "m d"]) -> Float[AnyArray, "n m"]:
        """Return the matrix k(X, Z)."""

    @abstractmethod
    def diag(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n"]:
        """Return the variances k(x, x) at the rows of X."""

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw frequencies from the spectral measure of a stationary kernel.

        Parameters
        ----------
        key
            The random key.
        num
            The number of frequencies.
        dim
            The number d of inputs.

        Raises
        ------
        TypeError
            If the kernel has no spectral measure, because it is not stationary.
        """
        raise TypeError(
            f"{type(self).__name__} is not stationary, so it has no spectral measure and a product with it has no "
            "random features: draw prior functions from each factor separately, or define `features` for the product."
        )

    def features(self, key: PRNGKeyArray, num: int, dim: int) -> Features:
        """Draw random features φ with E φ(X) φ(Z)ᵀ = k(X, Z).

        A stationary kernel has Fourier features, in pairs of a sine and a cosine with frequencies from `spectrum`.

        Parameters
        ----------
        key
            The random key.
        num
            The number of features, which must be even for Fourier features.
        dim
            The number d of inputs.

        Raises
        ------
        ValueError
            If `num` is odd or below 2.
        TypeError
            If the kernel is not stationary and does not define features of its own.
        """
        require_at_least(num, 2, "num_features")
        if num % 2:
            raise ValueError(
                f"num_features must be even, because features are pairs of a sine and a cosine, but it is {num}."
            )
        return Fourier(*self.spectrum(key, num // 2, dim))

    def scaled(self, factor: float | Float[AnyArray, ""]) -> "Kernel":
        """Return the kernel factor · k, the covariance of a function in other units.

        Raises
        ------
        TypeError
            If the kernel does not define it.
        """
        raise TypeError(f"{type(self).__name__} cannot be rescaled to other units: define `scaled`.")

    def coordinates(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n e"]:
        """Return X in coordinates whose Euclidean distance reflects correlation, for neighbour searches.

        Raises
        ------
        TypeError
            If the kernel does not define them.
        """
        raise TypeError(
            f"{type(self).__name__} has no coordinates in which nearby points are strongly correlated, so nearest-"
            "neighbour methods (a local correction, NearestNeighbour(), elimination) do not support it: use "
            "likelihood.Exact(), and in PathGPRegressor above 1000 rows hyperparameters='fixed'."
        )

    def check_inputs(self, X: Float[Array, "n d"]) -> None:
        """Raise `ValueError` if X is not valid input for this kernel; most kernels accept any finite numbers."""

    def __repr__(self) -> str:
        return eqx.tree_pformat(self, short_arrays=False)

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class Sum(Kernel):
    """The kernel k₁ + k₂, the covariance of the sum of two independent functions; `left + right` makes it."""

    left: Kernel
    right: Kernel

    @property
    def runs_on_host(self) -> bool:
        """Whether both kernels run on the host."""
        return self.left.runs_on_host and self.right.runs_on_host

    def gradient(self, X: Float64[np.ndarray, "n d"], G: Float64[np.ndarray, "n n"]) -> "Sum":
        """Return the gradients of both kernels for the same G."""
        return Sum(self.left.gradient(X, G), self.right.gradient(X, G))

    def __call__(self, X: Float[AnyArray, "n d"], Z: Float[AnyArray, "m d"]) -> Float[AnyArray, "n m"]:
        """Return k₁(X, Z) + k₂(X, Z)."""
        return self.left(X, Z) + self.right(X, Z)

    def diag(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n"]:
        """Return k₁(x, x) + k₂(x, x) at the rows of X."""
        return self.left.diag(X) + self.right.diag(X)

    def scaled(self, factor: float | Float[AnyArray, ""]) -> "Sum":
        """Return factor · k, with both kernels scaled."""
        return Sum(self.left.scaled(factor), self.right.scaled(factor))

    def check_inputs(self, X: Float[Array, "n d"]) -> None:
        """Raise `ValueError` if X is not valid input for both kernels."""
        self.left.check_inputs(X)
        self.right.check_inputs(X)

    def coordinates(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n e"]:
        """Return the coordinates of both kernels, side by side: near points are near for both."""
        return namespace(X).concatenate([self.left.coordinates(X), self.right.coordinates(X)], axis=1)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw half of the frequencies from each kernel."""
        require_at_least(2 * num, 4, "num_features of a sum")
        left_key, right_key = jax.random.split(key)
        left = self.left.spectrum(left_key, num // 2, dim)
        right = self.right.spectrum(right_key, num - num // 2, dim)
        return Spectrum(*map(jnp.concatenate, zip(left, right, strict=True)))

    def features(self, key: PRNGKeyArray, num: int, dim: int) -> Features:
        """Draw half of the features from each kernel."""
        require_at_least(num, 4, "num_features of a sum")
        half = num // 4 * 2  # even, because features are pairs
        left_key, right_key = jax.random.split(key)
        return Stacked((self.left.features(left_key, half, dim), self.right.features(right_key, num - half, dim)))


class Product(Kernel):
    """The kernel k₁ · k₂; `left * right` makes it.

    Its spectral measure is the convolution of those of k₁ and k₂, so each frequency is the sum of one of each.
    """

    left: Kernel
    right: Kernel

    @property
    def runs_on_host(self) -> bool:
        """Whether both kernels run on the host."""
        return self.left.runs_on_host and self.right.runs_on_host

    def gradient(self, X: Float64[np.ndarray, "n d"], G: Float64[np.ndarray, "n n"]) -> "Product":
        """Return the gradient of each kernel for G times the matrix of the other."""
        left, right = self.left(X, X), self.right(X, X)
        return Product(self.left.gradient(X, G * right), self.right.gradient(X, G * left))

    def __call__(self, X: Float[AnyArray, "n d"], Z: Float[AnyArray, "m d"]) -> Float[AnyArray, "n m"]:
        """Return k₁(X, Z) k₂(X, Z)."""
        return self.left(X, Z) * self.right(X, Z)

    def diag(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n"]:
        """Return k₁(x, x) k₂(x, x) at the rows of X."""
        return self.left.diag(X) * self.right.diag(X)

    def scaled(self, factor: float | Float[AnyArray, ""]) -> "Product":
        """Return factor · k, with the left kernel scaled."""
        return Product(self.left.scaled(factor), self.right)

    def check_inputs(self, X: Float[Array, "n d"]) -> None:
        """Raise `ValueError` if X is not valid input for both kernels."""
        self.left.check_inputs(X)
        self.right.check_inputs(X)

    def coordinates(self, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n e"]:
        """Return the coordinates of both kernels, side by side: near points are near for both."""
        return namespace(X).concatenate([self.left.coordinates(X), self.right.coordinates(X)], axis=1)

    def spectrum(self, key: PRNGKeyArray, num: int, dim: int) -> Spectrum:
        """Draw sums of one frequency from each kernel, paired at random."""
        # The frequencies of a `Sum` are ordered by part: the permutation pairs each part with each of the other.
        left_key, right_key, pair_key = jax.random.split(key, 3)
        left = self.left.spectrum(left_key, num, dim)
        right = self.right.spectrum(right_key, num, dim)
        pair = jax.random.permutation(pair_key, num)
        return Spectrum(left.frequencies + right.frequencies[pair], num * left.power * right.power[pair])


def has_coordinates(kernel: Kernel, X: Float[Array, "n d"]) -> bool:
    """Return whether the kernel has `coordinates`, in which neighbours can be found."""
    try:
        kernel.coordinates(X[:1])
    except TypeError:
        return False
    return True
