"""Maxima of thousands of sample functions at once (appendix A.3 of the paper)."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from pathgp import _checks as checks
from pathgp.functions import Canonical, Function
from pathgp.kernels import Stationary
from pathgp.kernels.features import Features
from pathgp.linalg.precision import as_values
from pathgp.linalg.tiles import TILE, pad_rows
from pathgp.posterior.gp import check_data

ENTRIES = 1 << 21
"""Feature values per tile of starts in gradient ascent, by measurement (`pathgp_paper.bench.maximise`)."""

MOST_TOGETHER = 256
"""Largest number of starts in a tile."""


class Search(eqx.Module):
    """Settings of the maximisation: `rounds` of random `candidates`, then Adam from the best candidate of each round.

    Attributes
    ----------
    rounds
        Number of rounds, so of starts per function.
    candidates
        Candidates per round.
    uniform_share
        Share of the candidates that are uniform in the box; the others are near good data.
    steps
        Largest number of Adam steps.
    learning_rate
        Initial learning rate, in units of the candidates' standard deviation.
    final_rate
        Share of `learning_rate` that is left after `steps` steps of cosine decay.
    patience
        Ascent stops after this many steps without a value that rises by `tolerance`.
    tolerance
        Smallest rise that counts, as a share of the spread of the function's values.
    """

    rounds: int = 3
    candidates: int = 8192
    uniform_share: float = 0.1
    steps: int = 40
    learning_rate: float = 0.1
    final_rate: float = 0.02
    patience: int = 10
    tolerance: float = 1e-4

    def __check_init__(self) -> None:
        for name in ("rounds", "candidates", "patience"):
            checks.require_at_least(getattr(self, name), 1, f"Search.{name}")
        checks.require_at_least(self.steps, 0, "Search.steps")
        for name in ("uniform_share", "final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Search.{name} must be between 0 and 1, but it is {getattr(self, name)}.")

    @classmethod
    def paper(cls, scale: float) -> "Search":
        """Return the settings of the paper: 30 rounds of 50,000 candidates, and 100 Adam steps with rate 0.001 from the
        best.

        Parameters
        ----------
        scale
            Standard deviation of the candidates. The paper's rate is absolute, and is divided by it.
        """
        return cls(30, 50_000, 0.1, 100, 0.001 / scale, 1.0, 100, 0.0)


class Box(NamedTuple):
    """The box in which maxima are searched."""

    low: Float[Array, "d"]
    high: Float[Array, "d"]

    def clip(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Return the nearest points of the box."""
        return jnp.clip(x, self.low, self.high)


class Found(NamedTuple):
    """Points and function values there: index s refers to the function s."""

    points: Float[Array, "*k s d"]
    values: Float[Array, "*k s"]


@as_values
def maximize(
    functions: Function,
    bounds: Shaped[ArrayLike, "..."] | Sequence[tuple[float, float]],
    *,
    key: PRNGKeyArray,
    X: Shaped[ArrayLike, "..."] | None = None,
    y: Shaped[ArrayLike, "..."] | None = None,
    scale: Shaped[ArrayLike, "..."] | Sequence[float] | None = None,
    search: Search = Search(),  # noqa: B008, a frozen value
) -> tuple[Float[Array, "s d"], Float[Array, "s"]]:
    """Return the point in the box where each function is largest, and its value there.

    All functions share the candidates. A share of them is uniform in the box. The others are near good data: a row of X
    drawn with weight y − min(y), plus normal noise of standard deviation `scale`. Gradient ascent starts from the best
    candidate of each round.

    Parameters
    ----------
    functions
        The functions, such as `posterior.samples`.
    bounds
        The box, as a row (low, high) for each input.
    key
        Random key of the candidates.
    X, y
        Data near which candidates are drawn. Without them all candidates are uniform.
    scale
        Standard deviation of candidates around data, one number or one per input. None is half of the kernel's length
        scale, or half of the spread of the data for a kernel without one, and at most half of the box.
    search
        Number of candidates and steps.

    Returns
    -------
    points
        The maximisers, (s, d).
    values
        The maxima, (s,).

    Raises
    ------
    ValueError
        If the arguments do not fit each other, or if the functions are sharded over devices.

    >>> import jax, jax.numpy as jnp
    >>> from pathgp.kernels import RBF
    >>> bumps = Function(Canonical(RBF(0.3), jnp.array([[0.2], [0.7]])), jnp.eye(2))
    >>> points, values = maximize(bumps, [(0, 1)], key=jax.random.key(0))
    >>> [round(float(x), 3) for x in points[:, 0]], [round(float(v), 3) for v in values]
    ([0.2, 0.7], [1.0, 1.0])
    """
    found = maxima(functions, bounds, key=key, X=X, y=y, scale=scale, search=search)
    best = jnp.argmax(found.values, axis=0)
    point = jnp.take_along_axis(found.points, best[None, :, None], axis=0)[0]
    return point, jnp.take_along_axis(found.values, best[None], axis=0)[0]


maximise = maximize
"""The British spelling."""


@as_values
def maxima(
    functions: Function,
    bounds: Shaped[ArrayLike, "..."] | Sequence[tuple[float, float]],
    *,
    key: PRNGKeyArray,
    X: Shaped[ArrayLike, "..."] | None,
    y: Shaped[ArrayLike, "..."] | None,
    scale: Shaped[ArrayLike, "..."] | Sequence[float] | None,
    search: Search,
) -> Found:
    """Return all points among which `maximize` chooses: the ends of the ascents, then their starts."""
    checks.require_instance(functions, Function, "functions", "a Function such as posterior.samples")
    checks.require_key(key)
    if functions.features.is_sharded:
        raise ValueError("functions are sharded over devices: use those of `posterior.gathered()`.")
    box = check_bounds(bounds, functions.features.inputs)
    data = None if X is None or y is None else check_data(X, y)
    if (X is None) != (y is None):
        raise ValueError("X and y must be given together: give both or neither.")
    if data is not None and data[0].shape[1] != box.low.size:
        raise ValueError(
            f"X has {data[0].shape[1]} inputs, but bounds has {box.low.size} rows: give one row per input."
        )
    f = functions if functions.weights.ndim == 2 else Function(functions.features, functions.weights[:, None])
    spread = candidate_scale(f.features, box, None if data is None else data[0], scale)
    rounds = [
        _best(f, candidates(round_key, box, data, spread, search)) for round_key in jax.random.split(key, search.rounds)
    ]
    starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(found for found, _ in rounds))
    if search.steps == 0:
        return starts
    ends = _climb(f, starts, rounds[0][1], box, spread, search)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), ends, starts)


def check_bounds(bounds: Shaped[ArrayLike, "..."] | Sequence[tuple[float, float]], inputs: int | None) -> Box:
    """Return the box; raise `ValueError` unless `bounds` has a finite row (low, high) with low < high per input."""
    given = np.asarray(bounds, dtype=np.float64)
    pairs = np.asarray(given, dtype=jnp.zeros(()).dtype)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or inputs not in (None, pairs.shape[0]):
        wanted = "each input" if inputs is None else f"each of the {inputs} inputs"
        raise ValueError(f"bounds must have a row (low, high) for {wanted}, but its shape is {pairs.shape}.")
    low, high = pairs.T
    low = np.where(low < given[:, 0], np.nextafter(low, high), low)  # rounding to float32 must not widen the box
    high = np.where(high > given[:, 1], np.nextafter(high, low), high)
    if not np.all(np.isfinite(pairs)) or not np.all(low < high):
        raise ValueError(
            f"bounds must be finite with low below high in every row, also in {pairs.dtype}, but they are "
            f"{given.tolist()}: change them, or shift or rescale the inputs."
        )
    return Box(jnp.asarray(low), jnp.asarray(high))


def candidate_scale(
    features: Features,
    box: Box,
    X: Float[Array, "N d"] | None,
    scale: Shaped[ArrayLike, "..."] | Sequence[float] | None,
) -> Float[Array, "d"]:
    """Return the standard deviation of candidates around data, per input."""
    width = box.high - box.low
    if scale is not None:
        given = checks.as_positive(scale, "scale")
        if given.shape not in ((), width.shape):
            raise ValueError(f"scale must be one number or one for each input, but its shape is {given.shape}.")
        return jnp.broadcast_to(given, width.shape)
    parts = jax.tree.leaves(features, is_leaf=lambda part: isinstance(part, Canonical))
    kernels = [part.kernel for part in parts if isinstance(part, Canonical)]
    lengthscales = [kernel.lengthscale for kernel in kernels if isinstance(kernel, Stationary)]
    spread = width / jnp.sqrt(12.0) if X is None else jnp.std(X, axis=0)
    half = (lengthscales or [jnp.where(spread > 0, spread, width)])[0] / 2
    return jnp.minimum(jnp.broadcast_to(half, width.shape), width / 2)


@eqx.filter_jit
def candidates(
    key: PRNGKeyArray,
    box: Box,
    data: tuple[Float[Array, "N d"], Float[Array, "N"]] | None,
    scale: Float[Array, "d"],
    search: Search,
) -> Float[Array, "c d"]:
    """Return the candidates of one round: uniform ones, then those near good data, clipped to the box."""
    uniform_key, row_key, noise_key = jax.random.split(key, 3)
    d = box.low.size
    num = search.candidates if data is None else round(search.uniform_share * search.candidates)
    uniform = jax.random.uniform(uniform_key, (num, d), box.low.dtype, box.low, box.high)
    if data is None:
        return uniform
    X, y = data
    weight = y - jnp.min(y)
    ends = jnp.cumsum(jnp.where(jnp.max(weight) > 0, weight, 1))
    near = search.candidates - num
    rows = jnp.searchsorted(ends, ends[-1] * jax.random.uniform(row_key, (near,)), side="right")
    noise = scale * jax.random.normal(noise_key, (near, d))
    return jnp.concatenate([uniform, box.clip(X[jnp.minimum(rows, y.size - 1)] + noise)])


@eqx.filter_jit
def _best(f: Function, candidates: Float[Array, "c d"]) -> tuple[Found, Float[Array, "s"]]:
    """Return the best candidate of each function, and the spread of its values."""
    tiles = pad_rows(candidates, TILE[0]).reshape(-1, TILE[0], candidates.shape[1])
    dtype, s = f.weights.dtype, f.weights.shape[1]

    def look(best: Found, tile: Float[Array, "t d"]) -> tuple[Found, Float[Array, "s"]]:
        values = f.features.apply(tile, f.weights)
        place = jnp.argmax(values, axis=0)
        highest = jnp.max(values, axis=0)
        better = highest > best.values
        points = jnp.where(better[:, None], tile[place], best.points)
        return Found(points, jnp.where(better, highest, best.values)), jnp.std(values, axis=0)

    none = Found(jnp.broadcast_to(tiles[0, 0], (s, tiles.shape[2])), jnp.full(s, -jnp.inf, dtype))
    best, spreads = jax.lax.scan(look, none, tiles)
    return best, jnp.max(spreads, axis=0)


class _Ascent(NamedTuple):
    """State of gradient ascent: positions, best positions so far, and the last step in which one of these rose."""

    step: Int[Array, ""]
    at: Float[Array, "n d"]
    best: Found
    moments: optax.OptState
    rose: Int[Array, ""]


@eqx.filter_jit
def _climb(
    f: Function, starts: Found, spread: Float[Array, "s"], box: Box, scale: Float[Array, "d"], search: Search
) -> Found:
    """Run Adam inside the box from all starts, by tiles, and return the best point that each has seen."""
    k, s, d = starts.points.shape
    rows = min(max(16, ENTRIES // f.features.num), MOST_TOGETHER, k * s)
    weights = f.weights.T
    falling = optax.cosine_decay_schedule(search.learning_rate, search.steps, search.final_rate)
    adam = optax.adam(falling)

    def gain(x: Float[Array, "n d"], own: Float[Array, "n m"]) -> tuple[Float[Array, ""], Float[Array, "n"]]:
        values = f.features.each(x, own)
        return jnp.sum(values), values

    def ascend(tile: tuple[Float[Array, "n d"], Int[Array, "n"]]) -> Found:
        x, column = tile
        own, enough = weights[column], search.tolerance * spread[column]

        def step(now: _Ascent) -> _Ascent:
            (_, values), slope = jax.value_and_grad(gain, has_aux=True)(now.at, own)
            better = values > now.best.values
            best = Found(jnp.where(better[:, None], now.at, now.best.points), jnp.maximum(values, now.best.values))
            rose = jnp.where(jnp.any(values > now.best.values + enough), now.step, now.rose)
            update, moments = adam.update(-slope, now.moments)
            at = box.clip(now.at + scale * jnp.asarray(update))
            return _Ascent(now.step + 1, at, best, moments, rose)

        def go_on(now: _Ascent) -> Array:
            return (now.step <= search.steps) & (now.step - now.rose <= search.patience)

        zero = jnp.zeros((), jnp.int32)
        none = Found(x, jnp.full(x.shape[0], -jnp.inf, weights.dtype))
        return jax.lax.while_loop(go_on, step, _Ascent(zero, x, none, adam.init(x), zero)).best

    x = pad_rows(starts.points.reshape(-1, d), rows)
    # Starts are in order of round and then function; `resize` repeats the functions for each round and for the padding.
    column = jnp.resize(jnp.arange(s), (x.shape[0],))
    ends = jax.lax.map(ascend, (x.reshape(-1, rows, d), column.reshape(-1, rows)))
    return Found(ends.points.reshape(-1, d)[: k * s].reshape(k, s, d), ends.values.reshape(-1)[: k * s].reshape(k, s))
