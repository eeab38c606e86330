"""The estimated errors of a posterior, and the choice of its variances by them."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from pathgp.linalg.precision import cast
from pathgp.linalg.threads import one_blas_thread
from pathgp.posterior.accuracy import Errors, HostSolution, Probes, estimate_errors, evaluate_probes
from pathgp.posterior.predict import Predictor
from pathgp.posterior.problem import Problem
from pathgp.solvers import Info, Solution
from pathgp.solvers.base import AccuracyWarning

PROBE = 3
"""Folded into the key of a problem, to draw the points where errors are estimated."""

PROMISED_ERROR = 0.1
"""Limit of the estimated errors, above which there is a warning.

It is in posterior standard deviations for the mean, and relative for the variance.
"""

FACTOR_ROWS = 8000
"""Up to this many rows a posterior keeps the factor of K + Σ (0.5 GB).

Above, it keeps the factor only if samples do not give precise variances.
"""


def check_errors(problem: Problem, solution: Solution, predictor: Predictor) -> tuple[Predictor, Info]:
    """Return the predictor with precise variances, and the info with its estimated errors.

    The predictor gets the ratio of its variances to local ones. It loses its exact variances if those of the samples
    are precise. Warns if an error exceeds `PROMISED_ERROR`.
    """
    system, at_rows = problem.system, solution.rows is None
    host = lambda columns: np.asarray(system.gather_rows(columns))
    solved = HostSolution(
        kernel=problem.gp.kernel,
        X=host(system.X),
        noise=host(system.noise_diagonal),
        b=host(problem.targets.total),
        residual=None if solution.residual is None else host(solution.residual),
        points=host(solution.points) if at_rows else np.asarray(solution.points),
        weights=host(solution.weights) if at_rows else np.asarray(solution.weights),
        rows=None if at_rows else np.asarray(solution.rows),
        variance=predictor.exact,
    )
    projection = None if predictor.correction is None else predictor.correction.projection
    with one_blas_thread():
        probes = evaluate_probes(solved, projection, jax.random.fold_in(problem.key, PROBE))
        draws = np.asarray(problem.prior(probes.x), np.float64)
        predictor = dataclasses.replace(predictor, ratio=cast(probes.ratio(draws), solution.weights.dtype))
        predictor, found = _choose_variance(predictor, probes, draws)
    _warn_of_errors(found, solution)
    return predictor, solution.info.with_errors(found.mean, found.variance)


def _choose_variance(
    predictor: Predictor, probes: Probes, draws: Float64[np.ndarray, "p s"]
) -> tuple[Predictor, Errors]:
    """Return the predictor and its errors, without exact variances if they are expensive and samples suffice."""
    exact = predictor.exact
    if exact is not None and (len(exact.X) <= FACTOR_ROWS or not predictor.num_samples):
        return predictor, _errors(predictor, probes, draws)
    sampled = dataclasses.replace(predictor, exact=None)
    found = _errors(sampled, probes, draws)
    if exact is None or found.bias <= PROMISED_ERROR / 2:
        return sampled, found
    return predictor, _errors(predictor, probes, draws)


def _errors(predictor: Predictor, probes: Probes, draws: Float64[np.ndarray, "p s"]) -> Errors:
    """Return the estimated errors of the predictions at the probes."""
    if predictor.num_samples or predictor.exact is not None:
        mean, variance = (np.asarray(a, np.float64) for a in predictor.predict(probes.x))
    else:
        mean, variance = np.asarray(predictor.mean(probes.x), np.float64), probes.variance
    mean = mean.reshape(len(mean), -1) - float(predictor.constant)
    return estimate_errors(probes, draws, mean, variance, predictor.ratio)


def _warn_of_errors(found: Errors, solution: Solution) -> None:
    what = []
    if not found.mean <= PROMISED_ERROR:
        what.append(f"the mean is off by about {found.mean:.2g} posterior standard deviations")
    if not found.bias <= PROMISED_ERROR:
        what.append(f"the variance is off by about {100 * found.bias:.2g} %")
    if what:
        info = solution.info
        warnings.warn(
            f"the posterior is not exact: with {info.solver} in {solution.weights.dtype} {' and '.join(what)} "
            f"(estimated), and the largest relative residual is {float(jnp.max(info.relative_residual)):.1e}. Allow "
            "more steps or a smaller tolerance, or take solvers.Auto() or solvers.Cholesky().",
            AccuracyWarning,
            stacklevel=6,
        )
