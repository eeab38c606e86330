"""Prediction from a posterior: its mean and samples as functions that can be evaluated anywhere."""

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float64, Shaped

from pathgp._checks import check_not_forked
from pathgp.functions import TILE_POINTS, Function, evaluate_tiles, pad_points
from pathgp.kernels.features import Constant
from pathgp.linalg.precision import dtype_of, evaluate_rows, in_own_precision
from pathgp.linalg.tiles import map_rows
from pathgp.posterior.variance import ExactVariance, VarianceRatio, log_ratio
from pathgp.solvers.local import Projection


class Predictive(eqx.Module):
    """A mean function and sample functions that can be evaluated anywhere.

    Both consist of prior draws f and the columns of an update k(·, X)W. The columns of the means come first, one per
    target if several targets share a kernel, followed by one per draw. The deviations f(·) − k(·, X)α of the samples
    from the mean do not depend on the targets, so all targets share them.
    """

    @property
    @abstractmethod
    def draws(self) -> Function:
        """The prior draws f."""

    @property
    @abstractmethod
    def prior_mean(self) -> Float[Array, ""]:
        """The constant mean of the prior."""

    @property
    @abstractmethod
    def num_targets(self) -> int:
        """The number of targets: functions that are observed at the same points."""

    @property
    @abstractmethod
    def update_at_points(self) -> Function:
        """The update k(·, points) W by the weights of the solver, without the local correction."""

    projection: eqx.AbstractVar[Projection | None]
    unfinished: eqx.AbstractVar[Float[Array, "m s"] | None]
    ratio: eqx.AbstractVar[VarianceRatio | None]
    exact: eqx.AbstractVar[ExactVariance | None]

    @property
    @abstractmethod
    def observed(self) -> tuple[Float[Array, "N s"], ...]:
        """Arrays of columns whose sum is y − m for each target, then f(X) + ε for each draw."""

    @property
    @in_own_precision
    def finish(self) -> Function | None:
        """The local correction of the update, or None if there is none or the solve is exact."""
        if self._finishing is None or self.unfinished is None:
            return None
        return Function(self._finishing, self.unfinished)

    @property
    def _finishing(self) -> Projection | None:
        """The projection. If it computes the residual when it is evaluated, it is given the features of the update."""
        if self.projection is None or self.unfinished is None or self.unfinished.shape[0] == self.projection.num:
            return self.projection
        # A projection with a mesh shards the query points itself, so the update must not be sharded again.
        rows = self.update_at_points.features
        return dataclasses.replace(self.projection, rows=dataclasses.replace(rows, mesh=None))

    @in_own_precision
    def columns(self, index: int | slice) -> Function:
        """Return some columns of the update with their local correction.

        Columns are selected before the two are added, because the sum of all of them is large.
        """
        canonical, finish = self.update_at_points[index], self.finish
        return canonical if finish is None else canonical + finish[index]

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.draws.weights.shape[1]

    @property
    @in_own_precision
    def mean(self) -> Function:
        """The posterior mean: `mean(x)` has shape (n,), or (n, targets) for several targets."""
        several = self.num_targets > 1
        return self.columns(slice(self.num_targets) if several else 0) + Function(Constant(), self.prior_mean[None])

    @property
    @in_own_precision
    def deviations(self) -> Function:
        """The samples minus the mean, f(·) − k(·, X)α: `deviations(x)` has shape (n, samples)."""
        self._refuse_no_samples()
        return self.draws - self.columns(slice(self.num_targets, None))

    @property
    @in_own_precision
    def samples(self) -> Function:
        """The posterior samples: `samples(x)` has shape (n, samples).

        Raises `ValueError` if there are several targets, or no samples.
        """
        if self.num_targets > 1:
            raise ValueError(
                f"this posterior has {self.num_targets} targets: the samples of target t are "
                "`posterior.mean(x)[:, t, None] + posterior.deviations(x)`."
            )
        self._refuse_no_samples()
        # f + k(·, X)(v − α): the weights are subtracted, so that the update is evaluated once.
        mean, update = self.columns(0), self.columns(slice(self.num_targets, None))
        weights = jax.tree.map(lambda m, w: m[:, None] - w, mean.weights, update.weights)
        return self.draws + Function(update.features, weights) + Function(Constant(), self.prior_mean[None])

    def sample(self, index: int) -> Function:
        """Return one posterior sample: `sample(i)(x)` has shape (n,)."""
        if not -self.num_samples <= index < self.num_samples:
            raise ValueError(f"index is {index}, but the posterior has {self.num_samples} samples.")
        return self.samples[index]

    def variance(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """Return the variance of f(x), without noise, as `predict` does."""
        return self.predict(x)[1]

    @property
    @in_own_precision
    def all_columns(self) -> Function:
        """All columns at once: the mean without its constant, then the negated deviations."""
        check_not_forked()
        self._refuse_no_samples()
        # Means have no prior draw, so their weights on the prior features are zero.
        zero = jnp.zeros((self.draws.features.num, self.num_targets), self.draws.weights.dtype)
        weights = jnp.concatenate([zero, -self.draws.weights], axis=1)
        return Function(self.draws.features, weights) + self.columns(slice(None))

    def predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        """Return the mean and the variance of f(x), without noise, at little more than the cost of one of them.

        The variance is exact if the solver has factorised K + Σ, up to 8000 rows, and above where samples are too
        imprecise. Otherwise it is the mean square of the deviations of the samples. With a local correction, it is the
        variance of local predictions of f(x), known in closed form, times the ratio of both variances as estimated from
        the same samples. Much of their sampling error is common to both and cancels. The rest is reduced by shrinking
        the ratio towards that of other points (`pathgp.posterior.variance`).

        Parameters
        ----------
        x
            Query points, of shape (n, inputs).

        Returns
        -------
        mean
            The mean, of shape (n,), or (n, targets) for several targets.
        variance
            The variance, of shape (n,).

        Raises
        ------
        ValueError
            If the posterior has neither samples nor exact variances.
        """
        if self.exact is not None:
            return self.mean(x), self.exact(x)
        self._refuse_no_samples()
        return evaluate_rows(self._predict, dtype_of(self), x)

    def _predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        points, n = pad_points(x, self.update_at_points.features.inputs)
        parts = self.draws, self.update_at_points, self._finishing, self.unfinished, self.observed, self.ratio
        values = evaluate_tiles(_moments, parts, points)[:n]
        mean = values[:, :-1] if self.num_targets > 1 else values[:, 0]
        return mean + self.prior_mean, values[:, -1]

    def _refuse_no_samples(self) -> None:
        if self.num_samples == 0:
            raise ValueError(
                "this posterior has no samples: condition with num_samples of at least 1, or add some with "
                "`posterior.with_samples(num, key=key)`."
            )

    @property
    @in_own_precision
    def predictor(self) -> "Predictor":
        """The posterior reduced to prediction. It can be neither updated nor given more samples."""
        return Predictor(
            prior=self.draws,
            canonical=self.update_at_points,
            constant=self.prior_mean,
            projection=self.projection,
            unfinished=self.unfinished,
            observations=functools.reduce(jnp.add, self.observed),
            ratio=self.ratio,
            exact=self.exact,
        )


class Predictor(Predictive):
    """A posterior reduced to its functions, with a quarter to a half of its size."""

    prior: Function
    canonical: Function
    constant: Float[Array, ""]
    projection: Projection | None
    unfinished: Float[Array, "m s"] | None
    observations: Float[Array, "N s"]
    ratio: VarianceRatio | None = None
    exact: ExactVariance | None = None

    @property
    def draws(self) -> Function:
        """The prior draws f."""
        return self.prior

    @property
    def prior_mean(self) -> Float[Array, ""]:
        """The constant mean of the prior."""
        return self.constant

    @property
    def num_targets(self) -> int:
        """The number of columns of the update that belong to no draw."""
        return self.canonical.weights.shape[1] - self.num_samples

    @property
    def update_at_points(self) -> Function:
        """The update k(·, points) W by the weights of the solver, without the local correction."""
        return self.canonical

    @property
    def observed(self) -> tuple[Float[Array, "N s"], ...]:
        """Arrays of columns whose sum is y − m for each target, then f(X) + ε for each draw."""
        return (self.observations,)


@eqx.filter_jit
def _moments(
    draws: Function,
    update: Function,
    projection: Projection | None,
    unfinished: Float[Array, "m s"] | None,
    observed: tuple[Float[Array, "N s"], ...],
    ratio: VarianceRatio | None,
    X: Float[Array, "n d"],
) -> Float[Array, "n u"]:
    """Return the update of each mean, followed by the variance."""
    targets = update.weights.shape[1] - draws.weights.shape[1]

    def at(x: Float[Array, "m d"]) -> Float[Array, "m u"]:
        f, values = draws.features.apply(x, draws.weights), update.features.apply(x, update.weights)
        if projection is None:
            variance = jnp.mean((f - values[:, targets:]) ** 2, axis=1)
        else:
            added, local, known = projection.apply_with_variance(x, unfinished, observed)
            values = values + added
            own = f - values[:, targets:]
            estimated, sampling = log_ratio(own, f - local[:, targets:])
            if ratio is not None:
                estimated = ratio.shrink(estimated, sampling)
            resolved = known > 0  # before the division, since a derivative of the other branch would be NaN
            variance = jnp.where(resolved, known, 1) * jnp.exp(jnp.where(resolved, estimated, 0))
            variance = jnp.where(resolved, variance, jnp.mean(own**2, axis=1))
        return jnp.concatenate([values[:, :targets], variance[:, None]], axis=1)

    return map_rows(at, X)


def evaluate_whole_tiles(
    f: Callable[[Float[np.ndarray, "m d"]], Float[Array, "m *s"]], X: Float[np.ndarray, "n d"]
) -> Float64[np.ndarray, "n *s"]:
    """Return f(X), evaluated `POINTS` rows at a time, or on all whole tiles at once with several devices.

    Programs for other numbers of rows sum in another order. In float32 a prediction would then depend, by rounding, on
    the number of other rows that are predicted in the same call.
    """
    padding = np.repeat(X[-1:], -len(X) % TILE_POINTS, axis=0)
    return np.asarray(f(np.concatenate([X, padding])), np.float64)[: len(X)]
