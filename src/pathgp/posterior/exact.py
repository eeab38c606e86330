"""The exact posterior mean and variance of few rows, on the host: for built-in kernels, JAX compiles nothing."""

import time
import warnings

import numpy as np
from jaxtyping import Float, Float64

from pathgp._checks import as_floats
from pathgp.functions import Canonical, Function
from pathgp.kernels.features import Constant
from pathgp.linalg.factor import substitute
from pathgp.linalg.namespace import on_device
from pathgp.linalg.precision import cast, working_in
from pathgp.linalg.threads import one_blas_thread
from pathgp.posterior.condition import dtype_for
from pathgp.posterior.errors import PROMISED_ERROR
from pathgp.posterior.gp import GP
from pathgp.posterior.predict import Predictor
from pathgp.posterior.variance import ExactVariance
from pathgp.solvers import Info
from pathgp.solvers.base import AccuracyWarning
from pathgp.system.dense import cholesky_factor, kernel_float64, row_tiles
from pathgp.system.duplicates import merge_rows
from pathgp.system.system import System

PROBES = 32
"""Rows at which the error is estimated."""


def exact_predictor(gp: GP, X: Float[np.ndarray, "N d"], Y: Float[np.ndarray, "N t"]) -> tuple[Predictor, Info]:
    """Return the mean and the variance of the posterior, without samples, by one factorisation in float64.

    `condition` with `solvers.Cholesky` gives bit-identical predictions, and samples too.

    Raises
    ------
    ValueError
        If X is not valid input for the kernel, or if K + Σ is not positive definite to working precision.
    """
    clock = time.perf_counter()
    gp.kernel.check_inputs(as_floats(X))
    dtype = dtype_for(gp, X)
    with working_in(dtype), one_blas_thread(len(X)):
        gp = cast(gp, dtype)
        columns = np.asarray(Y, dtype) - np.asarray(gp.mean)
        rows, noise, columns = merge_rows(np.asarray(X, dtype), np.asarray(gp.noise), columns)
        system = System(gp.kernel, *on_device((rows, noise), dtype))
        L, b = cholesky_factor(system), columns.astype(np.float64)
        weights = substitute(L, b).astype(dtype)
        exact = ExactVariance(gp.kernel, system.X, on_device(np.broadcast_to(noise, len(rows)), dtype), L)
        update = Function(Canonical(gp.kernel, system.X), on_device(weights, dtype))
        prior = Function(Constant(), on_device(np.zeros((1, 0)), dtype))
        predictor = Predictor.of(prior, update, gp.mean, None, exact=exact)
        relative, mean_error, variance_error = _errors(system, L, b, weights, exact)
    seconds = time.perf_counter() - clock
    info = Info("Cholesky", 1, 1.0, seconds, 0.0, relative, np.isfinite(relative), "", str(dtype))
    if not max(mean_error, variance_error) <= PROMISED_ERROR:
        warnings.warn(
            f"the posterior is not exact: by rounding, the mean is off by about {mean_error:.2g} posterior standard "
            f"deviations, and the variance by {100 * variance_error:.2g} %. Increase the noise variance.",
            AccuracyWarning,
            stacklevel=3,
        )
    return predictor, info.with_errors(mean_error, variance_error)


def _errors(
    system: System,
    L: Float64[np.ndarray, "N N"],
    b: Float64[np.ndarray, "N t"],
    weights: Float[np.ndarray, "N t"],
    exact: ExactVariance,
) -> tuple[Float[np.ndarray, "t"], float, float]:
    """Return the relative residuals, and the errors of mean and variance that one step of refinement finds.

    For a solution s of Hs = b, refinement adds H⁻¹(b − Hs). At some rows x, this changes the mean by k(x, X) times it.
    The variance depends on the solution for b = k(X, x) in the same way.
    """
    X = np.asarray(system.X)
    x = X[np.linspace(0, len(X) - 1, min(PROBES, len(X))).astype(int)]
    k = kernel_float64(system.kernel, X, x)
    right, solved = np.concatenate([b, k], axis=1), np.concatenate([weights, substitute(L, k)], axis=1)
    residual = right - np.concatenate([rows @ solved for _, rows in row_tiles(system)])
    refined, t = substitute(L, residual), b.shape[1]
    variance = np.maximum(exact.on_host(x), 1e-300)
    mean_error = np.sqrt(np.mean((k.T @ refined[:, :t]) ** 2 / variance[:, None]))
    variance_error = np.median(np.abs(np.sum(k * refined[:, t:], axis=0)) / variance)
    norms = np.linalg.norm(b, axis=0)
    relative = np.linalg.norm(residual[:, :t], axis=0) / np.where(norms > 0, norms, 1)
    return relative.astype(np.float32), float(mean_error), float(variance_error)
