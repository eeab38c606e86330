"""Functions x ↦ φ(x) @ weights: prior draws, data updates and posterior samples are one class."""

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

from pathgp._checks import check_not_forked, floats, is_concrete
from pathgp.kernels import Kernel
from pathgp.kernels.features import Features, Stacked, Total
from pathgp.linalg.precision import dtype_of, evaluate_rows, in_own_precision
from pathgp.linalg.tiles import map_rows, pad_rows, product, split_product

POINTS, AT_ONCE = 64, 8
"""Points that functions are evaluated at together, and the largest number of such calls under way at once."""


class Canonical(Features):
    """The canonical features k(·, points): one for each point. Each device of a `mesh` takes a share of the points."""

    kernel: Kernel
    points: Float[Array, "m d"]
    mesh: Mesh | None = eqx.field(static=True, default=None)

    @property
    def num(self) -> int:
        """The number of points."""
        return self.points.shape[0]

    @property
    def inputs(self) -> int:
        """The number of inputs of a point."""
        return self.points.shape[1]

    @property
    def apart(self) -> bool:
        """Where there is a mesh."""
        return self.mesh is not None

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """The matrix k(X, points)."""
        return self.kernel(X, self.points)

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """k(X, points) @ weights, in tiles."""
        if self.mesh is None:
            return product(self.kernel, X, self.points, weights)
        return split_product(self.mesh, self.kernel, X, self.points, weights)


class Function(eqx.Module):
    """f(x) = φ(x) @ weights: s functions at once where the weights are (m, s), one where they are (m,).

    A function can be called at any number of points (it evaluates in tiles), added to another, multiplied by a
    number, indexed to pick samples, differentiated, and passed through `jax.jit` and `jax.vmap`, for it is a pytree.

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
    """One array; or a tuple, for a sum of functions whose weights are split over devices."""

    def __call__(self, X: Shaped[ArrayLike, "..."]) -> Float[Array, "n *s"]:
        """The values at the rows of X, (n, s) or (n,)."""
        return evaluate_rows(self._values, dtype_of(self), X)

    def _values(self, X: Shaped[ArrayLike, "..."]) -> Float[Array, "n *s"]:
        points, n = padded(X, self.features.inputs)
        return by_tiles(_evaluate, (self,), points)[:n]

    @in_own_precision
    def __getitem__(self, index: int | slice | Int[np.ndarray, "k"]) -> "Function":
        """The sample, or the samples, with this index."""
        check_not_forked()
        if not isinstance(index, slice) and is_concrete(index):
            at, number = np.asarray(index), len(self)
            if not np.all((-number <= at) & (at < number)):
                raise IndexError(f"there are {number} functions, from 0 to {number - 1}, but the index is {index}.")
        return Function(self.features, jax.tree.map(lambda w: w[:, index], self.weights))

    def __len__(self) -> int:
        """How many functions it is; a single function has no length."""
        if not self.shape:
            raise TypeError("this is a single function, which has no length.")
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its value at one point: (s,), or () for a single function."""
        return jax.tree.leaves(self.weights)[0].shape[1:]

    @in_own_precision
    def __add__(self, other: "Function") -> "Function":
        """The sum, side by side; a single function adds to every sample of the other."""
        parts, weights = (self.features, other.features), (self.weights, other.weights)
        shape = jnp.broadcast_shapes(self.shape, other.shape)
        if self.shape != other.shape:
            column = lambda w: w[:, None] if w.ndim == 1 else w
            weights = jax.tree.map(lambda w: jnp.broadcast_to(column(w), (w.shape[0], *shape)), weights)
        if self.features.apart or other.features.apart:
            return Function(Total(parts), weights)
        return Function(Stacked(parts), jnp.concatenate(weights))

    @in_own_precision
    def __mul__(self, factor: Shaped[ArrayLike, ""]) -> "Function":
        return Function(self.features, jax.tree.map(lambda w: w * factor, self.weights))

    __rmul__ = __mul__

    @in_own_precision
    def __neg__(self) -> "Function":
        return Function(self.features, jax.tree.map(jnp.negative, self.weights))

    def __sub__(self, other: "Function") -> "Function":
        return self + (-other)


def padded(X: Shaped[ArrayLike, "..."], inputs: int | None) -> tuple[Float[Array, "m d"], int]:
    """The points to evaluate a function of so many inputs at, and how many of them are not padding.

    One compilation serves every number of points up to the next power of two, or the next whole tile.
    """
    points = floats(X)
    if points.ndim != 2:
        raise ValueError(
            f"x must be two-dimensional (points, inputs), but its shape is {points.shape}: "
            "for one point use x[None, :], for a single input x[:, None]."
        )
    if inputs not in (None, points.shape[1]):
        raise ValueError(f"x has {points.shape[1]} inputs, but the function takes {inputs}.")
    n = points.shape[0]
    return pad_rows(points, min(1 << (n - 1).bit_length(), POINTS) if n else 1), n


def by_tiles(
    f: Callable[..., Float[Array, "n ..."]], parts: tuple[Any, ...], X: Float[Array, "n d"]
) -> Float[Array, "n ..."]:
    """f(*parts, X) for a compiled f, `POINTS` rows at a time, as many such calls at once as there are processors.

    Small factorisations and searches occupy one processor each. In the midst of a program, and where there are several
    devices or an accelerator, it is one call.
    """
    leaves = jax.tree.leaves((parts, X))
    at_hand = all(is_concrete(leaf) and _on_one_cpu(leaf) for leaf in leaves)
    if X.shape[0] <= POINTS or not at_hand:
        return f(*parts, X)
    host, wide = np.asarray(X), jnp.result_type(float) == jnp.float64

    def tile(start: int) -> Float[np.ndarray, "t ..."]:
        with jax.enable_x64(wide):  # each thread has a setting of its own
            return np.asarray(f(*parts, jnp.asarray(host[start : start + POINTS])))

    first, *others = range(0, X.shape[0], POINTS)
    values = [tile(first)]  # alone, for it may have to be compiled
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        values += pool.map(tile, others)
    return jax.device_put(np.concatenate(values))  # by NumPy: JAX would compile a program for each number of tiles


def _on_one_cpu(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array) or [device.platform for device in leaf.devices()] == ["cpu"]


@eqx.filter_jit
def _evaluate(f: Function, X: Float[Array, "n d"]) -> Float[Array, "n *s"]:
    weights = jax.tree.map(lambda w: w if w.ndim == 2 else w[:, None], f.weights)
    values = map_rows(lambda tile: f.features.apply(tile, weights), X)
    return values.reshape(X.shape[0], *f.shape)
