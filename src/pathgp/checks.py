"""Bad input gets a sentence: it names the argument and says what to do."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped


def is_concrete(x: object) -> bool:
    """Whether a value can be looked at: inside a JAX transformation it cannot."""
    return not isinstance(x, Tracer)


def floats(x: Shaped[ArrayLike, "..."] | Sequence[float]) -> Float[Array, "..."]:
    """`x` as an array of floats: float32, or float64 where that is enabled."""
    return jnp.asarray(x, dtype=float)


def numbers(x: Shaped[ArrayLike, "..."], name: str) -> Float[Array, "..."]:
    """`x` as floats, refused if it holds text, dates or objects."""
    if is_concrete(x):
        kind = np.asarray(x).dtype
        if kind.kind not in "biuf":
            raise ValueError(f"{name} must be numbers, but it is of type {kind}: encode or drop what is not a number.")
    return floats(x)


def positive(x: Shaped[ArrayLike, "..."] | Sequence[float], name: str) -> Float[Array, "..."]:
    """`x` as floats, refused unless every entry is positive and finite."""
    values = floats(x)
    if is_concrete(values) and not bool(jnp.all((values > 0) & jnp.isfinite(values))):
        raise ValueError(f"{name} must be positive and finite, but it is {np.asarray(values)}.")
    return values


def finite(x: Float[Array, "..."], name: str) -> Float[Array, "..."]:
    """`x` itself, refused if an entry is NaN or infinite."""
    if is_concrete(x):
        bad = np.flatnonzero(~np.isfinite(np.asarray(x)).reshape(x.shape[0], -1).all(axis=1))
        if bad.size:
            raise ValueError(
                f"{name} has NaN or infinite entries in {bad.size} of its {x.shape[0]} rows (the first is row "
                f"{bad[0]}): remove or impute them."
            )
    return x


def inputs(X: Shaped[ArrayLike, "..."], name: str = "X") -> Float[Array, "n d"]:
    """A matrix of inputs: two-dimensional, at least one row and one column, finite."""
    values = numbers(X, name)
    if values.ndim != 2:
        raise ValueError(
            f"{name} must be two-dimensional (rows, inputs), but its shape is {values.shape}: "
            f"for a single input use {name}[:, None], for a single row {name}[None, :]."
        )
    if 0 in values.shape:
        raise ValueError(f"{name} is empty, its shape is {values.shape}: give at least one row and one input.")
    return finite(values, name)


def outputs(y: Shaped[ArrayLike, "..."], rows: int, name: str = "y") -> Float[Array, "n"]:
    """A vector of observations, one for each of the `rows` rows of X."""
    values = numbers(y, name)
    if values.shape != (rows,):
        raise ValueError(
            f"{name} must have one entry for each of the {rows} rows of X, but its shape is {values.shape}."
        )
    return finite(values, name)


def columns(y: Shaped[ArrayLike, "..."], rows: int, name: str = "y", X_name: str = "X") -> Float[Array, "n t"]:
    """Observations of one target or several: a vector, or a column for each target."""
    values = numbers(y, name)
    if values.ndim not in (1, 2) or values.shape[0] != rows or 0 in values.shape:
        raise ValueError(
            f"{name} must have one entry for each of the {rows} rows of {X_name}, or a column of them for each target, "
            f"but its shape is {values.shape}."
        )
    return finite(values.reshape(rows, -1), name)


def noise_variance(noise: Float[Array, "..."], rows: int, name: str = "noise") -> Float[Array, "..."]:
    """One noise variance, or one for each of the `rows` rows."""
    if noise.shape not in ((), (rows,)):
        raise ValueError(
            f"{name} must be one variance or one for each of the {rows} rows of X, but its shape is {noise.shape}."
        )
    return noise


def at_least(value: float, least: float, name: str) -> None:
    """Refuses a setting below its least sensible value, and NaN."""
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, but it is {value}.")
