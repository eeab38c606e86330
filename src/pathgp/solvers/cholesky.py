"""The direct solver: exact, O(N³) time and O(N²) memory. The oracle, and the right answer below about 10k rows."""

import time
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy import linalg

from pathgp.checkpoint import Slot
from pathgp.solvers.base import Every, Info, Snapshot, Solution, Solver
from pathgp.system import System, Targets, wide

BLOCK = 2048


class Cholesky(Solver):
    """W = L⁻ᵀL⁻¹B with H = LLᵀ, in float64 whatever the precision of the data, on one N x N matrix of the host.

    The weights are then rounded to the precision of the data, and the residual is that of the rounded ones.

    >>> import jax, jax.numpy as jnp
    >>> from pathgp.kernels import RBF
    >>> system = System(RBF(), jnp.array([[0.0], [9.0]]), jnp.array(1.0))
    >>> b = Targets(jnp.array([[2.0], [4.0]]), jnp.zeros((2, 1)))
    >>> print(Cholesky().solve(system, b, key=jax.random.key(0)).weights[:, 0])
    [1. 2.]
    """

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        observe: Every | None = None,
        progress: bool = False,
        saved: Slot | None = None,
    ) -> Solution:
        """The exact solution; `key`, `init`, `progress` and `saved` change nothing."""
        clock = time.perf_counter()
        split, targets = system, targets.each(system.collected)
        system = system.gathered()  # on the host of each process
        H = np.empty((system.size, system.size))
        for i, rows in _row_tiles(system):
            H[i : i + len(rows)] = rows
        factorise(H)
        B = np.asarray(targets.total, dtype=np.float64)
        W = substitute(H, B).astype(targets.signal.dtype)
        left = B - np.concatenate([rows @ W for _, rows in _row_tiles(system)])
        weights, residual = (split.placed(jnp.asarray(x, dtype=W.dtype)) for x in (W, left))
        relative = jnp.asarray(np.linalg.norm(left, axis=0) / np.asarray(targets.norms), dtype=W.dtype)
        seconds = time.perf_counter() - clock
        if observe is not None:
            observe.call(Snapshot(1, 1.0, seconds, weights))
        info = Info("Cholesky", 1, 1.0, seconds, 0.0, relative, jnp.isfinite(relative))
        return Solution(split.X, weights, residual, info)


def factorise(H: Float64[np.ndarray, "N N"], block: int = BLOCK) -> None:
    """Overwrites the lower triangle of H with its Cholesky factor, a block of columns at a time.

    All but the small diagonal blocks is matrix products, so it is as fast as LAPACK's own factorisation of the whole,
    which crashes on some processors from about 15,000 rows on (the OpenBLAS that SciPy 1.17 carries).
    """
    for j in range(0, len(H), block):
        k = j + block
        H[j:, j:k] -= H[j:, :j] @ H[j:k, :j].T
        try:
            H[j:k, j:k] = linalg.cholesky(H[j:k, j:k], lower=True, check_finite=False)
        except linalg.LinAlgError as error:
            raise ValueError(
                "K + noise is not positive definite to working precision: give a larger noise variance, or remove "
                "rows that repeat others."
            ) from error
        H[k:, j:k] = linalg.solve_triangular(H[j:k, j:k], H[k:, j:k].T, lower=True, check_finite=False).T


def substitute(
    L: Float64[np.ndarray, "N N"], B: Float64[np.ndarray, "N s"], block: int = BLOCK
) -> Float64[np.ndarray, "N s"]:
    """L⁻ᵀL⁻¹B, where only the lower triangle of L is looked at."""
    W = B.copy()
    starts = range(0, len(L), block)
    for j in starts:
        k = j + block
        W[j:k] = linalg.solve_triangular(L[j:k, j:k], W[j:k] - L[j:k, :j] @ W[:j], lower=True, check_finite=False)
    for j in reversed(starts):
        k = j + block
        rest = W[j:k] - L[k:, j:k].T @ W[k:]
        W[j:k] = linalg.solve_triangular(L[j:k, j:k], rest, lower=True, trans=1, check_finite=False)
    return W


def _row_tiles(system: System) -> Iterator[tuple[int, Float64[np.ndarray, "t N"]]]:
    """H in float64, a tile of rows at a time."""
    noise = np.asarray(system.noise_diagonal, dtype=np.float64)
    for i in range(0, system.size, system.tile[0]):
        rows = wide(system.kernel, system.X[i : i + system.tile[0]], system.X)
        rows[:, i : i + len(rows)] += np.diag(noise[i : i + len(rows)])
        yield i, rows
