"""Stochastic dual descent: gradient steps on random coordinates of the dual objective."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.linalg.blocks import top_eigenvalue
from pathgp.solvers.batches import Batches, probe_rows, probed_residual
from pathgp.solvers.loop import Iterative
from pathgp.system.system import System, Targets


class _Plan(eqx.Module):
    step_size: Float[Array, ""]
    probe: Int[Array, "p"]


class _State(eqx.Module):
    alpha: Float[Array, "N s"]
    velocity: Float[Array, "N s"]
    average: Float[Array, "N s"]
    damping: Float[Array, "s"]
    """Factor of the step size of each column; it is halved when the residual of the column grows."""
    batches: Batches


class SDD(Iterative):
    """Stochastic dual descent (Lin et al., *SGD for Gaussian Processes Done Right*, ICLR 2024).

    Minimises ½ αᵀHα − bᵀα by steps on random coordinates B, with momentum ρ and geometric averaging:

        g_B = (1/D) (H(α + ρv) − b)_B,   v ← ρv − βg,   α ← α + v,   ᾱ ← rα + (1 − r)ᾱ,   r = averaging/steps.

    Parameters
    ----------
    steps
        Maximum number of steps.
    batch_size
        The number D of coordinates in a step.
    step_size
        The step β; None chooses it by `automatic_step_size`.
    momentum
        The momentum ρ.
    averaging
        The averaging rate r times `steps`.
    tolerance
        Relative residual at which a column has converged, estimated on a random set of rows.
    max_seconds
        Time limit in seconds.
    """

    steps: int = 20_000
    batch_size: int = 512
    step_size: float | None = None
    momentum: float = 0.9
    averaging: float = 100.0
    tolerance: float = 0.01
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "SDD.steps")
        checks.require_at_least(self.batch_size, 1, "SDD.batch_size")
        if self.step_size is not None:
            checks.as_positive(self.step_size, "SDD.step_size")

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """Return the step size, and the rows on which the residual is estimated."""
        step_key, probe_key = jax.random.split(key)
        batch_size = min(self.batch_size, system.size)
        beta = automatic_step_size(system, step_key, batch_size, self.momentum)
        if self.step_size is not None:
            beta = jnp.asarray(self.step_size)
        return _Plan(beta, probe_rows(probe_key, system.size))

    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> _State:
        """Start from zero weights, or from `init`."""
        alpha = jnp.zeros_like(targets.signal) if init is None else init
        damping = jnp.ones(alpha.shape[1], alpha.dtype)
        return _State(alpha, jnp.zeros_like(alpha), alpha, damping, Batches.start(key, system.size))

    def step(self, plan: _Plan, system: System, targets: Targets, state: _State) -> _State:
        """Take one step on the coordinates of a batch."""
        batch, batches = state.batches.next(min(self.batch_size, system.size))
        # Nesterov momentum: the gradient is taken at the look-ahead point α + ρv.
        ahead = state.alpha + self.momentum * state.velocity
        g = -system.residual_rows(batch, targets, ahead) / batch.shape[0]
        velocity = (self.momentum * state.velocity).at[batch].add(-plan.step_size * state.damping * g)
        alpha = state.alpha + velocity
        # With fewer steps than `averaging`, the average is the last iterate.
        rate = min(1.0, self.averaging / self.steps)
        average = rate * alpha + (1 - rate) * state.average
        return _State(alpha, velocity, average, state.damping, batches)

    def restart(
        self,
        plan: _Plan,
        system: System,
        targets: Targets,
        state: _State,
        weights: Float[Array, "N s"],
        residual: Float[Array, "N s"] | None,
        grown: Bool[Array, "s"],
    ) -> _State:
        """Restart the columns `grown` from `weights`, without velocity and with half the step size."""
        alpha, average = (jnp.where(grown, weights, x) for x in (state.alpha, state.average))
        # A residual grows if the step size is above the stable one.
        damping = jnp.where(grown, state.damping / 2, state.damping)
        return _State(alpha, jnp.where(grown, 0, state.velocity), average, damping, state.batches)

    def weights(self, plan: Any, state: _State) -> Float[Array, "N s"]:
        """Return the averaged iterate ᾱ."""
        return state.average

    def residual(self, plan: _Plan, system: System, targets: Targets, state: _State) -> tuple[Float[Array, "s"], None]:
        """Return an estimate from the probe rows."""
        return probed_residual(system, targets, state.average, plan.probe), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """Check the residual every 100 steps; with the default batch size a check costs as much as four steps."""
        return self.steps, 100, min(self.batch_size, system.size) / system.size


SAFETY = 0.8
"""Share of the largest stable step size that is used."""
ROWS = 1024
"""Size of the random block on which the top eigenvalue is estimated."""


def automatic_step_size(system: System, key: PRNGKeyArray, batch_size: int, momentum: float) -> Float[Array, ""]:
    """Return β = `SAFETY` · D(1 − ρ) / (D(1 − ρ)λ + h), which respects two bounds on the step.

    Every batch sees the top direction of H, so that it follows gradient descent with momentum. This requires β ≲ 1/λ,
    where λ is the top eigenvalue of H/N, estimated from above on a random block of rows. A direction private to one row
    is seen only when its own coordinate is drawn. Until then it coasts on its momentum, a factor 1/(1 − ρ), which
    requires β ≲ D(1 − ρ)/h, where h is the largest diagonal entry of H.

    The first bound matters where data are dense, the second where they are sparse: with the first only, descent
    diverged on a regular grid.
    """
    size = min(ROWS, system.size)
    block = system.block(jax.random.choice(key, system.size, (size,), replace=False))
    coasting = batch_size * (1 - momentum)
    top = top_eigenvalue(block) / size
    return SAFETY * coasting / (coasting * top + jnp.max(jnp.diag(block)))
