"""Kernel products in tiles: the one place where k(A, Z) @ V is computed.

The distance, the kernel and the product of a tile of a million entries follow each other in the same few
megabytes. The whole expression `kernel(A, Z) @ V` writes and reads memory that it has to be given first: it is two to
three times slower, and needs the whole matrix at once.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Shaped

from pathgp.parallel.sharding import over_rows, padded_rows

TILE = (512, 2048)
"""Rows and columns of a tile, by measurement (`pathgp bench kernel`)."""

Matrix = Callable[[Float[Array, "n d"], Float[Array, "m d"]], Float[Array, "n m"]]


def pad_rows(x: Shaped[Array, "n ..."], multiple: int, *, mode: str = "edge") -> Shaped[Array, "m ..."]:
    """Extends `x` to a multiple of `multiple` rows: by its last row ("edge") or by zeros ("constant")."""
    extra = -x.shape[0] % multiple
    return x if extra == 0 else jnp.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1), mode=mode)


def map_rows(
    f: Callable[[Float[Array, "t d"]], Shaped[Array, "t ..."]], A: Float[Array, "n d"], rows: int = TILE[0]
) -> Shaped[Array, "n ..."]:
    """f(A), with f applied to `rows` rows of A at a time."""
    n, d = A.shape
    if n <= rows:
        return f(A)
    tiles = pad_rows(A, rows).reshape(-1, rows, d)
    out = jax.lax.map(f, tiles)
    return out.reshape(out.shape[0] * rows, *out.shape[2:])[:n]  # also where there are no columns


def product(
    matrix: Matrix,
    A: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m s"],
    columns: int = TILE[1],
) -> Float[Array, "n s"]:
    """matrix(A, Z) @ V, with `columns` rows of Z at a time. Padded rows of V are zero, so they add nothing."""
    (n, d), m = A.shape, Z.shape[0]
    if m <= columns:
        return matrix(A, Z) @ V
    Z_tiles = pad_rows(Z, columns).reshape(-1, columns, d)
    V_tiles = pad_rows(V, columns, mode="constant").reshape(-1, columns, V.shape[1])

    @jax.checkpoint  # a gradient computes the tile again instead of keeping every tile
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
    """matrix(A, Z) @ V without ever holding more than one tile of the matrix."""
    rows, columns = tile
    if Z.shape[0] < columns:  # fewer columns, so more rows in a tile of the same area
        rows = rows * columns // Z.shape[0]
    return map_rows(lambda a: product(matrix, a, Z, V, columns), A, rows)


def split_product(
    mesh: Mesh | None,
    matrix: Matrix,
    A: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m s"],
    tile: tuple[int, int] = TILE,
) -> Float[Array, "n s"]:
    """matrix(A, Z) @ V, where each device takes its rows of Z and V: one reduction of n x s."""
    multiple = padded_rows(mesh, 1)
    Z, V = pad_rows(Z, multiple), pad_rows(V, multiple, mode="constant")
    local = lambda Z, V, matrix, A: tiled_product(matrix, A, Z, V, tile)
    return over_rows(mesh, local, (Z, V), (matrix, A), total=True)


def product_of_rows(
    mesh: Mesh | None,
    matrix: Matrix,
    A: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    V: Float[Array, "m s"],
    tile: tuple[int, int] = TILE,
) -> Float[Array, "n s"]:
    """matrix(A, Z) @ V, where each device takes its rows of A: no reduction."""
    local = lambda A, matrix, Z, V: tiled_product(matrix, A, Z, V, tile)
    return over_rows(mesh, local, (pad_rows(A, padded_rows(mesh, 1)),), (matrix, Z, V), total=False)[: A.shape[0]]
