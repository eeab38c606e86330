"""The linear system (K + Σ) W = B: the only place that knows tiles, devices and precision."""

import logging
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from pathgp.functions import Function
from pathgp.kernels import Kernel
from pathgp.linalg.precision import in_own_precision
from pathgp.linalg.tiles import TILE, map_rows, product_of_rows, split_product, tiled_product
from pathgp.parallel import sharding
from pathgp.parallel.sharding import Tree, over_rows, own

logger = logging.getLogger("pathgp")


class Targets(eqx.Module):
    """The right-hand sides b = signal + noise, one column each.

    Signal and noise are kept apart because the low-variance objective of the paper moves the noise into the
    regulariser. A column without noise asks for a mean; a sample has signal f(X) and noise ε.

    Columns that ask for a mean come first. `draws` are the prior functions f of the others, for the solvers that need
    their values elsewhere than at the data.
    """

    signal: Float[Array, "N s"]
    noise: Float[Array, "N s"]
    draws: Function | None = None

    @property
    @in_own_precision
    def total(self) -> Float[Array, "N s"]:
        """b = signal + noise."""
        return self.signal + self.noise

    @property
    @in_own_precision
    def norms(self) -> Float[Array, "s"]:
        """‖b‖ of each column, one where a column is zero, to divide residuals by."""
        norms = jnp.linalg.norm(self.total, axis=0)
        return jnp.where(norms > 0, norms, 1)

    @property
    def num_means(self) -> int:
        """The number of columns that ask for a mean."""
        return self.signal.shape[1] - (0 if self.draws is None else self.draws.weights.shape[1])

    def draws_at(self, Z: Float[Array, "M d"]) -> Float[Array, "M t"]:
        """f(Z) of every column that is a sample."""
        if bool(jnp.any(self.noise[:, : self.num_means] != 0)):
            raise ValueError(
                "the targets have samples whose prior functions are not known, and this solver needs their values at "
                "its points: give the functions as Targets(signal, noise, draws), as `condition` does."
            )
        return jnp.zeros((Z.shape[0], 0), Z.dtype) if self.draws is None else self.draws(Z)

    def each(self, f: Callable[[Float[Array, "N s"]], Float[Array, "M s"]]) -> "Targets":
        """The right-hand sides with f of the signal and of the noise."""
        return Targets(f(self.signal), f(self.noise), self.draws)

    def beside(self, right: "Targets") -> "Targets":
        """The columns of `right`, all of them samples, after these."""
        draws = right.draws
        if self.draws is not None and right.draws is not None:
            weights = jnp.concatenate([self.draws.weights, right.draws.weights], axis=1)
            draws = Function(self.draws.features, weights)
        signal = jnp.concatenate([self.signal, right.signal], axis=1)
        return Targets(signal, jnp.concatenate([self.noise, right.noise], axis=1), draws)

    def above(self, below: "Targets") -> "Targets":
        """The same columns with the rows of `below` after these."""
        signal = jnp.concatenate([self.signal, below.signal])
        return Targets(signal, jnp.concatenate([self.noise, below.noise]), self.draws)


class System(eqx.Module):
    """H = K + Σ, where K = k(X, X) and Σ is diagonal: one noise variance, or one for each row.

    Its rows, and those of all that has as many, may be split over the devices of a `mesh`: see `split`. There are then
    up to as many rows of padding at the end as there are devices; every column is zero there, and stays so.

    >>> import jax.numpy as jnp
    >>> from pathgp.kernels import RBF
    >>> system = System(RBF(), jnp.zeros((3, 1)), jnp.array(0.5))
    >>> print((system @ jnp.ones((3, 1)))[:, 0])
    [3.5 3.5 3.5]
    """

    kernel: Kernel
    X: Float[Array, "N d"]
    noise: Float[Array, "..."]
    tile: tuple[int, int] = eqx.field(static=True, default=TILE)
    K: Float[Array, "N N"] | None = None
    """The kernel matrix, where it is kept instead of being computed for every product."""
    mesh: Mesh | None = eqx.field(static=True, default=None)
    real_rows: int | None = eqx.field(static=True, default=None)
    """The number of rows before the padding; None where there is none."""

    def split(self, mesh: Mesh | None) -> "System":
        """The same system with its rows split over the devices of a mesh; itself where there is none."""
        if mesh is None:
            return self
        mesh = sharding.checked(mesh)
        noise = self.noise if self.noise.ndim == 0 else sharding.placed(mesh, self.noise, mode="edge")
        X = sharding.placed(mesh, self.X, mode="edge")
        return System(self.kernel, X, noise, self.tile, mesh=mesh, real_rows=self.size)

    def gathered(self) -> "System":
        """The same system on one device, without padding."""
        if self.mesh is None:
            return self
        X, noise = (self.collected(x) if x.ndim else x for x in (self.X, self.noise))
        return System(self.kernel, X, noise, self.tile)

    def placed(self, columns: Shaped[Array, "N ..."]) -> Shaped[Array, "P ..."]:
        """Columns with an entry for each of the N rows, padded with zeros and split as the rows are."""
        return sharding.placed(self.mesh, columns)

    def collected(self, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "N ..."]:
        """Columns that are split as the rows are, on one device and without padding."""
        return columns if self.mesh is None else sharding.gathered(columns)[: self.size]

    def everywhere(self, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "N ..."]:
        """Columns that are split as the rows are, whole on every device and without padding."""
        if self.mesh is None:
            return columns
        return _everywhere(self, columns)

    def constrained(self, tree: Tree) -> Tree:
        """The same values: what has as many rows as the system is where they are, also in the midst of a program."""
        return sharding.constrained(self.mesh, tree, self.X.shape[0])

    def kept(self, max_bytes: int) -> "System":
        """The same system with K kept, if it takes at most `max_bytes`; says so in the log."""
        need = self.size**2 * self.X.dtype.itemsize
        if need > max_bytes:
            return self
        if self.mesh is not None:
            raise ValueError("K cannot be kept where rows are split over devices: leave keep_bytes out, or mesh.")
        logger.info("System keeps K: %.2f GB of the %.2f GB that it may take.", need / 1e9, max_bytes / 1e9)
        return System(self.kernel, self.X, self.noise, self.tile, _matrix(self.kernel, self.X, self.tile[0]))

    @property
    def size(self) -> int:
        """The number N of rows, without padding."""
        return self.X.shape[0] if self.real_rows is None else self.real_rows

    def without_padding(self, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "P ..."]:
        """The columns with zeros in the rows of padding."""
        if self.X.shape[0] == self.size:
            return columns
        is_real = jnp.arange(self.X.shape[0]) < self.size
        return jnp.where(is_real.reshape(-1, *[1] * (columns.ndim - 1)), columns, 0)

    @property
    def noise_diagonal(self) -> Float[Array, "N"]:
        """The noise variance of each row."""
        return jnp.broadcast_to(self.noise, (self.X.shape[0],))

    @property
    def precision(self) -> Float[Array, "N"]:
        """One over the noise variance of each row, zero for padding."""
        return self.without_padding(1 / self.noise_diagonal)

    @property
    def mean_noise(self) -> Float[Array, ""]:
        """The noise variance averaged over the rows."""
        if self.noise.ndim == 0 or self.mesh is None:
            return jnp.mean(self.noise)
        return jnp.sum(self.without_padding(self.noise)) / self.size

    def __matmul__(self, V: Float[Array, "N s"]) -> Float[Array, "N s"]:
        """H V, in tiles."""
        return _product(self, V)

    def onto(self, points: Float[Array, "n d"], V: Float[Array, "N s"]) -> Float[Array, "n s"]:
        """k(points, X) V, reduced once over the devices."""
        return split_product(self.mesh, self.kernel, points, self.X, V, self.tile)

    def of(self, points: Float[Array, "n d"], V: Float[Array, "n s"]) -> Float[Array, "N s"]:
        """k(X, points) V, each row computed where it is."""
        return self.without_padding(product_of_rows(self.mesh, self.kernel, self.X, points, V, self.tile))

    def inputs(self, index: Int[Array, "b"]) -> Float[Array, "b d"]:
        """X_B, the inputs of the rows B."""
        return sharding.take(self.mesh, self.X, index)

    def columns(self, index: Int[Array, "b"], V: Float[Array, "b s"]) -> Float[Array, "N s"]:
        """K_{X,B} V for the columns B."""
        if self.K is not None:
            return self.K[index].T @ V
        return self.of(self.inputs(index), V)

    def block(self, index: Int[Array, "b"]) -> Float[Array, "b b"]:
        """The diagonal block H_BB."""
        X_B = self.inputs(index)
        return self.kernel(X_B, X_B) + jnp.diag(self.noise_diagonal[index])

    def residual_rows(self, index: Int[Array, "b"], targets: Targets, W: Float[Array, "N s"]) -> Float[Array, "b s"]:
        """(b − H W)_B for the rows B."""

        def residual(KW: Array, signal: Array, noise: Array, variance: Array, W: Array) -> Array:
            return signal + noise - (KW + variance[:, None] * W)

        return self._with_fitted(index, W, residual, (targets.signal, targets.noise, self.noise_diagonal, W))

    def misfit_rows(
        self, index: Int[Array, "b"], T: Float[Array, "N s"], W: Float[Array, "N s"]
    ) -> Float[Array, "b s"]:
        """(K W − T)_B for the rows B."""
        return self._with_fitted(index, W, lambda KW, T: KW - T, (T,))

    def _with_fitted(
        self,
        index: Int[Array, "b"],
        W: Float[Array, "N s"],
        f: Callable[..., Float[Array, "b s"]],
        columns: tuple[Array, ...],
    ) -> Float[Array, "b s"]:
        """f((K W)_B, *columns_B) for a linear f: one reduction, of what each device has of all."""
        if self.K is not None:
            return f(self.K[index] @ W, *(x[index] for x in columns))

        def local(X: Array, W: Array, columns: tuple[Array, ...], kernel: Kernel, X_B: Array, index: Array) -> Array:
            return f(tiled_product(kernel, X_B, X, W, self.tile), *(own(self.mesh, x, index) for x in columns))

        whole = self.kernel, self.inputs(index), index
        return over_rows(self.mesh, local, (self.X, W, columns), whole, total=True)

    def noise_draws(self, key: PRNGKeyArray, num: int) -> Float[Array, "N s"]:
        """`num` columns of noise ε ~ N(0, Σ)."""
        if self.mesh is None:
            return jnp.sqrt(self.noise_diagonal)[:, None] * jax.random.normal(key, (self.size, num))
        return _noise_draws(self, key, num)

    def values(self, f: Function) -> Float[Array, "N s"]:
        """f(X), each row computed where it is."""
        return f(self.X) if self.mesh is None else _values(self, f)


@jax.jit
def _product(system: System, V: Float[Array, "N s"]) -> Float[Array, "N s"]:
    if system.K is not None:
        return system.K @ V + system.noise_diagonal[:, None] * V

    def local(X: Array, V: Array, kernel: Kernel) -> Array:
        return sharding.visiting(system.mesh, lambda Z, V: tiled_product(kernel, X, Z, V, system.tile), (X, V))

    KV = over_rows(system.mesh, local, (system.X, V), (system.kernel,), total=False)
    return system.without_padding(KV) + system.noise_diagonal[:, None] * V


@eqx.filter_jit
def _noise_draws(system: System, key: PRNGKeyArray, num: int) -> Float[Array, "N s"]:
    normal = jax.random.normal(key, (system.size, num))
    return sharding.placed(system.mesh, jnp.sqrt(system.noise_diagonal[: system.size])[:, None] * normal)


@eqx.filter_jit
def _values(system: System, f: Function) -> Float[Array, "N s"]:
    local = lambda X, f: map_rows(lambda tile: f.features.apply(tile, f.weights), X)
    return system.without_padding(over_rows(system.mesh, local, (system.X,), (f,), total=False))


@eqx.filter_jit
def _everywhere(system: System, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "N ..."]:
    return sharding.everywhere(system.mesh, columns)[: system.size]


@partial(jax.jit, static_argnames="rows")
def _matrix(kernel: Kernel, X: Float[Array, "N d"], rows: int) -> Float[Array, "N N"]:
    """K, written in place a tile of rows at a time: there is never a second matrix of its size."""
    N = X.shape[0]
    rows = min(rows, N)

    def write(i: Array, K: Float[Array, "N N"]) -> Float[Array, "N N"]:
        start = jnp.minimum(i * rows, N - rows)
        tile = jax.lax.dynamic_slice_in_dim(X, start, rows)
        return jax.lax.dynamic_update_slice_in_dim(K, kernel(tile, X), start, 0)

    return jax.lax.fori_loop(0, -(-N // rows), write, jnp.zeros((N, N), X.dtype))
