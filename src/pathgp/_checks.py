"""Validation of user input: errors name the argument and the remedy."""

import os
import sys
import warnings
from collections.abc import Sequence
from types import UnionType

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from pathgp._cache import use_compilation_cache

use_compilation_cache()  # here, because every module that computes with JAX imports this one

_has_lost_threads = False

RESOLVED = 1e-3
"""Rounding steps up to this fraction of a column's range give no warning."""


def _after_fork() -> None:
    """Record in a forked child whether JAX had started its threads in the parent."""
    global _has_lost_threads
    bridge = sys.modules.get("jax._src.xla_bridge")  # private: JAX has no public way to ask
    _has_lost_threads |= bridge is not None and bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


def check_not_forked() -> None:
    """Raise `RuntimeError` if this process was forked after JAX was used, because computations would hang."""
    if _has_lost_threads:
        raise RuntimeError(
            "this process was forked after JAX had started its threads, which a fork does not copy, so computations "
            'would hang: start processes with multiprocessing.get_context("spawn") or "forkserver", or joblib with '
            'its default backend "loky".'
        )


def is_concrete(x: object) -> bool:
    """Return whether `x` has a concrete value, which a tracer inside a JAX transformation does not."""
    return not isinstance(x, Tracer)


def as_floats(x: Shaped[ArrayLike, "..."] | Sequence[float]) -> Float[Array, "..."]:
    """Return `x` as an array of floats: float32, or float64 if JAX has it enabled."""
    check_not_forked()
    if isinstance(x, np.ndarray | np.generic | float | int):  # `jnp.asarray` would compile a program for each shape
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, reported later
            return jax.device_put(np.array(x, jnp.result_type(float)))
    return jnp.asarray(x, dtype=float)


def as_numeric(x: Shaped[ArrayLike, "..."], name: str) -> Float[Array, "..."]:
    """Return `x` as floats; raise `ValueError` if it holds text, dates or objects."""
    if is_concrete(x):
        kind = np.asarray(x).dtype
        if kind.kind not in "biuf":
            raise ValueError(f"{name} must be numeric, but its dtype is {kind}: encode or drop non-numeric columns.")
    return as_floats(x)


def as_positive(x: Shaped[ArrayLike, "..."] | Sequence[float], name: str) -> Float[Array, "..."]:
    """Return `x` as floats; raise `ValueError` unless every entry is positive and finite."""
    values = as_floats(x)
    if is_concrete(values) and not np.all((np.asarray(values) > 0) & np.isfinite(np.asarray(values))):
        raise ValueError(f"{name} must be positive and finite, but it is {np.asarray(values)}.")
    return values


def as_scalar(x: Shaped[ArrayLike, "..."], name: str) -> Float[Array, ""]:
    """Return `x` as a scalar float; raise `ValueError` unless it is one finite number."""
    value = as_floats(x)
    if value.ndim > 0:
        raise ValueError(f"{name} must be one number, but its shape is {value.shape}.")
    # NumPy, because inside `jit` a jnp operation on a concrete array returns a tracer.
    if is_concrete(value) and not np.isfinite(np.asarray(value)):
        raise ValueError(f"{name} must be finite, but it is {float(value)}.")
    return value


def require_finite(x: Float[Array, "..."], name: str) -> Float[Array, "..."]:
    """Return `x` unchanged; raise `ValueError` if an entry is NaN or infinite."""
    if is_concrete(x):
        bad = np.flatnonzero(~np.isfinite(np.asarray(x)).reshape(x.shape[0], -1).all(axis=1))
        if bad.size:
            raise ValueError(
                f"{name} has NaN or infinite entries in {bad.size} of its {x.shape[0]} rows (the first is row "
                f"{bad[0]}): remove or impute them."
            )
    return x


def _warn_if_rounded(x: Shaped[ArrayLike, "..."], kept: Float[Array, "n ..."], name: str) -> None:
    """Warn if a column of `x` is so far from zero that its variation is lost in the dtype of `kept`."""
    if not is_concrete(x) or (given := np.asarray(x)).dtype.itemsize <= kept.dtype.itemsize:
        return
    given = given.reshape(len(given), -1)
    largest, spread = np.abs(given).max(axis=0), np.ptp(given, axis=0)
    step = float(np.finfo(kept.dtype).eps) * largest
    lost = np.flatnonzero((step > RESOLVED * spread) & (spread > 0))
    if lost.size:
        j = lost[0]
        warnings.warn(
            f"{name} varies by {spread[j]:.2g} around {largest[j]:.2g} in column {j}, where the spacing of "
            f"{kept.dtype} is {step[j]:.1g}: subtract the mean, or call "
            '`jax.config.update("jax_enable_x64", True)` first.',
            stacklevel=4,
        )


def as_inputs(X: Shaped[ArrayLike, "..."], name: str = "X") -> Float[Array, "n d"]:
    """Return `X` as a matrix of floats; raise `ValueError` unless it is two-dimensional, not empty and finite."""
    values = as_numeric(X, name)
    if values.ndim != 2:
        raise ValueError(
            f"{name} must be two-dimensional (rows, inputs), but its shape is {values.shape}: "
            f"for a single input use {name}[:, None], for a single row {name}[None, :]."
        )
    if 0 in values.shape:
        raise ValueError(f"{name} is empty, its shape is {values.shape}: give at least one row and one input.")
    require_finite(values, name)
    _warn_if_rounded(X, values, name)
    return values


def as_target(y: Shaped[ArrayLike, "..."], rows: int, name: str = "y") -> Float[Array, "n"]:
    """Return `y` as a vector of floats; raise `ValueError` unless it is finite and has one entry per row of X."""
    values = as_numeric(y, name)
    if values.shape != (rows,):
        raise ValueError(
            f"{name} must have one entry for each of the {rows} rows of X, but its shape is {values.shape}."
        )
    require_finite(values, name)
    _warn_if_rounded(y, values, name)
    return values


def as_targets(y: Shaped[ArrayLike, "..."], rows: int, name: str = "y", X_name: str = "X") -> Float[Array, "n t"]:
    """Return `y` as a matrix of floats with one column per target; a vector is a single target.

    Raises `ValueError` unless `y` is finite and has one entry per row of X for each target.
    """
    values = as_numeric(y, name)
    if values.ndim not in (1, 2) or values.shape[0] != rows or 0 in values.shape:
        raise ValueError(
            f"{name} must have one entry for each of the {rows} rows of {X_name}, or one such column per target, but "
            f"its shape is {values.shape}."
        )
    require_finite(values, name)
    _warn_if_rounded(y, values, name)
    return values.reshape(rows, -1)


def require_noise_shape(noise: Float[Array, "..."], rows: int, name: str = "noise") -> Float[Array, "..."]:
    """Return `noise` unchanged; raise `ValueError` unless it is one variance or one per row."""
    if noise.shape not in ((), (rows,)):
        raise ValueError(
            f"{name} must be one variance or one for each of the {rows} rows of X, but its shape is {noise.shape}."
        )
    return noise


def noise_for_new_rows(
    present: Float[Array, "..."], given: Shaped[ArrayLike, "..."] | None, rows: int
) -> Float[Array, "..."]:
    """Return the noise variance of `rows` new rows.

    If the present rows have one variance each, it is `given`, broadcast to the new rows. If they share one variance,
    so do the new rows. Raises `ValueError` if `given` is missing in the first case or present in the second.
    """
    if present.ndim == 0:
        if given is not None:
            raise ValueError(
                "noise must be None, because the posterior has one variance for all rows: to give one per row, "
                "condition with one per row."
            )
        return present
    if given is None:
        raise ValueError("noise is missing: the posterior has one variance per row, so give one for each new row.")
    return jnp.broadcast_to(require_noise_shape(as_positive(given, "noise"), rows), (rows,))


def reject_dates(X: object) -> None:
    """Raise `ValueError` if a matrix or a column of a data frame holds dates; NumPy's error names only dtypes."""
    kinds = getattr(X, "dtypes", getattr(X, "dtype", ()))
    if any("date" in str(kind).lower() for kind in np.atleast_1d(np.asarray(kinds, dtype=object))):
        raise ValueError(
            "X has dates: convert them to numbers, for example to days with (date - date.min()).dt.days; `pathgp fit` "
            "does this automatically."
        )


def require_key(key: object) -> None:
    """Raise `ValueError` unless `key` is a JAX random key; a seed is not."""
    check_not_forked()
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    if not typed and not _is_raw_key(key):
        raise ValueError(f"key must be a random key, such as jax.random.key(0), but it is {key!r}.")


def _is_raw_key(key: object) -> bool:
    """Return whether `key` is a raw uint32 key, as made by `jax.random.PRNGKey`."""
    return isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.shape in ((2,), (4,))


def require_same_inputs(X: Float[Array | np.ndarray, "n d"], Z: Float[Array | np.ndarray, "m e"]) -> None:
    """Raise `ValueError` unless X and Z have the same number of inputs."""
    if X.shape[1] != Z.shape[1]:
        raise ValueError(f"X has {X.shape[1]} inputs, but Z has {Z.shape[1]}: the numbers of inputs must be equal.")


def require_instance(value: object, kind: type | UnionType, name: str, example: str) -> None:
    """Raise `ValueError` unless `value` is an instance of `kind`; the message gives the `example`."""
    if not isinstance(value, kind):
        shown = repr(value)
        raise ValueError(f"{name} must be {example}, but it is {shown if len(shown) < 80 else type(value).__name__}.")


def require_int(value: object, least: int, name: str) -> None:
    """Raise `ValueError` unless `value` is an integer of at least `least`."""
    require_instance(value, int | np.integer, name, "an integer")
    require_at_least(int(value), least, name)  # pyright: ignore[reportArgumentType]


def require_at_least(value: float, least: float, name: str) -> None:
    """Raise `ValueError` if `value` is below `least` or NaN."""
    if not value >= least:  # `value < least` is False for NaN
        raise ValueError(f"{name} must be at least {least}, but it is {value}.")
