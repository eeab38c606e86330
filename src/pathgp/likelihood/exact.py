"""The exact marginal likelihood, and the paper's way to use it on more rows than it can take."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Float64, PRNGKeyArray
from scipy import linalg, optimize
from threadpoolctl import threadpool_limits

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.likelihood.base import FittingMethod, Trace
from pathgp.likelihood.descent import Record
from pathgp.likelihood.evaluations import Evaluations
from pathgp.likelihood.parameters import Parameters, to_parameters, trainable_mask
from pathgp.likelihood.priors import Prior, map_named
from pathgp.linalg.factor import factorise
from pathgp.posterior.gp import GP
from pathgp.runs.checkpoint import Slot

MAX_ROWS = 10_000
THREADED_ROWS = 2000
"""From here on a factorisation gains by several threads.

Below, they take no less time than one; and as they wait for each other actively, much more where other work has the
processors, for instance the other folds of a cross-validation.
"""

FEW_ROWS, RESTARTS = 500, 3
"""Up to so many rows there are so many restarts: a factorisation takes milliseconds, and optima are many."""

SHORTER = (0.3, 0.1, 1.0)
"""Factors of the length scales of the first restarts, then again."""

NOISE_FALL = 30.0
"""How far the logarithm of the noise may fall, to well below its floor."""

RUNAWAY = 10.0
"""How far the logarithm of a hyperparameter may go from where it starts: a factor of 22,000."""


class Exact(FittingMethod):
    """Minimises −log p(y) = ½ yᵀH⁻¹y + ½ log|H| + (N/2) log 2π by L-BFGS-B (SciPy), in float64.

    The gradient is ½ tr((H⁻¹ − ααᵀ) ∂H) with α = H⁻¹y, one factorisation per step. Starts from the GP and from
    `restarts` others, with shorter length scales, all, a hundredth or a ten-thousandth of the noise, and then at
    random; the best end is kept. A start on which all rows look alike ends as "mean plus noise" where the function
    varies within the length scale, and a shorter one finds it: three restarts do up to `FEW_ROWS` rows, unless
    `restarts` says how many.
    """

    steps: int = 100
    restarts: int | None = None
    max_seconds: float = float("inf")

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
        """The best of all starts."""
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
        """The best of all starts, the likelihood taken from what an earlier run has evaluated as far as that goes."""
        if X.shape[0] > MAX_ROWS:
            raise ValueError(
                f"Exact factorises an N x N matrix at every step, and {X.shape[0]} rows are more than the {MAX_ROWS} "
                "that it takes: use NearestNeighbour() or Neighbourhoods()."
            )
        dtype = X.dtype
        descents: list[Descent] = []
        few = X.shape[0] < THREADED_ROWS
        with jax.enable_x64(True), _one_blas_thread() if few else contextlib.nullcontext():
            wide, X, y, prior = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (gp, X, y, prior))
            start = prior.projected(to_parameters(wide))
            restarts = (RESTARTS if X.shape[0] <= FEW_ROWS else 0) if self.restarts is None else self.restarts
            with Record(self.steps * (restarts + 1), self.max_seconds, progress, evaluations.saved) as record:
                for another in _starts(start, restarts, key):
                    if record.out_of_time and not evaluations.ahead:
                        break
                    descents.append(Descent(prior.projected(another), X, y, prior, record, evaluations))
                    descents[-1].run(self.steps)
            ends = [end for descent in descents for end in descent.best]
            if not ends and not record.interrupted:
                raise ValueError(
                    "the likelihood is not finite at the starting values: scale X and y to about one, or start from "
                    "other hyperparameters."
                )
            _, best = min(ends, key=lambda end: end[0], default=(np.inf, start))
            found = jax.tree.map(lambda leaf: np.asarray(leaf), best.gp())
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), found), record.trace()


class Descent:
    """One descent from one start: SciPy's optimiser keeps no best, and cannot be asked to stop in time."""

    def __init__(
        self,
        start: Parameters,
        X: Float[Array, "N d"],
        y: Float[Array, "N"],
        prior: Prior,
        record: Record,
        evaluations: Evaluations,
    ) -> None:
        moving, self.fixed = eqx.partition(start, trainable_mask(start))
        self.flat, self.unravel = ravel_pytree(moving)
        self.X, self.y, self.prior, self.record, self.evaluations = X, y, prior, record, evaluations
        self.best: list[tuple[float, Parameters]] = []

    def value(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss per row and its gradient; a large number where it is not finite: the line search goes back."""
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
        """The loss per row with the penalty of the prior, and the gradient as a vector."""
        loss, gradient = loss_and_gradient(p, self.X, self.y)
        penalty, penalty_gradient = _penalty(self.prior, p)
        loss += float(penalty) / self.X.shape[0]
        gradient = jax.tree.map(lambda a, b: a + b / self.X.shape[0], gradient, penalty_gradient)
        return loss, np.asarray(ravel_pytree(eqx.filter(gradient, trainable_mask(p)))[0])

    def parameters(self, flat: np.ndarray) -> Parameters:
        """What a vector of the optimiser stands for."""
        return eqx.combine(self.unravel(jnp.asarray(flat)), self.fixed)

    def possible(self, flat: np.ndarray) -> np.ndarray:
        """The nearest vector that the prior allows."""
        p = self.prior.projected(self.parameters(flat))
        return np.asarray(ravel_pytree(eqx.filter(p, trainable_mask(p)))[0])

    def run(self, steps: int) -> None:
        """Descends as far as there are steps and time."""
        flat = np.asarray(self.flat)
        # Noise may fall as far as its floor: that of a function without noise is far below where it starts.
        fall = jax.tree.map(lambda leaf: jnp.full_like(leaf, RUNAWAY), self.unravel(self.flat))
        fall = np.asarray(ravel_pytree(eqx.tree_at(lambda p: p.log_noise, fall, jnp.asarray(NOISE_FALL)))[0])
        bounds = list(zip(self.possible(flat - fall), self.possible(flat + RUNAWAY), strict=True))
        advance = lambda _: self.record.advance()
        options = {"maxiter": steps}
        with contextlib.suppress(TimeoutError):
            optimize.minimize(
                self.value, flat, jac=True, method="L-BFGS-B", bounds=bounds, callback=advance, options=options
            )


_limiting = threading.Lock()


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """One thread for BLAS, which is a setting of the whole process: of several that learn at once, one changes it."""
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        _limiting.release()


@eqx.filter_jit
def _penalty(prior: Prior, p: Parameters) -> tuple[Float[Array, ""], Parameters]:
    return jax.value_and_grad(lambda q: prior.penalty(q.gp()))(p)


def loss_and_gradient(p: Parameters, X: Float[Array, "N d"], y: Float[Array, "N"]) -> tuple[float, Parameters]:
    """−log p(y)/N and its gradient; NaN where H is not positive definite. To be called with float64 enabled."""
    N = X.shape[0]
    H, pull_back = jax.vjp(lambda q: _matrix(q, X), p)
    factor: Float64[np.ndarray, "N N"] = np.array(H)
    nan = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), p)
    if not np.all(np.isfinite(factor)):
        return float("nan"), nan
    try:
        factorise(factor)
    except ValueError:
        return float("nan"), nan
    (invert,) = linalg.get_lapack_funcs(("potri",), (factor,))
    inverse, _ = invert(factor, lower=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    residual = np.asarray(y - p.mean)
    alpha = inverse @ residual
    loss = 0.5 * residual @ alpha + np.sum(np.log(np.diag(factor))) + 0.5 * N * np.log(2 * np.pi)
    (gradient,) = pull_back(jnp.asarray(0.5 * (inverse - np.outer(alpha, alpha))))
    gradient = eqx.tree_at(lambda g: g.mean, gradient, gradient.mean - jnp.sum(alpha))
    return float(loss) / N, jax.tree.map(lambda leaf: leaf / N, gradient)


@eqx.filter_jit
def _matrix(p: Parameters, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
    gp = p.gp()
    return gp.kernel(X, X) + jnp.diag(jnp.broadcast_to(gp.noise, X.shape[0]))


def _starts(p: Parameters, restarts: int, key: PRNGKeyArray) -> list[Parameters]:
    """The given start, and others around it."""
    starts = [p]
    for i in range(restarts):
        shorten, spread = partial(jnp.add, np.log(SHORTER[i % len(SHORTER)])), 0.1 if i < 2 else 0.7
        leaves, structure = jax.tree.flatten(map_named(p.log_kernel, "lengthscale", shorten, lambda leaf: leaf))
        keys = jax.random.split(jax.random.fold_in(key, i), len(leaves))
        moved = [leaf + spread * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
        kernel = jax.tree.unflatten(structure, moved)
        noise = p.log_noise - np.log(100.0) * ((i + 1) % 3)
        starts.append(Parameters(kernel, noise, p.mean, p.noise_shape, p.floor))
    return starts


class Neighbourhoods(FittingMethod):
    """The paper's procedure (appendix A.1): exact likelihood on the nearest rows to random centroids, averaged.

    Fits that end in numbers that are not finite, or far off, are left out and counted. Variances are averaged, and
    length scales by their inverses: an input that does not matter around one centroid, so that its length scale runs
    to infinity there, may matter around the others.
    """

    centroids: int = 5
    size: int = 2000
    steps: int = 30
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        for name in ("centroids", "size", "steps"):
            checks.require_at_least(getattr(self, name), 1, f"Neighbourhoods.{name}")
        if self.size > MAX_ROWS:
            raise ValueError(f"Neighbourhoods.size must be at most {MAX_ROWS}, but it is {self.size}.")

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
        """The average over the centroids, in the coordinates of the process that it starts from."""
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
    """Whether a fit ended within the bounds of its descent, but for length scales of inputs that do not matter."""
    change = jax.tree.map(lambda a, b: jnp.log(a) - jnp.log(b), found, start)
    rise = map_named(change, "lengthscale", lambda leaf: jnp.minimum(leaf, 0), lambda leaf: leaf)
    return bool(jnp.all(jnp.abs(ravel_pytree(rise)[0]) < RUNAWAY - 1e-3))


def _averaged(fits: list[GP]) -> GP:
    """The mean of all hyperparameters but the length scales, of which it is the harmonic mean."""
    invert = lambda gp: GP(map_named(gp.kernel, "lengthscale", jnp.reciprocal, lambda leaf: leaf), gp.noise, gp.mean)
    return invert(jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), axis=0), *map(invert, fits)))
