"""Fits by the exact marginal likelihood, and by that of neighbourhoods of rows if there are too many rows for it."""

import contextlib
import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy import optimize

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.likelihood.base import FittingMethod, Trace
from pathgp.likelihood.descent import Record
from pathgp.likelihood.evaluations import Evaluations
from pathgp.likelihood.marginal import loss_and_gradient
from pathgp.likelihood.parameters import Parameters, to_parameters
from pathgp.likelihood.priors import Prior, map_named
from pathgp.linalg.namespace import host_generator, on_device, on_host
from pathgp.linalg.threads import one_blas_thread
from pathgp.posterior.gp import GP
from pathgp.runs.checkpoint import Slot

FEW_ROWS, RESTARTS = 500, 3
"""Number of rows up to which there are restarts by default, and their number.

With so few rows, a factorisation takes milliseconds and the likelihood has many optima.
"""

SHORTER = (0.3, 0.1, 1.0)
"""Factors of the length scales of the restarts, used in turn."""

NOISE_FALL = 30.0
"""Largest decrease of the logarithm of the noise, enough to fall well below its floor."""

LEAST_GAIN = 1e-6
"""A descent ends at a step that increases log p(y) by less than this.

With 1e-4, a fit of 200 inputs ends on the plateau where it starts.
"""

RUNAWAY = 10.0
"""Largest change of the logarithm of a hyperparameter from its start: a factor of 22,000."""


class Exact(FittingMethod):
    """The exact negative log marginal likelihood, minimised by L-BFGS-B (SciPy) in float64.

    The loss −log p(y) and its gradient take one factorisation (`likelihood.marginal`).

    The descent starts from the given GP, then from `restarts` others, and the best result is kept. The other starts
    have shorter length scales, with all, a hundredth or a ten-thousandth of the noise, and are perturbed at random. If
    the function varies within a length scale, a start at which all rows are strongly correlated can end as "mean plus
    noise"; a start with a shorter length scale finds the function.

    Parameters
    ----------
    steps
        Maximum number of steps from each start.
    restarts
        Number of further starts. None is three for up to `FEW_ROWS` rows, and none for more.
    max_seconds
        Time limit in seconds, for all starts together.
    max_rows
        Largest number of rows that it accepts.
    """

    steps: int = 100
    restarts: int | None = None
    max_seconds: float = float("inf")
    max_rows: int = 10_000

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "Exact.steps")
        checks.require_at_least(self.restarts or 0, 0, "Exact.restarts")

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
        """Return the GP with the smallest loss over all starts, and the trace.

        Raises `ValueError` if there are more than `max_rows` rows or the likelihood is not finite at any start.
        """
        evaluations = Evaluations(saved)
        left = dataclasses.replace(self, max_seconds=self.max_seconds - evaluations.before)
        return left.fit_with(evaluations, gp, X, y, key, progress, prior)

    def fit_with(
        self,
        evaluations: Evaluations,
        gp: GP,
        X: Float[Array, "N d"],
        y: Float[Array, "N"],
        key: PRNGKeyArray,
        progress: bool,
        prior: Prior,
    ) -> tuple[GP, Trace]:
        """Return the result of `fit`, with the `evaluations` of an earlier run reused as far as they go."""
        if X.shape[0] > self.max_rows:
            raise ValueError(
                f"Exact factorises an N x N matrix at every step, and {X.shape[0]} rows are more than the "
                f"{self.max_rows} that it takes: use NearestNeighbour() or Neighbourhoods()."
            )
        descents: list[Descent] = []
        with jax.enable_x64(True), one_blas_thread(X.shape[0]):
            wide, points, observed, prior = on_host((gp, X, y, prior))
            start = prior.projected(to_parameters(wide))
            restarts = (RESTARTS if X.shape[0] <= FEW_ROWS else 0) if self.restarts is None else self.restarts
            with Record(self.steps * (restarts + 1), self.max_seconds, progress, evaluations.saved) as record:
                for another in _starts(start, restarts, key):
                    if record.out_of_time and not evaluations.ahead:
                        break
                    descents.append(Descent(prior.projected(another), points, observed, prior, record, evaluations))
                    descents[-1].run(self.steps)
            ends = [end for descent in descents for end in descent.best]
            if not ends and not record.interrupted:
                raise ValueError(
                    "the likelihood is not finite at the starting values: scale X and y to about one, or start from "
                    "other hyperparameters."
                )
            _, best = min(ends, key=lambda end: end[0], default=(np.inf, start))
        kernel, noise = best.kernel_and_noise()
        return GP(*on_device((kernel, noise, best.mean), X.dtype)), record.trace()


class Descent:
    """A descent from one start, which keeps the best parameters and stops at the time limit.

    SciPy's optimiser does neither. That of Optax, whose state could be stored, has no bounds, and needs a factorisation
    inside JAX, which has to be compiled.
    """

    def __init__(
        self,
        start: Parameters,
        X: Float64[np.ndarray, "N d"],
        y: Float64[np.ndarray, "N"],
        prior: Prior,
        record: Record,
        evaluations: Evaluations,
    ) -> None:
        self.start = on_host(start)
        self.leaves, self.structure = jax.tree.flatten(self.start)
        self.ends = np.cumsum([leaf.size for leaf in self.leaves[:-1]])[:-1]
        self.X, self.y, self.prior, self.record, self.evaluations = X, y, prior, record, evaluations
        self.best: list[tuple[float, Parameters]] = []

    def value(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss per row and its gradient.

        A loss that is not finite is replaced by a large number, so that the line search shortens its step.
        """
        if self.record.out_of_time and not self.evaluations.ahead:
            raise TimeoutError
        p = self.parameters(flat)
        _, loss, gradient, seconds = self.evaluations.at(flat, lambda: self.evaluate(p))
        if not (np.isfinite(loss) and np.all(np.isfinite(gradient))):
            self.record.left_out += 1
            return 1e10, np.zeros_like(flat)
        self.record.add(loss, float(np.linalg.norm(gradient)), seconds)
        if not self.best or loss < self.best[0][0]:
            self.best = [(loss, p)]
        return loss, gradient

    def evaluate(self, p: Parameters) -> tuple[float, Float64[np.ndarray, "p"]]:
        """Return the loss per row, with the penalty of the prior, and its gradient as a vector."""
        loss, gradient = loss_and_gradient(p, self.X, self.y)
        vector = _flat(gradient)
        if self.prior.has_beliefs:
            penalty, penalty_gradient = _penalty(self.prior, p)
            loss, vector = loss + float(penalty) / len(self.X), vector + _flat(penalty_gradient) / len(self.X)
        return loss, vector

    def parameters(self, flat: np.ndarray) -> Parameters:
        """Return the parameters of a vector of the optimiser."""
        # In the order of `_flat`; the noise of the rows relative to their mean is the last leaf, and not fitted.
        parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(flat, self.ends), self.leaves, strict=False)]
        return jax.tree.unflatten(self.structure, [*parts, self.leaves[-1]])

    def possible(self, flat: np.ndarray) -> np.ndarray:
        """Return the nearest vector that the prior allows."""
        return _flat(self.prior.projected(self.parameters(flat)))

    def run(self, steps: int) -> None:
        """Descend for at most `steps` steps, within the time limit."""
        flat = _flat(self.start)
        # The noise may fall to its floor, because that of a noiseless function is far below its start.
        fall = jax.tree.map(lambda leaf: np.full_like(leaf, RUNAWAY), self.start)
        fall = _flat(eqx.tree_at(lambda p: p.log_noise, fall, np.asarray(NOISE_FALL)))
        bounds = list(zip(self.possible(flat - fall), self.possible(flat + RUNAWAY), strict=True))
        advance = lambda _: self.record.advance()
        options = {"maxiter": steps, "ftol": LEAST_GAIN / len(self.X)}
        with contextlib.suppress(TimeoutError):
            optimize.minimize(
                self.value, flat, jac=True, method="L-BFGS-B", bounds=bounds, callback=advance, options=options
            )


def _flat(p: Parameters) -> Float64[np.ndarray, "p"]:
    """Return the parameters that are fitted as a vector."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(p)[:-1]])


@eqx.filter_jit
def _penalty(prior: Prior, p: Parameters) -> tuple[Float[Array, ""], Parameters]:
    return jax.value_and_grad(lambda q: prior.penalty(q.gp()))(p)


def _starts(p: Parameters, restarts: int, key: PRNGKeyArray) -> list[Parameters]:
    """Return the given start, followed by `restarts` others around it."""
    starts, rng = [p], host_generator(key)
    for i in range(restarts):
        shorten, spread = partial(np.add, np.log(SHORTER[i % len(SHORTER)])), 0.1 if i < 2 else 0.7
        shorter = map_named(p.log_kernel, "lengthscale", shorten, lambda leaf: leaf)
        kernel = jax.tree.map(lambda leaf, by=spread: leaf + by * rng.normal(size=leaf.shape), shorter)
        noise = p.log_noise - np.log(100.0) * ((i + 1) % 3)
        starts.append(Parameters(kernel, noise, p.mean, p.noise_shape, p.floor))
    return starts


class Neighbourhoods(FittingMethod):
    """The average of exact fits on the nearest rows to random centroids (appendix A.1 of the paper).

    Fits that fail or end at a bound of their descent are left out and counted. Variances, noise and mean are averaged;
    length scales are averaged by their inverses (harmonic mean). An input that is irrelevant around one centroid, where
    its length scale tends to infinity, may be relevant around others.

    Parameters
    ----------
    centroids
        Number of centroids, chosen among the rows.
    size
        Number of rows around each centroid, at most the `max_rows` of `Exact`.
    steps
        Maximum number of steps of each fit.
    max_seconds
        Time limit in seconds, for all fits together.
    """

    centroids: int = 5
    size: int = 2000
    steps: int = 30
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        for name in ("centroids", "size", "steps"):
            checks.require_at_least(getattr(self, name), 1, f"Neighbourhoods.{name}")
        if self.size > Exact.max_rows:
            raise ValueError(f"Neighbourhoods.size must be at most {Exact.max_rows}, but it is {self.size}.")

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
        """Return the average of the fits, and the trace; distances are in the coordinates of the kernel of `gp`.

        Raises `ValueError` if no fit gives finite hyperparameters.
        """
        points = gp.kernel.coordinates(X)
        chosen = jax.random.choice(key, X.shape[0], (min(self.centroids, X.shape[0]),), replace=False)
        fits: list[GP] = []
        evaluations = Evaluations(saved)
        with Record(len(chosen), self.max_seconds, progress, saved) as record:
            record.add_elapsed(evaluations.before)
            for i in np.asarray(chosen):
                if record.seconds_left <= 0 and fits and not evaluations.ahead:
                    break
                near = jnp.argsort(jnp.sum((points - points[i]) ** 2, axis=1))[: self.size]
                noise = gp.noise if gp.noise.ndim == 0 else gp.noise[near]
                method = Exact(self.steps, max_seconds=record.seconds_left)
                part = GP(gp.kernel, noise, gp.mean), X[near], y[near]
                try:
                    found, trace = method.fit_with(evaluations, *part, key, False, prior)
                except ValueError:
                    record.left_out += 1
                    continue
                if trace.loss:
                    record.add(trace.loss[-1], trace.gradient[-1], trace.seconds[-1])
                    record.advance()
                factor = jnp.ravel(found.noise)[0] / jnp.ravel(noise)[0]
                if _is_settled(found.kernel, gp.kernel):
                    fits.append(GP(found.kernel, factor * jnp.mean(gp.noise), found.mean))
                else:
                    record.left_out += 1
                if trace.interrupted:
                    raise KeyboardInterrupt
        if record.interrupted and not fits:
            return gp, record.trace()
        if not fits:
            raise ValueError(
                f"none of the {len(chosen)} neighbourhoods gave finite hyperparameters: scale X and y to about one, "
                "start from other values, or use NearestNeighbour()."
            )
        average = _averaged(fits)
        noise = average.noise if gp.noise.ndim == 0 else gp.noise * (average.noise / jnp.mean(gp.noise))
        return GP(average.kernel, noise, average.mean), record.trace()


def _is_settled(found: Kernel, start: Kernel) -> bool:
    """Return whether a fit ended within the bounds of its descent; length scales may have grown to their bounds."""
    change = jax.tree.map(lambda a, b: jnp.log(a) - jnp.log(b), found, start)
    rise = map_named(change, "lengthscale", lambda leaf: jnp.minimum(leaf, 0), lambda leaf: leaf)
    return bool(jnp.all(jnp.abs(ravel_pytree(rise)[0]) < RUNAWAY - 1e-3))


def _averaged(fits: list[GP]) -> GP:
    """Return the harmonic mean of the length scales and the arithmetic mean of all other hyperparameters."""
    invert = lambda gp: GP(map_named(gp.kernel, "lengthscale", jnp.reciprocal, lambda leaf: leaf), gp.noise, gp.mean)
    return invert(jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), axis=0), *map(invert, fits)))
