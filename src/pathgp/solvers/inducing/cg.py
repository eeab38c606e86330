"""Conjugate gradients with inducing points."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.linalg.jitter import least_noise_of_rows
from pathgp.linalg.tiles import column_sharded_product
from pathgp.parallel.sharding import replicate
from pathgp.solvers.inducing.base import Inducing, gram_product, right_hand_side
from pathgp.solvers.inducing.packed import Packed
from pathgp.solvers.loop import Iterative
from pathgp.system.system import System, Targets

# With little noise, the residual of the recursion was wrong by a factor of a hundred.
REFRESH = 10
"""Steps between two computations of the residual from the weights."""


class _Plan(eqx.Module):
    """The preconditioner P⁻¹, the right-hand side K_zX Σ⁻¹ B, its norms in P⁻¹, and the jitter of K_zz."""

    precondition: Packed
    right: Float[Array, "M s"]
    norms: Float[Array, "s"]
    ridge: Float[Array, ""]


class _State(eqx.Module):
    """Weights v, residual r, search direction p, rᵀP⁻¹r, and the number of steps."""

    v: Float[Array, "M s"]
    r: Float[Array, "M s"]
    p: Float[Array, "M s"]
    rz: Float[Array, "s"]
    steps: Int[Array, ""]


class InducingCG(Inducing, Iterative):
    """Conjugate gradients on (K_zz + K_zX Σ⁻¹ K_Xz) V = K_zX Σ⁻¹ B, matrix-free in N (FALKON; Rudi et al., 2017).

    A step is one pass over all pairs of a row and a point. The preconditioner assumes that the data are distributed as
    the points are, K_zX Σ⁻¹ K_Xz ≈ ratio · K_zz² with ratio = tr(Σ⁻¹)/M. Its factors are the only M x M matrix in
    memory: 1.6 GB for 20,000 points. If they need a larger jitter of K_zz than the equations, `info.reason` reports it.

    The residual is updated by a recursion in which rounding accumulates, since H has the square of the condition number
    of K. It is therefore computed from the weights every few steps, as K_zX Σ⁻¹ (B − K_Xz V) − K_zz V, where the
    difference is taken before the large sum. Search directions follow the residuals as they are
    (Polak and Ribière, 1969).

    Parameters
    ----------
    points
        The inducing points z.
    steps
        Maximum number of steps.
    tolerance
        Relative residual at which a column has converged: about the relative error of predictions at the data.
    max_seconds
        Time limit in seconds.
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.as_inputs(x, "points"))
    steps: int = 50
    tolerance: float = 1e-3
    max_seconds: float = float("inf")
    is_bounded: ClassVar[bool] = False
    limits: ClassVar[tuple[str, ...]] = ("steps", *Iterative.limits)

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "InducingCG.steps")

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """Return the preconditioner, the right-hand side with its norms, and the jitter of K_zz."""
        right, ridge, ratio = _sums(self, system, targets)
        packed = Packed.of(system.kernel, self.points, float(ratio), float(ridge))
        # Every device applies the preconditioner to all of the residual.
        precondition = replicate(system.mesh, packed)
        return _Plan(precondition, right, _norms(precondition, right), ridge)

    def make_plan(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """Call `prepare` on the host, where a matrix can be overwritten by its factors."""
        return self.prepare(system, targets, key)

    def note(self, plan: _Plan) -> str:
        """Return the jitter of the preconditioner if it is larger than that of the equations."""
        jitter, ridge = float(plan.precondition.jitter), float(plan.ridge)
        return "" if jitter <= ridge else f"{jitter:.0e} was added to the diagonal of K_zz in the preconditioner"

    def least_jitter(self, system: System) -> Float[Array, ""]:
        """Return the jitter of K_zz; with less, the weights would be nothing but rounding error."""
        ones = jnp.ones((self.points.shape[0], 1), self.points.dtype)
        row_sums = column_sharded_product(system.mesh, system.kernel, self.points, self.points, ones, system.tile)
        return least_noise_of_rows(row_sums)

    def product(self, plan: _Plan, system: System, V: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """Return (K_zz + K_zX Σ⁻¹ K_Xz) V."""
        own = column_sharded_product(system.mesh, system.kernel, self.points, self.points, V, system.tile)
        return own + plan.ridge * V + gram_product(self.points, system, V)

    def left(self, plan: _Plan, system: System, targets: Targets, V: Float[Array, "M s"]) -> Float[Array, "M s"]:
        """Return the residual K_zX Σ⁻¹ (B − K_Xz V) − K_zz V, computed from the weights."""
        own = column_sharded_product(system.mesh, system.kernel, self.points, self.points, V, system.tile)
        return -gram_product(self.points, system, V, targets.total) - own - plan.ridge * V

    def start(
        self, plan: _Plan, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "M s"] | None
    ) -> _State:
        """Start from zero weights, or from `init`, whose residual costs as much as a step."""
        v = jnp.zeros_like(plan.right) if init is None else init
        r = plan.right if init is None else self.left(plan, system, targets, init)
        z = plan.precondition(r)
        return _State(v, r, z, jnp.sum(r * z, axis=0), jnp.zeros((), int))

    def step(self, plan: _Plan, system: System, targets: Targets, state: _State) -> _State:
        """Take one iteration of every column."""
        Hp = self.product(plan, system, state.p)
        curvature = jnp.sum(state.p * Hp, axis=0)
        a = jnp.where(curvature > 0, state.rz / jnp.where(curvature > 0, curvature, 1), 0)
        v, steps = state.v + a * state.p, state.steps + 1
        anew = steps % REFRESH == 0
        r = jax.lax.cond(anew, lambda: self.left(plan, system, targets, v), lambda: state.r - a * Hp)
        z = plan.precondition(r)
        rz = jnp.sum(r * z, axis=0)
        # Polak-Ribière, which allows for residuals that do not follow from the recursion.
        b = jnp.where(state.rz > 0, jnp.sum((r - state.r) * z, axis=0) / jnp.where(state.rz > 0, state.rz, 1), 0)
        return _State(v, r, z + jnp.maximum(b, 0) * state.p, rz, steps)  # a negative b restarts at the gradient

    def weights(self, plan: _Plan, state: _State) -> Float[Array, "M s"]:
        """Return the last iterate."""
        return state.v

    def residual(self, plan: _Plan, system: System, targets: Targets, state: _State) -> tuple[Float[Array, "s"], None]:
        """Return √(rᵀP⁻¹r) relative to zero weights, about the error of predictions at the data relative to their size.

        With the error e of the weights, it equals √(eᵀHe) as far as the preconditioner P resembles H, and eᵀHe is
        Σᵢ (K_{xᵢz} e)²/Σᵢᵢ + ‖e‖²_{K_zz}. The norm of r itself reflects only the few largest eigenvalues.
        """
        return jnp.sqrt(jnp.maximum(state.rz, 0)) / jnp.where(plan.norms > 0, plan.norms, 1), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """Check the residual after every step."""
        return self.steps, 1, self.points.shape[0] / system.size


@eqx.filter_jit
def _sums(
    solver: InducingCG, system: System, targets: Targets
) -> tuple[Float[Array, "M s"], Float[Array, ""], Float[Array, ""]]:
    """Return the right-hand side, the jitter of K_zz, and tr(Σ⁻¹)/M."""
    ratio = jnp.sum(system.precision) / solver.points.shape[0]
    return right_hand_side(solver.points, system, targets.total), solver.least_jitter(system), ratio


@jax.jit
def _norms(precondition: Packed, r: Float[Array, "M s"]) -> Float[Array, "s"]:
    """Return √(rᵀP⁻¹r) of each column."""
    return jnp.sqrt(jnp.maximum(jnp.sum(r * precondition(r), axis=0), 0))
