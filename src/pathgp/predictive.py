"""What a posterior is to those who predict with it: a mean and samples, functions to be evaluated anywhere."""

import dataclasses
from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from pathgp.features import Constant
from pathgp.functions import Function, padded
from pathgp.local import Projection
from pathgp.tiles import map_rows


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

    @property
    @abstractmethod
    def update_at_points(self) -> Function:
        """The update k(·, points) W, as far as the solver came."""

    projection: eqx.AbstractVar[Projection | None]
    unfinished: eqx.AbstractVar[Float[Array, "m s"] | None]

    @property
    @abstractmethod
    def observed(self) -> Float[Array, "N s"] | None:
        """f(X) + ε of each draw, where there is a projection to predict it by."""

    @property
    def finish(self) -> Function | None:
        """What the local projection adds to the update, where the solver left something."""
        if self.projection is None or self.unfinished is None:
            return None
        projection = self.projection
        if self.unfinished.shape[0] > projection.num:  # the residual is computed where it is asked for
            projection = dataclasses.replace(projection, rows=self.update_at_points.features)
        return Function(projection, self.unfinished)

    def columns(self, index: int | slice) -> Function:
        """Some columns of the update: picked before anything is put together, since all of them are large."""
        canonical, finish = self.update_at_points[index], self.finish
        return canonical if finish is None else canonical + finish[index]

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
        self._refuse_no_samples()
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
        """The variance of f(x), without noise: see `predict`."""
        return self.predict(x)[1]

    def predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        """The mean and the variance of f(x), without noise, at little more than the cost of either.

        The variance is the mean square of the samples' deviations. Where there is a local projection, it is multiplied
        by the ratio of the variance of local predictions of f(x), known in closed form, to the same estimated from the
        same samples: nearly all of the sampling error is common to both estimates, and cancels.
        """
        self._refuse_no_samples()
        points, n = padded(x, self.update_at_points.features.inputs)
        values = _moments(self, points)[:n]
        mean = values[:, :-1] if self.num_targets > 1 else values[:, 0]
        return mean + self.level, values[:, -1]

    def _refuse_no_samples(self) -> None:
        if self.num_samples == 0:
            raise ValueError(
                "this posterior has no samples: condition with num_samples of at least 1, or add some with "
                "`posterior.with_samples(num, key=key)`."
            )

    @property
    def predictor(self) -> "Predictor":
        """What prediction needs and no more: it can be neither updated nor given further samples."""
        return Predictor(
            prior=self.draws,
            canonical=self.update_at_points,
            constant=self.level,
            projection=self.projection,
            unfinished=self.unfinished,
            observations=self.observed,
        )


class Predictor(Predictive):
    """A posterior reduced to its functions, a half to a quarter of its size."""

    prior: Function
    canonical: Function
    constant: Float[Array, ""]
    projection: Projection | None
    unfinished: Float[Array, "m s"] | None
    observations: Float[Array, "N t"] | None

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
        return self.canonical.weights.shape[1] - self.num_samples

    @property
    def update_at_points(self) -> Function:
        """The update k(·, points) W, as far as the solver came."""
        return self.canonical

    @property
    def observed(self) -> Float[Array, "N s"] | None:
        """f(X) + ε of each draw, where there is a projection to predict it by."""
        return self.observations


@eqx.filter_jit
def _moments(p: Predictive, X: Float[Array, "n d"]) -> Float[Array, "n u"]:
    """The update of each mean, and after them the variance."""
    update, observed, t = p.update_at_points, p.observed, p.num_targets
    finish = p.finish
    projection = p.projection if finish is None else finish.features
    weights = None if finish is None else finish.weights

    def at(x: Float[Array, "m d"]) -> Float[Array, "m u"]:
        f = p.draws.features.apply(x, p.draws.weights)
        values = update.features.apply(x, update.weights)
        factor = 1.0
        if observed is not None:
            assert isinstance(projection, Projection)
            added, local, variance = projection.with_reference(x, weights, observed)
            values = values if finish is None else values + added
            ratio = variance / jnp.mean((f - local) ** 2, axis=1)
            factor = jnp.where(jnp.isfinite(ratio), ratio, 1)
        variance = factor * jnp.mean((f - values[:, t:]) ** 2, axis=1)
        return jnp.concatenate([values[:, :t], variance[:, None]], axis=1)

    return map_rows(at, X)
