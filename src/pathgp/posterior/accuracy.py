"""The error of a posterior, estimated from the posterior itself at a few points, in float64 on the host.

At any point x the exact mean is k(x, X)w + k(x, X)H⁻¹r, with the residual r = b − Hw of the weights. Solving with H is
too expensive, but solving with its block for the rows c around x is not. Then

    ê(x) = k(x, X_c) H_cc⁻¹ r_c, minus the local correction, which is already part of the prediction,

is one more, larger, block projection. It has the sign and the shape of the error, but underestimates its size where the
residual is long-range. The samples calibrate it. The exact deviation f(x) − k(x, X)H⁻¹b of a sample is independent of
its data b, and so of ê. Hence the slope of the actual deviations on ê is the slope of the error on ê.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray
from scipy import linalg

from pathgp.kernels import Kernel
from pathgp.linalg.precision import cast
from pathgp.posterior.variance import ExactVariance, VarianceRatio, log_ratio, variance_ratio
from pathgp.solvers.error import BLOCK_ROWS, NUM_PARTNERS, SLOPE, displace, estimate_slope, pick_neighbour_pairs
from pathgp.solvers.local import Projection, fade

PROBES = 128
"""Most points at which the error is estimated."""

TILE = 4096
"""Rows that are compared with the probes at a time. Larger data sets all use this shape, so it is compiled once."""

PARTS = 2048
"""Rows whose residual is computed at a time."""


class HostSolution(NamedTuple):
    """A system (K + Σ)w = b and its solution, as arrays on the host."""

    kernel: Kernel
    X: Float[np.ndarray, "N d"]
    noise: Float[np.ndarray, "N"]
    b: Float[np.ndarray, "N s"]
    residual: Float[np.ndarray, "N s"] | None
    """b − (K + Σ)w, if the solver has it."""
    points: Float[np.ndarray, "M d"]
    weights: Float[np.ndarray, "M s"]
    rows: Int[np.ndarray, "M"] | None
    """The rows of X that the points are, sorted; None if they are all of them."""
    variance: ExactVariance | None = None
    """The exact posterior variance, if the solver has a factor to compute it with."""


class Probes(NamedTuple):
    """Points where a posterior is compared with a better one, and the quantities for that comparison."""

    x: Float64[np.ndarray, "p d"]
    values: Float64[np.ndarray, "p s"]
    """k(x, X)w in float64, plus the local correction."""
    corrections: Float64[np.ndarray, "p s"]
    """ê: the change of the values by a larger block."""
    variance: Float64[np.ndarray, "p"]
    """k(x, x) − k(x, X_c) H_cc⁻¹ k(X_c, x), an upper bound of the posterior variance."""
    local: Float64[np.ndarray, "p s"] | None
    """The prediction from the data b_c of the local correction only."""
    rounding: Float64[np.ndarray, "s"]
    """Difference of residuals in working precision from those in float64, rms in noise standard deviations."""
    exact: Float64[np.ndarray, "p"] | None
    """The exact posterior variance, if it is known."""

    def ratio(self, draws: Float64[np.ndarray, "p s"]) -> VarianceRatio | None:
        """Return the distribution of the ratio of posterior to local variances.

        It is None without a local correction, or with fewer than two draws.
        """
        s = draws.shape[1]
        if self.local is None or s < 2:
            return None
        with jax.enable_x64(True):
            return variance_ratio(*(jnp.asarray(draws - values[:, -s:]) for values in (self.values, self.local)))


def evaluate_probes(solved: HostSolution, projection: Projection | None, key: PRNGKeyArray) -> Probes:
    """Return values, corrections and variances at random points."""
    solved = solved._replace(kernel=cast(solved.kernel, np.float64))
    x, rows = _points(solved, key)
    near, k = _nearest(solved.kernel, solved.X, x, min(BLOCK_ROWS, len(solved.X)))
    rounding = np.zeros(solved.b.shape[1])
    if solved.residual is None:
        # Blocks overlap, so the residual of each row is computed once.
        needed, place = np.unique(near, return_inverse=True)
        r = _residual(solved, needed)[place.reshape(near.shape)]
    else:
        r = solved.residual[near].astype(np.float64)
        # The solver's residual is in working precision; a few rows show how much it is rounded.
        lost = _residual(solved, rows) - solved.residual[rows]
        rounding = np.sqrt(np.mean(lost**2 / solved.noise[rows, None], axis=0))
    noise, b = solved.noise[near].astype(np.float64), solved.b[near].astype(np.float64)
    with jax.enable_x64(True):
        K, v = map(np.array, _blocks(solved.kernel, jnp.asarray(x), jnp.asarray(solved.X[near], jnp.float64)))
    a = np.stack([_solve(K_p + np.diag(n), k_p) for K_p, n, k_p in zip(K, noise, k, strict=True)])
    corrections = np.einsum("pm,pms->ps", a, r)
    variance = np.maximum(v - np.sum(a * k, axis=1), 1e-14 * v)
    values, local = _values(solved, x), None
    if projection is not None:
        # The coefficients of `Projection` again, in float64, on the first rows of the block.
        m = projection.neighbours
        with jax.enable_x64(True):
            u = np.asarray(_fades(solved.kernel, jnp.asarray(x), jnp.asarray(solved.X[near[:, :m]]), projection))
        faded = u[:, :, None] * K[:, :m, :m] * u[:, None, :]
        diagonal = u**2 * noise[:, :m] + (1 - u**2) * v[:, None]
        parts = zip(faded, diagonal, u * k[:, :m], strict=True)
        a = u * np.stack([_solve(H + np.diag(n), k_p) for H, n, k_p in parts])
        added, local = (np.einsum("pm,pms->ps", a, columns[:, :m]) for columns in (r, b))
        values, corrections = values + added, corrections - added
    exact = None if solved.variance is None else np.maximum(solved.variance.on_host(x), 1e-14 * v)
    return Probes(x, values, corrections, variance, local, rounding, exact)


def _points(solved: HostSolution, key: PRNGKeyArray) -> tuple[Float64[np.ndarray, "p d"], Int[np.ndarray, "p"]]:
    """Return points as far from the data as new rows are, and the rows that they are next to."""
    N = len(solved.X)
    rows = np.asarray(jax.random.choice(key, N, (min(PROBES, N),), replace=False))
    A = solved.X[rows].astype(np.float64)
    nearest, _ = _nearest(solved.kernel, solved.X, A, min(NUM_PARTNERS + 1, N))
    B, C = (solved.X[partner].astype(np.float64) for partner in pick_neighbour_pairs(nearest))
    return displace(A, B, C, solved.X), rows


def _nearest(
    kernel: Kernel, X: Float[np.ndarray, "N d"], x: Float64[np.ndarray, "p d"], num: int
) -> tuple[Int[np.ndarray, "p m"], Float64[np.ndarray, "p m"]]:
    """Return the rows with the largest absolute correlation with each point, in that order, and k(x, X) for them."""
    index, k, strength = np.zeros((len(x), 0), int), np.zeros((len(x), 0)), np.zeros((len(x), 0))
    for at, K, variance in _tiles(kernel, x, X):
        index = np.concatenate([index, np.broadcast_to(np.arange(at.start, at.stop), K.shape)], axis=1)
        k, strength = np.concatenate([k, K], axis=1), np.concatenate([strength, np.abs(K) / variance**0.5], axis=1)
        if index.shape[1] > num:
            # Only the best so far are kept from tile to tile, so memory does not grow with N.
            kept = np.argpartition(-strength, num - 1, axis=1)[:, :num]
            index, k, strength = (np.take_along_axis(part, kept, axis=1) for part in (index, k, strength))
    order = np.argsort(-strength, axis=1, kind="stable")
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(k, order, axis=1)


def _values(solved: HostSolution, x: Float64[np.ndarray, "p d"]) -> Float64[np.ndarray, "p s"]:
    """Return k(x, points) w."""
    values = np.zeros((len(x), solved.weights.shape[1]))
    for at, K, _ in _tiles(solved.kernel, x, solved.points):
        values += K @ solved.weights[at].astype(np.float64)
    return values


def _residual(solved: HostSolution, rows: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n s"]:
    """Return (b − Hw) of some rows."""
    own = np.zeros((len(rows), solved.weights.shape[1]))
    if solved.rows is None:
        own[:] = solved.weights[rows]
    else:
        # A row that is not among the points has the weight zero.
        place = np.minimum(np.searchsorted(solved.rows, rows), len(solved.rows) - 1)
        found = solved.rows[place] == rows
        own[found] = solved.weights[place[found]]
    parts = (solved.X[rows[i : i + PARTS]].astype(np.float64) for i in range(0, len(rows), PARTS))
    fitted = np.concatenate([_values(solved, x) for x in parts])
    return solved.b[rows] - fitted - solved.noise[rows, None] * own


def _tiles(
    kernel: Kernel, x: Float64[np.ndarray, "p d"], Z: Float[np.ndarray, "N d"]
) -> Iterator[tuple[slice, Float64[np.ndarray, "p t"], Float64[np.ndarray, "t"]]]:
    """Yield k(x, Z) in float64, `TILE` columns at a time: their slice, the matrix, and the variances k(z, z)."""
    for start in range(0, len(Z), TILE):
        rows = Z[start : start + TILE]
        stop = start + len(rows)
        if len(Z) > TILE:
            rows = np.concatenate([rows, np.repeat(rows[-1:], TILE - len(rows), axis=0)])
        with jax.enable_x64(True):
            K, variance = _evaluated(kernel, jnp.asarray(x), jnp.asarray(rows, jnp.float64))
            yield slice(start, stop), np.asarray(K)[:, : stop - start], np.asarray(variance)[: stop - start]


@jax.jit
def _evaluated(kernel: Kernel, x: Float[Array, "p d"], Z: Float[Array, "t d"]) -> tuple[Array, Array]:
    return kernel(x, Z), kernel.diag(Z)


@jax.jit
def _blocks(kernel: Kernel, x: Float[Array, "p d"], X_c: Float[Array, "p m d"]) -> tuple[Array, Array]:
    """Return K_cc for every point, and k(x, x)."""
    return jax.lax.map(lambda X: kernel(X, X), X_c), kernel.diag(x)


@jax.jit
def _fades(
    kernel: Kernel, x: Float[Array, "p d"], X_c: Float[Array, "p m d"], projection: Projection
) -> Float[Array, "p m"]:
    """Return the factor u of each neighbour in the local correction, see `Projection`."""
    m = projection.neighbours
    if projection.taper == 0 or m in (1, projection.X.shape[0]):
        return jnp.ones(X_c.shape[:2])
    place = kernel.coordinates
    r2 = jax.vmap(lambda x, X: jnp.sum((place(X) - place(x[None])) ** 2, axis=1))(x, X_c)
    return jax.vmap(lambda r2: fade(r2, projection.taper))(r2)


def _solve(H: Float64[np.ndarray, "m m"], k: Float64[np.ndarray, "m"]) -> Float64[np.ndarray, "m"]:
    """Return H⁻¹k, with a jitter if H is singular to rounding, and zeros if four increasing jitters fail too."""
    jitter = 0.0
    for _ in range(5):
        try:
            factor = linalg.cho_factor(H + jitter * np.eye(len(H)), lower=True, check_finite=False)
            return linalg.cho_solve(factor, k, check_finite=False)
        except linalg.LinAlgError:
            jitter = max(100 * jitter, 1e-14 * float(np.trace(H)))
    return np.zeros_like(k)


class Errors(NamedTuple):
    """Errors of a posterior.

    Those of the mean are rms in posterior standard deviations, those of the variance are relative.
    """

    mean: float
    variance: float
    bias: float
    """The part of the error of the variance that is not due to the number of samples."""


def estimate_errors(
    probes: Probes,
    draws: Float64[np.ndarray, "p s"],
    mean: Float64[np.ndarray, "p t"],
    variance: Float64[np.ndarray, "p"],
    ratio: VarianceRatio | None,
) -> Errors:
    """Return the errors, estimated from the probes.

    Parameters
    ----------
    probes
        The points, with the results of `evaluate_probes`.
    draws
        The prior draws at the probes.
    mean
        The means that the posterior predicts there, without the constant prior mean.
    variance
        The variance that the posterior predicts there.
    ratio
        The ratio of posterior to local variances that this variance uses, if any.
    """
    t, s = mean.shape[1], draws.shape[1]
    # The predicted variance may itself be wrong. That of the block is an upper bound of the exact one.
    v = np.clip(variance, 1e-6 * probes.variance, probes.variance)[:, None]
    # The mean of s squared normal deviations has the relative variance 2/s.
    share, bias, spread = SLOPE, 0.0, 2 / max(s, 1)
    if s:
        deviations, guess = draws - probes.values[:, t:], probes.corrections[:, t:]
        share = float(estimate_slope(jnp.asarray(deviations / np.sqrt(v)), jnp.asarray(guess / np.sqrt(v))))
        # The error of a sample is independent of its exact deviation, so its square adds to the variance.
        bias = float(np.median(np.mean(share**2 * guess**2 / v, axis=1)))
        if ratio is not None and probes.local is not None:
            with jax.enable_x64(True):
                _, sampling = log_ratio(jnp.asarray(deviations), jnp.asarray(draws - probes.local[:, t:]))
            spread = _pooled_error(np.asarray(sampling), float(ratio.spread), float(ratio.error))
    missing = share * probes.corrections[:, :t] + probes.values[:, :t] - mean
    mean_error = np.sqrt(np.mean(missing**2 / v) + np.mean(probes.rounding[:t] ** 2))
    if probes.exact is not None:
        off = float(np.median(np.abs(np.log(np.maximum(variance, 1e-300) / probes.exact))))
        return Errors(float(mean_error), off, off)
    # The exact variance is not above that of the block, so any excess is an error.
    bias += max(0.0, float(np.median(np.log(np.maximum(variance, 1e-300) / probes.variance))))
    return Errors(float(mean_error), float(np.hypot(bias, np.sqrt(spread))), bias)


def _pooled_error(sampling: Float64[np.ndarray, "p"], spread: float, error: float) -> float:
    """Return the mean variance of estimates after shrinkage towards a common mean of variance `error`."""
    weight = sampling / np.maximum(sampling + spread, 1e-300)
    return float(np.mean(weight * spread + weight**2 * error))
