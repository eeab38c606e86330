"""Prediction from a posterior: its mean and samples as functions that can be evaluated anywhere."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float64, Int, Shaped

from pathgp._checks import is_concrete
from pathgp.functions import TILE_POINTS, Function, as_points, evaluate_tiles, pad_points
from pathgp.kernels.features import Constant
from pathgp.linalg.namespace import on_device
from pathgp.linalg.precision import KeepsPrecision, dtype_of, evaluate_rows, in_own_precision, working_in
from pathgp.linalg.tiles import map_rows
from pathgp.posterior.variance import ExactVariance, VarianceRatio, log_ratio
from pathgp.solvers.local import Projection, Residual


class Correction(eqx.Module):
    """The local correction of an update: a projection of its residual on the nearest rows."""

    projection: Projection
    residual: Residual | None
    """The residual that is projected; None if the solve is exact, so that only the variance is local."""
    observed: tuple[Float[Array, "N s"], ...]
    """Arrays of columns whose sum is y − m for each target, then f(X) + ε for each draw."""


class Predictor(KeepsPrecision, eqx.Module):
    """A mean function and sample functions that can be evaluated anywhere: all that prediction needs of a posterior.

    Both consist of prior draws f and the columns of an update k(·, X)W. The columns of the means come first, one per
    target if several targets share a kernel, followed by one per draw. The deviations f(·) − k(·, X)α of the samples
    from the mean do not depend on the targets, so all targets share them.

    `Predictor.of` builds the mean and the samples from the other parts.

    Parameters
    ----------
    prior
        The prior draws f.
    update
        The update k(·, points)W by the weights of the solver, without the local correction.
    constant
        The constant mean of the prior.
    correction
        The local correction of the update, or None.
    mean
        The posterior mean: `mean(x)` has shape (n,), or (n, targets) for several targets.
    single_target_samples
        The posterior samples; None if there are several targets, or no samples.
    ratio
        Ratio of posterior variances to those of the local correction, if there is one.
    exact
        Posterior variances from the factor of K + Σ, if it is kept.
    """

    prior: Function
    update: Function
    constant: Float[Array, ""]
    correction: Correction | None
    mean: Function
    single_target_samples: Function | None
    ratio: VarianceRatio | None = None
    exact: ExactVariance | None = None

    @classmethod
    def of(
        cls,
        prior: Function,
        update: Function,
        constant: Float[Array, ""],
        correction: Correction | None,
        ratio: VarianceRatio | None = None,
        exact: ExactVariance | None = None,
    ) -> "Predictor":
        """Return the predictor with these parts, and its mean and samples."""
        with working_in(dtype_of(update)):
            parts, offset, samples = _corrected(update, correction), Function(Constant(), constant[None]), None
            targets = update.shape[0] - prior.shape[0]
            mean = _sum([part[slice(targets) if targets > 1 else 0] for part in parts]) + offset
            if targets == 1 and prior.shape[0]:
                # f + k(·, X)(v − α): the weights are subtracted, so that the update is evaluated once.
                updates = [Function(part.features, part.weights[:, :1] - part.weights[:, 1:]) for part in parts]
                samples = prior + _sum(updates) + offset
        return cls(prior, update, constant, correction, mean, samples, ratio, exact)

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.prior.shape[0]

    @property
    def num_targets(self) -> int:
        """The number of targets: functions that are observed at the same points."""
        return self.update.shape[0] - self.num_samples

    @property
    def samples(self) -> Function:
        """The posterior samples: `samples(x)` has shape (n, samples).

        Raises `ValueError` if there are several targets, or no samples.
        """
        if self.num_targets > 1:
            raise ValueError(
                f"this posterior has {self.num_targets} targets: the samples of target t are "
                "`posterior.mean(x)[:, t, None] + posterior.deviations(x)`."
            )
        self._require_samples()
        assert self.single_target_samples is not None
        return self.single_target_samples

    def sample(self, index: int) -> Function:
        """Return one posterior sample: `sample(i)(x)` has shape (n,)."""
        if not -self.num_samples <= index < self.num_samples:
            raise ValueError(f"index is {index}, but the posterior has {self.num_samples} samples.")
        return self.samples[index]

    @in_own_precision
    def columns(self, index: Int[np.ndarray, "k"]) -> Function:
        """Return some columns of the means, without their constant, followed by the negated deviations."""
        update = _sum([part[index] for part in _corrected(self.update, self.correction)])
        # Means have no prior draw, so their weights on the prior features are zero.
        weights = jnp.pad(-self.prior.weights, ((0, 0), (self.num_targets, 0)))
        return Function(self.prior.features, weights)[index] + update

    def deviations(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n s"]:
        """Return the samples minus the mean, f(x) − k(x, X)α, of shape (n, samples)."""
        self._require_samples()
        parts = self.prior, self.update, self.correction
        return evaluate_rows(lambda x: self._in_tiles(_deviations, parts, x), dtype_of(self), x)

    def variance(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """Return the variance of f(x), without noise, as `predict` does."""
        return self.predict(x)[1]

    def predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        """Return the mean and the variance of f(x), without noise; see `Posterior.predict`."""
        if self.exact is not None and is_concrete(x) and not self.update.features.is_sharded:
            mean, variance = self.moments(as_points(x, self.update.features.inputs))
            return on_device((mean if self.num_targets > 1 else mean[:, 0], variance), jnp.result_type(float))
        if self.exact is not None:
            return self.mean(x), self.exact(x)
        self._require_samples()
        return evaluate_rows(self._predict, dtype_of(self), x)

    def moments(self, x: Float[np.ndarray, "n d"]) -> tuple[Float64[np.ndarray, "n t"], Float64[np.ndarray, "n"]]:
        """Return the means and the variance at x on the host, where a factor of K + Σ is kept: JAX compiles nothing."""
        assert self.exact is not None
        mean, variance = self.exact.moments(x, np.asarray(self.update.weights)[:, : self.num_targets])
        return mean + float(self.constant), variance

    def _predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        values = self._in_tiles(_moments, (self.prior, self.update, self.correction, self.ratio), x)
        mean = values[:, :-1] if self.num_targets > 1 else values[:, 0]
        return mean + self.constant, values[:, -1]

    def _in_tiles(
        self, f: Callable[..., Float[Array, "m u"]], parts: tuple, x: Shaped[ArrayLike, "..."]
    ) -> Float[Array, "n u"]:
        points, n = pad_points(x, self.update.features.inputs)
        return evaluate_tiles(f, parts, points)[:n]

    def _require_samples(self) -> None:
        if self.num_samples == 0:
            raise ValueError(
                "this posterior has no samples: condition with num_samples of at least 1, or add some with "
                "`posterior.with_samples(num, key=key)`."
            )


def _corrected(update: Function, correction: Correction | None) -> list[Function]:
    """Return the update and, if there is a residual to correct it for, its local correction."""
    if correction is None or correction.residual is None:
        return [update]
    return [update, correction.residual.function(correction.projection)]


def _sum(functions: list[Function]) -> Function:
    return functools.reduce(operator.add, functions)


@eqx.filter_jit
def _deviations(
    prior: Function, update: Function, correction: Correction | None, X: Float[Array, "n d"]
) -> Float[Array, "n s"]:
    """Return the deviations of the samples from the mean."""
    targets = update.shape[0] - prior.shape[0]

    def at(x: Float[Array, "m d"]) -> Float[Array, "m s"]:
        f, values = prior.features.apply(x, prior.weights), update.features.apply(x, update.weights)
        if correction is not None and correction.residual is not None:
            values = values + correction.projection.correct(x, correction.residual)
        return f - values[:, targets:]

    return map_rows(at, X)


@eqx.filter_jit
def _moments(
    prior: Function,
    update: Function,
    correction: Correction | None,
    ratio: VarianceRatio | None,
    X: Float[Array, "n d"],
) -> Float[Array, "n u"]:
    """Return the update of each mean, followed by the variance."""
    targets = update.shape[0] - prior.shape[0]

    def at(x: Float[Array, "m d"]) -> Float[Array, "m u"]:
        f, values = prior.features.apply(x, prior.weights), update.features.apply(x, update.weights)
        if correction is None:
            variance = jnp.mean((f - values[:, targets:]) ** 2, axis=1)
        else:
            added, local, known = correction.projection.correct_with_variance(
                x, correction.residual, correction.observed
            )
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
    f: Callable[[Float[np.ndarray, "m d"]], Any], X: Float[np.ndarray, "n d"]
) -> Float64[np.ndarray, "n *s"]:
    """Return f(X), evaluated `POINTS` rows at a time, or on all whole tiles at once with several devices.

    Programs for other numbers of rows sum in another order. In float32 a prediction would then depend, by rounding, on
    the number of other rows that are predicted in the same call.
    """
    padding = np.repeat(X[-1:], -len(X) % TILE_POINTS, axis=0)
    return np.asarray(f(np.concatenate([X, padding])), np.float64)[: len(X)]
