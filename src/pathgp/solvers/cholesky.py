"""The direct solver: exact, O(N³) time and O(N²) memory. The oracle, and the right answer below about 10k rows."""

import time

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp.linalg.factor import substitute
from pathgp.runs.checkpoint import Slot
from pathgp.solvers.base import Every, Info, Snapshot, Solution, Solver
from pathgp.system.dense import factor_of, row_tiles
from pathgp.system.system import System, Targets


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
        L = factor_of(system)
        B = np.asarray(targets.total, dtype=np.float64)
        W = substitute(L, B).astype(targets.signal.dtype)
        left = B - np.concatenate([rows @ W for _, rows in row_tiles(system)])
        weights, residual = (split.placed(jnp.asarray(x, dtype=W.dtype)) for x in (W, left))
        relative = jnp.asarray(np.linalg.norm(left, axis=0) / np.asarray(targets.norms), dtype=W.dtype)
        seconds = time.perf_counter() - clock
        if observe is not None:
            observe.call(Snapshot(1, 1.0, seconds, weights))
        info = Info("Cholesky", 1, 1.0, seconds, 0.0, relative, jnp.isfinite(relative))
        return Solution(split.X, weights, residual, info, factor=L)
