"""Hyperparameter fitting: the base class of methods, the trace they return, and `fit_hyperparameters`."""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import _checks as checks
from pathgp.kernels import Matern32, Stationary
from pathgp.likelihood.priors import Prior
from pathgp.linalg.namespace import on_device, on_host
from pathgp.posterior.gp import GP, GP_EXAMPLE, check_data, named_parts
from pathgp.runs.checkpoint import Checkpoint, Slot, open_slot


class Trace(NamedTuple):
    """The course of hyperparameter fitting: one entry per step, or per fit, in each list."""

    loss: list[float]
    """Negative log marginal likelihood per row, as estimated by the method, plus the penalty of the prior."""
    gradient: list[float]
    """Norm of the gradient of the loss in the logarithms of the hyperparameters and in the mean.

    The mean is in units of the standard deviation of y.
    """
    seconds: list[float]
    """Seconds since the start, including those of earlier runs."""
    left_out: int = 0
    """Number of steps or fits that were not finite and were left out."""
    interrupted: bool = False
    """Whether Ctrl-C ended the fit."""
    since_start: bool = False
    """Whether `loss` is relative to its value at the start.

    `Pathwise` knows how the loss changes, but not the determinant in it.
    """
    weights: Float[Array, "N s"] | None = None
    """The solution that `Pathwise` ended with: mean and samples of `condition` with the same key."""


def in_units(gp: GP, unit: float, origin: float) -> GP:
    """Return the GP of (y − origin)/unit for a GP of y, with arrays of NumPy."""
    parts = gp.kernel.scaled(1 / unit**2), gp.noise / unit**2, np.asarray((gp.mean - origin) / unit)
    return eqx.tree_at(lambda gp: (gp.kernel, gp.noise, gp.mean), gp, parts)


class FittingMethod(eqx.Module):
    """Base class of methods of hyperparameter fitting."""

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
        """Return a GP with better hyperparameters, and the trace. It starts from `gp`, or resumes from `saved`."""


MANY_INPUTS = 25
"""Number of inputs above which default length scales grow.

Standardised points with this many inputs are seven standard deviations apart. Beyond that distance, the gradient at the
start is too small to descend along.
"""


def default_lengthscale_factor(inputs: int) -> float:
    """Return the default length scale in standard deviations of an input: 1, and more for many inputs.

    The distance of two points grows with the square root of the number of inputs. At a start where all correlations are
    zero the likelihood is flat, and fitting ends with a GP that predicts the mean everywhere.

    >>> default_lengthscale_factor(3), default_lengthscale_factor(100)
    (1.0, 2.0)
    """
    return max(1.0, (inputs / MANY_INPUTS) ** 0.5)


def default_gp(
    X: Shaped[ArrayLike, "..."], y: Shaped[ArrayLike, "..."], kernel: Callable[..., Stationary] = Matern32
) -> GP:
    """Return a GP from which hyperparameter fitting can start if nothing is known about the data.

    Each input has its own length scale: its standard deviation, and more if there are more than 25 inputs. The variance
    of the kernel is that of y, the noise is a tenth of it, and the mean is that of y.

    Parameters
    ----------
    X
        Inputs of the data.
    y
        Observations.
    kernel
        Class of the kernel, called with the length scales and the variance.

    >>> import jax.numpy as jnp
    >>> gp = default_gp(jnp.array([[0.0, 5.0], [2.0, 5.0]]), jnp.array([1.0, 3.0]))
    >>> print(gp.kernel.lengthscale, gp.kernel.variance, gp.mean)
    [1. 1.] 1.0 2.0
    """
    X, y = (np.asarray(data, np.float64) for data in check_data(X, y))
    spread, level = np.std(X, axis=0), np.var(y) if np.ptp(y) > 0 else 1.0
    lengthscale = default_lengthscale_factor(X.shape[1]) * np.where(spread > 0, spread, 1)
    return GP(kernel(lengthscale, level), noise=level / 10, mean=np.mean(y))


def fit_hyperparameters(
    gp: GP,
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    method: FittingMethod | None = None,
    prior: Prior | None = None,
    progress: bool = False,
    checkpoint: Checkpoint | None = None,
) -> tuple[GP, Trace]:
    """Fit the hyperparameters of a GP by maximising the marginal likelihood, with the density of a prior if given.

    The noise variance does not fall below 10⁻¹¹ of the kernel's, which float64 still resolves (10⁻⁴ with `Pathwise`,
    for float32).

    Ctrl-C ends the fit, as the `max_seconds` of the method does, and the best result so far is returned;
    `trace.interrupted` states whether it was Ctrl-C. With a checkpoint, nothing would be lost, so Ctrl-C ends the call.
    It also ends the call if several processes take part in the fit.

    Parameters
    ----------
    gp
        Start of the fit, for instance from `default_gp`.
    X
        Inputs of the data.
    y
        Observations.
    key
        Random key.
    method
        Method of the fit; None is `Auto()`, which chooses by the number of rows.
    prior
        Priors and bounds of the hyperparameters, in the units of X and y. A prior adds its negative log density to −log
        p(y). Bounds hold for the start too.
    progress
        Whether to show a progress bar.
    checkpoint
        Directory from which the same call resumes after an interruption, with the same result.

    Returns
    -------
    gp
        The GP with the fitted hyperparameters.
    trace
        The course of the fit.

    Raises
    ------
    ValueError
        If an argument is not valid, or if the likelihood is not finite at the start.
    """
    from pathgp.likelihood.auto import Auto

    method = Auto() if method is None else method
    prior = Prior() if prior is None else prior
    checks.require_instance(gp, GP, "gp", GP_EXAMPLE)
    checks.require_instance(method, FittingMethod, "method", "a method such as likelihood.Exact()")
    checks.require_instance(prior, Prior, "prior", "a Prior such as Prior(noise=Bounds(0.01, 0.1))")
    X, y = check_data(X, y)
    checks.require_noise_shape(gp.noise, X.shape[0])
    checks.require_key(key)
    prior.check(gp)
    gp.kernel.check_inputs(X)
    asked = {"X": X, "y": y, **named_parts(gp), "the method": method, "the prior": prior, "the key": key}
    slot = open_slot(checkpoint, "learning", lambda: asked)
    # In standardised units of y, so that a step of the mean, and a bound, do not depend on the unit of y. On the host,
    # because JAX would compile a program for every operation.
    host, observed = on_host(gp), np.asarray(y, np.float64)
    centre, unit = float(np.mean(observed)), float(np.std(observed)) if np.ptp(observed) > 0 else 1.0
    start = in_units(host, unit, centre)
    inside = eqx.tree_at(lambda q: q.unit, prior, jax.device_put(np.asarray(unit, X.dtype)))
    with slot as saved:
        standardised = jax.device_put(np.asarray((observed - centre) / unit, X.dtype))
        found, trace = method.fit(on_device(start, X.dtype), X, standardised, key, progress, inside, saved)
    # The density of y is that of the standardised y divided by its unit, so the loss per row gains log(unit).
    shift = 0.0 if trace.since_start else float(np.log(unit))
    losses = [loss + shift for loss in trace.loss]
    weights = None if trace.weights is None else trace.weights / unit
    learned = on_device(in_units(on_host(found), 1 / unit, -centre / unit), X.dtype)
    # The noise floor and rounding can leave a value outside its bounds.
    return prior.nearest(learned), trace._replace(loss=losses, weights=weights)
