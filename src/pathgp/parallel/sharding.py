"""Rows sharded over the devices of a mesh: the only module that communicates between devices.

A mesh has one axis. Arrays with one row per row of the data are sharded along it, and everything else is replicated on
every device. On one device the mesh is None, and nothing is sharded.
"""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Shaped

from pathgp._checks import is_concrete

Tree = TypeVar("Tree")


def require_one_axis(mesh: Mesh | None) -> Mesh | None:
    """Return the mesh with an automatic axis, so that the compiler shards what `over_rows` does not.

    Raises `ValueError` unless the mesh has one axis.
    """
    if mesh is None:
        return None
    if len(mesh.axis_names) != 1:
        raise ValueError(
            f"mesh must have one axis, which shards the rows, but it has the axes {mesh.axis_names}: make it with "
            '`jax.make_mesh((jax.device_count(),), ("rows",))`.'
        )
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,))


def padded_rows(mesh: Mesh | None, rows: int) -> int:
    """Return the smallest number of rows, at least `rows`, that can be sharded evenly."""
    return rows if mesh is None else -(-rows // mesh.size) * mesh.size


def shard_map_rows(
    mesh: Mesh | None, f: Callable[..., Any], split: tuple[Any, ...], whole: tuple[Any, ...], *, total: bool
) -> Any:
    """Return f(*split, *whole), called on each device with its own rows of `split` and all of `whole`.

    The results are the rows of one array, in the same order. If `total`, they are terms of a sum, reduced once.
    """
    if mesh is None:
        return f(*split, *whole)
    (axis,) = mesh.axis_names
    rows, everywhere = PartitionSpec(axis), PartitionSpec()

    def local(split: tuple[Any, ...], whole: tuple[Any, ...]) -> Any:
        here = f(*split, *whole)
        return jax.lax.psum(here, axis) if total else here

    out = everywhere if total else rows
    # Without `check_vma`, because loops in f start from replicated constants and end with values that differ.
    return jax.shard_map(local, mesh=mesh, in_specs=(rows, everywhere), out_specs=out, check_vma=False)(split, whole)


def local_gather(mesh: Mesh | None, A: Shaped[Array, "n ..."], index: Int[Array, "b"]) -> Shaped[Array, "b ..."]:
    """Within `over_rows`, return A[index] for the rows of this device and zero for others, as terms of a sum."""
    if mesh is None:
        return A[index]
    n = A.shape[0]
    place = index - jax.lax.axis_index(mesh.axis_names[0]) * n
    here = (place >= 0) & (place < n)
    return jnp.where(here.reshape(-1, *[1] * (A.ndim - 1)), A[jnp.clip(place, 0, n - 1)], 0)


def gather_rows(mesh: Mesh | None, tree: Tree, index: Int[Array, "b"]) -> Tree:
    """Return the rows `index` of each array on every device; sharded rows take one reduction."""
    mine = lambda tree, index: jax.tree.map(lambda A: local_gather(mesh, A, index), tree)
    return shard_map_rows(mesh, mine, (tree,), (index,), total=True)


def ring_sum(
    mesh: Mesh | None, f: Callable[..., Shaped[Array, "n s"]], guests: tuple[Array, ...]
) -> Shaped[Array, "n s"]:
    """Within `over_rows`, return Σ f(*guests) over the rows of all devices, which pass round in a ring.

    No device holds more than the rows of one other device. Each receives N/devices rows once per other device.
    """
    if mesh is None:
        return f(*guests)
    (axis,), devices = mesh.axis_names, mesh.size
    ring = [(i, (i + 1) % devices) for i in range(devices)]

    @jax.checkpoint  # a gradient sends the rows round again instead of storing them
    def meet(state: tuple[Array, tuple[Array, ...]], _: None) -> tuple[tuple[Array, tuple[Array, ...]], None]:
        total, guests = state
        guests = jax.lax.ppermute(guests, axis, ring)
        return (total + f(*guests), guests), None

    return jax.lax.scan(meet, (f(*guests), guests), length=devices - 1)[0][0]


def slice_rows(mesh: Mesh | None, tree: Tree, start: Int[Array, ""], size: int) -> Tree:
    """Return `size` rows of each array, from `start` on, on every device."""
    if mesh is None:
        return jax.tree.map(lambda A: jax.lax.dynamic_slice_in_dim(A, start, size), tree)
    return gather_rows(mesh, tree, start + jnp.arange(size))


def add_rows(
    mesh: Mesh | None, A: Shaped[Array, "n ..."], block: Shaped[Array, "b ..."], start: Int[Array, ""]
) -> Shaped[Array, "n ..."]:
    """Return A with the block added to the rows from `start` on, each row by the device that holds it."""
    if mesh is None:
        block = jax.lax.dynamic_slice_in_dim(A, start, block.shape[0]) + block
        return jax.lax.dynamic_update_slice_in_dim(A, block, start, 0)

    def local(A: Array, block: Array, start: Array) -> Array:
        place = jax.lax.axis_index(mesh.axis_names[0]) * A.shape[0] + jnp.arange(A.shape[0]) - start
        here = (place >= 0) & (place < block.shape[0])
        added = block[jnp.clip(place, 0, block.shape[0] - 1)]
        return A + jnp.where(here.reshape(-1, *[1] * (A.ndim - 1)), added, 0)

    return shard_map_rows(mesh, local, (A,), (block, start), total=False)


def map_over_devices(mesh: Mesh | None, f: Callable[..., Any], rows: tuple[Any, ...], whole: tuple[Any, ...]) -> Any:
    """Return f(*rows, *whole) on every device, where each device computes a part of the rows.

    This is for a few rows that every device holds, such as a batch. Their number need not be a multiple of the number
    of devices.
    """
    if mesh is None:
        return f(*rows, *whole)
    number = jax.tree.leaves(rows)[0].shape[0]
    extra = padded_rows(mesh, number) - number
    pad = lambda leaf: jnp.pad(leaf, [(0, extra)] + [(0, 0)] * (leaf.ndim - 1), mode="edge")
    computed = shard_map_rows(mesh, f, jax.tree.map(pad, rows), whole, total=False)
    return jax.tree.map(lambda leaf: leaf[:number], replicate(mesh, computed))


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of rows over the mesh."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))


def replicate(mesh: Mesh | None, tree: Tree) -> Tree:
    """Return the tree with every array replicated; outside `jit`, each process must hold the whole arrays."""
    if mesh is None:
        return tree
    whole = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if not is_concrete(leaf):
            return jax.lax.with_sharding_constraint(leaf, whole)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, whole, lambda index: host[index])

    return jax.tree.map(place, tree)


def constrain_sharding(mesh: Mesh | None, tree: Tree, rows: int) -> Tree:
    """Return the tree with every floating-point array of `rows` rows sharded over the devices."""
    if mesh is None:
        return tree

    def place(leaf: Any) -> Any:
        is_rows = isinstance(leaf, jax.Array) and leaf.ndim > 0 and leaf.shape[0] == rows
        split = is_rows and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.lax.with_sharding_constraint(leaf, row_sharding(mesh)) if split else leaf

    return jax.tree.map(place, tree)


def shard_rows(mesh: Mesh | None, A: Shaped[Array, "n ..."], *, mode: str = "constant") -> Shaped[Array, "m ..."]:
    """Return an array, which every process holds, padded and sharded by rows over the devices.

    The padding is zero ("constant") or the last row ("edge").
    """
    if mesh is None:
        return A
    padding = [(0, padded_rows(mesh, A.shape[0]) - A.shape[0])] + [(0, 0)] * (A.ndim - 1)
    if not is_concrete(A):
        return jax.lax.with_sharding_constraint(jnp.pad(A, padding, mode=mode), row_sharding(mesh))
    # The callback is asked only for the rows of this process's devices.
    host = np.pad(np.asarray(A), padding, mode=mode)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return jax.make_array_from_callback(host.shape, row_sharding(mesh), lambda index: host[index])


def gathered(tree: Tree) -> Tree:
    """Return the tree with every array whole, on the first device of every process."""

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # which NumPy cannot hold
            return jax.random.wrap_key_data(gather(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return jnp.asarray(on_host(leaf))

    return jax.tree.map(gather, tree)


def on_host(leaf: Any) -> np.ndarray:
    """Return a whole array in host memory; all processes must call this if each holds a part."""
    in_parts = isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True) if in_parts else leaf)


def placed_like(host: np.ndarray, like: Any) -> Array:
    """Return an array, which every process holds, sharded as `like`, which has its shape."""
    if not isinstance(like, jax.Array) or len(like.sharding.device_set) == 1:
        return jnp.asarray(host)
    return jax.make_array_from_callback(host.shape, like.sharding, lambda index: host[index])


def any_over_processes(mesh: Mesh | None, says: bool) -> bool:
    """Return whether any process says so, to take the same decision in all if it depends on a clock."""
    return says if mesh is None or jax.process_count() == 1 else _any(says)


def spans_processes(tree: Any) -> bool:
    """Return whether an array of the tree is partly on devices of other processes."""
    return any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in jax.tree.leaves(tree))


def all_max(*says: int) -> list[int]:
    """Return the maximum of each number over the processes of the job; all must call this."""
    return np.max(multihost_utils.process_allgather(np.asarray(says)), axis=0).tolist()


def _any(says: bool) -> bool:
    return bool(np.any(multihost_utils.process_allgather(np.asarray(says))))


def all_equal(text: str) -> bool:
    """Return whether the text is the same in all processes of the job; all must call this."""
    if jax.process_count() == 1:
        return True
    said = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), np.uint8)
    return bool(np.all(multihost_utils.process_allgather(said) == said))


def broadcast_from_first(mesh: Mesh | None, tree: Tree) -> Tree:
    """Return the values of the first process, for results that hosts compute separately and may round differently."""
    if mesh is None or jax.process_count() == 1:
        return tree
    return jax.tree.map(jnp.asarray, multihost_utils.broadcast_one_to_all(tree))
