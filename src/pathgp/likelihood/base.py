"""What a method of learning is, what it returns, and the one function that users call."""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import checks
from pathgp.gp import GP, check_data
from pathgp.kernels import Matern32, Stationary


class Trace(NamedTuple):
    """How learning went.

    `loss` is the negative log marginal likelihood per row, as the method estimates it, after each step.
    """

    loss: list[float]
    seconds: list[float]
    left_out: int = 0
    """Steps or fits that were not finite and did not count."""
    interrupted: bool = False


class Method(eqx.Module):
    """A way to learn the hyperparameters of a process."""

    @abstractmethod
    def fit(
        self, gp: GP, X: Float[Array, "N d"], y: Float[Array, "N"], key: PRNGKeyArray, progress: bool
    ) -> tuple[GP, Trace]:
        """A process with better hyperparameters than `gp`, where it starts."""


def default_gp(
    X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."], kernel: Callable[..., Stationary] = Matern32
) -> GP:
    """Where to start when nothing is known: a length scale for each input, of its standard deviation, the variance of
    y for the kernel, a tenth of it for the noise, and the mean of y.

    >>> import jax.numpy as jnp
    >>> gp = default_gp(jnp.array([[0.0, 5.0], [2.0, 5.0]]), jnp.array([1.0, 3.0]))
    >>> print(gp.kernel.lengthscale, gp.kernel.variance, gp.mean)
    [1. 1.] 1.0 2.0
    """
    X, y = check_data(X, y)
    spread = jnp.std(X, axis=0)
    level = jnp.where(jnp.var(y) > 0, jnp.var(y), 1)
    return GP(kernel(jnp.where(spread > 0, spread, 1), level), noise=level / 10, mean=jnp.mean(y))


def fit_hyperparameters(
    gp: GP,
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    method: Method | None = None,
    progress: bool = False,
) -> tuple[GP, Trace]:
    """The process with the hyperparameters that make the data likely, and how they were found.

    Starts from `gp`, see `default_gp`. The method is `NearestNeighbour()` unless another is given. Interrupted by
    Ctrl-C, it returns the best so far, and `trace.interrupted` says so. The noise variance does not go below 10⁻⁴ of
    the kernel's, which float32 still resolves.
    """
    from pathgp.likelihood.nearest import NearestNeighbour

    X, y = check_data(X, y)
    checks.noise_variance(gp.noise, X.shape[0])
    # In units of the data, so that a step of the mean, or of a bound, means the same whatever y is measured in.
    centre, unit = jnp.mean(y), jnp.where(jnp.std(y) > 0, jnp.std(y), 1)
    start = GP(gp.kernel.scaled(1 / unit**2), gp.noise / unit**2, (gp.mean - centre) / unit)
    found, trace = (method or NearestNeighbour()).fit(start, X, (y - centre) / unit, key, progress)
    losses = [loss + float(jnp.log(unit)) for loss in trace.loss]
    learned = GP(found.kernel.scaled(unit**2), found.noise * unit**2, centre + found.mean * unit)
    return learned, trace._replace(loss=losses)
