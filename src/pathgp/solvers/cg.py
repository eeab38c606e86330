"""Conjugate gradients with a pivoted-Cholesky preconditioner."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.linalg.blocks import tall_svd
from pathgp.parallel.sharding import gather_rows, shard_map_rows
from pathgp.solvers.loop import Iterative, Position, Solve
from pathgp.system.system import System, Targets


class _Preconditioner(eqx.Module):
    """P⁻¹ for P = LLᵀ + Σ, computed from Σ^−½ L = Q S Vᵀ, which is stable for small noise."""

    Q: Float[Array, "N k"]
    shrink: Float[Array, "k"]
    """(1 + S²)⁻¹."""
    noise: Float[Array, "N 1"]

    def __call__(self, r: Float[Array, "N s"]) -> Float[Array, "N s"]:
        """Return P⁻¹r = Σ^−½ [ (I − QQᵀ) + Q (I + S²)⁻¹ Qᵀ ] Σ^−½ r."""
        u = r / jnp.sqrt(self.noise)
        c = self.Q.T @ u
        return (u - self.Q @ c + self.Q @ (self.shrink[:, None] * c)) / jnp.sqrt(self.noise)


class _State(eqx.Module):
    """Weights w, residual r, search direction p, and rᵀz with the preconditioned residual z = P⁻¹r."""

    w: Float[Array, "N s"]
    r: Float[Array, "N s"]
    p: Float[Array, "N s"]
    rz: Float[Array, "s"]


HALVED = 0.5
"""Stop when recomputing the true residual no longer makes it this much smaller: working precision is exhausted."""


class CG(Iterative):
    """Preconditioned conjugate gradients on all columns at once (Wang et al., 2019).

    A step is one product of H with all columns, a whole pass over the data. The preconditioner is LLᵀ + Σ with a
    pivoted Cholesky factorisation K ≈ LLᵀ. Early iterates can predict worse than zero weights, so check the residual of
    a solve that did not converge.

    Parameters
    ----------
    steps
        Maximum number of steps.
    rank
        Rank of the pivoted Cholesky factorisation; 0 disables the preconditioner.
    tolerance
        Relative residual at which a column has converged.
    max_seconds
        Time limit in seconds.
    """

    steps: int = 1000
    rank: int = 100
    tolerance: float = 0.01
    max_seconds: float = float("inf")
    limits: ClassVar[tuple[str, ...]] = ("steps", *Iterative.limits)
    final_passes: ClassVar[float] = 1.0

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "CG.steps")
        checks.require_at_least(self.rank, 0, "CG.rank")

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Preconditioner | None:
        """Return the preconditioner, or None if `rank` is 0."""
        if self.rank == 0:
            return None
        L, _ = pivoted_cholesky(system, min(self.rank, system.size))
        # With less noise, P⁻¹ would be rounding error. The trace bounds the largest eigenvalue of LLᵀ more tightly than
        # its row sums: with those, CG does not converge at a noise of 10⁻⁶.
        least = jnp.finfo(L.dtype).eps * jnp.sum(L**2)
        noise = jnp.maximum(system.noise_diagonal, least)[:, None]
        # An SVD avoids the product LᵀΣ⁻¹L, which would square the condition number.
        Q, S = tall_svd(system.mesh, L / jnp.sqrt(noise))
        return _Preconditioner(Q, 1 / (1 + S**2), noise)

    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> _State:
        """Start from zero weights, or from `init`, whose residual costs one pass."""
        w = jnp.zeros_like(targets.signal) if init is None else init
        r = targets.total if init is None else targets.total - system @ init
        return _start_from(plan, w, r)

    def confirm(self, solve: Solve, at: Position) -> Position:
        """Recompute the residual from the weights, and start again from there.

        The residual of the recursion drifts from that of the weights; it has been up to 8000 times smaller.
        """
        state = _restart_from(solve.plan, solve.system, solve.targets, at.state)
        look = solve.look(state)
        return at._replace(
            state=state,
            look=look,
            converged=self.has_converged(look, solve.targets),
            best=solve.iterate(state, look),  # the best so far was measured by the recursion
            renewals=at.renewals + 1,
            left=(at.left[1], float(jnp.max(look.relative))),
        )

    def is_exhausted(self, at: Position) -> bool:
        """Whether the last renewal no longer halved the true residual."""
        return at.left[1] > HALVED * at.left[0]

    def restart(
        self,
        plan: Any,
        system: System,
        targets: Targets,
        state: _State,
        weights: Float[Array, "N s"],
        residual: Float[Array, "N s"] | None,
        grown: Bool[Array, "s"],
    ) -> _State:
        """Restart the columns `grown` from `weights`, with the residual computed from these."""
        again = _start_from(plan, weights, targets.total - system @ weights)
        return jax.tree.map(lambda new, old: jnp.where(grown, new, old), again, state)

    def step(self, plan: Any, system: System, targets: Targets, state: _State) -> _State:
        """Take one iteration of every column."""
        Hp = system @ state.p
        a = _safe_divide(state.rz, jnp.sum(state.p * Hp, axis=0))
        w, r = state.w + a * state.p, state.r - a * Hp
        z = r if plan is None else plan(r)
        rz = jnp.sum(r * z, axis=0)
        return _State(w, r, z + _safe_divide(rz, state.rz) * state.p, rz)

    def weights(self, plan: Any, state: _State) -> Float[Array, "N s"]:
        """Return the last iterate."""
        return state.w

    def residual(
        self, plan: Any, system: System, targets: Targets, state: _State
    ) -> tuple[Float[Array, "s"], Float[Array, "N s"]]:
        """Return the residual of the recursion, last computed from the weights at a start, renewal or restart."""
        return jnp.linalg.norm(state.r, axis=0) / targets.norms, state.r

    def schedule(self, system: System) -> tuple[int, int, float]:
        """Check the residual after every step; a step is one pass."""
        return self.steps, 1, 1.0


@eqx.filter_jit
def _restart_from(plan: Any, system: System, targets: Targets, state: _State) -> _State:
    """A start at the present weights."""
    return system.constrain_sharding(_start_from(plan, state.w, targets.total - system @ state.w))


def _start_from(plan: Any, w: Float[Array, "N s"], r: Float[Array, "N s"]) -> _State:
    """Return the state that starts at the weights w with the residual r."""
    z = r if plan is None else plan(r)
    return _State(w, r, z, jnp.sum(r * z, axis=0))


def _safe_divide(a: Float[Array, "s"], b: Float[Array, "s"]) -> Float[Array, "s"]:
    """Return a / b, and 0 where b is not positive, so that a column without residual does not become 0/0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def pivoted_cholesky(system: System, rank: int) -> tuple[Float[Array, "N k"], Int[Array, "k"]]:
    """Return L with LLᵀ ≈ K, and the pivots.

    Each pivot is the row with the largest remaining variance; no row is a pivot twice. Once no row has a millionth of
    the largest initial variance left, the remaining columns are zero.
    """
    mesh, X = system.mesh, system.X
    kernel_column = lambda X, kernel, x: kernel(X, x)[:, 0]

    def add_column(i: Int[Array, ""], state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        L, variance, pivots = state
        pivot = jnp.argmax(variance)
        column = shard_map_rows(mesh, kernel_column, (X,), (system.kernel, system.inputs(pivot[None])), total=False)
        column = system.without_padding(column) - L @ gather_rows(mesh, L, pivot[None])[0]
        scale = jnp.sqrt(jnp.maximum(variance[pivot], jnp.finfo(X.dtype).tiny))
        column = jnp.where(variance[pivot] > 1e-6 * jnp.max(initial), column / scale, 0)
        # A variance of −1 marks a row that has been a pivot, so that argmax does not choose it again.
        variance = jnp.where(variance < 0, -1, jnp.maximum(variance - column**2, 0)).at[pivot].set(-1)
        return L.at[:, i].set(column), variance, pivots.at[i].set(pivot)

    initial = system.without_padding(system.kernel.diag(X))
    L, variance = system.constrain_sharding((jnp.zeros((X.shape[0], rank), X.dtype), initial))
    L, _, pivots = jax.lax.fori_loop(0, rank, add_column, (L, variance, jnp.zeros(rank, int)))
    return L, pivots
