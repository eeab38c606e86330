"""Feature maps φ, from which every function is evaluated as `φ(x) @ weights`."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from pathgp.linalg.namespace import AnyArray, namespace


def clip_to_finite(X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n d"]:
    """Return X with coordinates clipped so that their squares can be summed: far points stay far, without NaN."""
    # Their squares are below max^0.9, which leaves room for a sum over the inputs.
    far = float(jnp.finfo(X.dtype).max) ** 0.45
    return namespace(X).clip(X, -far, far)


class Features(eqx.Module):
    """Abstract base class of maps φ from d inputs to m features."""

    @property
    @abstractmethod
    def num(self) -> int:
        """The number m of features."""

    @property
    @abstractmethod
    def inputs(self) -> int | None:
        """The number d of inputs of a point; None if any number is accepted."""

    @property
    def is_sharded(self) -> bool:
        """Whether the weights are sharded over devices, so that they must not be concatenated with others."""
        return False

    @abstractmethod
    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return the features φ(X), one row per row of X."""

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """Return φ(X) @ weights for a tile of rows."""
        return self(X) @ weights

    def each(self, X: Float[Array, "n d"], weights: Float[Array, "n m"]) -> Float[Array, "n"]:
        """Return φ(xᵢ) · weightsᵢ for a tile of rows, where each point has its own weights."""
        return jnp.sum(self(X) * weights, axis=1)


class Fourier(Features):
    r"""Random Fourier features in pairs, φ_j(x) = √p_j (sin ω_jᵀx, cos ω_jᵀx) (Rahimi and Recht, 2008).

    The product φ(x)ᵀφ(z) = Σ_j p_j cos ω_jᵀ(x − z) is the kernel with spectral measure Σ_j p_j δ(ω_j). Paired features
    are unbiased for k if its spectral measure is the expectation of that sum, and exact at x = z if Σ_j p_j = k(x, x).

    Parameters
    ----------
    frequencies
        The frequency vectors ω_j, one per row.
    power
        The weights p_j.

    >>> import jax.numpy as jnp
    >>> phi = Fourier(frequencies=jnp.array([[0.5], [2.0]]), power=jnp.array([1.5, 0.5]))
    >>> x = jnp.array([[0.3]])
    >>> print(phi.num, round(float((phi(x) @ phi(x).T)[0, 0]), 5))
    4 2.0
    """

    frequencies: Float[Array, "p d"]
    power: Float[Array, "p"]

    @property
    def num(self) -> int:
        """The number m of features, two per frequency."""
        return 2 * self.power.shape[0]

    @property
    def inputs(self) -> int:
        """The number d of inputs, the dimension of the frequencies."""
        return self.frequencies.shape[1]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return √p (sin ωᵀx, cos ωᵀx), all sines first."""
        phase = clip_to_finite(X) @ self.frequencies.T
        return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=1) * jnp.tile(jnp.sqrt(self.power), 2)


class Constant(Features):
    """The single feature φ(x) = 1, with which a constant mean is a `Function`."""

    @property
    def num(self) -> int:
        """The number of features, 1."""
        return 1

    @property
    def inputs(self) -> None:
        """None, because any number of inputs is accepted."""

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n 1"]:
        """Return a column of ones."""
        return jnp.ones((X.shape[0], 1), X.dtype)


class Several(Features):
    """Abstract base class of several feature maps side by side."""

    parts: eqx.AbstractVar[tuple[Features, ...]]

    @property
    def num(self) -> int:
        """The number of features of all parts together."""
        return sum(part.num for part in self.parts)

    @property
    def inputs(self) -> int | None:
        """The number of inputs that the parts share; None if every part accepts any number."""
        return next((part.inputs for part in self.parts if part.inputs is not None), None)

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return the features of the parts, concatenated."""
        return jnp.concatenate([part(X) for part in self.parts], axis=1)


class Total(Several):
    """Several maps with a tuple of weights, one entry per map, so that sharded weights stay on their devices."""

    parts: tuple[Features, ...]

    @property
    def is_sharded(self) -> bool:
        """True, because some weights are sharded."""
        return True

    def apply(self, X: Float[Array, "n d"], weights: PyTree[Float[Array, "_ s"]]) -> Float[Array, "n s"]:
        """Return Σ φ_p(X) @ weights_p, each term by `apply` of its part."""
        first, *others = (part.apply(X, w) for part, w in zip(self.parts, weights, strict=True))
        return sum(others, first)


class Stacked(Several):
    """Several maps with one array of weights, so that a sum of functions is a `Function`."""

    parts: tuple[Features, ...]

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """Return Σ φ_p(X) @ weights_p, each term by `apply` of its part."""
        terms = zip(self.parts, jnp.split(weights, self._ends), strict=True)
        first, *others = (part.apply(X, w) for part, w in terms)
        return sum(others, first)

    def each(self, X: Float[Array, "n d"], weights: Float[Array, "n m"]) -> Float[Array, "n"]:
        """Return Σ φ_p(xᵢ) · weightsᵢ_p, each term by `each` of its part."""
        terms = zip(self.parts, jnp.split(weights, self._ends, axis=1), strict=True)
        first, *others = (part.each(X, w) for part, w in terms)
        return sum(others, first)

    @property
    def _ends(self) -> list[int]:
        """The index at which the features of each part end, except the last."""
        return [sum(part.num for part in self.parts[: i + 1]) for i in range(len(self.parts) - 1)]
