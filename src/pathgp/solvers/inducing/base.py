"""Inducing points: the weights belong to M chosen points z instead of the N rows of the data."""

import math
import time
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy import linalg

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.linalg.jitter import LARGEST_SHARE, least_noise, raise_jitter
from pathgp.linalg.tiles import pad_rows
from pathgp.parallel.sharding import shard_map_rows
from pathgp.runs.run import Run
from pathgp.solvers.base import Info, Solution, Solver
from pathgp.solvers.local import Local
from pathgp.system.dense import kernel_float64
from pathgp.system.system import System, Targets


def right_hand_side(points: Float[Array, "M d"], system: System, B: Float[Array, "N s"]) -> Float[Array, "M s"]:
    """Return K_zX Σ⁻¹ B, in one tiled pass."""
    return system.onto(points, B / system.noise_diagonal[:, None])


def gram_product(
    points: Float[Array, "M d"],
    system: System,
    V: Float[Array, "M s"],
    B: Float[Array, "N s"] | None = None,
) -> Float[Array, "M s"]:
    """Return K_zX Σ⁻¹ (K_Xz V − B), without B if it is None.

    A tile, of some rows and all points, is evaluated once and used twice. It is small enough to be still in the cache
    the second time.
    """

    def local(
        X: Array, precision: Array, B: Array | None, kernel: Kernel, points: Array, V: Array
    ) -> Float[Array, "M s"]:
        # There are so many tiles that adding one after another would round too much: sums of groups of tiles are added.
        rows = max(1, min(X.shape[0], system.tile[0] * system.tile[1] // points.shape[0]))
        together = max(1, math.isqrt(-(-X.shape[0] // rows)))
        tiles = lambda A: pad_rows(A, rows * together, mode="constant").reshape(-1, together, rows, A.shape[1])
        zero = jnp.zeros_like(V.T)

        def add_tile(total: Float[Array, "s M"], tile: tuple[Array, ...]) -> tuple[Float[Array, "s M"], None]:
            X_tile, precision_tile, *B_tile = tile
            K = kernel(X_tile, points)
            fitted = K @ V - B_tile[0] if B_tile else K @ V
            return total + (precision_tile * fitted).T @ K, None

        def add_tiles(total: Float[Array, "s M"], some: tuple[Array, ...]) -> tuple[Float[Array, "s M"], None]:
            return total + jax.lax.scan(add_tile, zero, some)[0], None

        at_rows = X, precision[:, None], *([] if B is None else [B])
        return jax.lax.scan(add_tiles, zero, tuple(map(tiles, at_rows)))[0].T

    return shard_map_rows(system.mesh, local, (system.X, system.precision, B), (system.kernel, points, V), total=True)


class Inducing(Solver):
    """Base class of solvers whose weights belong to inducing points."""

    has_own_points: ClassVar[bool] = True
    points: eqx.AbstractVar[Float[Array, "M d"]]

    def support(self, system: System) -> Float[Array, "M d"]:
        """Return the inducing points. Raises `ValueError` if the data have another number of inputs."""
        if self.points.shape[1] != system.X.shape[1]:
            raise ValueError(
                f"the inducing points have {self.points.shape[1]} inputs, but the data have {system.X.shape[1]}: "
                "choose points among the rows of X, or in the same space."
            )
        return self.points

    def with_local(self, local: Local) -> Solver:
        """Raise `ValueError`: a local correction would use the data near a point a second time."""
        raise ValueError(
            f"local cannot finish what {type(self).__name__} leaves, since its weights do not belong to rows of the "
            "data: leave local out, or use SubsetOfData()."
        )


class NormalEquations(NamedTuple):
    """The equations (I + AAᵀ) U = A Σ^−½ B in float64, where K_zz + jitter = LLᵀ and A = L⁻¹ K_zX Σ^−½.

    `gram` is I + AAᵀ and `right` is A Σ^−½ B. The weights are V = L⁻ᵀU.
    """

    L: Float64[np.ndarray, "M M"]
    gram: Float64[np.ndarray, "M M"]
    right: Float64[np.ndarray, "M s"]

    @classmethod
    def of(cls, system: System, z: Float[Array, "M d"], B: Float[Array, "N s"], dtype: Any) -> "NormalEquations":
        """Return the equations, from one tiled pass over the data.

        The jitter is for weights in `dtype`, since points may coincide and the weights must stay small enough for it.
        """
        M = z.shape[0]
        B, system = system.gather_rows(B), system.gathered()  # each process solves the whole system on its own host
        L = _factor(kernel_float64(system.kernel, z, z), dtype)
        gram, right = np.eye(M), np.zeros((M, B.shape[1]))
        noise = np.asarray(system.noise_diagonal, dtype=np.float64)
        # Tiles of rows bound the memory by 8192 x M.
        for i in range(0, system.size, 8192):
            rows = slice(i, i + 8192)
            scale = 1 / np.sqrt(noise[rows])
            A = linalg.solve_triangular(L, kernel_float64(system.kernel, z, system.X[rows]), lower=True) * scale
            gram += A @ A.T
            right += A @ (scale[:, None] * np.asarray(B[rows], dtype=np.float64))
        return cls(L, gram, right)

    def solve(self) -> tuple[Float64[np.ndarray, "M s"], Float64[np.ndarray, "s"]]:
        """Return the weights V, and the relative residual of each column of U."""
        # No eigenvalue of I + AAᵀ is below one, so it needs no jitter.
        U = linalg.cho_solve(linalg.cho_factor(self.gram, lower=True), self.right)
        norms = np.linalg.norm(self.right, axis=0)
        relative = np.linalg.norm(self.right - self.gram @ U, axis=0) / np.where(norms > 0, norms, 1)
        return linalg.solve_triangular(self.L, U, lower=True, trans=1), relative


def _factor(K_zz: Float64[np.ndarray, "M M"], dtype: Any) -> Float64[np.ndarray, "M M"]:
    """Return L with K_zz + jitter · I = LLᵀ in float64, with the jitter that `dtype` needs."""

    def factorise(jitter: float) -> Float64[np.ndarray, "M M"]:
        L = linalg.cholesky(K_zz + jitter * np.eye(len(K_zz)), lower=True)
        # No pivot of K_zz + jitter · I is below the jitter; one that is would be rounding error.
        if not np.min(np.diag(L)) ** 2 > jitter / 2:
            raise ValueError("a pivot is rounding error")
        return L

    return raise_jitter(factorise, least_noise(K_zz, dtype), LARGEST_SHARE * float(np.mean(np.diag(K_zz))))[1]


class InducingCholesky(Inducing):
    """Closed form for small M, in float64 (Titsias, 2009): (K_zz + K_zX Σ⁻¹ K_Xz) V = K_zX Σ⁻¹ B.

    The mean is the KL-optimal posterior mean. The samples are those of the paper: they have prior draws f in the place
    of draws f^(z) of the Nyström approximation. `SGPR` has the exact samples.

    Parameters
    ----------
    points
        The inducing points z.
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.as_inputs(x, "points"))

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "M s"] | None = None,
        run: Run | None = None,
    ) -> Solution:
        """Return the exact solution. `key` and `init` have no effect, and `run` only observes."""
        clock = time.perf_counter()
        z = self.support(system)
        return to_solution(self, z, NormalEquations.of(system, z, targets.total, z.dtype), system.size, clock, run)


def to_solution(
    solver: Solver, z: Float[Array, "M d"], equations: NormalEquations, rows: int, clock: float, run: Run | None
) -> Solution:
    """Return the `Solution` of a direct solver that started at the time `clock`."""
    V, relative = equations.solve()
    weights, residual = jnp.asarray(V, dtype=z.dtype), jnp.asarray(relative, dtype=z.dtype)
    seconds, passes = time.perf_counter() - clock, z.shape[0] / rows
    if run is not None:
        run.show(1, passes, weights)
    info = Info(type(solver).__name__, 1, passes, seconds, 1e-6, residual, residual <= 1e-6)
    return Solution(z, weights, None, info)
