"""Stochastic gradient descent on the sampling objective, the solver of the paper."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from pathgp import _checks as checks
from pathgp.solvers.batches import Batches, probe_rows, probed_residual
from pathgp.solvers.loop import Iterative
from pathgp.system.system import System, Targets


class _State(eqx.Module):
    alpha: Float[Array, "N s"]
    average: Float[Array, "N s"]
    optimizer: PyTree
    batches: Batches
    key: PRNGKeyArray


class SGD(Iterative):
    r"""Stochastic gradient descent (Lin et al., NeurIPS 2023): the mean and samples without a linear solve.

    Minimises Σᵢ (tᵢ − K_{xᵢX} α)²/Σᵢᵢ + ‖α − Σ⁻¹ε‖²_K by minibatches B of the first term and fresh random Fourier
    features Φ for the second. Its gradient, times the mean noise variance σ² and divided by 2N, is

        g = [ (N/D) K_{XB} σ²Σ_B⁻¹ (K_{BX} α − t_B) + ΦΦᵀ σ²(α − Σ⁻¹ε) ] / N.

    This is "loss 2", with the noise ε in the regulariser. "Loss 1" has ε in the targets: it has the same minimiser, but
    noisier gradients. The gradient of each column is clipped and goes through Nesterov momentum, and the iterates are
    averaged.

    Parameters
    ----------
    steps
        Maximum number of steps.
    batch_size
        The number D of rows in a minibatch.
    num_features
        Number of random Fourier features Φ in each step.
    learning_rate
        Learning rate of means.
    sample_learning_rate
        Learning rate of samples.
    momentum
        Nesterov momentum.
    clip
        Largest norm of the gradient of a column.
    averaging
        Rate of the running average of the iterates, times `steps`.
    low_variance
        True for loss 2, False for loss 1.
    optimizer
        An optax transformation that replaces clipping, momentum and learning rates.
    tolerance
        Relative residual at which a column has converged, estimated on a random set of rows.
    max_seconds
        Time limit in seconds.
    """

    steps: int = 100_000
    batch_size: int = 512
    num_features: int = 100
    learning_rate: float = 0.5
    sample_learning_rate: float = 0.1
    momentum: float = 0.9
    clip: float = 0.1
    averaging: float = 100.0
    low_variance: bool = True
    optimizer: optax.GradientTransformation | None = None
    tolerance: float = 0.01
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "SGD.steps")
        checks.require_at_least(self.batch_size, 1, "SGD.batch_size")

    def transformation(self, targets: Targets) -> optax.GradientTransformation:
        """Return `optimizer`, or clipping, Nesterov momentum and learning rates.

        Columns without noise are means and have `learning_rate`; the others have `sample_learning_rate`.
        """
        if self.optimizer is not None:
            return self.optimizer
        is_sample = jnp.any(targets.noise != 0, axis=0)
        rate = jnp.where(is_sample, self.sample_learning_rate, self.learning_rate)
        return optax.chain(
            optax.stateless(lambda g, _: jax.tree.map(lambda x: clip_columns(x, self.clip), g)),
            optax.trace(decay=self.momentum, nesterov=True),
            optax.stateless(lambda g, _: jax.tree.map(lambda x: -rate * x, g)),
        )

    def gradient(
        self,
        system: System,
        targets: Targets,
        alpha: Float[Array, "N s"],
        batch: Int[Array, "b"],
        key: PRNGKeyArray,
    ) -> Float[Array, "N s"]:
        """Return the stochastic gradient g for a batch of rows, with features drawn from `key`."""
        scale = system.mean_noise
        precision = 1 / system.noise_diagonal[:, None]
        # The shift Σ⁻¹ε of the regulariser; in loss 1 the noise is in the targets instead.
        delta = precision * targets.noise if self.low_variance else jnp.zeros_like(alpha)
        phi = system.without_padding(system.kernel.features(key, self.num_features, system.X.shape[1])(system.X))
        # From right to left, so that no N x N matrix ΦΦᵀ is formed.
        regulariser = phi @ (phi.T @ (scale * (alpha - delta)))
        return self.data_gradient(system, targets, alpha, batch) + regulariser / system.size

    def data_gradient(
        self, system: System, targets: Targets, alpha: Float[Array, "N s"], batch: Int[Array, "b"]
    ) -> Float[Array, "N s"]:
        """Return the data term of g: (1/D) K_{XB} σ²Σ_B⁻¹ (K_{BX} α − t_B)."""
        t = targets.signal if self.low_variance else targets.total
        misfit = system.misfit_rows(batch, t, alpha)
        weighted = system.mean_noise / system.noise_diagonal[batch, None] * misfit
        return system.columns(batch, weighted) / batch.shape[0]

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> Int[Array, "p"]:
        """Return the rows on which the residual is estimated."""
        return probe_rows(key, system.size)

    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> _State:
        """Start from zero weights, or from `init`."""
        alpha = jnp.zeros_like(targets.signal) if init is None else init
        batch_key, key = jax.random.split(key)
        batches = Batches.start(batch_key, system.size)
        return _State(alpha, alpha, self.transformation(targets).init(alpha), batches, key)

    def step(self, plan: Any, system: System, targets: Targets, state: _State) -> _State:
        """Take one step: α ← α + update(g), ᾱ ← rα + (1 − r)ᾱ."""
        batch, batches = state.batches.next(min(self.batch_size, system.size))
        feature_key, key = jax.random.split(state.key)
        g = self.gradient(system, targets, state.alpha, batch, feature_key)
        update, optimizer = self.transformation(targets).update(g, state.optimizer, state.alpha)
        alpha = jax.tree.map(jnp.add, state.alpha, update)
        # With fewer steps than `averaging`, the average is the last iterate.
        average = state.average + min(1.0, self.averaging / self.steps) * (alpha - state.average)
        return _State(alpha, average, optimizer, batches, key)

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
        """Restart the columns `grown` from `weights`, with the optimizer state of a new start."""
        # Arrays of the optimizer that are not per column, such as step counts, serve all columns and stay.
        is_column = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape == weights.shape
        back = lambda new, old: jnp.where(grown, new, old) if is_column(old) else old
        optimizer = jax.tree.map(back, self.transformation(targets).init(weights), state.optimizer)
        alpha, average = (jnp.where(grown, weights, x) for x in (state.alpha, state.average))
        return _State(alpha, average, optimizer, state.batches, state.key)

    def weights(self, plan: Any, state: _State) -> Float[Array, "N s"]:
        """Return the averaged iterate ᾱ."""
        return state.average

    def residual(
        self, plan: Int[Array, "p"], system: System, targets: Targets, state: _State
    ) -> tuple[Float[Array, "s"], None]:
        """Return an estimate from the probe rows."""
        return probed_residual(system, targets, state.average, plan), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """Check the residual every 100 steps; with the default batch size a check costs as much as two steps."""
        return self.steps, 100, min(self.batch_size, system.size) / system.size


def clip_columns(g: Float[Array, "N s"], max_norm: float) -> Float[Array, "N s"]:
    """Scale each column that is longer than `max_norm` down to that norm, independently of the others."""
    norms = jnp.linalg.norm(g, axis=0)
    return g * jnp.minimum(1, max_norm / jnp.maximum(norms, jnp.finfo(g.dtype).tiny))
