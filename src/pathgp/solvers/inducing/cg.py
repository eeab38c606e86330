"""Conjugate gradients with inducing points."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.linalg.tiles import split_product
from pathgp.parallel.sharding import everywhere
from pathgp.solvers.base import Iterative
from pathgp.solvers.inducing.base import Inducing, gram_product, right_hand_side
from pathgp.solvers.inducing.packed import Packed
from pathgp.system.system import System, Targets

REFRESH = 10
"""Steps after which the residual is computed anew."""


class _Plan(eqx.Module):
    precondition: Packed
    right: Float[Array, "M s"]
    norms: Float[Array, "s"]
    ridge: Float[Array, ""]


class _State(eqx.Module):
    v: Float[Array, "M s"]
    r: Float[Array, "M s"]
    p: Float[Array, "M s"]
    rz: Float[Array, "s"]
    steps: Int[Array, ""]


class InducingCG(Inducing, Iterative):
    """Conjugate gradients on (K_zz + K_zX Σ⁻¹ K_Xz) V = K_zX Σ⁻¹ B, matrix-free in N (FALKON; Rudi et al., 2017).

    A step is one pass over all pairs of a row and a point. The preconditioner takes the data to lie as the points do,
    K_zX Σ⁻¹ K_Xz ≈ ratio · K_zz² with ratio = tr(Σ⁻¹)/M, and its factors are the one M x M matrix that is held: 1.6 GB
    for 20,000 points. Where they need more on the diagonal of K_zz than the equations have, `info.reason` says so.

    The residual of a step is what the step leaves of the one before, and rounding adds up in it: H has the square of
    K's condition. So every few steps it is computed anew, as K_zX Σ⁻¹ (B − K_Xz V) − K_zz V, of which the difference
    is taken before the large sum. Directions follow the residuals as they are (Polak and Ribière, 1969).
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.inputs(x, "points"))
    steps: int = 50
    tolerance: float = 1e-3
    max_seconds: float = float("inf")
    is_bounded: ClassVar[bool] = False
    limits: ClassVar[tuple[str, ...]] = ("steps", *Iterative.limits)

    def __check_init__(self) -> None:
        checks.at_least(self.steps, 1, "InducingCG.steps")

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """The preconditioner, the right-hand side, and what is added to the diagonal of K_zz."""
        right, ridge, ratio = _sums(self, system, targets)
        packed = Packed.of(system.kernel, self.points, float(ratio), float(ridge))
        precondition = everywhere(system.mesh, packed)
        return _Plan(precondition, right, _norms(precondition, right), ridge)

    def prepared(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """On the host, where a matrix can be overwritten by its factors."""
        return self.prepare(system, targets, key)

    def remark(self, plan: _Plan) -> str:
        """The jitter of the preconditioner, where it is larger than that of the equations."""
        jitter, ridge = float(plan.precondition.jitter), float(plan.ridge)
        return "" if jitter <= ridge else f"{jitter:.0e} was added to the diagonal of K_zz in the preconditioner"

    def resolved(self, system: System) -> Float[Array, ""]:
        """What is added to the diagonal of K_zz, where its precision ends: the weights would be all rounding else."""
        ones = jnp.ones((self.points.shape[0], 1), self.points.dtype)
        row_sums = split_product(system.mesh, system.kernel, self.points, self.points, ones, system.tile)
        return 4 * jnp.finfo(row_sums.dtype).eps * jnp.max(row_sums)

    def product(self, plan: _Plan, system: System, V: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """(K_zz + K_zX Σ⁻¹ K_Xz) V."""
        own = split_product(system.mesh, system.kernel, self.points, self.points, V, system.tile)
        return own + plan.ridge * V + gram_product(self.points, system, V)

    def left(self, plan: _Plan, system: System, targets: Targets, V: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """K_zX Σ⁻¹ (B − K_Xz V) − K_zz V: the residual, from the weights alone."""
        own = split_product(system.mesh, system.kernel, self.points, self.points, V, system.tile)
        return -gram_product(self.points, system, V, targets.total) - own - plan.ridge * V

    def start(
        self, plan: _Plan, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "M s"] | None
    ) -> _State:
        """Zero weights, or a warm start, whose residual costs a step."""
        v = jnp.zeros_like(plan.right) if init is None else init
        r = plan.right if init is None else self.left(plan, system, targets, init)
        z = plan.precondition(r)
        return _State(v, r, z, jnp.sum(r * z, axis=0), jnp.zeros((), int))

    def step(self, plan: _Plan, system: System, targets: Targets, state: _State) -> _State:
        """One iteration for every column."""
        Hp = self.product(plan, system, state.p)
        curvature = jnp.sum(state.p * Hp, axis=0)
        a = jnp.where(curvature > 0, state.rz / jnp.where(curvature > 0, curvature, 1), 0)
        v, steps = state.v + a * state.p, state.steps + 1
        anew = steps % REFRESH == 0
        r = jax.lax.cond(anew, lambda: self.left(plan, system, targets, v), lambda: state.r - a * Hp)
        z = plan.precondition(r)
        rz = jnp.sum(r * z, axis=0)
        b = jnp.where(state.rz > 0, jnp.sum((r - state.r) * z, axis=0) / jnp.where(state.rz > 0, state.rz, 1), 0)
        return _State(v, r, z + jnp.maximum(b, 0) * state.p, rz, steps)

    def weights(self, plan: _Plan, state: _State) -> Float[Array, "M s"]:
        """The last iterate."""
        return state.v

    def residual(self, plan: _Plan, system: System, targets: Targets, state: _State) -> tuple[Float[Array, "s"], None]:
        """√(rᵀP⁻¹r) relative to zero weights: about the error of predictions at the data relative to their size.

        With the error e of the weights it is √(eᵀHe) to within how well the preconditioner P resembles H, and eᵀHe is
        Σᵢ (K_{xᵢz} e)²/Σᵢᵢ + ‖e‖²_{K_zz}. The norm of r itself tells of the few largest eigenvalues alone.
        """
        return jnp.sqrt(jnp.maximum(state.rz, 0)) / jnp.where(plan.norms > 0, plan.norms, 1), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """A look at the residual after every step."""
        return self.steps, 1, self.points.shape[0] / system.size


@eqx.filter_jit
def _sums(
    solver: InducingCG, system: System, targets: Targets
) -> tuple[Float[Array, "M s"], Float[Array, ""], Float[Array, ""]]:
    """The right-hand side, what is added to the diagonal of K_zz, and tr(Σ⁻¹)/M."""
    ratio = jnp.sum(system.precision) / solver.points.shape[0]
    return right_hand_side(solver.points, system, targets.total), solver.resolved(system), ratio


@jax.jit
def _norms(precondition: Packed, r: Float[Array, "M s"]) -> Float[Array, "s"]:
    """√(rᵀP⁻¹r) of each column."""
    return jnp.sqrt(jnp.maximum(jnp.sum(r * precondition(r), axis=0), 0))
