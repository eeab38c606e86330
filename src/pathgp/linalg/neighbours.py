"""Exact search for the nearest rows of the data to a point, exhaustively or with a k-d tree.

Approximate indices are faster, but the neighbours that they miss vary with the query, so functions made from
neighbours would be discontinuous. Both searches here are exact, except for rounding in the matrix product that finds
candidates among points of more than ten inputs. They are pytrees of arrays: they pass through `jax.jit` and `jax.vmap`
and are saved with the model. `pathgp_paper.bench.neighbours` compares them with other libraries.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pathgp.linalg.distances import FEW_INPUTS, squared_distance
from pathgp.linalg.tiles import pad_rows

LEAF, VISIT = 256, 16
"""Points per leaf of a tree, and leaves per step of a search, by measurement (`pathgp_paper.bench.neighbours`)."""

SPARE = 32
"""Candidates that an exhaustive search keeps beyond the number asked for, because it ranks them with rounding."""
EXHAUSTIVE_ROWS = 30_000
"""Up to this many points the search is exhaustive."""
TILE = 65_536
"""Points per tile of an exhaustive search."""
MOST = 0.1
"""Fraction of visited leaves from which a tree is slower than an exhaustive search with a matrix product."""


class Neighbours(eqx.Module):
    """Abstract base class of searches for the nearest of N points."""

    @abstractmethod
    def nearest(self, Q: Float[Array, "n d"], num: int) -> Int[Array, "n m"]:
        """Return the indices of the `num` nearest points to each row of Q, nearest first."""


class Exhaustive(Neighbours):
    """Search of all points: the fastest for a few ten thousand points, and in many dimensions for any number."""

    points: Float[Array, "N d"]

    def nearest(self, Q: Float[Array, "n d"], num: int) -> Int[Array, "n m"]:
        """Return the nearest points, from distances in tiles whose best candidates are merged with the best so far."""
        N, d = self.points.shape
        # The matrix product rounds, so more candidates are taken than asked for and ranked by their true distances. It
        # is centred at the median of the queries, because a few outliers would move the mean.
        taken = min(num + SPARE, N)
        few = d <= FEW_INPUTS
        centre = jnp.zeros(d, Q.dtype) if few else jnp.median(Q, axis=0)
        rows = min(N, max(TILE, taken))
        tiles = pad_rows(self.points - centre, rows).reshape(-1, rows, d)
        Q = Q - centre

        def best_of(tile: tuple[Array, Array]) -> tuple[Array, Array]:
            points, start = tile
            if few:
                r2 = squared_distance(Q, points)
            else:
                # Without ‖q‖², which does not change the order for a query.
                r2 = jnp.sum(points**2, axis=1) - 2 * jnp.matmul(Q, points.T, precision="highest")
            r2 = jnp.where(start + jnp.arange(points.shape[0]) < N, r2, jnp.inf)
            nearest, place = smallest(r2, taken)
            return nearest, start + place

        def merge(best: tuple[Array, Array], tile: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
            distances, rows = (jnp.concatenate(pair, axis=1) for pair in zip(best, best_of(tile), strict=True))
            return _smallest(distances, rows, taken), None

        starts = jnp.arange(tiles.shape[0], dtype=jnp.int32) * tiles.shape[1]
        rows = jax.lax.scan(merge, best_of((tiles[0], starts[0])), (tiles[1:], starts[1:]))[0][1]
        r2 = jnp.sum((self.points[rows] - centre - Q[:, None]) ** 2, axis=-1)
        return _smallest(r2, rows, num)[1]


class Tree(Neighbours):
    """A balanced k-d tree (Bentley, 1975), stored as its leaves: their points, rows and bounding boxes.

    A query visits the leaves with the nearest boxes, `VISIT` at a time, until no remaining box is nearer than the
    farthest of the neighbours found.
    """

    points: Float[Array, "l w d"]
    rows: Int[Array, "l w"]
    low: Float[Array, "l d"]
    high: Float[Array, "l d"]

    @property
    def leaves(self) -> Int[Array, "l w"]:
        """The rows in each leaf, −1 for padding; with the points they define the tree."""
        return jnp.where(jnp.isinf(self.points[:, :, 0]), -1, self.rows)

    def bounds(self, Q: Float[Array, "n d"]) -> Float[Array, "n l"]:
        """Return the squared distance of each row of Q to each box, which is 0 inside the box."""
        gap = lambda j: jnp.maximum(0, jnp.maximum(self.low[:, j] - Q[:, j, None], Q[:, j, None] - self.high[:, j]))
        return sum((gap(j) ** 2 for j in range(Q.shape[1])), jnp.zeros((Q.shape[0], self.low.shape[0]), Q.dtype))

    def nearest(self, Q: Float[Array, "n d"], num: int) -> Int[Array, "n m"]:
        """Return the nearest points; the loop runs until the search of every row of Q has ended."""
        n, visit = Q.shape[0], min(VISIT, self.points.shape[0])

        def unfinished(state: tuple[Array, Array, Array]) -> Array:
            bounds, r2, _ = state
            return jnp.any(jnp.min(bounds, axis=1) < r2[:, -1])

        def take(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            bounds, r2, rows = state
            nearest, leaves = smallest(bounds, visit)
            # A query that has visited every leaf visits some again: their points must not be candidates twice.
            seen = jnp.isinf(nearest)[:, :, None]
            new_r2 = jnp.where(seen, jnp.inf, jnp.sum((self.points[leaves] - Q[:, None, None]) ** 2, axis=-1))
            distances = jnp.concatenate([r2, new_r2.reshape(n, -1)], axis=1)
            candidates = jnp.concatenate([rows, self.rows[leaves].reshape(n, -1)], axis=1)
            bounds = jax.vmap(lambda bound, leaf: bound.at[leaf].set(jnp.inf))(bounds, leaves)
            return bounds, *_smallest(distances, candidates, num)

        none = jnp.full((n, num), jnp.inf, Q.dtype), jnp.zeros((n, num), self.rows.dtype)
        return jax.lax.while_loop(unfinished, take, (self.bounds(Q), *none))[2]


def _smallest(
    distances: Float[Array, "n c"], rows: Int[Array, "n c"], num: int
) -> tuple[Float[Array, "n m"], Int[Array, "n m"]]:
    nearest, place = smallest(distances, num)
    return nearest, jnp.take_along_axis(rows, place, axis=1)


def smallest(x: Float[Array, "n c"], num: int) -> tuple[Float[Array, "n m"], Int[Array, "n m"]]:
    """Return the `num` smallest entries of each row, in ascending order, and their indices.

    They are compared in float32, because XLA's selection in float64 is many times slower.
    """
    _, place = jax.lax.top_k(-x.astype(jnp.float32), num)
    return jnp.take_along_axis(x, place, axis=1), place


def build_tree(points: Float[Array, "N d"], leaf: int = LEAF) -> Tree:
    """Return a k-d tree: points are halved at the median of the widest coordinate, down to at most `leaf`."""
    Z = np.asarray(points)
    N, d = Z.shape
    depth = max(0, int(np.ceil(np.log2(N / leaf))))
    width = -(-N // 2**depth)  # of every leaf: padding at infinity makes them equal
    padding = width * 2**depth - N
    Z = np.concatenate([Z, np.full((padding, d), np.inf, Z.dtype)])[None]
    rows = np.concatenate([np.arange(N, dtype=np.int32), np.zeros(padding, np.int32)])[None]
    for _ in range(depth):
        low, high = _box(Z)
        widest = np.argmax(high - low, axis=1)
        coordinate = np.take_along_axis(Z, widest[:, None, None], axis=2)[:, :, 0]
        order = np.argpartition(coordinate, Z.shape[1] // 2, axis=1)
        rows = np.take_along_axis(rows, order, axis=1).reshape(-1, order.shape[1] // 2)
        Z = np.take_along_axis(Z, order[:, :, None], axis=1).reshape(-1, order.shape[1] // 2, d)
    return Tree(*map(jnp.asarray, (Z, rows, *_box(Z))))


def neighbourhood_order(points: Float[Array, "N d"], leaf: int = LEAF) -> Int[Array, "N"]:
    """Return the rows in the order of the leaves of a k-d tree, in which nearby rows are adjacent."""
    N, d = points.shape
    depth = max(0, int(np.ceil(np.log2(N / leaf))))
    padding = -N % 2**depth
    points = jnp.concatenate([points, jnp.full((padding, d), jnp.inf, points.dtype)])
    rows = jnp.arange(N + padding)
    for level in range(depth):
        groups = rows.reshape(2**level, -1)
        Z = points[groups]
        spread = jnp.max(jnp.where(jnp.isinf(Z), -jnp.inf, Z), axis=1) - jnp.min(Z, axis=1)
        coordinate = jnp.take_along_axis(Z, jnp.argmax(spread, axis=1)[:, None, None], axis=2)[:, :, 0]
        rows = jnp.take_along_axis(groups, jnp.argsort(coordinate, axis=1), axis=1).reshape(-1)
    return rows[:N]  # the padding is at infinity, so it is last


def tree_from_leaves(points: Float[Array, "N d"], leaves: Int[Array, "l w"]) -> Tree:
    """Return the tree with these rows in its leaves, as `Tree.leaves` of a stored tree gives them."""
    rows, Z = np.asarray(leaves), np.asarray(points)
    Z = np.where(rows[:, :, None] < 0, np.asarray(np.inf, Z.dtype), Z[rows])
    return Tree(*map(jnp.asarray, (Z, np.maximum(rows, 0), *_box(Z))))


def _box(Z: Float[np.ndarray, "l w d"]) -> tuple[Float[np.ndarray, "l d"], Float[np.ndarray, "l d"]]:
    """Return the lower and upper corners of the bounding box of each leaf, without the padding at infinity."""
    return Z.min(axis=1), np.where(np.isinf(Z), -np.inf, Z).max(axis=1)


def build_index(points: Float[Array, "N d"]) -> Neighbours:
    """Return an exhaustive search up to `EXHAUSTIVE_ROWS` points; above that a tree, unless a tree would be slower.

    A tree is slower if a query visits more than a fraction `MOST` of its leaves, as in many dimensions, where all
    boxes are about equally near. This is tested with about 32 of the points.
    """
    if points.shape[0] <= EXHAUSTIVE_ROWS:
        return Exhaustive(points)
    index, everything = build_tree(points), Exhaustive(points)
    some = points[:: points.shape[0] // 32]
    radius2 = jnp.sum((points[everything.nearest(some, 128)[:, -1]] - some) ** 2, axis=1)
    visited = jnp.mean(index.bounds(some) < radius2[:, None])
    return index if visited < MOST else everything
