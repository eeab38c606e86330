"""Kernel products in tiles: the only place where k(A, Z) @ V is computed.

The distances, the kernel and the product of a tile of a million entries reuse the same few megabytes. The whole
expression `kernel(A, Z) @ V` holds the whole matrix, in memory that has to be allocated first, and is two to three
times slower.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Shaped

from pathgp.parallel.sharding import padded_rows, shard_map_rows

TILE = (512, 2048)
"""Rows and columns of a tile, chosen by measurement (`pathgp bench kernel`)."""

Matrix = Callable[[Float[Array, "n d"], Float[Array, "m d"]], Float[Array, "n m"]]
"""A kernel, or any function that returns a matrix for two sets of points."""


def pad_rows(x: Shaped[Array, "n ..."], multiple: int, *, mode: str = "edge") -> Shaped[Array, "m ..."]:
    """Return `x` padded to a multiple of `multiple` rows, with its last row ("edge") or zeros ("constant")."""
    extra = -x.shape[0] % multiple
    return x if extra == 0 else jnp.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1), mode=mode)


def map_rows(
    f: Callable[[Float[Array, "t d"]], Shaped[Array, "t ..."]], A: Float[Array, "n d"], rows: int = TILE[0]
) -> Shaped[Array, "n ..."]:
    """Return f(A), computed for `rows` rows of A at a time."""
    n, d = A.shape
    if n <= rows:
        return f(A)
    tiles = pad_rows(A, rows).reshape(-1, rows, d)
    out = jax.lax.map(f, tiles)
    return out.reshape(out.shape[0] * rows, *out.shape[2:])[:n]  # not −1, which fails for zero columns


def product(
    matrix: Matrix,
    A: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m s"],
    columns: int = TILE[1],
) -> Float[Array, "n s"]:
    """Return matrix(A, Z) @ V, computed for `columns` rows of Z at a time."""
    (n, d), m = A.shape, Z.shape[0]
    if m <= columns:
        return matrix(A, Z) @ V
    Z_tiles = pad_rows(Z, columns).reshape(-1, columns, d)
    # Padded rows of V are zero, so that they add nothing.
    V_tiles = pad_rows(V, columns, mode="constant").reshape(-1, columns, V.shape[1])

    @jax.checkpoint  # a gradient recomputes a tile instead of storing every tile
    def add_tile(
        total: Float[Array, "n s"], tile: tuple[Float[Array, "t d"], Float[Array, "t s"]]
    ) -> tuple[Float[Array, "n s"], None]:
        Z_tile, V_tile = tile
        return total + matrix(A, Z_tile) @ V_tile, None

    dtype = jnp.result_type(A, Z, V)
    return jax.lax.scan(add_tile, jnp.zeros((n, V.shape[1]), dtype), (Z_tiles, V_tiles))[0]


def tiled_product(
    matrix: Matrix,
    A: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m s"],
    tile: tuple[int, int] = TILE,
) -> Float[Array, "n s"]:
    """Return matrix(A, Z) @ V, with only one tile of the matrix in memory at a time."""
    rows, columns = tile
    if Z.shape[0] < columns:  # fewer columns, so more rows in a tile of the same area
        rows = rows * columns // Z.shape[0]
    return map_rows(lambda a: product(matrix, a, Z, V, columns), A, rows)


def column_sharded_product(
    mesh: Mesh | None,
    matrix: Matrix,
    A: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m s"],
    tile: tuple[int, int] = TILE,
) -> Float[Array, "n s"]:
    """Return matrix(A, Z) @ V with the rows of Z and V sharded over devices: one reduction of n x s."""
    multiple = padded_rows(mesh, 1)
    Z, V = pad_rows(Z, multiple), pad_rows(V, multiple, mode="constant")
    local = lambda Z, V, matrix, A: tiled_product(matrix, A, Z, V, tile)
    return shard_map_rows(mesh, local, (Z, V), (matrix, A), total=True)


def row_sharded_product(
    mesh: Mesh | None,
    matrix: Matrix,
    A: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m s"],
    tile: tuple[int, int] = TILE,
) -> Float[Array, "n s"]:
    """Return matrix(A, Z) @ V with the rows of A sharded over devices: no reduction."""
    local = lambda A, matrix, Z, V: tiled_product(matrix, A, Z, V, tile)
    return shard_map_rows(mesh, local, (pad_rows(A, padded_rows(mesh, 1)),), (matrix, Z, V), total=False)[: A.shape[0]]
