"""The nearest-neighbour likelihood: each row given its nearest earlier rows, in minibatches."""

import dataclasses
import logging
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from pathgp import _checks as checks
from pathgp.likelihood.base import FittingMethod, Trace
from pathgp.likelihood.descent import Record, decaying_adam, norm
from pathgp.likelihood.exact import Exact
from pathgp.likelihood.parameters import Parameters, kernel_variance, to_parameters, trainable_mask
from pathgp.likelihood.priors import Prior
from pathgp.linalg.distances import squared_distance
from pathgp.linalg.neighbours import Neighbours, build_index, smallest
from pathgp.linalg.precision import cast, working_in
from pathgp.linalg.small import definite_solve
from pathgp.linalg.threads import one_blas_thread
from pathgp.linalg.tiles import map_rows
from pathgp.parallel.sharding import broadcast_from_first, gathered, map_over_devices, require_one_axis
from pathgp.posterior.gp import GP, check_data
from pathgp.runs.checkpoint import Slot

logger = logging.getLogger("pathgp")

PREFIX_ROWS = 16_384
"""Up to this many rows, neighbours are found exhaustively among all earlier rows."""
POOL_ROWS = 4096
"""Rows of a pool."""
REFRESH = 50
"""Steps after which a new pool is drawn."""
LITTLE_NOISE = 1e-3
"""Noise as a share of the kernel's variance below which float32 does not resolve it in a factorisation."""
REFINED_NOISE = 1e-5
"""Noise as a share of the kernel's variance below which `NearestNeighbour.refinement` is used."""
REFINED_ROWS = 1500
"""Rows of a refinement."""
JUDGE_ROWS, JUDGE_NEIGHBOURS = 128, 512
"""Rows whose likelihood decides whether a refinement is accepted, and the number of neighbours of each."""


class NearestNeighbour(FittingMethod):
    """The nearest-neighbour likelihood (Vecchia, 1988), minimised by Adam on minibatches.

    With the rows in random order,

        −log p(y) ≈ Σᵢ −log p(yᵢ | its m nearest earlier rows).

    A batch of rows gives an unbiased estimate of the sum and of its gradient, at a cost that does not depend on N. Adam
    with a decaying rate runs in float32. It switches to float64 once the noise is below `LITTLE_NOISE` of the kernel's
    variance or a step is not finite.

    Distances are measured in the coordinates of the kernel, so neighbours are searched again as the length scales
    change. Up to `PREFIX_ROWS` rows, this is done for every batch. With more rows, a pool of `POOL_ROWS` rows is drawn
    every `REFRESH` steps, neighbours are found for its rows, and batches are drawn from it.

    The error of predicting a nearly noiseless function from its neighbours is far above the noise. Neighbours therefore
    contain little information about the noise, and far rows decide how wide intervals should be. If the noise falls
    below `REFINED_NOISE` of the kernel's variance, `refinement` follows on `REFINED_ROWS` random rows. Its result is
    kept if it raises the likelihood of other rows given their `JUDGE_NEIGHBOURS` nearest earlier ones.

    Parameters
    ----------
    steps
        Maximum number of steps of Adam.
    neighbours
        Number m of nearest earlier rows that a row is conditioned on.
    batch_size
        Rows per batch.
    learning_rate
        Learning rate of Adam at the first step.
    refinement
        Method that refines the fit of a nearly noiseless function; None disables it.
    max_seconds
        Time limit in seconds.
    mesh
        Devices as a mesh of one axis. The rows of every batch are sharded over them, and the gradient is reduced once.
        All data are replicated on every device, because any row may be a neighbour.
    """

    steps: int = 300
    neighbours: int = 64
    batch_size: int = 256
    learning_rate: float = 0.1
    refinement: Exact | None = Exact(steps=40, restarts=0)
    max_seconds: float = float("inf")
    mesh: Mesh | None = eqx.field(static=True, default=None, converter=require_one_axis)

    def __check_init__(self) -> None:
        for name in ("steps", "neighbours", "batch_size"):
            checks.require_at_least(getattr(self, name), 1, f"NearestNeighbour.{name}")

    def fit(
        self,
        gp: GP,
        X: Float[Array, "N d"],
        y: Float[Array, "N"],
        key: PRNGKeyArray,
        progress: bool,
        prior: Prior,
        saved: Slot | None = None,
    ) -> tuple[GP, Trace]:
        """Return the GP after `steps` steps, or fewer if the time limit is reached, and the trace.

        Steps that are not finite are left out. Raises `ValueError` if no step is finite.
        """
        order_key, key = jax.random.split(key)
        order = jax.random.permutation(order_key, X.shape[0])
        X, y = X[order], y[order]
        p = prior.projected(to_parameters(GP(gp.kernel, gp.noise if gp.noise.ndim == 0 else gp.noise[order], gp.mean)))
        state: Any = decaying_adam(self.learning_rate, self.steps).init(eqx.filter(p, trainable_mask(p)))
        pool, searched, dtype = None, p, X.dtype
        with Record(self.steps, self.max_seconds, progress, saved, mesh=self.mesh) as record, one_blas_thread():
            # Stored in float64, because the run to resume may have been in either precision.
            (p, state, searched, is_wide), first = record.resumed((*cast((p, state, searched), np.float64), False))
            dtype = np.dtype(np.float64) if is_wide else dtype
            p, state, searched = cast((p, state, searched), dtype)
            for step in range(first, self.steps):
                if record.out_of_time:
                    break
                if X.shape[0] > PREFIX_ROWS and (pool is None or step % REFRESH == 0):
                    refreshed = step - step % REFRESH
                    searched = p if step == refreshed else searched
                    pool_key = jax.random.split(jax.random.fold_in(key, refreshed))[1]
                    pool = draw_pool(
                        cast(gathered(searched).gp().kernel, X.dtype), X, self.neighbours, pool_key, POOL_ROWS
                    )
                batch_key = jax.random.split(jax.random.fold_in(key, step))[0]
                with working_in(dtype):
                    p, state, loss, gradient, noise = _step(self, p, state, X, y, pool, prior, batch_key)
                record.add(float(loss), float(gradient))
                if dtype == np.float32 and (float(noise) < LITTLE_NOISE or not np.isfinite(record.gradient[-1])):
                    dtype = np.dtype(np.float64)
                    p, state, searched = cast((p, state, searched), dtype)
                record.advance()
                record.save((*cast((p, state, searched), np.float64), dtype == np.float64), step + 1)
        found = cast(gathered(p).gp(), X.dtype)
        ended = record.interrupted or record.out_of_time
        if self.refinement is not None and _noise_share(found) < REFINED_NOISE and not ended:
            method = dataclasses.replace(self.refinement, max_seconds=record.seconds_left)
            with record:  # after Ctrl-C, the GP from before the refinement is kept
                found = broadcast_from_first(self.mesh, _refined(method, found, X, y, key, progress, prior))
        noise = found.noise if gp.noise.ndim == 0 else jnp.zeros_like(gp.noise).at[order].set(found.noise)
        record.left_out = int(state.total_notfinite)
        if record.loss and record.left_out == len(record.loss):
            raise ValueError(
                "no step of learning was finite: scale X to about one, remove rows that repeat others, or start from "
                "more noise."
            )
        if record.left_out:
            warnings.warn(
                f"{record.left_out} of {len(record.loss)} steps of hyperparameter fitting were not finite and were "
                "left out: scale X and y to about one, or start from more noise.",
                stacklevel=4,
            )
        return GP(found.kernel, noise, found.mean), record.trace()


def _noise_share(gp: GP) -> float:
    """Return the noise variance as a share of the kernel's."""
    return float(jnp.mean(gp.noise) / kernel_variance(gp.kernel))


def _refined(
    method: Exact,
    gp: GP,
    X: Float[Array, "N d"],
    y: Float[Array, "N"],
    key: PRNGKeyArray,
    progress: bool,
    prior: Prior,
) -> GP:
    """Return `gp`, or a better GP that `method` finds from it on the first rows, which are in random order."""
    some = slice(REFINED_ROWS)
    start = GP(gp.kernel, gp.noise if gp.noise.ndim == 0 else gp.noise[some], gp.mean)
    fit_key, judge_key = jax.random.split(jax.random.fold_in(key, REFINED_ROWS))
    try:
        found, trace = method.fit(start, X[some], y[some], fit_key, progress, prior)
    except ValueError as error:
        logger.info("The fit was not refined: %s", error)
        return gp
    if trace.interrupted:
        raise KeyboardInterrupt
    factor = jnp.mean(found.noise) / jnp.mean(start.noise)
    found = prior.nearest(GP(found.kernel, gp.noise * factor, found.mean))
    before, after = (_judged_loss(candidate, X, y, judge_key) for candidate in (gp, found))
    logger.info("Refined on %d rows: loss of judged rows %.3f, before %.3f.", len(X[some]), after, before)
    return found if after < before else gp


def _judged_loss(gp: GP, X: Float[Array, "N d"], y: Float[Array, "N"], key: PRNGKeyArray) -> float:
    """Return the mean of −log p(yᵢ | many earlier rows) over a few rows, in float64.

    If there are enough rows, those of the refinement are excluded.
    """
    first = REFINED_ROWS if X.shape[0] >= REFINED_ROWS + JUDGE_ROWS else 0
    pool = draw_pool(gp.kernel, X, min(JUDGE_NEIGHBOURS, X.shape[0]), key, JUDGE_ROWS, first)
    with working_in(np.float64):
        loss = float(jnp.mean(_row_losses(cast(gp, np.float64), X, y, pool, batch_size=8)))
    return loss if np.isfinite(loss) else np.inf


class Pool(eqx.Module):
    """Rows, the nearest earlier rows of each, and which of these exist. In `row_loss` it holds a single row."""

    rows: Int[Array, "*b"]
    earlier: Int[Array, "*b m"]
    valid: Bool[Array, "*b m"]


def nearest_earlier(
    points: Float[Array, "P d"], rows: Int[Array, "b"], num: int
) -> tuple[Int[Array, "b m"], Bool[Array, "b m"]]:
    """Return the nearest earlier rows of each row, by an exhaustive search, and which of them exist."""
    r2 = squared_distance(points[rows], points)
    nearest, found = smallest(jnp.where(jnp.arange(points.shape[0]) < rows[:, None], r2, jnp.inf), num)
    return found, jnp.isfinite(nearest)


def conditional_loss(
    gp: GP,
    x: Float[Array, "d"],
    y: Float[Array, ""],
    noise: Float[Array, ""],
    X_c: Float[Array, "m d"],
    y_c: Float[Array, "m"],
    noise_c: Float[Array, "m"],
    valid: Bool[Array, "m"],
) -> Float[Array, ""]:
    """Return −log p(y | y_c) at x, given those of the rows c that are valid."""
    both = valid[:, None] & valid[None, :]
    H = jnp.where(both, gp.kernel(X_c, X_c), 0) + jnp.diag(jnp.where(valid, noise_c, 1))
    k = jnp.where(valid, gp.kernel(X_c, x[None])[:, 0], 0)
    right = jnp.stack([k, jnp.where(valid, y_c - gp.mean, 0)], axis=1)
    explained, mean = k @ definite_solve(H, right)
    variance = jnp.maximum(gp.kernel.diag(x[None])[0] - explained, 0) + noise
    return (jnp.log(2 * jnp.pi * variance) + (y - gp.mean - mean) ** 2 / variance) / 2


def batch_loss(
    p: Parameters, X: Float[Array, "N d"], y: Float[Array, "N"], batch: Pool, mesh: Mesh | None = None
) -> Float[Array, ""]:
    """Return the mean of −log p(yᵢ | earlier rows) over a batch."""
    losses = lambda batch, gp, X, y: jax.vmap(lambda row: row_loss(gp, X, y, row))(batch)
    return jnp.mean(map_over_devices(mesh, losses, (batch,), (p.gp(), X, y)))


def row_loss(gp: GP, X: Float[Array, "N d"], y: Float[Array, "N"], row: "Pool") -> Float[Array, ""]:
    """Return −log p(yᵢ | earlier rows) for one row of a pool."""
    noise = jnp.broadcast_to(gp.noise, y.shape)
    i, c = row.rows, row.earlier
    at = lambda rows: (X[rows].astype(gp.mean.dtype), y[rows].astype(gp.mean.dtype), noise[rows])
    return conditional_loss(gp, *at(i), *at(c), row.valid)


def estimate(
    gp: GP, X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray, neighbours: int = 64
) -> float:
    """Return an estimate of −log p(y)/N of a GP, from `POOL_ROWS` rows given their nearest earlier ones.

    Use it to compare the results of different methods.
    """
    X, y = check_data(X, y)
    order_key, pool_key = jax.random.split(key)
    order = jax.random.permutation(order_key, X.shape[0])
    noise = jnp.broadcast_to(gp.noise, y.shape)[order]
    pool = draw_pool(gp.kernel, X[order], min(neighbours, X.shape[0]), pool_key, POOL_ROWS)
    return float(jnp.mean(_row_losses(GP(gp.kernel, noise, gp.mean), X[order], y[order], pool)))


def draw_pool(kernel: Any, X: Float[Array, "N d"], num: int, key: PRNGKeyArray, size: int, first: int = 0) -> Pool:
    """Return `size` random rows, none of them among the `first` ones, and the `num` nearest earlier rows of each.

    The neighbours of a row are searched among the first N/2ᵏ rows with the largest possible k. At least half of these
    are earlier than the row, so almost surely m of its 3m nearest rows are.
    """
    rows = np.sort(np.asarray(jax.random.randint(key, (min(size, X.shape[0]),), first, X.shape[0])))
    points = kernel.coordinates(X)
    pools, end = [], X.shape[0]
    while end > PREFIX_ROWS:
        # The number of rows per search is random. They are selected on the host, because JAX would compile, and keep, a
        # program for every number.
        here = rows[(rows >= end // 2) & (rows < end)]
        if here.size:
            pools.append(_first(_pool(build_index(points[:end]), points, pad_indices(here), num), here.size))
        end //= 2
    here = rows[rows < end]
    if here.size:
        padded = pad_indices(here)
        pools.append(_first(Pool(padded, *nearest_earlier(points[:end], padded, num)), here.size))
    return jax.tree.map(lambda *parts: jnp.asarray(np.concatenate(parts)), *pools)


def _first(pool: Pool, number: int) -> Pool:
    """Return the first `number` rows of a pool, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:number], pool)


def pad_indices(rows: Int[np.ndarray, "b"]) -> Int[Array, "p"]:
    """Return row indices padded to a power of two, so that few sizes are compiled."""
    return jnp.asarray(np.pad(rows, (0, (1 << (rows.size - 1).bit_length()) - rows.size), mode="edge"))


@eqx.filter_jit
def _row_losses(
    gp: GP, X: Float[Array, "N d"], y: Float[Array, "N"], pool: Pool, batch_size: int = 256
) -> Float[Array, "b"]:
    return jax.lax.map(lambda row: row_loss(gp, X, y, row), pool, batch_size=batch_size)


@eqx.filter_jit
def _pool(index: Neighbours, points: Float[Array, "N d"], rows: Int[Array, "b"], num: int) -> Pool:
    candidates = max(3 * num, num + 64)
    near = map_rows(lambda q: index.nearest(q, candidates), points[rows], 32)
    before = near < rows[:, None]
    first = jnp.argsort(~before, axis=1, stable=True)[:, :num]  # earlier rows, nearest first
    return Pool(rows, jnp.take_along_axis(near, first, axis=1), jnp.take_along_axis(before, first, axis=1))


@eqx.filter_jit
def _step(
    method: NearestNeighbour,
    p: Parameters,
    state: Any,
    X: Float[Array, "N d"],
    y: Float[Array, "N"],
    pool: Pool | None,
    prior: Prior,
    key: PRNGKeyArray,
) -> tuple[Parameters, Any, Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Take a step of Adam; also return the loss, the norm of its gradient and the noise relative to the kernel."""
    if pool is None:
        rows = jax.random.randint(key, (min(method.batch_size, X.shape[0]),), 0, X.shape[0])
        kernel = jax.tree.map(lambda leaf: leaf.astype(X.dtype), p.gp().kernel)  # X.dtype is enough for a search
        points = jax.lax.stop_gradient(kernel.coordinates(X))
        num = min(method.neighbours, X.shape[0])
        earlier = lambda rows, points: nearest_earlier(points, rows, num)
        batch = Pool(rows, *map_over_devices(method.mesh, earlier, (rows,), (points,)))
    else:
        some = jax.random.randint(key, (method.batch_size,), 0, pool.rows.shape[0])
        batch = jax.tree.map(lambda leaf: leaf[some], pool)
    moving, fixed = eqx.partition(p, trainable_mask(p))

    def objective(q: Parameters) -> Float[Array, ""]:
        q = eqx.combine(q, fixed)
        return batch_loss(q, X, y, batch, method.mesh) + prior.penalty(q.gp()) / X.shape[0]

    loss, gradient = jax.value_and_grad(objective)(moving)
    update, state = decaying_adam(method.learning_rate, method.steps).update(gradient, state, moving)
    moved = prior.projected(eqx.combine(eqx.apply_updates(moving, update), fixed))
    gp = moved.gp()
    return moved, state, loss, norm(gradient), jnp.mean(gp.noise) / kernel_variance(gp.kernel)
