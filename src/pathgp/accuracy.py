"""The error of a posterior, estimated from the posterior itself at a few points, in float64 on the host.

At a point x between two neighbouring rows the exact mean is k(x, X)w + k(x, X)H⁻¹r, with the residual r = b − Hw of the
weights. H⁻¹ is out of reach, but that of a block around x is not: with its rows c,

    ê(x) = k(x, X_c) H_cc⁻¹ r_c − what the local projection adds already

is one more, larger, block projection. It has the sign and the shape of the error, but misses some of its size where the
residual is long-range. The samples tell how much: an exact deviation f(x) − k(x, X)H⁻¹b of a sample is independent of
its data b, and so of ê, so that the slope of the actual deviations on ê is that of the error on ê.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray
from scipy import linalg

from pathgp.kernels import Kernel
from pathgp.local import Projection, fade
from pathgp.system import wide

PROBES = 32
BLOCK = 256
"""Rows around a probe whose system is solved exactly: twice as many as a local projection has."""

TILE = 4096
"""Rows that are compared with the probes at a time: one shape, whatever the number of rows, is compiled once."""

PARTNERS = 8
"""A probe lies between a row and one of so many nearest ones."""

SLOPE, SLOPE_SPREAD = 1.5, 1.0
"""The slope of the error on ê before the samples are asked, and its standard deviation."""


class Weights(NamedTuple):
    """The functions k(·, points) @ values, and which rows of the data the points are; None if all in their order."""

    points: Float64[np.ndarray, "M d"]
    values: Float64[np.ndarray, "M s"]
    rows: Int[np.ndarray, "M"] | None


class Data(NamedTuple):
    """The rows, their noise variances and right-hand sides, and the residuals of the weights where they are known."""

    kernel: Kernel
    X: Float[Array, "N d"]
    noise: Float64[np.ndarray, "N"]
    b: Float[np.ndarray, "N s"]
    residual: Float[np.ndarray, "N s"] | None


class Probe(NamedTuple):
    """At one point: kriging from the block around it, and what the local projection does with the same rows."""

    correction: Float64[np.ndarray, "s"]
    """k(x, X_c) H_cc⁻¹ r_c."""
    variance: float
    """k(x, x) − k(x, X_c) H_cc⁻¹ k(X_c, x), which is no less than the posterior variance."""
    added: Float64[np.ndarray, "s"]
    """The part of the correction that the local projection adds."""
    local: Float64[np.ndarray, "s"]
    """The local prediction from the data b_c alone."""


class Probes(NamedTuple):
    """Points where the posterior is compared with something better, and that."""

    x: Float64[np.ndarray, "p d"]
    values: Float64[np.ndarray, "p s"]
    """k(x, X)w in float64, with what the local projection adds."""
    corrections: Float64[np.ndarray, "p s"]
    """ê: what a larger block adds to the values."""
    variance: Float64[np.ndarray, "p"]
    local: Float64[np.ndarray, "p s"]
    rounding: Float64[np.ndarray, "s"]
    """How far residuals in working precision are from those in float64, rms in standard deviations of the noise."""


def probe_points(X: Float[Array, "N d"], kernel: Kernel, key: PRNGKeyArray) -> tuple[np.ndarray, np.ndarray]:
    """Points between a random row and one of its neighbours, where users ask; and the rows."""
    row_key, partner_key, share_key = jax.random.split(key, 3)
    number = min(PROBES, X.shape[0])
    rows = np.asarray(jax.random.choice(row_key, X.shape[0], (number,), replace=False))
    nearest, _ = _nearest(kernel, X, np.asarray(X, np.float64)[rows], min(PARTNERS, X.shape[0]))
    partner = np.asarray(jax.random.randint(partner_key, (number,), 0, nearest.shape[1]))
    share = np.asarray(jax.random.uniform(share_key, (number, 1)), np.float64)
    A, B = (np.asarray(X, np.float64)[i] for i in (rows, nearest[np.arange(number), partner]))
    return A + share * (B - A), rows


def compare(data: Data, weights: Weights, projection: Projection | None, key: PRNGKeyArray) -> Probes:
    """Values, corrections and variances at random points."""
    x, rows = probe_points(data.X, data.kernel, key)
    near, _ = _nearest(data.kernel, data.X, x, min(BLOCK, data.X.shape[0]))
    needed = np.unique(np.concatenate([near.ravel(), rows]))
    residual, rounding = data.residual, np.zeros(data.b.shape[1])
    if residual is None:
        residual = np.zeros(data.b.shape)
        residual[needed] = _residual_rows(data, weights, needed)
    else:
        lost = _residual_rows(data, weights, rows) - residual[rows]
        rounding = np.sqrt(np.mean(lost**2 / data.noise[rows, None], axis=0))
    probes = [_probe(data, np.asarray(residual[c], np.float64), projection, x[i], c) for i, c in enumerate(near)]
    correction, variance, added, local = (np.array(part) for part in zip(*probes, strict=True))
    values = sum(K @ weights.values[at] for at, K in _tiles(data.kernel, x, weights.points))
    return Probes(x, values + added, correction - added, variance, local, rounding)


def _probe(
    data: Data,
    r: Float64[np.ndarray, "m s"],
    projection: Projection | None,
    x: Float64[np.ndarray, "d"],
    c: Int[np.ndarray, "m"],
) -> Probe:
    X_c, noise, b = data.X[c], data.noise[c], np.asarray(data.b[c], np.float64)
    K, k = wide(data.kernel, X_c, X_c), wide(data.kernel, X_c, jnp.asarray(x[None], data.X.dtype))[:, 0]
    v = float(_diagonal(data.kernel, jnp.asarray(x[None], data.X.dtype))[0])
    a = _solve(K + np.diag(noise), k)
    added, local = np.zeros(r.shape[1]), np.zeros(r.shape[1])
    if projection is not None:
        m = projection.neighbours
        coordinates = np.asarray(_coordinates(data.kernel, jnp.concatenate([X_c[:m], jnp.asarray(x[None])])), np.float64)
        u = np.asarray(fade(np.sum((coordinates[:-1] - coordinates[-1]) ** 2, axis=1), projection.taper))
        u = np.ones(m) if m in (1, data.X.shape[0]) else u
        faded = u[:, None] * K[:m, :m] * u + np.diag(u**2 * noise[:m] + (1 - u**2) * v)
        near = u * _solve(faded, u * k[:m])
        added, local = near @ r[:m], near @ b[:m]
    return Probe(a @ r, v - a @ k, added, local)


def _solve(H: Float64[np.ndarray, "m m"], k: Float64[np.ndarray, "m"]) -> Float64[np.ndarray, "m"]:
    """H⁻¹k, where rows that repeat each other make H singular to rounding with a little more on its diagonal."""
    jitter = 0.0
    for _ in range(5):
        try:
            factor = linalg.cho_factor(H + jitter * np.eye(len(H)), lower=True, check_finite=False)
            return linalg.cho_solve(factor, k, check_finite=False)
        except linalg.LinAlgError:
            jitter = max(100 * jitter, 1e-14 * float(np.trace(H)))
    return np.zeros_like(k)


def _residual_rows(data: Data, weights: Weights, rows: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n s"]:
    """(b − Hw) of some rows, in float64."""
    points = np.asarray(data.X, np.float64)[rows]
    fitted = sum(K @ weights.values[at] for at, K in _tiles(data.kernel, points, weights.points))
    own = np.zeros((len(rows), weights.values.shape[1]))
    if weights.rows is None:
        own = weights.values[rows]
    else:
        place = np.searchsorted(weights.rows, rows)
        found = (place < len(weights.rows)) & (weights.rows[np.minimum(place, len(weights.rows) - 1)] == rows)
        own[found] = weights.values[place[found]]
    return np.asarray(data.b[rows], np.float64) - fitted - data.noise[rows, None] * own


def _nearest(
    kernel: Kernel, X: Float[Array, "N d"], x: Float64[np.ndarray, "p d"], num: int
) -> tuple[Int[np.ndarray, "p m"], Float64[np.ndarray, "p m"]]:
    """The rows that are most strongly correlated with each point, the strongest first, and the correlations."""
    index, best = np.zeros((len(x), 0), int), np.zeros((len(x), 0))
    for at, K in _tiles(kernel, x, X):
        variance = np.asarray(_diagonal(kernel, X[at]), np.float64)
        index = np.concatenate([index, np.broadcast_to(np.arange(at.start, at.start + K.shape[1]), K.shape)], axis=1)
        best = np.concatenate([best, np.abs(K) / np.sqrt(variance)], axis=1)
        if best.shape[1] > num:
            kept = np.argpartition(-best, num - 1, axis=1)[:, :num]
            index, best = (np.take_along_axis(a, kept, axis=1) for a in (index, best))
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(best, order, axis=1)


def _tiles(kernel: Kernel, x: Float[np.ndarray, "p d"], Z: Float[Array, "N d"]) -> Iterator[tuple[slice, np.ndarray]]:
    """k(x, Z) in float64, some columns at a time, each part with the columns that it belongs to."""
    Z = np.asarray(Z)
    for start in range(0, len(Z), TILE):
        rows = Z[start : start + TILE]
        padded = np.concatenate([rows, np.repeat(rows[-1:], TILE - len(rows), axis=0)]) if len(Z) > TILE else rows
        yield slice(start, start + len(rows)), _wide(kernel, x, padded)[:, : len(rows)]


def _wide(kernel: Kernel, x: np.ndarray, z: np.ndarray) -> Float64[np.ndarray, "p t"]:
    with jax.enable_x64(True):
        return wide(kernel, jnp.asarray(x, jnp.float64), jnp.asarray(z, jnp.float64))


@jax.jit
def _diagonal(kernel: Kernel, X: Float[Array, "n d"]) -> Float[Array, "n"]:
    return kernel.diag(X)


@jax.jit
def _coordinates(kernel: Kernel, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
    return kernel.coordinates(X)


class Errors(NamedTuple):
    """What a posterior is off by: its mean, rms in posterior standard deviations, and its variance, relatively."""

    mean: float
    variance: float
    bias: float
    """The part of the variance's error that is not from the number of samples."""


def errors(
    probes: Probes,
    draws: Float64[np.ndarray, "p s"],
    mean: Float64[np.ndarray, "p t"],
    variance: Float64[np.ndarray, "p"],
    has_local: bool,
) -> Errors:
    """From the probes, the prior draws there, and the mean and the variance that the posterior predicts there."""
    t, s = mean.shape[1], draws.shape[1]
    v = np.clip(variance, 1e-12 * probes.variance, probes.variance)[:, None]
    slope, samples = SLOPE, np.zeros(1)
    if s:
        deviations, guess = draws - probes.values[:, t:], probes.corrections[:, t:]
        slope, samples = _slope(deviations / np.sqrt(v), guess / np.sqrt(v)), guess**2 / v
    missing = slope * probes.corrections[:, :t] + probes.values[:, :t] - mean
    mean_error = np.sqrt(np.mean(missing**2 / v) + np.mean(probes.rounding[:t] ** 2))
    excess = max(0.0, float(np.median(np.log(np.maximum(variance, 1e-300) / probes.variance))))
    bias = float(np.median(np.mean(slope**2 * samples, axis=-1))) + excess
    spread = 2 / max(s, 1)
    if has_local and s:
        deviations, local = draws - probes.values[:, t:], draws - probes.local[:, t:]
        common = np.sum(deviations * local, axis=1) ** 2
        rho2 = common / np.maximum(np.sum(deviations**2, axis=1) * np.sum(local**2, axis=1), 1e-300)
        spread = 4 / s * float(np.mean(1 - rho2))
    return Errors(float(mean_error), float(np.hypot(bias, np.sqrt(spread))), bias)


def _slope(deviations: Float64[np.ndarray, "p s"], guess: Float64[np.ndarray, "p s"]) -> float:
    """Of the deviations on ê, with the prior of `SLOPE`; samples are independent of each other, points are not."""
    size = np.sum(guess**2, axis=0)
    if not size.sum() > 0:
        return SLOPE
    products = np.sum(deviations * guess, axis=0)
    found = products.sum() / size.sum()
    variance = np.sum((products - found * size) ** 2) / size.sum() ** 2
    weight = 1 / max(variance, 1e-12), 1 / SLOPE_SPREAD**2
    return max(0.5, float((weight[0] * found + weight[1] * SLOPE) / sum(weight)))
