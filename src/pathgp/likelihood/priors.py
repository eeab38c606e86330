"""Prior distributions and bounds of hyperparameters, which share one interface."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.likelihood.parameters import Parameters, to_parameters
from pathgp.linalg.namespace import AnyArray, namespace
from pathgp.posterior.gp import GP


class ParameterPrior(eqx.Module):
    """Base class of priors of a positive number: a density, a range of allowed values, or both."""

    @abstractmethod
    def penalty(self, x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        """Return −log of the density of log x, up to a constant."""

    @abstractmethod
    def nearest(self, x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        """Return the allowed value nearest to x."""


class LogNormal(ParameterPrior):
    """Log-normal prior, log x ~ N(log median, spread²).

    The penalty uses the density of log x, whose mode is the median.

    Parameters
    ----------
    median
        Median of x.
    spread
        Standard deviation of log x.

    >>> print(round(float(LogNormal(median=2.0, spread=0.5).penalty(2.0 * jnp.exp(0.5))), 5))
    0.5
    """

    median: Float[Array, "..."] = eqx.field(converter=partial(checks.as_positive, name="LogNormal.median"))
    spread: Float[Array, "..."] = eqx.field(converter=partial(checks.as_positive, name="LogNormal.spread"), default=1.0)

    def penalty(self, x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        """Return ½ (log(x / median) / spread)²."""
        return (namespace(x).log(x / self.median) / self.spread) ** 2 / 2

    def nearest(self, x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        """Return x: every positive number is allowed."""
        return x


class Bounds(ParameterPrior):
    """Bounds low ≤ x ≤ high, without a preference between the allowed values.

    Parameters
    ----------
    low
        Smallest allowed value.
    high
        Largest allowed value.

    >>> print(Bounds(0.1, 10.0).nearest(jnp.array([0.01, 3.0])))
    [0.1 3. ]
    """

    low: Float[Array, "..."] = eqx.field(converter=partial(checks.as_positive, name="Bounds.low"))
    high: Float[Array, "..."] = eqx.field(converter=partial(checks.as_positive, name="Bounds.high"))

    def __check_init__(self) -> None:
        # Inside a JAX transformation the values cannot be compared.
        if checks.is_concrete(self.low) and not bool(jnp.all(self.low <= self.high)):
            raise ValueError(f"Bounds.low must be at most Bounds.high, but they are {self.low} and {self.high}.")

    def penalty(self, x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        """Return zeros."""
        return namespace(x).zeros_like(x)

    def nearest(self, x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        """Return x, clipped to the bounds."""
        return namespace(x).clip(x, self.low, self.high)


class Prior(eqx.Module):
    """Priors of the length scales, of the variances of the kernel and of the noise variance.

    In a sum or product of kernels, a prior holds for every part.

    Parameters
    ----------
    lengthscale
        Prior of the length scales, with one value for all inputs or one per input; None for no prior.
    variance
        Prior of the variances of the kernel; None for no prior.
    noise
        Prior of the noise variance, or of its mean over the rows if it differs between them; None for no prior.
    unit
        Unit of y of the GPs that are passed to the methods, in the unit in which the priors are stated.

    >>> prior = Prior(lengthscale=LogNormal(median=1.0, spread=1.0), noise=Bounds(0.01, 0.1))
    """

    lengthscale: ParameterPrior | None = None
    variance: ParameterPrior | None = None
    noise: ParameterPrior | None = None
    unit: Float[Array, ""] = eqx.field(converter=checks.as_floats, default=1.0)

    def __check_init__(self) -> None:
        for name in ("lengthscale", "variance", "noise"):
            belief = getattr(self, name)
            checks.require_instance(
                belief, ParameterPrior | None, f"prior.{name}", "a belief such as Bounds(0.01, 0.1), or None"
            )

    def check(self, gp: GP) -> None:
        """Raise `ValueError` if a prior is for a parameter that the kernel lacks, or has another shape."""
        for name, belief in (("lengthscale", self.lengthscale), ("variance", self.variance)):
            shapes = [leaf.shape for leaf in jax.tree.leaves(_only(gp.kernel, name))]
            if belief is not None and not shapes:
                raise ValueError(f"prior.{name} is given, but {type(gp.kernel).__name__} has no {name}: leave it out.")
            for value in jax.tree.leaves(belief):
                if any(value.shape not in ((), shape) for shape in shapes):
                    raise ValueError(
                        f"prior.{name} has values of shape {value.shape}, but the kernel's {name} has the shape "
                        f"{shapes[0]}: give one value, or as many."
                    )
        for value in jax.tree.leaves(self.noise):
            if value.shape:
                raise ValueError(f"prior.noise must be one value, but it has the shape {value.shape}.")

    def penalty(self, gp: GP) -> Float[Array, ""]:
        """Return −log p(hyperparameters), up to a constant."""
        kernel = gp.kernel.scaled(self.unit**2) if self.has_beliefs else gp.kernel
        total = jnp.zeros((), gp.mean.dtype)
        for name, belief in (("lengthscale", self.lengthscale), ("variance", self.variance)):
            if belief is not None:
                total += sum(jnp.sum(belief.penalty(leaf)) for leaf in jax.tree.leaves(_only(kernel, name)))
        if self.noise is not None:
            total += self.noise.penalty(jnp.mean(gp.noise) * self.unit**2)
        return total

    def nearest(self, gp: GP) -> GP:
        """Return the GP with every hyperparameter moved to the nearest allowed value."""
        if not self.has_beliefs:
            return gp
        kernel = gp.kernel.scaled(self.unit**2)
        for name, belief in (("lengthscale", self.lengthscale), ("variance", self.variance)):
            if belief is not None:
                kernel = map_named(kernel, name, belief.nearest, lambda leaf: leaf)
        noise = gp.noise
        if self.noise is not None:
            present = namespace(noise).mean(noise) * self.unit**2
            # One factor for all rows keeps the ratios of their noise.
            noise = noise * (self.noise.nearest(present) / present)
        return GP(kernel.scaled(1 / self.unit**2), noise, gp.mean)

    def projected(self, p: Parameters) -> Parameters:
        """Return parameters moved to allowed values; the noise is compared with its bounds without the floor."""
        if not self.has_beliefs:
            return p
        moved = to_parameters(self.nearest(dataclasses.replace(p, floor=0.0).gp()), floor=0.0)
        return Parameters(moved.log_kernel, moved.log_noise, p.mean, p.noise_shape, p.floor)

    @property
    def has_beliefs(self) -> bool:
        """Whether any hyperparameter has a prior or bounds."""
        return not (self.lengthscale is None and self.variance is None and self.noise is None)


def map_named(kernel: Kernel, name: str, then: Callable[[Array], Any], otherwise: Callable[[Array], Any]) -> Any:
    """Return `then` of the arrays of this name in a kernel and its parts, and `otherwise` of the other arrays."""
    named = lambda path: getattr(path[-1], "name", None) == name
    return jax.tree_util.tree_map_with_path(lambda path, leaf: then(leaf) if named(path) else otherwise(leaf), kernel)


def _only(kernel: Kernel, name: str) -> Any:
    """Return the arrays of this name in a kernel and its parts, and None for the others."""
    return map_named(kernel, name, lambda leaf: leaf, lambda _: None)
