"""Local correction: a block projection around a query point, which removes the short-range error of a solve."""

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from pathgp import _checks as checks
from pathgp.functions import Canonical, Function
from pathgp.kernels import Kernel
from pathgp.kernels.features import Features
from pathgp.linalg.jitter import least_noise
from pathgp.linalg.neighbours import Neighbours, build_index
from pathgp.linalg.small import definite_solve
from pathgp.linalg.tiles import map_rows
from pathgp.parallel.sharding import map_over_devices, replicate
from pathgp.system.system import System

QUERIES = 64
"""Query points per batch: the m x m blocks of a batch stay in the cache."""


class Projection(Features):
    """Features a(x) = (K_cc + Σ_c)⁻¹ k_c(x) at the m nearest rows c of the data to x, and zero at all other rows.

    With the residual columns r = b − (K + Σ)w as weights, a(x)ᵀ r_c is the change of k(x, X) w by one more step of
    block projection, on a block around x. All columns share the factor of that block.

    The neighbours change as x moves, which by itself would make functions discontinuous. The last ones are therefore
    faded out. Let u fall smoothly from one, at the neighbour of rank (1 − taper) m, to zero, at the last. The
    projection is then

        a = U (U (K_cc + Σ_c) U + v (I − U²))⁻¹ U k_c,     U = diag(u), v = k(x, x),

    which is kriging with the noise of a neighbour raised by v (1/u² − 1), to infinity at the edge (Rivoirard and
    Romary, 2011).

    Query points are sharded over the devices of a `mesh`. Each device has all of X and of the weights, because any row
    may be a neighbour.
    """

    kernel: Kernel
    X: Float[Array, "N d"]
    noise: Float[Array, "N"]
    index: Neighbours
    """Neighbour search in the coordinates of the kernel."""
    neighbours: int = eqx.field(static=True)
    """The number m of neighbours."""
    taper: float = eqx.field(static=True)
    """Share of the neighbours that are faded out."""
    mesh: Mesh | None = eqx.field(static=True, default=None)

    @property
    def is_sharded(self) -> bool:
        """True if there is a mesh."""
        return self.mesh is not None

    @property
    def num(self) -> int:
        """The number N of rows of the data."""
        return self.X.shape[0]

    @property
    def inputs(self) -> int:
        """The number of inputs of a point."""
        return self.X.shape[1]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return the dense matrix of features, nearly all of which are zero."""
        a, c = self.coefficients(X)
        features = jnp.zeros((X.shape[0], self.X.shape[0]), a.dtype)
        return jax.vmap(lambda row, i, values: row.at[i].add(values))(features, c, a)

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "N s"]) -> Float[Array, "n s"]:
        """Return a(x)ᵀ r_c at every row x of X, for the residual columns r in `weights`."""
        return self.correct(X, StoredResidual(weights))

    def each(self, X: Float[Array, "n d"], weights: Float[Array, "n N"]) -> Float[Array, "n"]:
        """Return a(xᵢ)ᵀ r_c, where each point has its own residual, a row of `weights`."""
        a, c = self.coefficients(X)
        return jnp.sum(a * jnp.take_along_axis(weights, c, axis=1), axis=1)

    def correct(self, X: Float[Array, "n d"], residual: "Residual") -> Float[Array, "n s"]:
        """Return a(x)ᵀ r_c at every row x of X."""

        def at(X: Float[Array, "t d"], of: Projection, residual: Residual) -> Float[Array, "t s"]:
            return map_rows(lambda x: _weighted_sum(*of.coefficients(x), of, residual), X, QUERIES)

        return map_over_devices(self.mesh, at, (X,), (self, residual))

    def correct_with_variance(
        self,
        X: Float[Array, "n d"],
        residual: "Residual | None",
        observed: tuple[Float[Array, "N s"], ...],
    ) -> tuple[Float[Array, "n s"] | float, Float[Array, "n s"], Float[Array, "n"]]:
        """Return a(x)ᵀr_c, the local predictions a(x)ᵀb_c from observations b, and the variance of the errors of these.

        The observations b = f(X) + ε are the sum of the arrays in `observed`. The error of predicting f(x) by a(x)ᵀb_c
        has the variance k(x, x) − 2 aᵀk_c + aᵀ(K_cc + Σ_c)a. It is set to 0 where rounding dominates it. The first
        result is 0 if `residual` is None.
        """

        def at(
            X: Float[Array, "t d"],
            of: Projection,
            residual: Residual | None,
            observed: tuple[Float[Array, "N s"], ...],
        ) -> Float[Array, "t u"]:
            def some(x: Float[Array, "q d"]) -> Float[Array, "q u"]:
                a, variance, c = of._projected(x)
                added = [] if residual is None else [_weighted_sum(a, c, of, residual)]
                b = functools.reduce(jnp.add, [part[c] for part in observed])
                return jnp.concatenate([*added, jnp.einsum("nm,nms->ns", a, b), variance[:, None]], axis=1)

            return map_rows(some, X, QUERIES)

        values, s = map_over_devices(self.mesh, at, (X,), (self, residual, observed)), observed[0].shape[1]
        return 0.0 if residual is None else values[:, :s], values[:, -s - 1 : -1], values[:, -1]

    def coefficients(self, X: Float[Array, "n d"]) -> tuple[Float[Array, "n m"], Int[Array, "n m"]]:
        """Return a(x) and the indices of the rows c."""
        a, _, c = self._projected(X)
        return a, c

    def _projected(self, X: Float[Array, "n d"]) -> tuple[Float[Array, "n m"], Float[Array, "n"], Int[Array, "n m"]]:
        """Return a(x), the variance of the error of local predictions, and the indices of c."""
        # The choice of neighbours is piecewise constant in x and has no derivative.
        c = self.index.nearest(self.kernel.coordinates(jax.lax.stop_gradient(X)), self.neighbours)
        return *jax.vmap(self._projected_at)(X, self.X[c], self.noise[c]), c

    def _projected_at(
        self, x: Float[Array, "d"], X_c: Float[Array, "m d"], noise: Float[Array, "m"]
    ) -> tuple[Float[Array, "m"], Float[Array, ""]]:
        K, k = self.kernel(X_c, X_c), self.kernel(X_c, x[None])[:, 0]
        u = self._fade(self.kernel.coordinates(X_c) - self.kernel.coordinates(x[None]))
        v = self.kernel.diag(x[None])[0]
        # With less noise, H might not be positive definite.
        diagonal = u**2 * jnp.maximum(noise, least_noise(K)) + (1 - u**2) * v
        H = u[:, None] * K * u[None, :] + jnp.diag(diagonal)
        a = u * definite_solve(H, u * k)
        variance = v - 2 * a @ k + a @ (K @ a) + jnp.sum(a**2 * noise)
        # The terms of the variance cancel, so that a result below their rounding means nothing.
        rounding = 10 * jnp.finfo(K.dtype).eps * (v + 2 * jnp.abs(a) @ jnp.abs(k))
        return a, jnp.where(variance > 10 * rounding, variance, 0)

    def _fade(self, difference: Float[Array, "m e"]) -> Float[Array, "m"]:
        """Return u: one for the nearest, zero for the last, continuous in x because sorted distances are."""
        m = difference.shape[0]
        if self.taper == 0 or m in (1, self.X.shape[0]):  # with all rows as neighbours, none comes or goes
            return jnp.ones(m, difference.dtype)
        return fade(jnp.sum(difference**2, axis=1), self.taper)


class Residual(eqx.Module):
    """Abstract base class of the residual columns r = b − (K + Σ)W at the rows of the data."""

    columns: ClassVar[tuple[str, ...]]
    """Names of the arrays that have one column per right-hand side."""

    @abstractmethod
    def at(self, projection: Projection, c: Int[Array, "n m"]) -> Float[Array, "n m s"]:
        """Return the residual at the rows c of the data of `projection`."""

    @abstractmethod
    def function(self, projection: Projection) -> Function:
        """Return the local correction, x ↦ a(x)ᵀ r_c."""

    def map_columns(self, f: Callable[..., Float[Array, "_ t"]], *others: "Residual") -> "Residual":
        """Return the residual with f applied to each array of columns and those of `others`; f must be linear."""
        arrays = {name: f(*(getattr(r, name) for r in (self, *others))) for name in self.columns}
        return dataclasses.replace(self, **arrays)


class StoredResidual(Residual):
    """A residual that is stored for every row."""

    columns: ClassVar[tuple[str, ...]] = ("values",)
    values: Float[Array, "N s"]

    def at(self, projection: Projection, c: Int[Array, "n m"]) -> Float[Array, "n m s"]:
        """Return the stored values."""
        return self.values[c]

    def function(self, projection: Projection) -> Function:
        """Return the function with the features of the projection."""
        return Function(projection, self.values)


class ComputedResidual(Residual):
    """A residual r = known − k(X, points)W whose product with k is computed at the rows that a prediction needs.

    It is for weights of a subset of many rows, where the product at all rows would take too long.
    """

    columns: ClassVar[tuple[str, ...]] = ("known", "weights")
    known: Float[Array, "N s"]
    """b − ΣW"""
    points: Float[Array, "M d"]
    weights: Float[Array, "M s"]

    def at(self, projection: Projection, c: Int[Array, "n m"]) -> Float[Array, "n m s"]:
        """Return the residual, with k(X_c, points)W computed in tiles."""
        update = Canonical(projection.kernel, self.points)
        fitted = map_rows(lambda x: update.apply(x, self.weights), projection.X[c].reshape(-1, projection.inputs))
        return self.known[c] - fitted.reshape(*c.shape, -1)

    def function(self, projection: Projection) -> Function:
        """Return the function with features for the known part and for the points."""
        features = ProjectionOfUpdate(projection, self.points)
        return Function(features, jnp.concatenate([self.known, self.weights]))


class ProjectionOfUpdate(Features):
    """Features a(x) at the rows of the data, and −a(x)ᵀ k(X_c, points) at other points: those of `ComputedResidual`."""

    projection: Projection
    points: Float[Array, "M d"]

    @property
    def is_sharded(self) -> bool:
        """True if there is a mesh."""
        return self.projection.is_sharded

    @property
    def num(self) -> int:
        """The number of rows of the data and of points."""
        return self.projection.num + self.points.shape[0]

    @property
    def inputs(self) -> int:
        """The number of inputs of a point."""
        return self.projection.inputs

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n m"]:
        """Return the dense matrix of features."""
        a = self.projection(X)
        return jnp.concatenate([a, -a @ self.projection.kernel(self.projection.X, self.points)], axis=1)

    def apply(self, X: Float[Array, "n d"], weights: Float[Array, "m s"]) -> Float[Array, "n s"]:
        """Return a(x)ᵀ r_c at every row x of X."""
        known, W = jnp.split(weights, [self.projection.num])
        return self.projection.correct(X, ComputedResidual(known, self.points, W))

    def each(self, X: Float[Array, "n d"], weights: Float[Array, "n m"]) -> Float[Array, "n"]:
        """Return a(xᵢ)ᵀ r_c, where each point has its own columns, a row of `weights`."""
        a, c = self.projection.coefficients(X)
        known, W = jnp.split(weights, [self.projection.num], axis=1)
        update = Canonical(self.projection.kernel, self.points)
        fitted = jax.lax.map(lambda at: update.apply(self.projection.X[at[0]], at[1][:, None])[:, 0], (c, W))
        return jnp.sum(a * (jnp.take_along_axis(known, c, axis=1) - fitted), axis=1)


def _weighted_sum(
    a: Float[Array, "n m"], c: Int[Array, "n m"], projection: Projection, residual: Residual
) -> Float[Array, "n s"]:
    return jnp.einsum("nm,nms->ns", a, residual.at(projection, c))


def fade(r2: Float[Array, "m"], taper: float) -> Float[Array, "m"]:
    """Return 1 up to rank (1 − taper) m of the sorted squared distances, then a smooth decrease to 0 at the last."""
    inner, edge = r2[int((1 - taper) * (r2.shape[0] - 1))], r2[-1]
    width = edge - inner + 1e-3 * edge  # positive even if many neighbours are equally far away
    t = jnp.where(edge > 0, jnp.clip((edge - r2) / jnp.where(edge > 0, width, 1), 0, 1), 1)
    return t**2 * (3 - 2 * t)


class Local(eqx.Module):
    """Local correction: one more block projection at each point where the posterior is evaluated.

    It is an argument of `condition`. A stochastic solver resolves the directions of large eigenvalues of K, which are
    long-range and smooth, in its first passes over the data. The remaining error is short-range and depends only on the
    neighbourhood of a point. A solve on the nearest rows of the data corrects it there.

    Parameters
    ----------
    neighbours
        Number of nearest rows of the data that are used at each point.
    taper
        Share of these neighbours, the last ones, that are faded out so that samples are continuous.
    """

    neighbours: int = 128
    taper: float = 0.25

    def __check_init__(self) -> None:
        checks.require_at_least(self.neighbours, 1, "Local.neighbours")
        if not 0 <= self.taper < 1:
            raise ValueError(f"Local.taper must be at least 0 and below 1, but it is {self.taper}.")

    def projection(
        self,
        system: System,
        search: Callable[[Float[Array, "N e"]], Neighbours] = build_index,
    ) -> Projection:
        """Return the features of the correction for `system`.

        `search` builds the index of neighbours from the kernel's coordinates of the rows.
        """
        X, noise = system.replicate(system.X), system.replicate(system.noise_diagonal)
        index = replicate(system.mesh, search(system.kernel.coordinates(X)))
        neighbours = min(self.neighbours, system.size)
        return Projection(system.kernel, X, noise, index, neighbours, self.taper, mesh=system.mesh)
