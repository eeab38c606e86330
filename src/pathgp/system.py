"""The linear system (K + Σ) W = B: the only place that knows tiles and precision."""

import logging
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from pathgp.functions import Function
from pathgp.kernels import Kernel
from pathgp.tiles import TILE, tiled_product

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
    def total(self) -> Float[Array, "N s"]:
        """b = signal + noise."""
        return self.signal + self.noise

    @property
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

    def rows(self, index: Int[Array, "b"]) -> "Targets":
        """The right-hand sides at some of the rows."""
        return Targets(self.signal[index], self.noise[index], self.draws)

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

    def kept(self, max_bytes: int) -> "System":
        """The same system with K kept, if it takes at most `max_bytes`; says so in the log."""
        need = self.size**2 * self.X.dtype.itemsize
        if need > max_bytes:
            return self
        logger.info("System keeps K: %.2f GB of the %.2f GB that it may take.", need / 1e9, max_bytes / 1e9)
        return System(self.kernel, self.X, self.noise, self.tile, _matrix(self.kernel, self.X, self.tile[0]))

    @property
    def size(self) -> int:
        """The number N of rows."""
        return self.X.shape[0]

    @property
    def noise_diagonal(self) -> Float[Array, "N"]:
        """The noise variance of each row."""
        return jnp.broadcast_to(self.noise, (self.size,))

    @property
    def mean_noise(self) -> Float[Array, ""]:
        """The noise variance averaged over the rows."""
        return jnp.mean(self.noise)

    def __matmul__(self, V: Float[Array, "N s"]) -> Float[Array, "N s"]:
        """H V, in tiles."""
        return _product(self, V)

    def rows(self, index: Int[Array, "b"], V: Float[Array, "N s"]) -> Float[Array, "b s"]:
        """(K V)_B for the rows B."""
        if self.K is not None:
            return self.K[index] @ V
        return tiled_product(self.kernel, self.X[index], self.X, V, self.tile)

    def columns(self, index: Int[Array, "b"], V: Float[Array, "b s"]) -> Float[Array, "N s"]:
        """K_{X,B} V for the columns B."""
        if self.K is not None:
            return self.K[index].T @ V
        return tiled_product(self.kernel, self.X, self.X[index], V, self.tile)

    def block(self, index: Int[Array, "b"]) -> Float[Array, "b b"]:
        """The diagonal block H_BB."""
        X_B = self.X[index]
        return self.kernel(X_B, X_B) + jnp.diag(self.noise_diagonal[index])

    def residual_rows(self, index: Int[Array, "b"], targets: Targets, W: Float[Array, "N s"]) -> Float[Array, "b s"]:
        """(b − H W)_B for the rows B."""
        fitted = self.rows(index, W) + self.noise_diagonal[index, None] * W[index]
        return targets.signal[index] + targets.noise[index] - fitted


@jax.jit
def _product(system: System, V: Float[Array, "N s"]) -> Float[Array, "N s"]:
    KV = tiled_product(system.kernel, system.X, system.X, V, system.tile) if system.K is None else system.K @ V
    return KV + system.noise_diagonal[:, None] * V


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


def wide(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float64[np.ndarray, "n m"]:
    """k(A, Z) in float64 on the host, whatever the precision of its arguments: for factorisations."""
    with jax.enable_x64(True):
        kernel, A, Z = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (kernel, A, Z))
        return np.array(_evaluated(kernel, A, Z))


@jax.jit
def _evaluated(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return kernel(A, Z)
