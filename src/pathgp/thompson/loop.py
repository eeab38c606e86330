"""The state of an optimisation as an immutable value, and the function that proposes the next evaluations."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float64, PRNGKeyArray
from scipy.spatial import KDTree
from scipy.stats import qmc

from pathgp.functions import Function
from pathgp.likelihood import Auto as AutoFit
from pathgp.likelihood import Exact, default_gp, fit_hyperparameters
from pathgp.linalg.precision import in_own_precision
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.solvers import Auto, Cholesky, Solver
from pathgp.system.duplicates import find_duplicates
from pathgp.thompson.maximise import Found, Search, maxima
from pathgp.thompson.space import Codes, Real, Snapped, Space

FIT = AutoFit(exact=Exact(steps=50, restarts=1), exact_rows=500)
"""Method of hyperparameter fitting: quicker than the default, because it is repeated as the data grow."""
GROWTH = 1.5
"""Hyperparameters are fitted again when the data have grown by this factor."""

SAME = 1e-4
"""Two points count as equal if none of their codes differ by more than this."""

PADDING_NOISE = 1e10
"""Noise variance of padding rows relative to the kernel's variance: such rows carry no information."""

LEARN, SAMPLE, MIX, SEARCH = range(4)
"""Folded into the key of an ask, one for each of its uses of randomness."""


class Settings(eqx.Module):
    """The part of an optimisation that does not change."""

    space: Space
    gp: GP | None
    """GP of the codes and of y as told; None to fit one."""
    sign: float
    """1 to maximise, −1 to minimise."""
    solver: Solver
    search: Search
    initial: int
    """Number of successful evaluations before the model is used; until then points are space-filling."""
    random_state: int
    recomputed_rows: int = 4000
    """Largest number of rows for which every ask computes an exact posterior again; above, it is kept and updated."""

    def rows(self, N: int) -> int | None:
        """Return the number of rows, padding included, that N rows are solved with; None if the posterior is kept.

        Padded sizes form a short geometric series, because each size has to be compiled. Only exact solvers get
        padding: for others, the huge noise of padding rows would dominate the residual.
        """
        if self.recomputed_rows < N or not isinstance(self.solver, Auto | Cholesky):
            return None
        size = 32
        while size < N:
            size += size // 2
        return min(size, self.recomputed_rows)


class Model(eqx.Module):
    """A GP for (y − centre)/unit, and the number of rows that it was fitted to."""

    gp: GP
    centre: float
    unit: float
    rows: int


class State(eqx.Module):
    """The part of an optimisation that changes. With the settings it determines all further suggestions."""

    X: Codes
    y: Float64[np.ndarray, "N"]
    pending: Codes
    failed: Codes
    """Points whose evaluation failed. They carry no value of y, and are not proposed again."""
    asks: int = 0
    designed: int = 0
    """Index in the sequence of the initial design at which it continues."""
    model: Model | None = None
    posterior: Posterior | None = None
    """Kept only where `Settings.rows` is None, to be updated instead of computed again."""
    told: int = 0
    """Number of rows that `posterior` was given."""

    @classmethod
    def empty(cls, space: Space) -> "State":
        """Return the state before anything was asked or told."""
        none = np.zeros((0, space.width))
        return cls(none, np.zeros(0), pending=none, failed=none)

    @property
    def num_told(self) -> int:
        """The number of evaluations told, including failed ones."""
        return self.y.size + len(self.failed)

    @property
    def taken(self) -> Codes:
        """All points that were told or are pending."""
        return np.concatenate([self.X, self.pending, self.failed])


def observe(state: State, X: Codes, y: Float64[np.ndarray, "n"]) -> State:
    """Return the state with more evaluations. A non-finite y means that the evaluation failed.

    Each point removes at most one equal point from the pending ones.
    """
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
    """Return the next `num` points to evaluate and the new state.

    The points are the maxima of `num` different posterior samples, or an initial design while there are few
    evaluations. Since every sample is another function, pending points need no treatment except that none is proposed
    twice (Hernández-Lobato et al., 2017). If the maximum of a sample is taken, the best other place found by its search
    replaces it. If there is none, the next point of the initial design does.
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
        # Several samples can have one maximum, which only the first of them gets.
        points, lacking = _choose(found, state.taken, num)
        points = _as_seen(settings.space, points)
        if lacking:
            taken = np.concatenate([state.taken, points])
            others, end = design(settings, state.designed, len(lacking), taken)
            is_free = [not np.any(_same(taken, x)) for x in others]
            points[np.array(lacking)[is_free]] = others[is_free]
            state = dataclasses.replace(state, designed=end)
            # In a space with few points left, even the design can repeat points.
            points = _new_first(points, state.taken)
    pending = np.concatenate([state.pending, points])
    return points, dataclasses.replace(state, asks=state.asks + 1, pending=pending)


def design(settings: Settings, start: int, num: int, taken: Codes) -> tuple[Codes, int]:
    """Return `num` points of a scrambled Sobol sequence from index `start`, and the index after the last of them.

    Taken or repeated points are skipped, unless the space has no others left.
    """
    space, known = settings.space, set(map(tuple, taken))
    exponent = (start + num - 1).bit_length()
    most = max(exponent + 6, 16)  # the sequence may never round to some points of a discrete space
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
    """Return the codes of the decoded values, as the caller will tell them."""
    return space.encode(space.decode(points))


def _valid(space: Space, codes: Float[np.ndarray, "n e"]) -> Codes:
    return np.asarray(space.snap(jnp.asarray(codes, dtype=float)), dtype=np.float64)


def _learned(settings: Settings, state: State, key: PRNGKeyArray) -> Model:
    """Return the present model, or fit a new one if there is none or the data have grown by `GROWTH`."""
    N, model = state.y.size, state.model
    if model is not None and (settings.gp is not None or GROWTH * model.rows > N):
        return model
    if settings.gp is not None:
        return Model(settings.gp, 0.0, 1.0, N)
    centre, unit = float(np.mean(state.y)), float(np.std(state.y)) or 1.0
    y = (state.y - centre) / unit
    gp, _ = fit_hyperparameters(default_gp(state.X, y), state.X, y, key=key, method=FIT)
    return Model(gp, centre, unit, N)


def _samples(model: Model, settings: Settings, state: State, num: int, key: PRNGKeyArray) -> tuple[Function, State]:
    """Return `num` posterior samples in the units of the model, and the state with the posterior if it is kept."""
    y = (state.y - model.centre) / model.unit
    sample_key, mix_key = jax.random.fold_in(key, SAMPLE), jax.random.fold_in(key, MIX)
    if settings.rows(y.size) is not None:
        gp, X, y = _filled_up(model.gp, settings, state.X, y)
        # A power of two, so that few numbers of columns are compiled.
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
        # The last ask chose its points by these samples.
        posterior = rotate_samples(posterior, mix_key)
    return posterior.samples[:num], dataclasses.replace(state, posterior=posterior, told=y.size)


def _filled_up(
    gp: GP, settings: Settings, X: Codes, y: Float64[np.ndarray, "N"]
) -> tuple[GP, Codes, Float64[np.ndarray, "M"]]:
    """Return the data with duplicates merged, then padded to one of the sizes of `Settings.rows`.

    `condition` would merge duplicate rows itself, to a new size at every ask, and each size has to be compiled.
    """
    found = find_duplicates(X)
    of_row = np.arange(len(X)) if found is None else np.asarray(found.of_row)
    counts = np.bincount(of_row)
    places, means = X[np.unique(of_row, return_index=True)[1]], np.bincount(of_row, weights=y) / counts
    extra = (settings.rows(counts.size) or counts.size) - counts.size
    variance = float(gp.kernel.diag(jnp.asarray(X[:1], dtype=float))[0])
    noise = np.concatenate([float(gp.noise) / counts, np.full(extra, PADDING_NOISE * variance)])
    # Padding rows differ from each other: equal ones would be merged.
    elsewhere = np.random.default_rng(settings.random_state).uniform(size=(extra, X.shape[1]))
    filled = np.concatenate([places, elsewhere]), np.pad(means, (0, extra), mode="edge")
    return GP(gp.kernel, noise, gp.mean), *filled


@in_own_precision
def rotate_samples(posterior: Posterior, key: PRNGKeyArray) -> Posterior:
    """Return the posterior with other samples, without a solve.

    Prior draws, noise and weights are linear in independent normal columns, so their products with a random orthogonal
    matrix have the same distribution. A sample that has chosen data must not be used again as if it had not. The new
    samples have hardly anything in common with any one of the old ones.
    """
    s = posterior.num_samples
    rotation = jnp.linalg.qr(jax.random.normal(key, (s, s)))[0]
    return posterior.map_samples(lambda columns: columns @ rotation)


def _maxima(settings: Settings, model: Model, state: State, samples: Function, key: PRNGKeyArray) -> Found:
    """Return the maxima of the signed samples, at places that can be evaluated."""
    space = settings.space
    signed = settings.sign * samples
    plain = all(isinstance(dimension, Real) for dimension in space.dimensions)
    f = signed if plain else Function(Snapped(signed.features, space), signed.weights)
    y = settings.sign * (state.y - model.centre) / model.unit
    # Padding rows are never drawn as centres of candidates: their weight y − min(y) is zero, unless all weights are.
    extra = (settings.rows(y.size) or y.size) - y.size
    X = np.pad(state.X, ((0, extra), (0, 0)), mode="edge")
    y = np.pad(y, (0, extra), constant_values=np.min(y))
    box = np.tile([0.0, 1.0], (space.width, 1))
    found = maxima(f, box, key=key, X=X, y=y, scale=None, search=settings.search)
    return Found(space.snap(found.points.reshape(-1, space.width)).reshape(found.points.shape), found.values)


def _choose(found: Found, taken: Codes, num: int) -> tuple[Codes, list[int]]:
    """Return the best place of each sample that is not taken, and the indices of samples with none, which get their
    best.
    """
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
    """Return the points, moving those that are taken or repeat an earlier one to the end.

    Where few points are left, the caller may want the first ones only.
    """
    known = np.concatenate([taken, points])
    repeats = [bool(np.any(_same(known[: len(taken) + i], x))) for i, x in enumerate(points)]
    return points[np.argsort(repeats, kind="stable")]


def _same(points: Codes, x: Float64[np.ndarray, "e"]) -> Bool[np.ndarray, "n"]:
    return np.max(np.abs(points - x), axis=1, initial=0) <= SAME
