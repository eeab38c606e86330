"""Stochastic dual descent: gradient steps on random coordinates of the dual objective."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pathgp import checks
from pathgp.solvers.base import Iterative
from pathgp.solvers.batches import Batches, probe_rows, probed_residual
from pathgp.solvers.spectrum import top_eigenvalue
from pathgp.system import System, Targets


class _Plan(eqx.Module):
    step_size: Float[Array, ""]
    probe: Int[Array, "p"]


class _State(eqx.Module):
    alpha: Float[Array, "N s"]
    velocity: Float[Array, "N s"]
    average: Float[Array, "N s"]
    batches: Batches


class SDD(Iterative):
    """Stochastic dual descent (Lin et al., *SGD for Gaussian Processes Done Right*, ICLR 2024).

    Minimises ½ αᵀHα − bᵀα over random coordinates B, with momentum ρ and geometric averaging:

        g_B = (1/D) (H(α + ρv) − b)_B,   v ← ρv − βg,   α ← α + v,   ᾱ ← rα + (1 − r)ᾱ,   r = averaging/steps.

    The step β is bounded by the top eigenvalue of H/N. Left out, it is `SAFETY` over an estimate of that eigenvalue
    from a random block of rows.
    """

    steps: int = 20_000
    batch_size: int = 512
    step_size: float | None = None
    momentum: float = 0.9
    averaging: float = 100.0
    tolerance: float = 0.01
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        checks.at_least(self.steps, 1, "SDD.steps")
        checks.at_least(self.batch_size, 1, "SDD.batch_size")
        if self.step_size is not None:
            checks.positive(self.step_size, "SDD.step_size")

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Plan:
        """The step size, and the rows on which the residual is estimated."""
        step_key, probe_key = jax.random.split(key)
        beta = automatic_step_size(system, step_key) if self.step_size is None else jnp.asarray(self.step_size)
        return _Plan(beta, probe_rows(probe_key, system.size))

    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> _State:
        """Zero weights, or those of a warm start."""
        alpha = jnp.zeros_like(targets.signal) if init is None else init
        return _State(alpha, jnp.zeros_like(alpha), alpha, Batches.start(key, system.size))

    def step(self, plan: _Plan, system: System, targets: Targets, state: _State) -> _State:
        """One step on the coordinates of a batch."""
        batch, batches = state.batches.next(min(self.batch_size, system.size))
        ahead = state.alpha + self.momentum * state.velocity
        g = -system.residual_rows(batch, targets, ahead) / batch.shape[0]
        velocity = (self.momentum * state.velocity).at[batch].add(-plan.step_size * g)
        alpha = state.alpha + velocity
        rate = min(1.0, self.averaging / self.steps)
        return _State(alpha, velocity, rate * alpha + (1 - rate) * state.average, batches)

    def weights(self, plan: Any, state: _State) -> Float[Array, "N s"]:
        """The averaged iterate ᾱ."""
        return state.average

    def residual(self, plan: _Plan, system: System, targets: Targets, state: _State) -> tuple[Float[Array, "s"], None]:
        """An estimate from the probe rows."""
        return probed_residual(system, targets, state.average, plan.probe), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """A look at the residual costs four steps' work, every 100 steps."""
        return self.steps, 100, min(self.batch_size, system.size) / system.size


SAFETY = 0.8


def automatic_step_size(system: System, key: PRNGKeyArray, rows: int = 1024) -> Float[Array, ""]:
    """`SAFETY` / λ, with λ the top eigenvalue of H_BB/|B| on a random block B.

    λ overestimates the top eigenvalue of H/N (in the mean), so the step errs on the safe side.
    """
    size = min(rows, system.size)
    block = system.block(jax.random.choice(key, system.size, (size,), replace=False))
    return SAFETY * size / top_eigenvalue(block, iterations=30)
