"""The state of an optimisation as a value: what is known, and what to evaluate next."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, PRNGKeyArray
from scipy.spatial import KDTree
from scipy.stats import qmc

from pathgp.functions import Function
from pathgp.likelihood import Exact, NearestNeighbour, default_gp, fit_hyperparameters
from pathgp.linalg.precision import in_own_precision
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.solvers import Auto, Cholesky, Solver
from pathgp.thompson.maximise import Found, Search, maxima
from pathgp.thompson.space import Codes, Real, Snapped, Space

KEPT_ROWS = 4000
"""From here on a posterior is kept and updated: below, to solve anew is cheap and exact."""

EXACT_LIKELIHOOD_ROWS = 500
GROWTH = 1.5
"""Hyperparameters are learned again when there are so many times as many data."""

SAME = 1e-4
"""Two points are the same if their codes are nowhere further apart."""

NOTHING_KNOWN = 1e10
"""The noise of a row that is there to fill up an array, as a multiple of the kernel's variance."""

LEARN, SAMPLE, MIX, SEARCH = range(4)
"""What an ask needs randomness for."""


class Settings(eqx.Module):
    """What does not change in the course of an optimisation."""

    space: Space
    gp: GP | None
    """In terms of codes and of y as it is told; None to learn it."""
    sign: float
    """One to maximise, minus one to minimise."""
    solver: Solver
    search: Search
    initial: int
    """As many evaluations as the first, space-filling points."""
    random_state: int

    def rows(self, N: int) -> int | None:
        """The rows that a posterior of N rows is computed anew with: a few more; None where it is kept and updated.

        Sizes are few, of a geometric series, since each has to be compiled. What fills up is harmless to an exact
        solver alone: to others, noise that is so large is all that counts in a residual.
        """
        if N > KEPT_ROWS or not isinstance(self.solver, Auto | Cholesky):
            return None
        size = 32
        while size < N:
            size += size // 2
        return min(size, KEPT_ROWS)


class Model(eqx.Module):
    """A process for (y − centre)/unit, and the number of rows that it was learned from."""

    gp: GP
    centre: float
    unit: float
    rows: int


class State(eqx.Module):
    """All that changes. Whoever has it and the settings goes on in the same way."""

    X: Codes
    y: Float64[np.ndarray, "N"]
    pending: Codes
    failed: Codes
    """Where evaluations failed: they tell nothing of y, and none is proposed again."""
    asks: int = 0
    designed: int = 0
    """The place in the sequence of the initial design from which it goes on."""
    model: Model | None = None
    posterior: Posterior | None = None
    """Only where it is so large that it is updated instead of computed anew."""
    told: int = 0
    """As many of the rows as it was given."""

    @classmethod
    def empty(cls, space: Space) -> "State":
        """Nothing asked, nothing told."""
        none = np.zeros((0, space.width))
        return cls(none, np.zeros(0), pending=none, failed=none)

    @property
    def num_told(self) -> int:
        """The number of evaluations that were told, those that failed included."""
        return self.y.size + len(self.failed)

    @property
    def taken(self) -> Codes:
        """All points that were told or are pending."""
        return np.concatenate([self.X, self.pending, self.failed])


def observe(state: State, X: Codes, y: Float64[np.ndarray, "n"]) -> State:
    """More evaluations. Where y is not finite one has failed, and its y is left out; what was pending is so no more."""
    valid = np.isfinite(y)
    pending = state.pending
    for x in X:
        near = np.flatnonzero(_same(pending, x))
        pending = np.delete(pending, near[:1], axis=0)
    return dataclasses.replace(
        state,
        X=np.concatenate([state.X, X[valid]]),
        y=np.concatenate([state.y, y[valid]]),
        pending=pending,
        failed=np.concatenate([state.failed, X[~valid]]),
    )


def propose(settings: Settings, state: State, num: int) -> tuple[Codes, State]:
    """The next `num` points to evaluate: the maxima of as many posterior samples, or an initial design.

    Since every sample is another function, points that are pending need no other care than that none is proposed
    twice (Hernández-Lobato et al., 2017): where the maximum of a sample is already taken, the best of the other places
    that its search has seen takes its place, and where there is none, the next of the initial design.
    """
    key = jax.random.fold_in(jax.random.key(settings.random_state), state.asks)
    if state.y.size < settings.initial:
        points, end = design(settings, state.designed, num, state.taken)
        state = dataclasses.replace(state, designed=end)
    else:
        model = _learned(settings, state, jax.random.fold_in(key, LEARN))
        state = state if model is state.model else dataclasses.replace(state, model=model, posterior=None)
        samples, state = _samples(model, settings, state, num, key)
        found = _maxima(settings, model, state, samples, jax.random.fold_in(key, SEARCH))
        points, lacking = _choose(found, state.taken, num)
        points = _as_seen(settings.space, points)
        if lacking:
            taken = np.concatenate([state.taken, points])
            others, end = design(settings, state.designed, len(lacking), taken)
            is_free = [not np.any(_same(taken, x)) for x in others]
            points[np.array(lacking)[is_free]] = others[is_free]
            state = dataclasses.replace(state, designed=end)
            points = _new_first(points, state.taken)
    pending = np.concatenate([state.pending, points])
    return points, dataclasses.replace(state, asks=state.asks + 1, pending=pending)


def design(settings: Settings, start: int, num: int, taken: Codes) -> tuple[Codes, int]:
    """`num` points of a scrambled Sobol sequence, from the place `start` on, and the place after the last of them.

    Points that are taken, or were met before, are passed over, unless the space has no other left.
    """
    space, known = settings.space, set(map(tuple, taken))
    exponent = (start + num - 1).bit_length()
    most = max(exponent + 6, 16)  # rounding may keep some points of a space out of reach
    while True:
        sobol = qmc.Sobol(space.width, seed=settings.random_state)  # pyright: ignore[reportCallIssue]
        points = _as_seen(space, _valid(space, sobol.random_base2(exponent)))[start:]
        places = np.sort(np.unique(points, axis=0, return_index=True)[1])
        free = [place for place in places if tuple(points[place]) not in known][:num]
        if len(free) == num or len(places) == space.size or exponent == most:
            again = np.setdiff1d(np.arange(len(points)), free)[: num - len(free)]
            chosen = np.concatenate([free, again]).astype(int)
            return points[chosen], start + int(chosen.max()) + 1
        exponent += 1


def _as_seen(space: Space, points: Codes) -> Codes:
    """The codes after a journey through the values that the caller sees."""
    return space.encode(space.decode(points))


def _valid(space: Space, codes: Float[np.ndarray, "n e"]) -> Codes:
    return np.asarray(space.snap(jnp.asarray(codes, dtype=float)), dtype=np.float64)


def _learned(settings: Settings, state: State, key: PRNGKeyArray) -> Model:
    """The present model, or a new one if there is none or the data have grown enough."""
    N, model = state.y.size, state.model
    if model is not None and (settings.gp is not None or GROWTH * model.rows > N):
        return model
    if settings.gp is not None:
        return Model(settings.gp, 0.0, 1.0, N)
    centre, unit = float(np.mean(state.y)), float(np.std(state.y)) or 1.0
    y = (state.y - centre) / unit
    method = Exact(steps=50, restarts=1) if N <= EXACT_LIKELIHOOD_ROWS else NearestNeighbour()
    gp, _ = fit_hyperparameters(default_gp(state.X, y), state.X, y, key=key, method=method)
    return Model(gp, centre, unit, N)


def _samples(model: Model, settings: Settings, state: State, num: int, key: PRNGKeyArray) -> tuple[Function, State]:
    """`num` posterior samples, in the units of the model; where the posterior is kept, with the state that has it."""
    y = (state.y - model.centre) / model.unit
    sample_key, mix_key = jax.random.fold_in(key, SAMPLE), jax.random.fold_in(key, MIX)
    if settings.rows(y.size) is not None:
        gp, X, y = _filled_up(model.gp, settings, state.X, y)
        width = 1 << (num - 1).bit_length()
        posterior = condition(gp, X, y, key=sample_key, solver=settings.solver, num_samples=width)
        return posterior.samples[:num], state
    posterior = state.posterior
    if posterior is None:
        posterior = condition(model.gp, state.X, y, key=sample_key, solver=settings.solver, num_samples=num)
    else:
        if state.told < y.size:
            posterior = posterior.update(state.X[state.told :], y[state.told :], key=sample_key)
        if posterior.num_samples < num:
            posterior = posterior.with_samples(num - posterior.num_samples, key=sample_key)
        posterior = mixed(posterior, mix_key)
    return posterior.samples[:num], dataclasses.replace(state, posterior=posterior, told=y.size)


def _filled_up(
    gp: GP, settings: Settings, X: Codes, y: Float64[np.ndarray, "N"]
) -> tuple[GP, Codes, Float64[np.ndarray, "M"]]:
    """The same data with each place once, then as many places that tell nothing as make up one of the few sizes.

    `condition` would put repeated places together itself, and what is left would have a new size each time.
    """
    places, of_row, counts = np.unique(X, axis=0, return_inverse=True, return_counts=True)
    means = np.bincount(of_row.reshape(-1), weights=y) / counts
    extra = (settings.rows(counts.size) or counts.size) - counts.size
    variance = float(gp.kernel.diag(jnp.asarray(X[:1], dtype=float))[0])
    noise = np.concatenate([float(gp.noise) / counts, np.full(extra, NOTHING_KNOWN * variance)])
    elsewhere = np.random.default_rng(settings.random_state).uniform(size=(extra, X.shape[1]))
    filled = np.concatenate([places, elsewhere]), np.pad(means, (0, extra), mode="edge")
    return GP(gp.kernel, noise, gp.mean), *filled


@in_own_precision
def mixed(posterior: Posterior, key: PRNGKeyArray) -> Posterior:
    """Other samples of the same posterior, without a solve.

    Prior draws, noise and weights are linear in independent normal columns, so that their products with a random
    orthogonal matrix are again such columns. A sample that has chosen data must not be used again as if it had not:
    the new ones have hardly anything in common with any one of the old.
    """
    s = posterior.num_samples
    rotation = jnp.linalg.qr(jax.random.normal(key, (s, s)))[0]

    def turn(columns: Float[Array, "m c"]) -> Float[Array, "m c"]:
        first = columns.shape[1] - s
        return jnp.concatenate([columns[:, :first], columns[:, first:] @ rotation], axis=1)

    where = lambda p: [
        *(p.prior.weights, p.targets.signal, p.targets.noise, p.targets.draws.weights, p.solution.weights),
        *([] if p.solution.residual is None else [p.solution.residual]),
        *([] if p.unfinished is None else [p.unfinished]),
        *([] if p.observations is None else [p.observations]),
    ]
    return eqx.tree_at(where, posterior, [turn(leaf) for leaf in where(posterior)])


def _maxima(settings: Settings, model: Model, state: State, samples: Function, key: PRNGKeyArray) -> Found:
    """Where the samples are largest or smallest, all places that can be evaluated."""
    space = settings.space
    signed = settings.sign * samples
    plain = all(isinstance(dimension, Real) for dimension in space.dimensions)
    f = signed if plain else Function(Snapped(signed.features, space), signed.weights)
    y = settings.sign * (state.y - model.centre) / model.unit
    # The rows that fill up are never drawn: their weight y − min y is zero, unless all are.
    extra = (settings.rows(y.size) or y.size) - y.size
    X = np.pad(state.X, ((0, extra), (0, 0)), mode="edge")
    y = np.pad(y, (0, extra), constant_values=np.min(y))
    box = np.tile([0.0, 1.0], (space.width, 1))
    found = maxima(f, box, key=key, X=X, y=y, scale=None, search=settings.search)
    return Found(space.snap(found.points.reshape(-1, space.width)).reshape(found.points.shape), found.values)


def _choose(found: Found, taken: Codes, num: int) -> tuple[Codes, list[int]]:
    """For each sample its best place that is not taken; if all are, its best. Also the samples of which all are."""
    places, values = np.asarray(found.points, dtype=np.float64), np.asarray(found.values)
    free = KDTree(taken).query(places.reshape(-1, places.shape[2]), p=np.inf)[0].reshape(values.shape) > SAME
    chosen, lacking = np.zeros((0, places.shape[2])), []
    for i in range(num):
        order = np.argsort(-values[:, i], kind="stable")
        fresh = [x for x in places[order, i][free[order, i]] if not np.any(_same(chosen, x))]
        chosen = np.concatenate([chosen, fresh[:1] or places[order[:1], i]])
        if not fresh:
            lacking.append(i)
    return chosen, lacking


def _new_first(points: Codes, taken: Codes) -> Codes:
    """The points with those last that are taken, or repeat one before: where few are left, not all may be wanted."""
    known = np.concatenate([taken, points])
    repeats = [bool(np.any(_same(known[: len(taken) + i], x))) for i, x in enumerate(points)]
    return points[np.argsort(repeats, kind="stable")]


def _same(points: Codes, x: Float64[np.ndarray, "e"]) -> Bool[np.ndarray, "n"]:
    return np.max(np.abs(points - x), axis=1, initial=0) <= SAME
