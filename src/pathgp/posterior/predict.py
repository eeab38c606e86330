"""What a posterior is to those who predict with it: a mean and samples, functions to be evaluated anywhere."""

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
from pathgp.functions import POINTS, Function, by_tiles, padded
from pathgp.kernels.features import Constant
from pathgp.linalg.precision import dtype_of, evaluate_rows, in_own_precision
from pathgp.linalg.tiles import map_rows
from pathgp.posterior.variance import ExactVariance, VarianceRatio, log_ratio
from pathgp.solvers.local import Projection


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
    ratio: eqx.AbstractVar[VarianceRatio | None]
    exact: eqx.AbstractVar[ExactVariance | None]

    @property
    @abstractmethod
    def observed(self) -> tuple[Float[Array, "N s"], ...]:
        """Columns whose sum is y − m for each target, then f(X) + ε for each draw."""

    @property
    @in_own_precision
    def finish(self) -> Function | None:
        """What the local projection adds to the update, where the solver left something."""
        if self._finishing is None or self.unfinished is None:
            return None
        return Function(self._finishing, self.unfinished)

    @property
    def _finishing(self) -> Projection | None:
        """The projection; where the residual is computed as it is asked for, it knows the update."""
        if self.projection is None or self.unfinished is None or self.unfinished.shape[0] == self.projection.num:
            return self.projection
        rows = self.update_at_points.features
        return dataclasses.replace(self.projection, rows=dataclasses.replace(rows, mesh=None))

    @in_own_precision
    def columns(self, index: int | slice) -> Function:
        """Some columns of the update: picked before anything is put together, since all of them are large."""
        canonical, finish = self.update_at_points[index], self.finish
        return canonical if finish is None else canonical + finish[index]

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.draws.weights.shape[1]

    @property
    @in_own_precision
    def mean(self) -> Function:
        """The posterior mean: `mean(x)` has shape (n,), or (n, targets) where there are several."""
        several = self.num_targets > 1
        return self.columns(slice(self.num_targets) if several else 0) + Function(Constant(), self.level[None])

    @property
    @in_own_precision
    def deviations(self) -> Function:
        """The samples less the mean, f(·) − k(·, X)α: `deviations(x)` has shape (n, samples)."""
        self._refuse_no_samples()
        return self.draws - self.columns(slice(self.num_targets, None))

    @property
    @in_own_precision
    def samples(self) -> Function:
        """The posterior samples: `samples(x)` has shape (n, samples)."""
        if self.num_targets > 1:
            raise ValueError(
                f"this posterior has {self.num_targets} targets: the samples of target t are "
                "`posterior.mean(x)[:, t, None] + posterior.deviations(x)`."
            )
        self._refuse_no_samples()
        mean, update = self.columns(0), self.columns(slice(self.num_targets, None))
        weights = jax.tree.map(lambda m, w: m[:, None] - w, mean.weights, update.weights)
        return self.draws + Function(update.features, weights) + Function(Constant(), self.level[None])

    def sample(self, index: int) -> Function:
        """One posterior sample: `sample(i)(x)` has shape (n,)."""
        if not -self.num_samples <= index < self.num_samples:
            raise ValueError(f"index is {index}, but the posterior has {self.num_samples} samples.")
        return self.samples[index]

    def variance(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """The variance of f(x), without noise: see `predict`."""
        return self.predict(x)[1]

    @property
    @in_own_precision
    def joint(self) -> Function:
        """All columns at once: the mean less its constant, then the deviations with their sign turned."""
        check_not_forked()
        self._refuse_no_samples()
        zero = jnp.zeros((self.draws.features.num, self.num_targets), self.draws.weights.dtype)
        weights = jnp.concatenate([zero, -self.draws.weights], axis=1)
        return Function(self.draws.features, weights) + self.columns(slice(None))

    def predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        """The mean and the variance of f(x), without noise, at little more than the cost of either.

        The variance is exact where the solver has factorised K + Σ, up to 8000 rows. Otherwise it is the mean square
        of the samples' deviations. Where there is a local projection, it is the
        variance of local predictions of f(x), known in closed form, times the ratio of both variances as estimated
        from the same samples: much of their sampling error is common to both, and cancels. What is left is reduced by
        shrinking the ratio towards that of other points (`pathgp.posterior.variance`).
        """
        if self.exact is not None:
            return self.mean(x), self.exact(x)
        self._refuse_no_samples()
        return evaluate_rows(self._predict, dtype_of(self), x)

    def _predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        points, n = padded(x, self.update_at_points.features.inputs)
        parts = self.draws, self.update_at_points, self._finishing, self.unfinished, self.observed, self.ratio
        values = by_tiles(_moments, parts, points)[:n]
        mean = values[:, :-1] if self.num_targets > 1 else values[:, 0]
        return mean + self.level, values[:, -1]

    def _refuse_no_samples(self) -> None:
        if self.num_samples == 0:
            raise ValueError(
                "this posterior has no samples: condition with num_samples of at least 1, or add some with "
                "`posterior.with_samples(num, key=key)`."
            )

    @property
    @in_own_precision
    def predictor(self) -> "Predictor":
        """What prediction needs and no more: it can be neither updated nor given further samples."""
        return Predictor(
            prior=self.draws,
            canonical=self.update_at_points,
            constant=self.level,
            projection=self.projection,
            unfinished=self.unfinished,
            observations=functools.reduce(jnp.add, self.observed),
            ratio=self.ratio,
            exact=self.exact,
        )


class Predictor(Predictive):
    """A posterior reduced to its functions, a half to a quarter of its size."""

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
    def observed(self) -> tuple[Float[Array, "N s"], ...]:
        """Columns whose sum is y − m for each target, then f(X) + ε for each draw."""
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
    """The update of each mean, and after them the variance."""
    targets = update.weights.shape[1] - draws.weights.shape[1]

    def at(x: Float[Array, "m d"]) -> Float[Array, "m u"]:
        f, values = draws.features.apply(x, draws.weights), update.features.apply(x, update.weights)
        if projection is None:
            variance = jnp.mean((f - values[:, targets:]) ** 2, axis=1)
        else:
            added, local, known = projection.with_reference(x, unfinished, observed)
            values = values + added
            own = f - values[:, targets:]
            estimated, sampling = log_ratio(own, f - local[:, targets:])
            if ratio is not None:
                estimated = ratio.shrink(estimated, sampling)
            resolved = known > 0  # asked first, for the derivative of the other branch would be NaN
            variance = jnp.where(resolved, known, 1) * jnp.exp(jnp.where(resolved, estimated, 0))
            variance = jnp.where(resolved, variance, jnp.mean(own**2, axis=1))
        return jnp.concatenate([values[:, :targets], variance[:, None]], axis=1)

    return map_rows(at, X)


def in_whole_tiles(
    f: Callable[[Float[np.ndarray, "m d"]], Float[Array, "m *s"]], X: Float[np.ndarray, "n d"]
) -> Float64[np.ndarray, "n *s"]:
    """f(X), always `POINTS` rows at a time; on several devices all whole tiles at once.

    Programs for other numbers of rows sum in another order: in float32 a prediction would depend, by rounding, on how
    many others are asked for with it.
    """
    padding = np.repeat(X[-1:], -len(X) % POINTS, axis=0)
    return np.asarray(f(np.concatenate([X, padding])), np.float64)[: len(X)]
