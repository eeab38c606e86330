"""How inducing points are chosen among the rows of the data."""

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
"""Random points that are taken at most where nobody says how many: a step on two million rows takes seconds then."""


def random_subset(X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray) -> Float[Array, "M d"]:
    """`num` different rows, drawn at random.

    >>> import jax, jax.numpy as jnp
    >>> random_subset(jnp.arange(10.0)[:, None], 3, key=jax.random.key(0)).shape
    (3, 1)
    """
    X = _checked(X, num)
    return X[jnp.sort(jax.random.permutation(key, X.shape[0])[:num])]


class RandomPoints(eqx.Module):
    """Asks the estimator for `InducingCG` on `num` random rows of the data that it is given, in standardised units.

    None is a quarter of the rows, but at most `MOST_POINTS`.
    """

    num: int | None = None
    tolerance: float = 1e-3

    def __check_init__(self) -> None:
        checks.at_least(1 if self.num is None else self.num, 1, "RandomPoints.num")

    def number(self, rows: int) -> int:
        """How many there are among so many rows.

        >>> RandomPoints().number(3000), RandomPoints().number(2_000_000), RandomPoints(500).number(3000)
        (750, 10000, 500)
        """
        return max(1, min(rows // 4, MOST_POINTS)) if self.num is None else self.num

    def solver(self, X: Shaped[ArrayLike, "..."], *, key: PRNGKeyArray) -> InducingCG:
        """The solver for these data."""
        values = checks.inputs(X)
        points = random_subset(values, self.number(values.shape[0]), key=key)
        return InducingCG(points=points, tolerance=self.tolerance)


def k_means(
    kernel: Kernel, X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray, rows: int = 100_000
) -> Float[Array, "M d"]:
    """The centres of `num` clusters (scikit-learn's MiniBatchKMeans) of at most `rows` random rows.

    Clusters are found in the coordinates of the kernel; a centre is the mean of the rows of its cluster. Where rows
    repeat each other, there may be fewer.
    """
    from sklearn.cluster import MiniBatchKMeans  # slow to import, and used nowhere else

    X = _checked(X, num)
    rows_key, seed_key = jax.random.split(key)
    some = X[jax.random.permutation(rows_key, X.shape[0])[: max(rows, num)]]
    seed = int(jax.random.bits(seed_key, (), jnp.uint32) >> 1)
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
    the ratio, the number of points can be given: the ratio is then found by bisection, to within 5 % where the rows
    allow it.

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
    return X[_eliminate(KDTree(points), points, order, float(ratio or 0.0))[0]]


def _eliminate(
    tree: KDTree, points: np.ndarray, order: np.ndarray, radius: float, most: int | None = None
) -> tuple[np.ndarray, bool]:
    """The kept rows, in the order of the data; stops, and says so, as soon as there are more than `most`.

    Neighbours are looked up for many rows at a time, but for no more than have `FOUND` of them together: they are
    counted first, since where points crowd one row may have as many as thousands elsewhere.
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
            if alive[row]:
                kept.append(row)
                alive[near] = False
        if most is not None and len(kept) > most:
            return np.sort(np.array(kept)), False
        start += int(living[fit]) if fit < len(batch) else size
        size = min(2 * fit if fit < len(batch) else 2 * size, MOST_AT_ONCE)
    return np.sort(np.array(kept)), True


FOUND, MOST_AT_ONCE = 2_000_000, 65_536
"""Neighbours, of some forty bytes each, and rows, that are looked up together."""


def _bisected(points: np.ndarray, order: np.ndarray, num: int) -> np.ndarray:
    """An elimination that is complete, and keeps `num` rows or as near to that as was found."""
    tree = KDTree(points)
    high = float(np.linalg.norm(points.max(axis=0) - points.min(axis=0))) or 1.0
    low, best = 0.0, _eliminate(tree, points, order, high)[0]
    radius = high / 64
    for _ in range(40):
        kept, complete = _eliminate(tree, points, order, radius, most=int(1.05 * num) + 1)
        if complete and abs(len(kept) - num) < abs(len(best) - num):
            best = kept
        if abs(len(best) - num) <= 0.05 * num:
            break
        low, high = (radius, high) if len(kept) > num else (low, radius)
        radius = (low + high) / 2 if low else high / 2
    return best


def greedy(
    kernel: Kernel, X: Shaped[ArrayLike, "..."], num: int, *, key: PRNGKeyArray, rows: int = 20_000
) -> Float[Array, "M d"]:
    """Of at most `rows` random rows, in turn the one of which the others tell least: the largest conditional variance.

    These are the pivots of a pivoted Cholesky factorisation of K.
    """
    X = _checked(X, num)
    some = X[jax.random.permutation(key, X.shape[0])[: max(rows, num)]]
    _, pivots = eqx.filter_jit(pivoted_cholesky)(System(kernel, some, jnp.zeros(())), num)
    return some[pivots]


def _checked(X: Shaped[ArrayLike, "..."], num: int) -> Float[Array, "N d"]:
    values = checks.inputs(X, "X")
    if not 1 <= num <= values.shape[0]:
        raise ValueError(f"num must be between 1 and the {values.shape[0]} rows of X, but it is {num}.")
    return values
