"""Inducing points: the weights live on M points z of one's choice, not on the N rows of the data."""

import time

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import linalg

from pathgp import checks
from pathgp.local import Local
from pathgp.solvers.base import Every, Info, Snapshot, Solution, Solver
from pathgp.system import System, Targets, wide
from pathgp.tiles import tiled_product


def right_hand_side(points: Float[Array, "M d"], system: System, B: Float[Array, "N s"]) -> Float[Array, "M s"]:
    """K_zX Σ⁻¹ B, one tiled pass."""
    return tiled_product(system.kernel, points, system.X, B / system.noise_diagonal[:, None], system.tile)


class Inducing(Solver):
    """A solver whose weights belong to inducing points."""

    points: eqx.AbstractVar[Float[Array, "M d"]]

    def support(self, system: System) -> Float[Array, "M d"]:
        """The inducing points."""
        if self.points.shape[1] != system.X.shape[1]:
            raise ValueError(
                f"the inducing points have {self.points.shape[1]} inputs, but the data have {system.X.shape[1]}: "
                "choose points among the rows of X, or in the same space."
            )
        return self.points

    def counting_on(self, local: Local) -> Solver:
        """Refused: a projection on rows would use the data near a point a second time."""
        raise ValueError(
            f"local cannot finish what {type(self).__name__} leaves, since its weights do not belong to rows of the "
            "data: leave local out, or use SubsetOfData()."
        )


class InducingCholesky(Inducing):
    """The closed form for small M (Titsias, 2009): (K_zz + K_zX Σ⁻¹ K_Xz) V = K_zX Σ⁻¹ B, in float64.

    With K_zz = LLᵀ and A = L⁻¹ K_zX Σ^−½ it is V = L⁻ᵀ (I + AAᵀ)⁻¹ A Σ^−½ B: the KL-optimal posterior mean, and with
    prior draws f in the place of draws of the Nyström approximation, the paper's samples.
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.inputs(x, "points"))

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "M s"] | None = None,
        observe: Every | None = None,
        progress: bool = False,
    ) -> Solution:
        """The exact solution; `key`, `init` and `progress` change nothing."""
        clock = time.perf_counter()
        z, M = self.support(system), self.points.shape[0]
        K_zz = wide(system.kernel, z, z)
        # Points may repeat; and the weights, which are rounded to the precision of the data, must not grow too large.
        jitter = 10 * float(jnp.finfo(targets.signal.dtype).eps) * np.trace(K_zz) / M
        L = linalg.cholesky(K_zz + jitter * np.eye(M), lower=True)
        gram, right = np.eye(M), np.zeros((M, targets.signal.shape[1]))
        B, noise = np.asarray(targets.total), np.asarray(system.noise_diagonal, dtype=np.float64)
        for i in range(0, system.size, 8192):
            rows = slice(i, i + 8192)
            scale = 1 / np.sqrt(noise[rows])
            A = linalg.solve_triangular(L, wide(system.kernel, z, system.X[rows]), lower=True) * scale
            gram += A @ A.T
            right += A @ (scale[:, None] * B[rows])
        inner = linalg.cho_solve(linalg.cho_factor(gram, lower=True), right)
        V = linalg.solve_triangular(L, inner, lower=True, trans=1)
        norms = np.linalg.norm(right, axis=0)
        relative = np.linalg.norm(right - gram @ inner, axis=0) / np.where(norms > 0, norms, 1)
        weights = jnp.asarray(V, dtype=targets.signal.dtype)
        seconds = time.perf_counter() - clock
        if observe is not None:
            observe.call(Snapshot(1, M / system.size, seconds, weights))
        residual = jnp.asarray(relative, dtype=weights.dtype)
        info = Info("InducingCholesky", 1, M / system.size, seconds, 1e-6, residual, residual <= 1e-6)
        return Solution(z, weights, None, info)
