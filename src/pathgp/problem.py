"""The question that a posterior answers: a process, data, prior draws, and the linear system of all of them."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import checks
from pathgp.features import Features
from pathgp.functions import Function
from pathgp.kernels import Kernel
from pathgp.system import System, Targets


class GP(eqx.Module):
    """A Gaussian process prior and the noise of its observations, y = f(x) + ε.

    `noise` is the variance of ε: one number, or one for each row of the data. `mean` is a constant.
    """

    kernel: Kernel
    noise: Float[Array, "..."] = eqx.field(converter=partial(checks.positive, name="noise"))
    mean: Float[Array, ""] = eqx.field(converter=partial(checks.scalar, name="mean"), default=0.0)

    def __check_init__(self) -> None:
        if isinstance(self.kernel, str | type | None):
            raise ValueError(f"kernel must be a kernel such as kernels.Matern32(1.0), but it is {self.kernel!r}.")

    def __repr__(self) -> str:
        return eqx.tree_pformat(self, short_arrays=False)


PROCESS = "a process such as GP(kernels.Matern32(0.5), noise=0.1)"


def parts(gp: GP) -> dict[str, Any]:
    """What a process is, by name."""
    return {"the kernel": gp.kernel, "the noise": gp.noise, "the mean": gp.mean}


def check_data(
    X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."]
) -> tuple[Float[Array, "N d"], Float[Array, "N"]]:
    """The data as arrays, refused with a sentence if they are not fit to learn from."""
    X = checks.inputs(X)
    return X, checks.outputs(y, X.shape[0])


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
