"""The dtype that a problem needs, and the context in which JAX computes in it.

JAX has one global setting for float64. Here the dtype is a property of the problem: arrays are float32 or float64, and
code that computes with them runs inside `working_in` their dtype. Values returned to the user have the default float
dtype of JAX at the time of the call.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pathgp._checks import is_concrete

P = ParamSpec("P")
T = TypeVar("T")

ROUNDING = 0.01
"""Largest estimated rounding error of the mean in float32, in standard deviations of the noise; above, use float64."""


def required_dtype(variance: float, noise: float, rows: int) -> np.dtype:
    """Return float64 if JAX has it enabled, or if float32 would round the mean by too much; else float32.

    The mean is k(x, X)w, a sum of N terms that cancel down to the scale of the data. With w = Σ⁻¹(y − f) and
    residuals y − f of size σ, its rounding error is about ε v√N/σ for a kernel of variance v, compared with σ.

    >>> required_dtype(variance=1.0, noise=0.1, rows=10_000), required_dtype(variance=1.0, noise=1e-6, rows=10_000)
    (dtype('float32'), dtype('float64'))
    """
    rounding = float(np.finfo(np.float32).eps) / 2 * variance * rows**0.5 / noise
    return np.dtype(np.float64 if rounding > ROUNDING else jnp.result_type(float))


def dtype_of(tree: Any) -> np.dtype:
    """Return the dtype that all floating-point arrays of a pytree share; the default of JAX if it has none."""
    return next(
        (np.dtype(leaf.dtype) for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)),
        np.dtype(jnp.result_type(float)),
    )


def working_in(dtype: Any) -> AbstractContextManager[None]:
    """Return the context in which JAX computes with arrays of this dtype."""
    return jax.enable_x64(np.dtype(dtype) == np.float64)


def cast(tree: Any, dtype: Any) -> Any:
    """Return the pytree with its floating-point arrays cast to `dtype`."""
    changes = lambda leaf: eqx.is_inexact_array(leaf) and leaf.dtype != dtype
    with working_in(dtype):
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if changes(leaf) else leaf, tree)


class _Float64(NamedTuple):
    """A float64 array of JAX in a pickle: JAX would read it as float32 unless float64 is enabled."""

    values: np.ndarray


def to_pickle(tree: T) -> T:
    """Return a pytree that can be pickled without loss of precision; `from_pickle` is the inverse."""
    is_wide = lambda leaf: isinstance(leaf, jax.Array) and leaf.dtype == np.float64
    return jax.tree.map(lambda leaf: _Float64(np.asarray(leaf)) if is_wide(leaf) else leaf, tree)


def from_pickle(tree: T) -> T:
    """Return the pytree that was given to `to_pickle`."""
    is_stored = lambda leaf: isinstance(leaf, _Float64)
    with working_in(np.float64):
        restored = lambda leaf: jax.device_put(leaf.values) if is_stored(leaf) else leaf
        return jax.tree.map(restored, tree, is_leaf=is_stored)


class KeepsPrecision:
    """Mixin of modules whose float64 arrays keep their dtype when they are pickled and copied."""

    def __getstate__(self) -> dict[str, Any]:
        return to_pickle(dict(vars(self)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in from_pickle(state).items():
            object.__setattr__(self, name, value)  # a module is frozen


def in_own_precision(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method to run in the dtype of its object, or a function to run in that of its first argument."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with working_in(dtype_of(args[0])):
            return method(*args, **kwargs)

    return run


def evaluate_rows(f: Callable[[Any], Any], dtype: Any, X: Any) -> Any:
    """Return f(X) computed in `dtype`, as an array of JAX's default float dtype; f maps each row to a row.

    Inside a JAX transformation, the derivative of a float64 computation would be taken outside its context and rounded
    to float32. It is therefore defined as the Jacobian of each row, which is computed in float64.
    """
    outside = jnp.result_type(float)
    if np.dtype(dtype) == np.float64 and outside != jnp.float64 and not is_concrete(X):
        return _differentiable(f)(X.astype(outside))
    with working_in(dtype):
        values = f(X)
    return cast(values, outside)


def _differentiable(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return f with float64 arithmetic, float32 arguments and results, and derivatives of every order."""

    @jax.custom_jvp
    def values(X: Any) -> Any:
        with working_in(np.float64):
            out = f(X.astype(np.float64))
        return cast(out, X.dtype)

    def jacobian(X: Any) -> Any:
        """Return the Jacobian of every row; the inputs are the last axis."""
        # Rows are independent, so one tangent per input gives that column of the Jacobians of all rows.
        directions = jnp.broadcast_to(jnp.eye(X.shape[1], dtype=X.dtype)[:, None, :], (X.shape[1], *X.shape))
        slopes = jax.lax.map(lambda direction: jax.jvp(f, (X,), (direction,))[1], directions)
        return jax.tree.map(lambda slope: jnp.moveaxis(slope, 0, -1), slopes)

    @values.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        (X,), (dX,) = primals, tangents
        spread = lambda J: dX.reshape(dX.shape[0], *[1] * (J.ndim - 2), dX.shape[1])
        slopes = jax.tree.map(lambda J: jnp.sum(J * spread(J), axis=-1), _differentiable(jacobian)(X))
        return values(X), slopes

    return values


def as_values(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate as `in_own_precision` does, and cast the returned arrays to JAX's default float dtype."""
    run = in_own_precision(method)

    @functools.wraps(method)
    def cast_result(*args: P.args, **kwargs: P.kwargs) -> T:
        return cast(run(*args, **kwargs), jnp.result_type(float))

    return cast_result
