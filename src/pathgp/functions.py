"""Functions x ↦ φ(x) @ weights: one class for prior draws, data updates and posterior samples."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree, Shaped

from pathgp._checks import as_floats, check_not_forked, is_concrete
from pathgp.kernels import Kernel
from pathgp.kernels.features import Features, Stacked, Total
from pathgp.linalg.namespace import namespace
from pathgp.linalg.precision import KeepsPrecision, dtype_of, evaluate_rows, in_own_precision
from pathgp.linalg.threads import one_blas_thread
from pathgp.linalg.tiles import column_sharded_product, map_rows, pad_rows, product

TILE_POINTS, AT_ONCE = 64, 8
"""Rows per tile of an evaluation, and the largest number of tiles that are evaluated concurrently."""


class Canonical(Features):
    """The canonical features φ(x) = k(x, points), one per point.

    Parameters
    ----------
    kernel
        The kernel k.
    points
        The m points, one per row.
    mesh
        If given, `apply` shards the points and the weights over its devices.
    """

    kernel: Kernel
    points: Float[Array, "m d"]
    mesh: Mesh | None = eqx.field(static=True, default=None)

    @property
    def num(self) -> int:
        """The number m of points."""
        return self.points.shape[0]

    @property
    def inputs(self) -> int:
        """The number d of inputs of a point."""
        return self.points.shape[1]

    @property
    def is_sharded(self) -> bool:
        """Whether there is a mesh, over which the weights are sharded."""
        return self.mesh is not None

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return the matrix k(X, points)."""
        return self.kernel(X, self.points)

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """Return k(X, points) @ weights, computed in tiles."""
        if self.mesh is None:
            return product(self.kernel, X, self.points, weights)
        return column_sharded_product(self.mesh, self.kernel, X, self.points, weights)


class Function(KeepsPrecision, eqx.Module):
    """One or several functions f(x) = φ(x) @ weights.

    A function can be called at any number of points, added to another and multiplied by a number. It can be indexed
    to select samples, and differentiated. It is a pytree, so it passes through `jax.jit` and `jax.vmap`.

    Parameters
    ----------
    features
        The feature map φ from d inputs to m features.
    weights
        An array of shape (m, s) for s functions, or (m,) for a single function. For a sum of functions whose weights
        are sharded over devices it is a tuple with one entry per part.

    >>> import jax, jax.numpy as jnp
    >>> from pathgp.kernels import RBF
    >>> f = Function(Canonical(RBF(), jnp.array([[0.0], [1.0]])), jnp.array([[1.0, 0.0], [0.0, 2.0]]))
    >>> f(jnp.array([[0.0], [1.0], [5.0]])).shape, f[0](jnp.array([[0.0]])).shape
    ((3, 2), (1,))
    >>> print(jax.grad(lambda x: f[0](x[None])[0])(jnp.zeros(1)))
    [0.]
    """

    features: Features
    weights: PyTree[Float[Array, "_ *s"]]

    def __call__(self, X: Shaped[ArrayLike, "..."]) -> Float[Array, "n *s"]:
        """Return the values at the rows of X, of shape (n, s), or (n,) for a single function.

        They are computed in tiles, in the dtype of the weights, and returned in the default float dtype of JAX.

        Raises
        ------
        ValueError
            If X is not two-dimensional or has the wrong number of inputs.
        """
        return evaluate_rows(self._values, dtype_of(self), X)

    def _values(self, X: Shaped[ArrayLike, "..."]) -> Float[Array, "n *s"]:
        points, n = pad_points(X, self.features.inputs)
        return evaluate_tiles(_evaluate, (self,), points)[:n]

    @in_own_precision
    def __getitem__(self, index: int | slice | Int[np.ndarray, "k"]) -> "Function":
        """Return the function with this index, or those that a slice or an array of indices selects.

        Raises
        ------
        IndexError
            If an index is out of range.
        """
        check_not_forked()
        # JAX clamps an index that is out of range instead of raising an error.
        if not isinstance(index, slice) and is_concrete(index):
            at, number = np.asarray(index), len(self)
            if not np.all((-number <= at) & (at < number)):
                raise IndexError(f"there are {number} functions, from 0 to {number - 1}, but the index is {index}.")
        return Function(self.features, jax.tree.map(lambda w: _by_numpy(lambda w: w[:, index], w), self.weights))

    def __len__(self) -> int:
        """Return the number s of functions; raise `TypeError` for a single function."""
        if not self.shape:
            raise TypeError("this is a single function, which has no length.")
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value at one point: (s,), or () for a single function."""
        return jax.tree.leaves(self.weights)[0].shape[1:]

    @in_own_precision
    def __add__(self, other: "Function") -> "Function":
        """Return the sum, on the features of both; a single function is added to every function of the other."""
        parts, weights = (self.features, other.features), (self.weights, other.weights)
        shape = jnp.broadcast_shapes(self.shape, other.shape)
        if self.shape != other.shape:
            column = lambda w: w[:, None] if w.ndim == 1 else w
            spread = lambda w: namespace(w).broadcast_to(column(w), (w.shape[0], *shape))
            weights = jax.tree.map(lambda w: _by_numpy(spread, w), weights)
        # Sharded weights cannot be concatenated with others without moving them, so they stay in a tuple.
        if self.features.is_sharded or other.features.is_sharded:
            return Function(Total(parts), weights)
        return Function(
            Stacked(parts), _by_numpy(lambda *weights: namespace(weights[0]).concatenate(weights), *weights)
        )

    @in_own_precision
    def __mul__(self, factor: Shaped[ArrayLike, ""]) -> "Function":
        return Function(self.features, jax.tree.map(lambda w: w * factor, self.weights))

    __rmul__ = __mul__

    @in_own_precision
    def __neg__(self) -> "Function":
        return Function(self.features, jax.tree.map(jnp.negative, self.weights))

    def __sub__(self, other: "Function") -> "Function":
        return self + (-other)


def _by_numpy(f: Callable[..., Any], *arrays: Any) -> Array:
    """Return f(*arrays) for an f that only moves entries, by NumPy where that is possible: JAX would compile it."""
    if all(is_concrete(array) and _on_one_cpu(array) for array in arrays):
        return jax.device_put(f(*map(np.asarray, arrays)))
    return f(*arrays)


def pad_points(X: Shaped[ArrayLike, "..."], inputs: int | None) -> tuple[Float[Array, "m d"], int]:
    """Return X as floats with padded rows, and the number of rows before padding.

    The rows are padded to a power of two, or to whole tiles above `TILE_POINTS` rows, so that few programs are
    compiled. Raises `ValueError` unless X is two-dimensional and has `inputs` columns; None accepts any number.
    """
    points = _require_points(as_floats(X), inputs)
    n = points.shape[0]
    return pad_rows(points, min(1 << (n - 1).bit_length(), TILE_POINTS) if n else 1), n


def as_points(X: Shaped[ArrayLike, "..."], inputs: int | None) -> Float[np.ndarray, "n d"]:
    """Return X as an array of NumPy in JAX's default dtype; raise `ValueError` as `pad_points` does."""
    return _require_points(np.asarray(as_floats(X)), inputs)


def _require_points(points: Any, inputs: int | None) -> Any:
    if points.ndim != 2:
        raise ValueError(
            f"x must be two-dimensional (points, inputs), but its shape is {points.shape}: "
            "for one point use x[None, :], for a single input x[:, None]."
        )
    if inputs not in (None, points.shape[1]):
        raise ValueError(f"x has {points.shape[1]} inputs, but the function takes {inputs}.")
    return points


def evaluate_tiles(
    f: Callable[..., Float[Array, "n ..."]], parts: tuple[Any, ...], X: Float[Array, "n d"]
) -> Float[Array, "n ..."]:
    """Return f(*parts, X) for a compiled f, called for tiles of `POINTS` rows on several threads.

    Small factorisations and neighbour searches occupy one processor each, so threads use all of them. Inside a JAX
    transformation, on several devices or on an accelerator, f is called once with all rows.
    """
    leaves = jax.tree.leaves((parts, X))
    at_hand = all(is_concrete(leaf) and _on_one_cpu(leaf) for leaf in leaves)
    if not at_hand:
        return f(*parts, X)
    if X.shape[0] <= TILE_POINTS:
        with one_blas_thread():
            return jax.block_until_ready(f(*parts, X))
    host, wide = np.asarray(X), jnp.result_type(float) == jnp.float64

    def tile(start: int) -> Float[np.ndarray, "t ..."]:
        with jax.enable_x64(wide):  # the setting is local to each thread
            return np.asarray(f(*parts, jnp.asarray(host[start : start + TILE_POINTS])))

    first, *others = range(0, X.shape[0], TILE_POINTS)
    with one_blas_thread():
        values = [tile(first)]  # before the threads start, because it may have to be compiled
        with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
            values += pool.map(tile, others)
    # With NumPy, because JAX would compile a concatenation for each number of tiles.
    return jax.device_put(np.concatenate(values))


def _on_one_cpu(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or [device.platform for device in leaf.devices()] == ["cpu"]


@eqx.filter_jit
def _evaluate(f: Function, X: Float[Array, "n d"]) -> Float[Array, "n *s"]:
    weights = jax.tree.map(lambda w: w if w.ndim == 2 else w[:, None], f.weights)
    values = map_rows(lambda tile: f.features.apply(tile, weights), X)
    return values.reshape(X.shape[0], *f.shape)
