"""The linear system (K + Σ) W = B, whose products are computed in tiles and over devices."""

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
from pathgp.linalg.tiles import TILE, column_sharded_product, map_rows, row_sharded_product, tiled_product
from pathgp.parallel import sharding
from pathgp.parallel.sharding import Tree, local_gather, shard_map_rows

logger = logging.getLogger("pathgp")


class Targets(eqx.Module):
    """The right-hand sides b = signal + noise of the linear system, one per column.

    Signal and noise are kept apart because the low-variance objective of the paper moves the noise into the
    regulariser. A column without noise gives a posterior mean; a posterior sample has signal f(X) and noise ε. Columns
    of means come first.

    Parameters
    ----------
    signal
        The signal of each column.
    noise
        The noise of each column, zero for a mean.
    draws
        The prior functions f of the samples, for solvers that need their values at points other than the data.
    """

    signal: Float[Array, "N s"]
    noise: Float[Array, "N s"]
    draws: Function | None = None

    @property
    @in_own_precision
    def total(self) -> Float[Array, "N s"]:
        """The right-hand sides b = signal + noise."""
        return self.signal + self.noise

    @property
    @in_own_precision
    def norms(self) -> Float[Array, "s"]:
        """‖b‖ of each column, or 1 for a zero column, as the divisor of relative residuals."""
        norms = jnp.linalg.norm(self.total, axis=0)
        return jnp.where(norms > 0, norms, 1)

    @property
    def num_means(self) -> int:
        """The number of columns that give a posterior mean."""
        return self.signal.shape[1] - (0 if self.draws is None else self.draws.weights.shape[1])

    def draws_at(self, Z: Float[Array, "M d"]) -> Float[Array, "M t"]:
        """Return f(Z) for every column that is a sample; raise `ValueError` if the functions f are not known."""
        if bool(jnp.any(self.noise[:, : self.num_means] != 0)):
            raise ValueError(
                "Targets.draws is None, but this solver evaluates the prior functions of the samples at its points: "
                "give them as Targets(signal, noise, draws), as `condition` does."
            )
        return jnp.zeros((Z.shape[0], 0), Z.dtype) if self.draws is None else self.draws(Z)

    def map_columns(self, f: Callable[[Float[Array, "N s"]], Float[Array, "M s"]]) -> "Targets":
        """Return the targets with f applied to the signal and to the noise."""
        return Targets(f(self.signal), f(self.noise), self.draws)

    def append_columns(self, right: "Targets") -> "Targets":
        """Return these columns followed by those of `right`, which must all be samples."""
        draws = right.draws
        if self.draws is not None and right.draws is not None:
            weights = jnp.concatenate([self.draws.weights, right.draws.weights], axis=1)
            draws = Function(self.draws.features, weights)
        signal = jnp.concatenate([self.signal, right.signal], axis=1)
        return Targets(signal, jnp.concatenate([self.noise, right.noise], axis=1), draws)

    def append_rows(self, below: "Targets") -> "Targets":
        """Return the same columns with the rows of `below` appended."""
        signal = jnp.concatenate([self.signal, below.signal])
        return Targets(signal, jnp.concatenate([self.noise, below.noise]), self.draws)


class System(eqx.Module):
    """The matrix H = K + Σ, where K = k(X, X) and Σ is the diagonal matrix of noise variances.

    The rows of X, and of every column of N entries, can be sharded over the devices of a mesh; see `split`. X is then
    padded at the end, by fewer rows than there are devices. Every column is zero there, and stays zero.

    Parameters
    ----------
    kernel
        The kernel k.
    X
        The inputs, one row per observation.
    noise
        The noise variance: one number, or one per row.
    tile
        The rows and columns of a tile of K in products.
    K
        The kernel matrix, if it is stored instead of being computed for every product; see `kept`.
    mesh
        The mesh over whose devices the rows are sharded.
    real_rows
        The number of rows before the padding; None without padding.

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
    mesh: Mesh | None = eqx.field(static=True, default=None)
    real_rows: int | None = eqx.field(static=True, default=None)

    def shard(self, mesh: Mesh | None) -> "System":
        """Return the system with its rows sharded over the devices of a mesh, or unchanged if `mesh` is None."""
        if mesh is None:
            return self
        mesh = sharding.require_one_axis(mesh)
        noise = self.noise if self.noise.ndim == 0 else sharding.shard_rows(mesh, self.noise, mode="edge")
        X = sharding.shard_rows(mesh, self.X, mode="edge")
        return System(self.kernel, X, noise, self.tile, mesh=mesh, real_rows=self.size)

    def gathered(self) -> "System":
        """Return the system on one device, without padding."""
        if self.mesh is None:
            return self
        X, noise = (self.gather_rows(x) if x.ndim else x for x in (self.X, self.noise))
        return System(self.kernel, X, noise, self.tile)

    def shard_rows(self, columns: Shaped[Array, "N ..."]) -> Shaped[Array, "P ..."]:
        """Return columns of N entries padded with zeros and sharded as the rows are."""
        return sharding.shard_rows(self.mesh, columns)

    def gather_rows(self, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "N ..."]:
        """Return sharded columns on one device, without padding."""
        return columns if self.mesh is None else sharding.gathered(columns)[: self.size]

    def replicate(self, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "N ..."]:
        """Return sharded columns replicated on every device, without padding."""
        if self.mesh is None:
            return columns
        return _everywhere(self, columns)

    def constrain_sharding(self, tree: Tree) -> Tree:
        """Return the pytree with its columns sharded as the rows are, also inside a compiled program."""
        return sharding.constrain_sharding(self.mesh, tree, self.X.shape[0])

    def with_stored_kernel(self, max_bytes: int) -> "System":
        """Return the system with K stored if that takes at most `max_bytes`, and log it; otherwise unchanged.

        Raises
        ------
        ValueError
            If K would fit but the rows are sharded over devices.
        """
        need = self.size**2 * self.X.dtype.itemsize
        if need > max_bytes:
            return self
        if self.mesh is not None:
            raise ValueError("K cannot be kept where rows are sharded over devices: omit keep_bytes or mesh.")
        logger.info("System keeps K: %.2f GB, of at most %.2f GB.", need / 1e9, max_bytes / 1e9)
        return System(self.kernel, self.X, self.noise, self.tile, _matrix(self.kernel, self.X, self.tile[0]))

    @property
    def size(self) -> int:
        """The number N of rows, without padding."""
        return self.X.shape[0] if self.real_rows is None else self.real_rows

    def without_padding(self, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "P ..."]:
        """Return the columns with zeros in the rows of padding."""
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
        """The inverse noise variance of each row, zero in the padding."""
        return self.without_padding(1 / self.noise_diagonal)

    @property
    def mean_noise(self) -> Float[Array, ""]:
        """The mean of the noise variance over the rows."""
        if self.noise.ndim == 0 or self.mesh is None:
            return jnp.mean(self.noise)
        return jnp.sum(self.without_padding(self.noise)) / self.size

    def __matmul__(self, V: Float[Array, "N s"]) -> Float[Array, "N s"]:
        """Return H V, computed in tiles."""
        return _product(self, V)

    def onto(self, points: Float[Array, "n d"], V: Float[Array, "N s"]) -> Float[Array, "n s"]:
        """Return k(points, X) V, with one reduction over the devices."""
        return column_sharded_product(self.mesh, self.kernel, points, self.X, V, self.tile)

    def of(self, points: Float[Array, "n d"], V: Float[Array, "n s"]) -> Float[Array, "N s"]:
        """Return k(X, points) V, with each row computed on its own device."""
        return self.without_padding(row_sharded_product(self.mesh, self.kernel, self.X, points, V, self.tile))

    def inputs(self, index: Int[Array, "b"]) -> Float[Array, "b d"]:
        """Return X_B, the inputs of the rows B."""
        return sharding.gather_rows(self.mesh, self.X, index)

    def columns(self, index: Int[Array, "b"], V: Float[Array, "b s"]) -> Float[Array, "N s"]:
        """Return K_{X,B} V for the columns B."""
        if self.K is not None:
            return self.K[index].T @ V  # K is symmetric, and its rows are contiguous
        return self.of(self.inputs(index), V)

    def block(self, index: Int[Array, "b"]) -> Float[Array, "b b"]:
        """Return the diagonal block H_BB."""
        X_B = self.inputs(index)
        return self.kernel(X_B, X_B) + jnp.diag(self.noise_diagonal[index])

    def residual_rows(self, index: Int[Array, "b"], targets: Targets, W: Float[Array, "N s"]) -> Float[Array, "b s"]:
        """Return (b − H W)_B for the rows B."""

        def residual(KW: Array, signal: Array, noise: Array, variance: Array, W: Array) -> Array:
            return signal + noise - (KW + variance[:, None] * W)

        return self._with_fitted(index, W, residual, (targets.signal, targets.noise, self.noise_diagonal, W))

    def misfit_rows(
        self, index: Int[Array, "b"], T: Float[Array, "N s"], W: Float[Array, "N s"]
    ) -> Float[Array, "b s"]:
        """Return (K W − T)_B for the rows B."""
        return self._with_fitted(index, W, lambda KW, T: KW - T, (T,))

    def _with_fitted(
        self,
        index: Int[Array, "b"],
        W: Float[Array, "N s"],
        f: Callable[..., Float[Array, "b s"]],
        columns: tuple[Array, ...],
    ) -> Float[Array, "b s"]:
        """Return f((K W)_B, *columns_B) for a linear f, with one reduction over the devices."""
        if self.K is not None:
            return f(self.K[index] @ W, *(x[index] for x in columns))

        # f is linear, so it can be applied to the terms of each device before they are summed.
        def local(X: Array, W: Array, columns: tuple[Array, ...], kernel: Kernel, X_B: Array, index: Array) -> Array:
            return f(tiled_product(kernel, X_B, X, W, self.tile), *(local_gather(self.mesh, x, index) for x in columns))

        whole = self.kernel, self.inputs(index), index
        return shard_map_rows(self.mesh, local, (self.X, W, columns), whole, total=True)

    def noise_draws(self, key: PRNGKeyArray, num: int) -> Float[Array, "N s"]:
        """Draw `num` columns of noise ε ~ N(0, Σ)."""
        if self.mesh is None:
            return jnp.sqrt(self.noise_diagonal)[:, None] * jax.random.normal(key, (self.size, num))
        return _noise_draws(self, key, num)

    def values(self, f: Function) -> Float[Array, "N s"]:
        """Return f(X), with each row computed on its own device."""
        return f(self.X) if self.mesh is None else _values(self, f)


@jax.jit
def _product(system: System, V: Float[Array, "N s"]) -> Float[Array, "N s"]:
    if system.K is not None:
        return system.K @ V + system.noise_diagonal[:, None] * V

    # Each device keeps its rows of the result; the rows of X and V pass through all devices.
    def local(X: Array, V: Array, kernel: Kernel) -> Array:
        return sharding.ring_sum(system.mesh, lambda Z, V: tiled_product(kernel, X, Z, V, system.tile), (X, V))

    KV = shard_map_rows(system.mesh, local, (system.X, V), (system.kernel,), total=False)
    return system.without_padding(KV) + system.noise_diagonal[:, None] * V


@eqx.filter_jit
def _noise_draws(system: System, key: PRNGKeyArray, num: int) -> Float[Array, "N s"]:
    # Drawn for the rows without padding, so that the draws do not depend on the number of devices.
    normal = jax.random.normal(key, (system.size, num))
    return sharding.shard_rows(system.mesh, jnp.sqrt(system.noise_diagonal[: system.size])[:, None] * normal)


@eqx.filter_jit
def _values(system: System, f: Function) -> Float[Array, "N s"]:
    local = lambda X, f: map_rows(lambda tile: f.features.apply(tile, f.weights), X)
    return system.without_padding(shard_map_rows(system.mesh, local, (system.X,), (f,), total=False))


@eqx.filter_jit
def _everywhere(system: System, columns: Shaped[Array, "P ..."]) -> Shaped[Array, "N ..."]:
    return sharding.replicate(system.mesh, columns)[: system.size]


@partial(jax.jit, static_argnames="rows")
def _matrix(kernel: Kernel, X: Float[Array, "N d"], rows: int) -> Float[Array, "N N"]:
    """Return K, written in place by tiles of rows, so that no second matrix of its size is allocated."""
    N = X.shape[0]
    rows = min(rows, N)

    def write(i: Array, K: Float[Array, "N N"]) -> Float[Array, "N N"]:
        start = jnp.minimum(i * rows, N - rows)  # the last tile overlaps the one before
        tile = jax.lax.dynamic_slice_in_dim(X, start, rows)
        return jax.lax.dynamic_update_slice_in_dim(K, kernel(tile, X), start, 0)

    return jax.lax.fori_loop(0, -(-N // rows), write, jnp.zeros((N, N), X.dtype))
