"""What a posterior is to those who predict with it: a mean and samples, functions to be evaluated anywhere."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from pathgp import checks
from pathgp.features import Constant
from pathgp.functions import Function


class Predictive(eqx.Module):
    """A mean function and sample functions, to be evaluated anywhere.

    They are made of prior draws f, and of the columns of an update k(·, X)W: that of the mean first (one for each
    target, where several targets share a kernel), then one for each draw. The deviations f(·) − k(·, X)α of the
    samples from the mean do not depend on the targets, and serve all of them.
    """

    @property
    @abstractmethod
    def draws(self) -> Function:
        """The prior draws f."""

    @property
    @abstractmethod
    def level(self) -> Float[Array, ""]:
        """The constant mean of the prior."""

    @property
    @abstractmethod
    def num_targets(self) -> int:
        """The number of targets: functions that are observed at the same points."""

    @abstractmethod
    def columns(self, index: int | slice) -> Function:
        """Some columns of the update."""

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.draws.weights.shape[1]

    @property
    def mean(self) -> Function:
        """The posterior mean: `mean(x)` has shape (n,), or (n, targets) where there are several."""
        several = self.num_targets > 1
        return self.columns(slice(self.num_targets) if several else 0) + Function(Constant(), self.level[None])

    @property
    def deviations(self) -> Function:
        """The samples less the mean, f(·) − k(·, X)α: `deviations(x)` has shape (n, samples)."""
        if self.num_samples == 0:
            raise ValueError(
                "this posterior has no samples: condition with num_samples of at least 1, or add some with "
                "`posterior.with_samples(num, key=key)`."
            )
        return self.draws - self.columns(slice(self.num_targets, None))

    @property
    def samples(self) -> Function:
        """The posterior samples: `samples(x)` has shape (n, samples)."""
        if self.num_targets > 1:
            raise ValueError(
                f"this posterior has {self.num_targets} targets: the samples of target t are "
                "`posterior.mean(x)[:, t, None] + posterior.deviations(x)`."
            )
        deviations, mean = self.deviations, self.columns(0).weights
        weights = deviations.weights.at[self.draws.features.num :].add(mean[:, None])
        return Function(deviations.features, weights) + Function(Constant(), self.level[None])

    def sample(self, index: int) -> Function:
        """One posterior sample: `sample(i)(x)` has shape (n,)."""
        if not -self.num_samples <= index < self.num_samples:
            raise ValueError(f"index is {index}, but the posterior has {self.num_samples} samples.")
        return self.samples[index]

    def variance(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """The variance of f(x), without noise, estimated from the samples (their mean is known)."""
        return jnp.mean(self.deviations(x) ** 2, axis=1)

    def predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        """The mean and the variance of f(x), at little more than the cost of either."""
        checks.at_least(self.num_samples, 1, "num_samples of the posterior")
        zero = jnp.zeros((self.draws.features.num, self.num_targets), self.draws.weights.dtype)
        weights = jnp.concatenate([zero, -self.draws.weights], axis=1)
        parts = Function(self.draws.features, weights) + self.columns(slice(None))
        values = parts(x)  # the update of the mean, and the deviations with their sign turned
        mean = values[:, : self.num_targets] if self.num_targets > 1 else values[:, 0]
        return mean + self.level, jnp.mean(values[:, self.num_targets :] ** 2, axis=1)

    @property
    def predictor(self) -> "Predictor":
        """What prediction needs and no more: it can be neither updated nor given further samples."""
        return Predictor(self.draws, self.columns(slice(None)), self.level)


class Predictor(Predictive):
    """A posterior reduced to its functions, a half to a quarter of its size."""

    prior: Function
    update: Function
    constant: Float[Array, ""]

    @property
    def draws(self) -> Function:
        """The prior draws f."""
        return self.prior

    @property
    def level(self) -> Float[Array, ""]:
        """The constant mean of the prior."""
        return self.constant

    @property
    def num_targets(self) -> int:
        """The columns of the update that belong to no draw."""
        return self.update.weights.shape[1] - self.num_samples

    def columns(self, index: int | slice) -> Function:
        """Some columns of the update."""
        return self.update[index]
