"""Feature maps φ: everything that is evaluated is `φ(x) @ weights`."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


def within_reach(X: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """X, but no coordinate larger than what can be squared and summed: as far from everything, and not NaN."""
    far = float(jnp.finfo(X.dtype).max) ** 0.45
    return jnp.clip(X, -far, far)


class Features(eqx.Module):
    """A map φ from inputs to `num` features."""

    @property
    @abstractmethod
    def num(self) -> int:
        """The number m of features."""

    @property
    @abstractmethod
    def inputs(self) -> int | None:
        """The number d of inputs that a point must have; None where any will do."""

    @property
    def apart(self) -> bool:
        """Whether their weights are split over devices, and must not be put together with others."""
        return False

    @abstractmethod
    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """The features φ(X), one row for each row of X."""

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """φ(X) @ weights for a tile of rows."""
        return self(X) @ weights

    def each(self, X: Float[Array, "n d"], weights: Float[Array, "n m"]) -> Float[Array, "n"]:
        """φ(xᵢ) · weightsᵢ: each point with weights of its own, for a tile of rows."""
        return jnp.sum(self(X) * weights, axis=1)


class Fourier(Features):
    r"""Random Fourier features in pairs, φ_j(x) = √p_j (sin ω_jᵀx, cos ω_jᵀx) (Rahimi and Recht, 2008).

    φ(x)ᵀφ(z) = Σ_j p_j cos ω_jᵀ(x − z): the pair is unbiased for a kernel with spectral measure Σ_j p_j δ(ω_j), and
    its value at x = z is exact.

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
        """Two features, a sine and a cosine, for each frequency."""
        return 2 * self.power.shape[0]

    @property
    def inputs(self) -> int:
        """The dimension of the frequencies."""
        return self.frequencies.shape[1]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """√p (sin ωᵀx, cos ωᵀx), the sines first."""
        phase = within_reach(X) @ self.frequencies.T
        return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=1) * jnp.tile(jnp.sqrt(self.power), 2)


class Constant(Features):
    """The one feature φ(x) = 1: a constant mean is a function like the others."""

    @property
    def num(self) -> int:
        """One."""
        return 1

    @property
    def inputs(self) -> None:
        """Any number of inputs will do."""

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n 1"]:
        """A column of ones."""
        return jnp.ones((X.shape[0], 1), X.dtype)


class Several(Features):
    """The features of several maps side by side."""

    parts: eqx.AbstractVar[tuple[Features, ...]]

    @property
    def num(self) -> int:
        """The number of features of all parts."""
        return sum(part.num for part in self.parts)

    @property
    def inputs(self) -> int | None:
        """The number of inputs that the parts agree on."""
        return next((part.inputs for part in self.parts if part.inputs is not None), None)

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """The features of each part in turn."""
        return jnp.concatenate([part(X) for part in self.parts], axis=1)


class Total(Several):
    """Several maps with a tuple of weights, one for each, where put together they would leave their devices."""

    parts: tuple[Features, ...]

    @property
    def apart(self) -> bool:
        """They are."""
        return True

    def apply(self, X: Float[Array, "n d"], weights: PyTree[Float[Array, "_ s"]]) -> Float[Array, "n s"]:
        """Σ φ_p(X) @ weights_p, each part in its own way."""
        first, *others = (part.apply(X, w) for part, w in zip(self.parts, weights, strict=True))
        return sum(others, first)


class Stacked(Several):
    """Several maps with one array of weights, so that a sum of functions is a function."""

    parts: tuple[Features, ...]

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """Σ φ_p(X) @ weights_p, each part in its own way."""
        terms = zip(self.parts, jnp.split(weights, self._ends), strict=True)
        first, *others = (part.apply(X, w) for part, w in terms)
        return sum(others, first)

    def each(self, X: Float[Array, "n d"], weights: Float[Array, "n m"]) -> Float[Array, "n"]:
        """Σ φ_p(xᵢ) · weightsᵢ_p, each part in its own way."""
        terms = zip(self.parts, jnp.split(weights, self._ends, axis=1), strict=True)
        first, *others = (part.each(X, w) for part, w in terms)
        return sum(others, first)

    @property
    def _ends(self) -> list[int]:
        """Where the features of each part but the last end."""
        return [sum(part.num for part in self.parts[: i + 1]) for i in range(len(self.parts) - 1)]
