"""The problem that a posterior solves: prior draws, and the linear system of a GP and data."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp.functions import Function
from pathgp.kernels.features import Features
from pathgp.posterior.gp import GP
from pathgp.system.system import System, Targets


def problem(
    gp: GP,
    X: Float[Array, "N d"],
    y: Float[Array, "N t"],
    num_samples: int,
    num_features: int,
    key: PRNGKeyArray,
) -> tuple[System, Function, Targets, PRNGKeyArray]:
    """Return the system, the prior draws, the right-hand sides, and a key for the solver.

    With the same key, the draws of another GP are the same standard normal draws, scaled by its hyperparameters.
    """
    feature_key, draw_key, noise_key, solve_key = jax.random.split(key, 4)
    system = System(gp.kernel, X, gp.noise)
    prior = draw(gp.kernel.features(feature_key, num_features, X.shape[1]), num_samples, draw_key)
    targets = mean_targets(y, gp).beside(sample_targets(system, prior, noise_key))
    return system, prior, targets, solve_key


def split(system: System, targets: Targets, mesh: Mesh | None) -> tuple[System, Targets]:
    """Return the same problem with its rows sharded over the devices of a mesh."""
    system = system.split(mesh)
    return system, targets.each(system.placed)


def draw(features: Features, num: int, key: PRNGKeyArray) -> Function:
    """Return `num` draws from the prior."""
    return Function(features, jax.random.normal(key, (features.num, num)))


def mean_targets(y: Float[Array, "N t"], gp: GP) -> Targets:
    """Return y − m, one column per target."""
    return Targets(y - gp.mean, jnp.zeros_like(y))


def sample_targets(system: System, prior: Function, key: PRNGKeyArray) -> Targets:
    """Return f(X) and ε ~ N(0, Σ), one column per prior draw f."""
    return Targets(system.values(prior), system.noise_draws(key, prior.weights.shape[1]), prior)
