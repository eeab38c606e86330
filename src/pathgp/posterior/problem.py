"""The question that a posterior answers: a process, data, prior draws, and the linear system of all of them."""

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
    """The system, the prior draws, the right-hand sides, and a key for the solver.

    With one key the draws of another process are the same standard ones, stretched by its hyperparameters.
    """
    feature_key, draw_key, noise_key, solve_key = jax.random.split(key, 4)
    system = System(gp.kernel, X, gp.noise)
    prior = draw(gp.kernel.features(feature_key, num_features, X.shape[1]), num_samples, draw_key)
    targets = mean_targets(y, gp).beside(sample_targets(system, prior, noise_key))
    return system, prior, targets, solve_key


def split(system: System, targets: Targets, mesh: Mesh | None) -> tuple[System, Targets]:
    """The same problem with its rows split over the devices of a mesh."""
    system = system.split(mesh)
    return system, targets.each(system.placed)


def draw(features: Features, num: int, key: PRNGKeyArray) -> Function:
    """`num` draws from the prior."""
    return Function(features, jax.random.normal(key, (features.num, num)))


def mean_targets(y: Float[Array, "N t"], gp: GP) -> Targets:
    """y − m, a column for each target."""
    return Targets(y - gp.mean, jnp.zeros_like(y))


def sample_targets(system: System, prior: Function, key: PRNGKeyArray) -> Targets:
    """f(X) and ε ~ N(0, Σ), a column for each prior draw f."""
    return Targets(system.values(prior), system.noise_draws(key, prior.weights.shape[1]), prior)
