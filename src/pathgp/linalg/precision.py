"""The precision of a problem: which one it needs, and the context in which its arrays are computed with.

JAX has one setting for float64. Here it is a property of the problem: arrays are float32 or float64, and whatever
computes with them does so inside `working_in` their dtype. Values that leave the library have the dtype of the caller's
setting.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pathgp._checks import is_concrete

P = ParamSpec("P")
T = TypeVar("T")

ROUNDING = 0.01
"""float32 is used while its rounding is estimated to move the mean by less than this share of the noise's deviation."""


def required_dtype(variance: float, noise: float, rows: int) -> np.dtype:
    """float64 where JAX has it enabled, or where float32 would round the mean by too much.

    The mean is k(x, X)w, N terms that cancel down to the data. With w = Σ⁻¹(y − f) and residuals y − f of size σ its
    rounding is about ε v√N/σ, for a kernel of variance v, to be compared with σ.

    >>> required_dtype(variance=1.0, noise=0.1, rows=10_000), required_dtype(variance=1.0, noise=1e-6, rows=10_000)
    (dtype('float32'), dtype('float64'))
    """
    rounding = float(np.finfo(np.float32).eps) / 2 * variance * rows**0.5 / noise
    return np.dtype(np.float64 if rounding > ROUNDING else jnp.result_type(float))


def dtype_of(tree: Any) -> np.dtype:
    """The dtype of the floating-point arrays of a pytree, all of which have one."""
    return next(
        (np.dtype(leaf.dtype) for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)),
        np.dtype(jnp.result_type(float)),
    )


def working_in(dtype: Any) -> AbstractContextManager[None]:
    """The context in which JAX computes with arrays of this dtype."""
    return jax.enable_x64(np.dtype(dtype) == np.float64)


def cast(tree: Any, dtype: Any) -> Any:
    """The pytree with its floating-point arrays in this dtype."""
    with working_in(dtype):
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


def in_own_precision(method: Callable[P, T]) -> Callable[P, T]:
    """Runs a method in the precision of the object that it belongs to, or a function in that of its first argument."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with working_in(dtype_of(args[0])):
            return method(*args, **kwargs)

    return run


def evaluate_rows(f: Callable[[Any], Any], dtype: Any, X: Any) -> Any:
    """f(X) computed in `dtype`, for an f that maps rows to rows, and returned in the dtype of the caller's setting.

    Inside a transformation of JAX the derivative of a computation in float64 would be taken outside its context, and
    be rounded there. So it is given as the Jacobian of each row, itself computed in float64.
    """
    outside = jnp.result_type(float)
    if np.dtype(dtype) == np.float64 and outside != jnp.float64 and not is_concrete(X):
        return _differentiable(f)(X.astype(outside))
    with working_in(dtype):
        values = f(X)
    return cast(values, outside)


def _differentiable(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f of rows, in float64 inside and float32 outside, with derivatives of every order."""

    @jax.custom_jvp
    def values(X: Any) -> Any:
        with working_in(np.float64):
            out = f(X.astype(np.float64))
        return cast(out, X.dtype)

    def jacobian(X: Any) -> Any:
        """The derivative of every row's values in each of the row's inputs, which is the last axis."""
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
    """Like `in_own_precision`; the arrays that it returns have the dtype of the caller's setting."""
    run = in_own_precision(method)

    @functools.wraps(method)
    def cast_result(*args: P.args, **kwargs: P.kwargs) -> T:
        return cast(run(*args, **kwargs), jnp.result_type(float))

    return cast_result
