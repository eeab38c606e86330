"""The paper's solver: stochastic gradient descent on the sampling objective."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from pathgp import _checks as checks
from pathgp.solvers.base import Iterative
from pathgp.solvers.batches import Batches, probe_rows, probed_residual
from pathgp.system.system import System, Targets


class _State(eqx.Module):
    alpha: Float[Array, "N s"]
    average: Float[Array, "N s"]
    optimizer: PyTree
    batches: Batches
    key: PRNGKeyArray


class SGD(Iterative):
    r"""Stochastic gradient descent (Lin et al., NeurIPS 2023): the mean and samples without a linear solve.

    Minimises Σᵢ (tᵢ − K_{xᵢX} α)²/Σᵢᵢ + ‖α − Σ⁻¹ε‖²_K by minibatches of the first term and fresh Fourier features
    Φ for the second. Its gradient, times the mean noise variance σ² and divided by 2N, is

        g = [ (N/D) K_{XB} σ²Σ_B⁻¹ (K_{BX} α − t_B) + ΦΦᵀ σ²(α − Σ⁻¹ε) ] / N.

    That is "loss 2", in which the noise ε stands in the regulariser; `low_variance=False` is "loss 1", with ε in the
    targets: the same minimiser, noisier gradients. Each column's gradient is clipped to the norm `clip`, then goes
    through Nesterov momentum, and the iterates are averaged with the rate `averaging`/steps. `optimizer`, any optax
    transformation, takes the place of clipping, momentum and learning rates.
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
        checks.at_least(self.steps, 1, "SGD.steps")
        checks.at_least(self.batch_size, 1, "SGD.batch_size")

    def transformation(self, targets: Targets) -> optax.GradientTransformation:
        """Clipping, momentum and learning rates: that of the mean for columns without noise, else that of samples."""
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
        """The stochastic gradient g for a batch of rows and the features drawn from `key`."""
        scale = system.mean_noise
        precision = 1 / system.noise_diagonal[:, None]
        delta = precision * targets.noise if self.low_variance else jnp.zeros_like(alpha)
        phi = system.without_padding(system.kernel.features(key, self.num_features, system.X.shape[1])(system.X))
        regulariser = phi @ (phi.T @ (scale * (alpha - delta)))
        return self.data_gradient(system, targets, alpha, batch) + regulariser / system.size

    def data_gradient(
        self, system: System, targets: Targets, alpha: Float[Array, "N s"], batch: Int[Array, "b"]
    ) -> Float[Array, "N s"]:
        """The part of g that the data give: (1/D) K_{XB} σ²Σ_B⁻¹ (K_{BX} α − t_B)."""
        t = targets.signal if self.low_variance else targets.total
        misfit = system.misfit_rows(batch, t, alpha)
        weighted = system.mean_noise / system.noise_diagonal[batch, None] * misfit
        return system.columns(batch, weighted) / batch.shape[0]

    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> Int[Array, "p"]:
        """The rows on which the residual is estimated."""
        return probe_rows(key, system.size)

    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> _State:
        """Zero weights, or those of a warm start."""
        alpha = jnp.zeros_like(targets.signal) if init is None else init
        batch_key, key = jax.random.split(key)
        batches = Batches.start(batch_key, system.size)
        return _State(alpha, alpha, self.transformation(targets).init(alpha), batches, key)

    def step(self, plan: Any, system: System, targets: Targets, state: _State) -> _State:
        """α ← α + update(g), ᾱ ← rα + (1 − r)ᾱ."""
        batch, batches = state.batches.next(min(self.batch_size, system.size))
        feature_key, key = jax.random.split(state.key)
        g = self.gradient(system, targets, state.alpha, batch, feature_key)
        update, optimizer = self.transformation(targets).update(g, state.optimizer, state.alpha)
        alpha = jax.tree.map(jnp.add, state.alpha, update)
        average = state.average + min(1.0, self.averaging / self.steps) * (alpha - state.average)
        return _State(alpha, average, optimizer, batches, key)

    def restarted(
        self,
        plan: Any,
        system: System,
        targets: Targets,
        state: _State,
        weights: Float[Array, "N s"],
        residual: Float[Array, "N s"] | None,
        grown: Bool[Array, "s"],
    ) -> _State:
        """Columns that have grown begin again at other weights, with the optimizer as at the start."""
        is_column = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape == weights.shape
        back = lambda new, old: jnp.where(grown, new, old) if is_column(old) else old
        optimizer = jax.tree.map(back, self.transformation(targets).init(weights), state.optimizer)
        alpha, average = (jnp.where(grown, weights, x) for x in (state.alpha, state.average))
        return _State(alpha, average, optimizer, state.batches, state.key)

    def weights(self, plan: Any, state: _State) -> Float[Array, "N s"]:
        """The averaged iterate ᾱ."""
        return state.average

    def residual(
        self, plan: Int[Array, "p"], system: System, targets: Targets, state: _State
    ) -> tuple[Float[Array, "s"], None]:
        """An estimate from the probe rows."""
        return probed_residual(system, targets, state.average, plan), None

    def schedule(self, system: System) -> tuple[int, int, float]:
        """A look at the residual costs two steps' work, every 100 steps."""
        return self.steps, 100, min(self.batch_size, system.size) / system.size


def clip_columns(g: Float[Array, "N s"], max_norm: float) -> Float[Array, "N s"]:
    """Scales each column down to the norm `max_norm` where it is longer, so that no column clips another."""
    norms = jnp.linalg.norm(g, axis=0)
    return g * jnp.minimum(1, max_norm / jnp.maximum(norms, jnp.finfo(g.dtype).tiny))
