"""The scale of predictive intervals, from leave-one-out errors."""

import logging

import numpy as np
from jaxtyping import Float, Float64, Int, PRNGKeyArray
from scipy import linalg, stats

from pathgp._checks import as_floats
from pathgp.linalg.factor import substitute
from pathgp.linalg.namespace import AnyArray, host_generator, on_device, on_host
from pathgp.posterior.gp import GP
from pathgp.system.dense import cholesky_factor
from pathgp.system.system import System

logger = logging.getLogger("pathgp")

LEVEL = 0.9
"""The intervals that are calibrated."""
JUDGED_ROWS = 500
"""Rows whose leave-one-out error is computed: the scale then has a standard error of 4 % for normal errors."""
LEAST_ROWS = 100
"""With fewer rows the scale would be too uncertain to replace that of the likelihood."""
MOST_ROWS = 8000
"""Above this number of rows the dense factorisation takes longer than the fit itself."""
LITTLE_NOISE = 1e-5
"""Noise variance as a share of the variance of the observations, above which a GP is not calibrated."""


def calibrated(gp: GP, X: Float[AnyArray, "N d"], Y: Float[AnyArray, "N t"], *, key: PRNGKeyArray) -> GP:
    """Return a nearly noiseless GP with kernel and noise scaled so that intervals cover as they should.

    The likelihood chooses the scale by the mean square of standardised errors. The errors of an emulator are far from
    normal, a few large and most small, so its intervals are then too wide nearly everywhere. Here the 90 % intervals
    of leave-one-out predictions cover 90 % of the rows. Scaling kernel and noise together leaves the mean unchanged.

    The GP is returned unchanged if its noise is above `LITTLE_NOISE` of the variance of the observations, and if there
    are fewer than `LEAST_ROWS` or more than `MOST_ROWS` rows, or no targets.
    """
    if Y.shape[1] == 0:
        return gp
    # Not of the kernel's variance, which for a smooth function can be thousands of times that of the observations.
    is_little = np.mean(np.asarray(gp.noise)) < LITTLE_NOISE * np.mean(np.var(np.asarray(Y, np.float64), axis=0))
    if not is_little or not LEAST_ROWS <= X.shape[0] <= MOST_ROWS:
        return gp
    rows = host_generator(key).permutation(X.shape[0])[:JUDGED_ROWS]
    try:
        errors = leave_one_out(gp, X, Y, rows)
    except ValueError as error:  # not positive definite: the solve will say so, or merge duplicate rows
        logger.info("The scale was not calibrated: %s", error)
        return gp
    scale = np.quantile(np.abs(errors), LEVEL) / stats.norm.ppf((1 + LEVEL) / 2)
    if not 0 < scale < np.inf:
        return gp
    logger.info("Standard deviations were scaled by %.3g, by the leave-one-out errors of %d rows.", scale, len(rows))
    host, factor = on_host(gp), float(scale**2)
    kernel, noise = on_device((host.kernel.scaled(factor), host.noise * factor), gp.noise.dtype)
    return GP(kernel, noise, gp.mean)


def leave_one_out(
    gp: GP, X: Float[AnyArray, "N d"], Y: Float[AnyArray, "N t"], rows: Int[np.ndarray, "m"]
) -> Float64[np.ndarray, "m t"]:
    """Return (yᵢ − μ₋ᵢ)/σ₋ᵢ = αᵢ/√[H⁻¹]ᵢᵢ of some rows i.

    μ₋ᵢ and σ₋ᵢ are the mean and the standard deviation of yᵢ given all other rows, with α = H⁻¹(y − m) (Rasmussen and
    Williams, 2006, section 5.4.2).
    """
    L = cholesky_factor(System(gp.kernel, as_floats(X), gp.noise))
    alpha = substitute(L, np.asarray(Y, np.float64) - float(gp.mean))
    unit = np.zeros((len(L), len(rows)))
    unit[rows, np.arange(len(rows))] = 1
    half = linalg.solve_triangular(L, unit, lower=True, overwrite_b=True, check_finite=False)
    return alpha[rows] / np.sqrt(np.sum(half**2, axis=0))[:, None]
