"""Stochastic gradient descent with inducing points, from section 3.3 of the paper."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from pathgp import _checks as checks
from pathgp.linalg.tiles import column_sharded_product, row_sharded_product
from pathgp.solvers.batches import Batches
from pathgp.solvers.inducing.base import Inducing, right_hand_side
from pathgp.solvers.loop import Iterative
from pathgp.solvers.sgd import SGD
from pathgp.system.system import System, Targets


class _Constants(eqx.Module):
    """K_zX Σ⁻¹ε, and the points on which the residual is estimated."""

    noise_term: Float[Array, "M s"]
    probe: Int[Array, "p"]


class _State(eqx.Module):
    v: Float[Array, "M s"]
    average: Float[Array, "M s"]
    optimizer: PyTree
    batches: Batches
    key: PRNGKeyArray


class InducingSGD(Inducing, Iterative):
    """Stochastic gradient descent with inducing points (the paper's section 3.3).

    Minimises Σᵢ (tᵢ − K_{xᵢz} v)²/Σᵢᵢ + ‖v‖²_{K_zz} − 2 vᵀ K_zX Σ⁻¹ε. Its gradient, times the mean noise variance σ²
    and divided by 2N, is

        g = (1/D) K_zB σ²Σ_B⁻¹ (K_Bz v − t_B) + σ² (ΦΦᵀ v − K_zX Σ⁻¹ε) / N,

    with a minibatch B, fresh random Fourier features Φ at the points, and a term with ε that is computed once. A step
    costs M times the size of the batch, whatever N is.

    Raises `ValueError` if `descent` has `low_variance=False`.

    Parameters
    ----------
    points
        The inducing points z.
    steps
        Maximum number of steps.
    descent
        `SGD` whose batch size, number of features, averaging, learning rates, momentum and clip, or optimizer, are
        used. Its `steps`, `tolerance` and `max_seconds` are ignored.
    tolerance
        Relative residual at which a column has converged, estimated on up to 256 of the points.
    max_seconds
        Time limit in seconds.
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.as_inputs(x, "points"))
    steps: int = 20_000
    descent: SGD = SGD()
    tolerance: float = 0.001
    max_seconds: float = float("inf")
    is_bounded: ClassVar[bool] = False

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "InducingSGD.steps")
        if not self.descent.low_variance:
            raise ValueError(
                "InducingSGD.descent has low_variance=False, but on inducing points the noise always stands in the "
                "regulariser: leave it out."
            )

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> _Constants:
        """Return K_zX Σ⁻¹ε, and the points on which the residual is estimated."""
        M = self.points.shape[0]
        probe = jax.random.permutation(key, M)[: min(M, 256)]
        return _Constants(right_hand_side(self.points, system, targets.noise), probe)

    def start(
        self, plan: _Constants, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "M s"] | None
    ) -> _State:
        """Start from zero weights, or from `init`."""
        v = jnp.zeros_like(plan.noise_term) if init is None else init
        batch_key, key = jax.random.split(key)
        batches = Batches.start(batch_key, system.size)
        return _State(v, v, self.descent.transformation(targets).init(v), batches, key)

    def gradient(
        self,
        plan: _Constants,
        system: System,
        targets: Targets,
        v: Float[Array, "M s"],
        batch: Int[Array, "b"],
        key: PRNGKeyArray,
    ) -> Float[Array, "M s"]:
        """Return the stochastic gradient g for a batch of rows, with features drawn from `key`."""
        X_B, z = system.inputs(batch), self.points
        misfit = column_sharded_product(system.mesh, system.kernel, X_B, z, v, system.tile) - targets.signal[batch]
        weighted = system.mean_noise / system.noise_diagonal[batch, None] * misfit
        data = row_sharded_product(system.mesh, system.kernel, z, X_B, weighted, system.tile) / batch.shape[0]
        phi = system.kernel.features(key, self.descent.num_features, z.shape[1])(z)
        regulariser = phi @ (phi.T @ v) - plan.noise_term
        return data + system.mean_noise * regulariser / system.size

    def step(self, plan: _Constants, system: System, targets: Targets, state: _State) -> _State:
        """Take one step: v ← v + update(g), v̄ ← rv + (1 − r)v̄."""
        batch, batches = state.batches.next(min(self.descent.batch_size, system.size))
        feature_key, key = jax.random.split(state.key)
        g = self.gradient(plan, system, targets, state.v, batch, feature_key)
        update, optimizer = self.descent.transformation(targets).update(g, state.optimizer, state.v)
        v = jax.tree.map(jnp.add, state.v, update)
        average = state.average + min(1.0, self.descent.averaging / self.steps) * (v - state.average)
        return _State(v, average, optimizer, batches, key)

    def weights(self, plan: _Constants, state: _State) -> Float[Array, "M s"]:
        """Return the averaged iterate."""
        return state.average

    def residual(
        self, plan: _Constants, system: System, targets: Targets, state: _State
    ) -> tuple[Float[Array, "s"], None]:
        """Return ‖K_zX Σ⁻¹(b − K_Xz v) − K_zz v‖ relative to v = 0, on some of the points."""
        z, noise = self.points[plan.probe], plan.noise_term[plan.probe]
        fitted = system.of(self.points, state.average)
        own = column_sharded_product(system.mesh, system.kernel, z, self.points, state.average, system.tile)
        # `noise` is K_zX Σ⁻¹ε from `prepare`, so the pass is over the signal only.
        residual = right_hand_side(z, system, targets.signal - fitted) + noise - own
        norms = jnp.linalg.norm(right_hand_side(z, system, targets.signal) + noise, axis=0)
        return jnp.linalg.norm(residual, axis=0) / jnp.where(norms > 0, norms, 1), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """Check the residual every four epochs, but not before 200 steps.

        A check is a pass over all rows and points.
        """
        batch = min(self.descent.batch_size, system.size)
        share = batch / system.size * self.points.shape[0] / system.size
        return self.steps, max(200, 4 * system.size // batch), share
