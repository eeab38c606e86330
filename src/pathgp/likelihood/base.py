"""What a method of learning is, what it returns, and the one function that users call."""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import _checks as checks
from pathgp.kernels import Matern32, Stationary
from pathgp.likelihood.priors import Prior
from pathgp.posterior.gp import GP, PROCESS, check_data, parts
from pathgp.runs.checkpoint import Checkpoint, Slot, slot_of


class Trace(NamedTuple):
    """How learning went.

    `loss` is the negative log marginal likelihood per row, as the method estimates it, at each step, with the
    penalty of the prior where there is one. `gradient` is the norm of its gradient in the logarithms of the
    hyperparameters and the mean, in units of the standard deviation of y.
    """

    loss: list[float]
    gradient: list[float]
    seconds: list[float]
    left_out: int = 0
    """Steps or fits that were not finite and did not count."""
    interrupted: bool = False
    since_start: bool = False
    """Whether `loss` is counted from the start: `Pathwise` knows how it changes, but not the determinant in it."""
    weights: Float[Array, "N s"] | None = None
    """The solution that `Pathwise` ended with, of the mean and the samples of `condition` with the same key."""


class Method(eqx.Module):
    """A way to learn the hyperparameters of a process."""

    @abstractmethod
    def fit(
        self,
        gp: GP,
        X: Float[Array, "N d"],
        y: Float[Array, "N"],
        key: PRNGKeyArray,
        progress: bool,
        prior: Prior,
        saved: Slot | None = None,
    ) -> tuple[GP, Trace]:
        """A process with better hyperparameters than `gp`, where it starts, or where `saved` had come to."""


MANY_INPUTS = 25
"""Points of so many inputs are seven standard deviations apart: from farther, no gradient tells a start the way."""


def widening(inputs: int) -> float:
    """How many standard deviations of an input a length scale starts from: one, and more of many inputs.

    The distance of two points grows with the root of the number of inputs. At a start where all correlations are zero
    the likelihood is flat, and learning ends with a process that predicts the mean everywhere.

    >>> widening(3), widening(100)
    (1.0, 2.0)
    """
    return max(1.0, (inputs / MANY_INPUTS) ** 0.5)


def default_gp(
    X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."], kernel: Callable[..., Stationary] = Matern32
) -> GP:
    """Where to start when nothing is known: a length scale for each input, of its standard deviation (and more where
    there are more than 25 inputs), the variance of y for the kernel, a tenth of it for the noise, and the mean of y.

    >>> import jax.numpy as jnp
    >>> gp = default_gp(jnp.array([[0.0, 5.0], [2.0, 5.0]]), jnp.array([1.0, 3.0]))
    >>> print(gp.kernel.lengthscale, gp.kernel.variance, gp.mean)
    [1. 1.] 1.0 2.0
    """
    X, y = check_data(X, y)
    spread = jnp.std(X, axis=0)
    level = jnp.where(jnp.var(y) > 0, jnp.var(y), 1)
    lengthscale = widening(X.shape[1]) * jnp.where(spread > 0, spread, 1)
    return GP(kernel(lengthscale, level), noise=level / 10, mean=jnp.mean(y))


def fit_hyperparameters(
    gp: GP,
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    method: Method | None = None,
    prior: Prior | None = None,
    progress: bool = False,
    checkpoint: Checkpoint | None = None,
) -> tuple[GP, Trace]:
    """The process with the hyperparameters that make the data likely, and how they were found.

    Starts from `gp`, see `default_gp`. The method is `NearestNeighbour()` unless another is given. Interrupted by
    Ctrl-C, or out of time by the `max_seconds` of the method, it returns the best so far, and `trace.interrupted`
    says whether it was Ctrl-C; where several processes learn together, Ctrl-C ends the call. The noise variance does
    not go below 10⁻¹¹ of the kernel's, which float64 still resolves (with `Pathwise` 10⁻⁴, for float32).

    `prior` holds what is known beforehand, in the units of X and y; nothing, unless it is given. A prior is a penalty
    −log p(hyperparameters) on −log p(y), and a bound is not crossed, not even by the start.

    With a `checkpoint` the same call goes on where learning was stopped, to the same result. Ctrl-C then ends the call,
    since nothing is lost by it.
    """
    from pathgp.likelihood.nearest import NearestNeighbour

    method = NearestNeighbour() if method is None else method
    prior = Prior() if prior is None else prior
    checks.instance(gp, GP, "gp", PROCESS)
    checks.instance(method, Method, "method", "a method such as likelihood.Exact()")
    checks.instance(prior, Prior, "prior", "a Prior such as Prior(noise=Bounds(0.01, 0.1))")
    X, y = check_data(X, y)
    checks.noise_variance(gp.noise, X.shape[0])
    checks.random_key(key)
    prior.check(gp)
    gp.kernel.check_inputs(X)
    asked = {"X": X, "y": y, **parts(gp), "the method": method, "the prior": prior, "the key": key}
    slot = slot_of(checkpoint, "learning", lambda: asked)
    # In units of the data, so that a step of the mean, or of a bound, means the same whatever y is measured in.
    centre, unit = jnp.mean(y), jnp.where(jnp.std(y) > 0, jnp.std(y), 1)
    start = GP(gp.kernel.scaled(1 / unit**2), gp.noise / unit**2, (gp.mean - centre) / unit)
    inside = eqx.tree_at(lambda q: q.unit, prior, unit)
    with slot as saved:
        found, trace = method.fit(start, X, (y - centre) / unit, key, progress, inside, saved)
    shift = 0.0 if trace.since_start else float(jnp.log(unit))
    losses = [loss + shift for loss in trace.loss]
    weights = None if trace.weights is None else trace.weights / unit
    learned = GP(found.kernel.scaled(unit**2), found.noise * unit**2, centre + found.mean * unit)
    return prior.nearest(learned), trace._replace(loss=losses, weights=weights)
