"""Formulas that run on NumPy arrays by NumPy and on JAX arrays by JAX.

JAX compiles a program for every operation and shape, which takes longer than the arithmetic of a few hundred rows.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import numpy as jnp

if TYPE_CHECKING:
    from typing import Any as AnyArray  # a type checker cannot follow that results are of the kind of the arguments
else:
    AnyArray = jax.Array | np.ndarray | np.generic
    """An array of JAX or NumPy. All arrays of one call are of the same kind."""


def namespace(x: Any) -> Any:
    """Return the module that computes with `x`: `numpy` for its arrays and numbers, else `jax.numpy`.

    >>> namespace(np.ones(3)) is np, namespace(jnp.ones(3)) is np
    (True, False)
    """
    return np if isinstance(x, np.ndarray | np.generic | float | int) else jnp


def on_host(tree: Any) -> Any:
    """Return a pytree with its floating-point arrays as float64 arrays of NumPy."""
    is_float = lambda leaf: hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) if is_float(leaf) else leaf, tree)


def on_device(tree: Any, dtype: Any) -> Any:
    """Return a pytree of arrays of NumPy as arrays of JAX, converted on the host, which compiles nothing."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, dtype)), tree)


def host_generator(key: Any) -> np.random.Generator:
    """Return a random generator of NumPy for a random key, for few numbers that are needed once."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.random.default_rng(np.asarray(jax.random.key_data(key) if typed else key))
