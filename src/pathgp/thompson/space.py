"""Search spaces: real numbers, integers and categories, coded as points of the unit box."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from pathgp.kernels.features import Features

Codes = Float64[np.ndarray, "_ _"]
"""One row per point, one column per code."""


class Dimension(eqx.Module):
    """One input of the objective, coded as `width` numbers between 0 and 1."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of codes of a value."""

    @property
    @abstractmethod
    def size(self) -> float:
        """The number of possible values."""

    @abstractmethod
    def encode(self, values: Sequence[Any], name: str) -> Codes:
        """Return the codes of values; raise `ValueError` with `name` if one is not a value of this input."""

    @abstractmethod
    def decode(self, codes: Codes) -> list[Any]:
        """Return the values with these codes."""

    @abstractmethod
    def snap(self, codes: Float[Array, "n w"]) -> Float[Array, "n w"]:
        """Return the codes of the possible values nearest to points of the unit box."""


class Real(Dimension):
    """A real number from `low` to `high`, on a logarithmic scale if `log`.

    Attributes
    ----------
    low
        Lower bound, positive if `log`.
    high
        Upper bound.
    log
        Whether the scale is logarithmic.
    """

    low: float = eqx.field(converter=float)
    high: float = eqx.field(converter=float)
    log: bool = False

    def __check_init__(self) -> None:
        _check_range("Real", self.low, self.high, self.log)
        if self.low == self.high:
            raise ValueError(f"Real.low must be below Real.high, but both are {self.low}: leave a fixed input out.")

    @property
    def width(self) -> int:
        """The number of codes, 1."""
        return 1

    @property
    def size(self) -> float:
        """The number of values, infinite."""
        return math.inf

    def encode(self, values: Sequence[Any], name: str) -> Codes:
        """Return the positions between `low` and `high`; values outside the bounds have codes outside [0, 1]."""
        return _place(_numbers(values, name, self.log), self.low, self.high, self.log)

    def decode(self, codes: Codes) -> list[float]:
        """Return the numbers at these positions, clipped because rounding could leave the bounds."""
        return np.clip(_value(codes[:, 0], self.low, self.high, self.log), self.low, self.high).tolist()

    def snap(self, codes: Float[Array, "n w"]) -> Float[Array, "n w"]:
        """Return the codes unchanged."""
        return codes


class Integer(Dimension):
    """An integer from `low` to `high`, both included, on a logarithmic scale if `log`.

    All integers have equal shares of the unit interval (of the logarithmic scale), and the code is the middle of the
    share.

    Attributes
    ----------
    low
        Smallest integer, positive if `log`.
    high
        Largest integer.
    log
        Whether the scale is logarithmic.
    """

    low: int = eqx.field(converter=lambda value: _whole(value, "Integer.low"))
    high: int = eqx.field(converter=lambda value: _whole(value, "Integer.high"))
    log: bool = False

    def __check_init__(self) -> None:
        _check_range("Integer", self.low, self.high, self.log)

    @property
    def width(self) -> int:
        """The number of codes, 1."""
        return 1

    @property
    def size(self) -> float:
        """The number of integers."""
        return self.high - self.low + 1

    @property
    def _ends(self) -> tuple[float, float]:
        return self.low - 0.5, self.high + 0.5

    def encode(self, values: Sequence[Any], name: str) -> Codes:
        """Return the positions between low − ½ and high + ½."""
        numbers = _numbers(values, name, self.log)
        parts = np.flatnonzero(numbers != np.round(numbers))
        if parts.size:
            raise ValueError(f"{name} must be integers, but one of them is {values[parts[0]]!r}.")
        return _place(numbers, *self._ends, self.log)

    def decode(self, codes: Codes) -> list[int]:
        """Return the nearest integers."""
        rounded = np.round(_value(codes[:, 0], *self._ends, self.log))
        return [int(v) for v in np.clip(rounded, self.low, self.high)]

    def snap(self, codes: Float[Array, "n w"]) -> Float[Array, "n w"]:
        """Return the codes of the nearest integers."""
        low, high = self._ends
        if self.log:
            values = jnp.exp(math.log(low) + codes * math.log(high / low))
            whole = jnp.clip(jnp.round(values), self.low, self.high)
            return jnp.log(whole / low) / math.log(high / low)
        return (jnp.clip(jnp.floor(codes * (high - low)), 0, self.high - self.low) + 0.5) / (high - low)


class Categorical(Dimension):
    """One of several choices, one-hot encoded.

    Attributes
    ----------
    choices
        At least two different numbers, strings, booleans or None.
    """

    choices: tuple[Any, ...] = eqx.field(converter=lambda choices: _choices(choices))

    @property
    def width(self) -> int:
        """The number of codes, one per choice."""
        return len(self.choices)

    @property
    def size(self) -> float:
        """The number of choices."""
        return len(self.choices)

    def encode(self, values: Sequence[Any], name: str) -> Codes:
        """Return the one-hot codes."""
        places = {_label(choice): i for i, choice in enumerate(self.choices)}
        for value in values:
            if _label(value) not in places:
                raise ValueError(f"{name} has the value {value!r}, which is not one of its choices {self.choices}.")
        return np.eye(self.width)[[places[_label(value)] for value in values]]

    def decode(self, codes: Codes) -> list[Any]:
        """Return the choices with the largest codes."""
        return [self.choices[i] for i in np.argmax(codes, axis=1)]

    def snap(self, codes: Float[Array, "n w"]) -> Float[Array, "n w"]:
        """Return one-hot codes with the 1 at the largest code."""
        return jax.nn.one_hot(jnp.argmax(codes, axis=1), self.width, dtype=codes.dtype)


class Space(eqx.Module):
    """All inputs of an objective, their codes side by side.

    Attributes
    ----------
    dimensions
        The inputs.
    """

    dimensions: tuple[Dimension, ...]

    @classmethod
    def of(cls, bounds: Sequence[Any] | np.ndarray) -> "Space":
        """Return the space of these dimensions, where a pair (low, high) stands for `Real(low, high)`."""
        if not len(bounds):
            raise ValueError("bounds are empty: give a dimension or a pair (low, high) for each input.")
        for i, bound in enumerate(bounds):
            if not isinstance(bound, Dimension) and np.shape(bound) != (2,):
                raise ValueError(f"bounds[{i}] must be a dimension or a pair (low, high), but it is {bound!r}.")
        return cls(tuple(b if isinstance(b, Dimension) else Real(b[0], b[1]) for b in bounds))

    @property
    def width(self) -> int:
        """The number of codes of a point."""
        return sum(dimension.width for dimension in self.dimensions)

    @property
    def size(self) -> float:
        """The number of points in the space."""
        return math.prod(dimension.size for dimension in self.dimensions)

    @property
    def initial(self) -> int:
        """The default number of evaluations before a model is fitted."""
        return 2 * (self.width + 1)

    @property
    def _ends(self) -> list[int]:
        return [sum(d.width for d in self.dimensions[: i + 1]) for i in range(len(self.dimensions) - 1)]

    def encode(self, X: Any) -> Codes:
        """Return the codes of points, one per row."""
        rows = [list(row) for row in X]
        d = len(self.dimensions)
        wrong = [len(row) for row in rows if len(row) != d]
        if wrong:
            raise ValueError(f"X must have a column for each of the {d} inputs, but it has {wrong[0]}.")
        if not rows:
            return np.zeros((0, self.width))
        columns = zip(*rows, strict=True)
        parts = [
            dimension.encode(column, f"X[:, {i}]")
            for i, (dimension, column) in enumerate(zip(self.dimensions, columns, strict=True))
        ]
        return np.concatenate(parts, axis=1)

    def decode(self, codes: Codes) -> np.ndarray:
        """Return the points: an array of floats or of integers if all inputs are, otherwise of objects."""
        parts = np.split(np.asarray(codes, dtype=np.float64), self._ends, axis=1)
        columns = [dimension.decode(part) for dimension, part in zip(self.dimensions, parts, strict=True)]
        kinds = {type(dimension) for dimension in self.dimensions}
        dtype = {(Real,): np.float64, (Integer,): np.int64}.get(tuple(kinds), object)
        points = np.empty((len(codes), len(columns)), dtype)
        for i, column in enumerate(columns):
            points[:, i] = column
        return points

    def snap(self, codes: Float[Array, "n e"]) -> Float[Array, "n e"]:
        """Return the codes of the possible points nearest to points of the unit box."""
        parts = jnp.split(codes, self._ends, axis=1)
        return jnp.concatenate([d.snap(part) for d, part in zip(self.dimensions, parts, strict=True)], axis=1)


class Snapped(Features):
    """φ(snap(x)): functions that are constant around each possible point (Garrido-Merchán and Hernández-Lobato, 2020).

    Their maxima are at points that can be evaluated, not near such points.
    """

    features: Features
    space: Space

    @property
    def num(self) -> int:
        """The number of features."""
        return self.features.num

    @property
    def inputs(self) -> int:
        """The number of codes of a point."""
        return self.space.width

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return the features of the nearest possible points."""
        return self.features(self.space.snap(X))

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """Return φ(snap(X)) @ weights."""
        return self.features.apply(self.space.snap(X), weights)

    def each(self, X: Float[Array, "n d"], weights: Float[Array, "n m"]) -> Float[Array, "n"]:
        """Return φ(snap(xᵢ)) · weightsᵢ."""
        return self.features.each(self.space.snap(X), weights)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} must be an integer, but it is {value!r}.")
    return int(value)


def _choices(choices: Sequence[Any]) -> tuple[Any, ...]:
    strange = [choice for choice in choices if not isinstance(choice, str | float | int | bool | None)]
    if strange:
        raise ValueError(f"Categorical.choices must be numbers, text, booleans or None, but one is {strange[0]!r}.")
    if len(choices) < 2 or len({_label(choice) for choice in choices}) < len(choices):
        raise ValueError(f"Categorical.choices must be at least two different values, but they are {choices!r}.")
    return tuple(choices)


def _check_range(kind: str, low: float, high: float, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"{kind}.low must be at most {kind}.high and both finite, but they are {low} and {high}.")
    if log and low <= 0:
        raise ValueError(f"{kind}.low must be positive on a logarithmic scale, but it is {low}.")


def _label(value: Any) -> tuple[bool, Any]:
    """Return a key by which choices are compared: True and 1 are different, 1 and 1.0 are equal."""
    plain = value.item() if isinstance(value, np.generic) else value
    return isinstance(plain, bool), plain


def _numbers(values: Sequence[Any], name: str, log: bool) -> Float64[np.ndarray, "n"]:
    kind = np.asarray(values).dtype
    if kind.kind not in "biuf":
        raise ValueError(f"{name} must be numeric, but its dtype is {kind}.")
    numbers = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"{name} has NaN or infinite entries: only y may be NaN, for an evaluation that failed.")
    if log and np.min(numbers) <= 0:
        raise ValueError(
            f"{name} must be positive, because its scale is logarithmic, but one entry is {np.min(numbers)}."
        )
    return numbers


def _place(values: Float64[np.ndarray, "n"], low: float, high: float, log: bool) -> Codes:
    if log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    return ((values - low) / (high - low))[:, None]


def _value(places: Float64[np.ndarray, "n"], low: float, high: float, log: bool) -> Float64[np.ndarray, "n"]:
    if log:
        return np.exp(math.log(low) + places * math.log(high / low))
    return low + places * (high - low)
