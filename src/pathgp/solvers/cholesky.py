"""The direct solver: exact, in O(N³) time and O(N²) memory.

It is the reference that other solvers are tested against, and the best choice below about 10,000 rows.
"""

import time

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp.linalg.factor import substitute
from pathgp.runs.run import Run
from pathgp.solvers.base import Info, Solution, Solver
from pathgp.system.dense import cholesky_factor, row_tiles
from pathgp.system.system import System, Targets


class Cholesky(Solver):
    """Direct solver: W = L⁻ᵀL⁻¹B with the Cholesky factorisation H = LLᵀ.

    It works in float64 on the host, on one N x N matrix, whatever the dtype of the data. The weights are then rounded
    to the dtype of the data, and the residual is that of the rounded weights.

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
        run: Run | None = None,
    ) -> Solution:
        """Return the exact solution. `key` and `init` have no effect, and `run` only observes."""
        clock = time.perf_counter()
        split, targets = system, targets.map_columns(system.gather_rows)
        system = system.gathered()  # each process solves the whole system on its own host
        L = cholesky_factor(system)
        B = np.asarray(targets.total, dtype=np.float64)
        # Means apart from samples, so that their weights are bit-identical whatever the number of samples.
        parts = np.split(B, [targets.num_means], axis=1)
        W = np.concatenate([substitute(L, part) for part in parts], axis=1).astype(targets.signal.dtype)
        # The factor has overwritten H, so its rows are computed again.
        left = B - np.concatenate([rows @ W for _, rows in row_tiles(system)])
        weights, residual = (split.shard_rows(jnp.asarray(x, dtype=W.dtype)) for x in (W, left))
        relative = jnp.asarray(np.linalg.norm(left, axis=0) / np.asarray(targets.norms), dtype=W.dtype)
        seconds = time.perf_counter() - clock
        if run is not None:
            run.show(1, 1.0, weights)
        info = Info("Cholesky", 1, 1.0, seconds, 0.0, relative, jnp.isfinite(relative))
        return Solution(split.X, weights, residual, info, factor=L)
