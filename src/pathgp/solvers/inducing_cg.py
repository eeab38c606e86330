"""Conjugate gradients with inducing points."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import checks
from pathgp.solvers.base import Iterative
from pathgp.solvers.blocks import inverse_factor
from pathgp.solvers.inducing import Inducing, right_hand_side
from pathgp.system import System, Targets
from pathgp.tiles import tiled_product


class _Preconditioner(eqx.Module):
    """P⁻¹ with P = K_zz + (N/M) K_zz Σ̄⁻¹ K_zz: the data taken to lie as the points do (Rudi et al., 2017)."""

    L_inverse: Float[Array, "M M"]
    T_inverse: Float[Array, "M M"]

    def __call__(self, r: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """L⁻ᵀ (I + (N/M) LᵀL/σ²)⁻¹ L⁻¹ r, with K_zz = LLᵀ."""
        u = self.L_inverse @ r
        return self.L_inverse.T @ (self.T_inverse.T @ (self.T_inverse @ u))


class _State(eqx.Module):
    v: Float[Array, "M s"]
    r: Float[Array, "M s"]
    p: Float[Array, "M s"]
    rz: Float[Array, "s"]


class InducingCG(Inducing, Iterative):
    """Conjugate gradients on (K_zz + K_zX Σ⁻¹ K_Xz) V = K_zX Σ⁻¹ B, matrix-free in N (FALKON; Rudi et al., 2017).

    A step is two passes over all pairs of a row and a point. The preconditioner factorises two M x M matrices.
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.inputs(x, "points"))
    steps: int = 50
    tolerance: float = 1e-4
    max_seconds: float = float("inf")
    limits: ClassVar[tuple[str, ...]] = ("steps", *Iterative.limits)

    def __check_init__(self) -> None:
        checks.at_least(self.steps, 1, "InducingCG.steps")

    def prepare(
        self, system: System, targets: Targets, key: PRNGKeyArray
    ) -> tuple[_Preconditioner, Float[Array, "M s"]]:
        """The preconditioner, and the right-hand side."""
        M = self.points.shape[0]
        K_zz = system.kernel(self.points, self.points)
        A = K_zz + self.resolved(system) * jnp.eye(M, dtype=K_zz.dtype)
        L_inverse = inverse_factor(A)
        L = A @ L_inverse.T
        ratio = jnp.sum(1 / system.noise_diagonal) / M
        T_inverse = inverse_factor(jnp.eye(M, dtype=K_zz.dtype) + ratio * (L.T @ L))
        return _Preconditioner(L_inverse, T_inverse), right_hand_side(self.points, system, targets.total)

    def resolved(self, system: System) -> Float[Array, ""]:
        """What is added to the diagonal of K_zz, where its precision ends: the weights would be all rounding else."""
        ones = jnp.ones((self.points.shape[0], 1), self.points.dtype)
        row_sums = tiled_product(system.kernel, self.points, self.points, ones, system.tile)
        return 4 * jnp.finfo(row_sums.dtype).eps * jnp.max(row_sums)

    def product(self, system: System, V: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """(K_zz + K_zX Σ⁻¹ K_Xz) V."""
        fitted = tiled_product(system.kernel, system.X, self.points, V, system.tile)
        own = tiled_product(system.kernel, self.points, self.points, V, system.tile)
        return own + self.resolved(system) * V + right_hand_side(self.points, system, fitted)

    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "M s"] | None
    ) -> _State:
        """Zero weights, or a warm start, whose residual costs a step."""
        precondition, right = plan
        v = jnp.zeros_like(right) if init is None else init
        r = right if init is None else right - self.product(system, init)
        z = precondition(r)
        return _State(v, r, z, jnp.sum(r * z, axis=0))

    def step(self, plan: Any, system: System, targets: Targets, state: _State) -> _State:
        """One iteration for every column."""
        Hp = self.product(system, state.p)
        curvature = jnp.sum(state.p * Hp, axis=0)
        a = jnp.where(curvature > 0, state.rz / jnp.where(curvature > 0, curvature, 1), 0)
        v, r = state.v + a * state.p, state.r - a * Hp
        z = plan[0](r)
        rz = jnp.sum(r * z, axis=0)
        b = jnp.where(state.rz > 0, rz / jnp.where(state.rz > 0, state.rz, 1), 0)
        return _State(v, r, z + b * state.p, rz)

    def weights(self, plan: Any, state: _State) -> Float[Array, "M s"]:
        """The last iterate."""
        return state.v

    def residual(self, plan: Any, system: System, targets: Targets, state: _State) -> tuple[Float[Array, "s"], None]:
        """The residual of the recursion, relative to the right-hand side."""
        norms = jnp.linalg.norm(plan[1], axis=0)
        return jnp.linalg.norm(state.r, axis=0) / jnp.where(norms > 0, norms, 1), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """A look at the residual after every step."""
        return self.steps, 1, 2 * self.points.shape[0] / system.size
