"""Inducing points: the weights live on M points z of one's choice, not on the N rows of the data."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import linalg

from pathgp import checks
from pathgp.kernels import Kernel
from pathgp.solvers.base import Every, Info, Iterative, Snapshot, Solution, Solver
from pathgp.system import System, Targets
from pathgp.tiles import tiled_product


def check_points(points: Float[Array, "M d"], system: System) -> None:
    """Refuses points of another number of inputs than the data."""
    if points.shape[1] != system.X.shape[1]:
        raise ValueError(
            f"the inducing points have {points.shape[1]} inputs, but the data have {system.X.shape[1]}: choose points "
            "among the rows of X, or in the same space."
        )


def right_hand_side(points: Float[Array, "M d"], system: System, B: Float[Array, "N s"]) -> Float[Array, "M s"]:
    """K_zX Σ⁻¹ B, one tiled pass."""
    return tiled_product(system.kernel, points, system.X, B / system.noise_diagonal[:, None], system.tile)


class OnPoints(Iterative):
    """An iterative solver whose weights belong to inducing points."""

    points: eqx.AbstractVar[Float[Array, "M d"]]

    def support(self, system: System) -> Float[Array, "M d"]:
        """The inducing points."""
        check_points(self.points, system)
        return self.points


class InducingCholesky(Solver):
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
        check_points(self.points, system)
        clock = time.perf_counter()
        M = self.points.shape[0]
        gram, right = np.zeros((M, M)), np.zeros((M, targets.signal.shape[1]))
        for i in range(0, system.size, 8192):
            rows = slice(i, i + 8192)
            precision = 1 / np.asarray(system.noise_diagonal[rows], dtype=np.float64)[:, None]
            K_Bz = _wide(system.kernel, system.X[rows], self.points)
            gram += K_Bz.T @ (precision * K_Bz)
            right += K_Bz.T @ (precision * np.asarray(targets.total[rows], dtype=np.float64))
        K_zz = _wide(system.kernel, self.points, self.points)
        K_zz[np.diag_indices(M)] += 1e-9 * np.trace(K_zz) / M  # points may repeat
        H = K_zz + gram
        try:
            V = linalg.cho_solve(linalg.cho_factor(H, lower=True), right)
        except linalg.LinAlgError as error:
            raise ValueError(
                "K_zz + K_zX Σ⁻¹ K_Xz is not positive definite to working precision: give a larger noise variance, or "
                "inducing points that are further apart."
            ) from error
        norms = np.linalg.norm(right, axis=0)
        relative = np.linalg.norm(right - H @ V, axis=0) / np.where(norms > 0, norms, 1)
        weights = jnp.asarray(V, dtype=targets.signal.dtype)
        seconds = time.perf_counter() - clock
        if observe is not None:
            observe.call(Snapshot(1, M / system.size, seconds, weights))
        residual = jnp.asarray(relative, dtype=weights.dtype)
        info = Info("InducingCholesky", 1, M / system.size, seconds, 1e-6, residual, residual <= 1e-6)
        return Solution(self.points, weights, None, info)


def _wide(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> np.ndarray:
    with jax.enable_x64(True):
        wide, a, z = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (kernel, A, Z))
        return np.array(_evaluated(wide, a, z))


@jax.jit
def _evaluated(kernel: Kernel, A: Float[Array, "n d"], Z: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return kernel(A, Z)
