"""Choose inducing points among the rows of the data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from scipy.spatial import KDTree

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.solvers.cg import pivoted_cholesky
from pathgp.solvers.inducing.cg import InducingCG
from pathgp.system.system import System

MOST_POINTS = 10_000
"""Most random points by default: with them, a step on two million rows takes seconds."""


def random_subset(X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray) -> Float[Array, "M d"]:
    """Return `num` different rows of X, drawn at random.

    >>> import jax, jax.numpy as jnp
    >>> random_subset(jnp.arange(10.0)[:, None], 3, key=jax.random.key(0)).shape
    (3, 1)
    """
    X = _checked(X, num)
    return X[jnp.sort(jax.random.permutation(key, X.shape[0])[:num])]


class RandomPoints(eqx.Module):
    """Setting of the estimator: `InducingCG` on random rows of its data, in standardised units.

    Parameters
    ----------
    num
        Number of points. None takes a quarter of the rows, but at most `MOST_POINTS`.
    tolerance
        Tolerance of `InducingCG`.
    """

    num: int | None = None
    tolerance: float = 1e-3

    def __check_init__(self) -> None:
        checks.require_at_least(1 if self.num is None else self.num, 1, "RandomPoints.num")

    def number(self, rows: int) -> int:
        """Return the number of points for data of `rows` rows.

        >>> RandomPoints().number(3000), RandomPoints().number(2_000_000), RandomPoints(500).number(3000)
        (750, 10000, 500)
        """
        return max(1, min(rows // 4, MOST_POINTS)) if self.num is None else self.num

    def solver(self, X: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray) -> InducingCG:
        """Return the solver for the data X."""
        values = checks.as_inputs(X)
        points = random_subset(values, self.number(values.shape[0]), key=key)
        return InducingCG(points=points, tolerance=self.tolerance)


def k_means(
    kernel: Kernel, X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray, rows: int = 100_000
) -> Float[Array, "M d"]:
    """Return the centres of clusters of random rows, by scikit-learn's MiniBatchKMeans.

    Clusters are found in the coordinates of the kernel. A centre is the mean of the rows of its cluster.

    Parameters
    ----------
    kernel
        Kernel whose coordinates are used.
    X
        Rows of the data.
    num
        Number of clusters. There may be fewer centres if rows are duplicates.
    key
        Random key.
    rows
        Most rows that are clustered.
    """
    from sklearn.cluster import MiniBatchKMeans  # slow to import, and used only here

    X = _checked(X, num)
    rows_key, seed_key = jax.random.split(key)
    some = X[jax.random.permutation(rows_key, X.shape[0])[: max(rows, num)]]
    seed = int(jax.random.bits(seed_key, (), jnp.uint32) >> 1)
    points = np.asarray(kernel.coordinates(some))
    labels = MiniBatchKMeans(num, random_state=seed, batch_size=4096).fit(points).labels_
    # A centre in the kernel's coordinates need not have inputs, so the rows of each cluster are averaged.
    counts = np.bincount(labels, minlength=num)
    sums = np.zeros((num, X.shape[1]))
    np.add.at(sums, labels, np.asarray(some, dtype=np.float64))
    return jnp.asarray(sums[counts > 0] / counts[counts > 0, None], dtype=X.dtype)


def eliminate(
    kernel: Kernel,
    X: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    ratio: float | None = None,
    num: int | None = None,
) -> Float[Array, "M d"]:
    """Return rows that are kept while their neighbours are eliminated (the paper's appendix A.2).

    Rows are visited in random order. A row that is not eliminated yet is kept, and all others within `ratio` length
    scales of it are eliminated. Every row then has a kept one within that radius, and no two kept rows are as close as
    that. Neighbours are found by SciPy's k-d tree, which is exact, so every row is covered.

    Parameters
    ----------
    kernel
        Kernel whose coordinates are used.
    X
        Rows of the data.
    key
        Random key.
    ratio
        Radius in length scales.
    num
        Number of points, as an alternative to `ratio`. The radius is then found by bisection, so that the number is met
        within 5 % where the rows allow it.

    Raises
    ------
    ValueError
        If not exactly one of `ratio` and `num` is given.
    """
    if (ratio is None) == (num is None):
        raise ValueError("give either ratio, in length scales, or num, the number of points: one of the two.")
    X = checks.as_inputs(X, "X")
    points = np.asarray(kernel.coordinates(X), dtype=np.float64)
    order = np.asarray(jax.random.permutation(key, X.shape[0]))
    if num is not None:
        _checked(X, num)
        return X[_bisected(points, order, num)]
    checks.as_positive(ratio or 0.0, "ratio")
    return X[_eliminate(KDTree(points), points, order, float(ratio or 0.0))[0]]


def _eliminate(
    tree: KDTree, points: np.ndarray, order: np.ndarray, radius: float, most: int | None = None
) -> tuple[np.ndarray, bool]:
    """Return the kept rows in the order of the data, and whether the elimination is complete.

    It stops as soon as more than `most` rows are kept. Neighbours are searched for many rows at a time, as long as
    these rows have at most `FOUND` neighbours together. They are counted first, because in a dense region one row may
    have as many neighbours as thousands of rows elsewhere.
    """
    alive, kept, start, size = np.ones(len(points), dtype=bool), [], 0, 1
    while start < len(order):
        window = order[start : start + size]
        living = np.flatnonzero(alive[window])
        batch = window[living]
        counts = tree.query_ball_point(points[batch], radius, workers=-1, return_length=True) if len(batch) else []
        fit = max(1, int(np.searchsorted(np.cumsum(counts), FOUND, side="right")))
        some = batch[:fit]
        for row, near in zip(some, tree.query_ball_point(points[some], radius, workers=-1), strict=True):
            if alive[row]:  # not eliminated by an earlier row of this batch
                kept.append(row)
                alive[near] = False
        if most is not None and len(kept) > most:
            return np.sort(np.array(kept)), False
        start += int(living[fit]) if fit < len(batch) else size
        size = min(2 * fit if fit < len(batch) else 2 * size, MOST_AT_ONCE)
    return np.sort(np.array(kept)), True


FOUND, MOST_AT_ONCE = 2_000_000, 65_536
"""Most neighbours, of about forty bytes each, and most rows in one search."""


def _bisected(points: np.ndarray, order: np.ndarray, num: int) -> np.ndarray:
    """Return the rows of a complete elimination that keeps `num` rows, or as close to that as bisection comes."""
    tree = KDTree(points)
    high = float(np.linalg.norm(points.max(axis=0) - points.min(axis=0))) or 1.0
    low, best = 0.0, _eliminate(tree, points, order, high)[0]
    radius = high / 64
    for _ in range(40):
        # An elimination at too small a radius is stopped as soon as it keeps too many rows.
        kept, complete = _eliminate(tree, points, order, radius, most=int(1.05 * num) + 1)
        if complete and abs(len(kept) - num) < abs(len(best) - num):
            best = kept  # of complete eliminations only
        if abs(len(best) - num) <= 0.05 * num:
            break
        low, high = (radius, high) if len(kept) > num else (low, radius)
        radius = (low + high) / 2 if low else high / 2
    return best


def greedy(
    kernel: Kernel, X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray, rows: int = 20_000
) -> Float[Array, "M d"]:
    """Return rows chosen greedily: each has the largest conditional variance given those before it.

    They are the pivots of a pivoted Cholesky factorisation of K.

    Parameters
    ----------
    kernel
        Kernel of the variances.
    X
        Rows of the data.
    num
        Number of points.
    key
        Random key.
    rows
        Most rows to choose from, drawn at random; at least `num`.
    """
    X = _checked(X, num)
    some = X[jax.random.permutation(key, X.shape[0])[: max(rows, num)]]
    _, pivots = eqx.filter_jit(pivoted_cholesky)(System(kernel, some, jnp.zeros(())), num)
    return some[pivots]


def _checked(X: Shaped[ArrayLike, "..."], num: int) -> Float[Array, "N d"]:
    """Return X as an array. Raises `ValueError` unless `num` is between 1 and its number of rows."""
    values = checks.as_inputs(X, "X")
    if not 1 <= num <= values.shape[0]:
        raise ValueError(f"num must be between 1 and the {values.shape[0]} rows of X, but it is {num}.")
    return values
