"""How inducing points are chosen among the rows of the data."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from scipy.spatial import KDTree

from pathgp import checks
from pathgp.kernels import Kernel


def random_subset(X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray) -> Float[Array, "M d"]:
    """`num` different rows, drawn at random.

    >>> import jax, jax.numpy as jnp
    >>> random_subset(jnp.arange(10.0)[:, None], 3, key=jax.random.key(0)).shape
    (3, 1)
    """
    X = _checked(X, num)
    return X[jnp.sort(jax.random.permutation(key, X.shape[0])[:num])]


def k_means(
    kernel: Kernel, X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray, rows: int = 100_000
) -> Float[Array, "M d"]:
    """The centres of `num` clusters (scikit-learn's MiniBatchKMeans) of at most `rows` random rows.

    Clusters are found in the coordinates of the kernel; a centre is the mean of the rows of its cluster.
    """
    from sklearn.cluster import MiniBatchKMeans

    X = _checked(X, num)
    some = X[jax.random.permutation(key, X.shape[0])[: max(rows, num)]]
    seed = int(jax.random.bits(key, (), jnp.uint32) >> 1)
    points = np.asarray(kernel.coordinates(some))
    labels = MiniBatchKMeans(num, random_state=seed, batch_size=4096).fit(points).labels_
    counts = np.bincount(labels, minlength=num)
    sums = np.zeros((num, X.shape[1]))
    np.add.at(sums, labels, np.asarray(some, dtype=np.float64))
    return jnp.asarray(sums[counts > 0] / counts[counts > 0, None], dtype=X.dtype)


def eliminated(
    kernel: Kernel,
    X: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    ratio: float | None = None,
    num: int | None = None,
) -> Float[Array, "M d"]:
    """Rows that are kept while their neighbours are eliminated (the paper's appendix A.2).

    Rows are taken in random order; one that is still there is kept, and all others within `ratio` length scales of it
    are eliminated. So every row has a kept one within that radius, and no two kept ones are as near as that. Instead of
    the ratio, the number of points can be given: the ratio is then found by bisection, to within 5 %.

    Neighbours are found by SciPy's k-d tree, which is exact, so that nothing is left uncovered.
    """
    if (ratio is None) == (num is None):
        raise ValueError("give either ratio, in length scales, or num, the number of points: one of the two.")
    X = checks.inputs(X, "X")
    points = np.asarray(kernel.coordinates(X), dtype=np.float64)
    order = np.asarray(jax.random.permutation(key, X.shape[0]))
    if num is not None:
        _checked(X, num)
        return X[_bisected(points, order, num)]
    checks.positive(ratio or 0.0, "ratio")
    return X[_eliminate(points, order, float(ratio or 0.0))]


def _eliminate(points: np.ndarray, order: np.ndarray, radius: float, most: int | None = None) -> np.ndarray:
    """The kept rows, in the order of the data; stops as soon as there are more than `most`."""
    tree, alive, kept = KDTree(points), np.ones(len(points), dtype=bool), []
    for start in range(0, len(order), 1024):
        batch = order[start : start + 1024]
        batch = batch[alive[batch]]
        for row, near in zip(batch, tree.query_ball_point(points[batch], radius, workers=-1), strict=True):
            if alive[row]:
                kept.append(row)
                alive[near] = False
        if most is not None and len(kept) > most:
            break
    return np.sort(np.array(kept))


def _bisected(points: np.ndarray, order: np.ndarray, num: int) -> np.ndarray:
    low, high = 0.0, float(np.linalg.norm(points.max(axis=0) - points.min(axis=0))) or 1.0
    kept = order[:num]
    for _ in range(40):
        radius = (low + high) / 2 if low else high / 4
        kept = _eliminate(points, order, radius, most=int(1.05 * num))
        if abs(len(kept) - num) <= 0.05 * num:
            break
        low, high = (radius, high) if len(kept) > num else (low, radius)
        if high - low < 1e-6 * high:
            break
    return kept


def greedy(
    kernel: Kernel, X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray, rows: int = 20_000
) -> Float[Array, "M d"]:
    """Of at most `rows` random rows, in turn the one of which the others tell least: the largest conditional variance.

    These are the pivots of a pivoted Cholesky factorisation of K.
    """
    X = _checked(X, num)
    some = X[jax.random.permutation(key, X.shape[0])[: max(rows, num)]]
    return some[_pivots(kernel, some, num)]


def _pivots(kernel: Kernel, X: Float[Array, "n d"], num: int) -> Array:
    def add(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        L, variance, pivots = state
        pivot = jnp.argmax(variance)
        column = kernel(X, X[pivot][None])[:, 0] - L @ L[pivot]
        scale = jnp.sqrt(jnp.maximum(variance[pivot], 1e-6 * first))
        column = column / scale
        remaining = jnp.maximum(variance - column**2, 0).at[pivot].set(-1.0)
        return L.at[:, i].set(column), jnp.where(variance < 0, -1.0, remaining), pivots.at[i].set(pivot)

    variance = kernel.diag(X)
    first = jnp.max(variance)
    start = jnp.zeros((X.shape[0], num), X.dtype), variance, jnp.zeros(num, int)
    return jax.jit(lambda: jax.lax.fori_loop(0, num, add, start))()[2]


def _checked(X: Shaped[ArrayLike, "..."], num: int) -> Float[Array, "N d"]:
    values = checks.inputs(X, "X")
    if not 1 <= num <= values.shape[0]:
        raise ValueError(f"num must be between 1 and the {values.shape[0]} rows of X, but it is {num}.")
    return values
