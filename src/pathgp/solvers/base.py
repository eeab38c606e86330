"""The interface of solvers, their result, and their warnings and errors."""

import dataclasses
import warnings
from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, PRNGKeyArray

from pathgp.runs.run import Run
from pathgp.solvers.local import Local
from pathgp.solvers.variational import Variational
from pathgp.system.system import System, Targets


class ConvergenceWarning(UserWarning):
    """Warning that a solve ended before its residual reached the tolerance."""


class AccuracyWarning(UserWarning):
    """Warning that the estimated error of a posterior exceeds the limit."""


class HandOverWarning(UserWarning):
    """Warning that the chosen solver did not converge and another one took over."""


class DivergenceError(FloatingPointError):
    """Error raised if a solve diverges: its weights are worse than zero weights, or not finite."""


class Info(eqx.Module):
    """The cost of a solve, its residual, and the estimated errors of the posterior.

    Parameters
    ----------
    solver
        Name of the solver.
    steps
        Number of steps.
    passes
        Number of passes over the data.
    seconds
        Duration of the solve in seconds, including that of interrupted runs it resumed.
    tolerance
        Relative residual that the solver had to reach; 0 for a direct solver, whose residual is rounding.
    relative_residual
        ‖b − (K+Σ)w‖ / ‖b‖ of each column. With inducing points or a subset, it is that of the system they solve, which
        `InducingCG` measures in the norm of predictions.
    converged
        Whether each column met the convergence criterion of the solver.
    reason
        Why this solver was chosen, if the user did not choose it, and the jitter that a solver had to add.
    precision
        The dtype of the weights, and of everything that is computed with them.
    mean_error
        Estimated error of the posterior mean, rms in posterior standard deviations (`pathgp.posterior.accuracy`). None
        with inducing points, which approximate another posterior.
    variance_error
        Estimated relative error of `posterior.variance`. Without a local correction to compare with, √(2/num_samples)
        of it is due to the number of samples.
    """

    solver: str = eqx.field(static=True)
    steps: int
    passes: float
    seconds: float
    tolerance: float
    relative_residual: Float[Array | np.ndarray, "s"]
    converged: Bool[Array | np.ndarray, "s"]
    reason: str = eqx.field(static=True, default="")
    precision: str = eqx.field(static=True, default="float32")
    mean_error: float | None = None
    variance_error: float | None = None

    def with_errors(self, mean: float, variance: float) -> "Info":
        """Return the info with the estimated errors of the posterior."""
        return dataclasses.replace(self, mean_error=mean, variance_error=variance)


class Solution(eqx.Module):
    """The weights W of the functions k(·, points) W, one column per right-hand side.

    Parameters
    ----------
    points
        Points that the weights belong to.
    weights
        The weights W.
    residual
        The residual b − (K+Σ)W, if the solver has it without further work.
    info
        Cost and residual of the solve.
    rows
        Indices of the points among the rows of the data, if they are a subset of these.
    q
        Distribution of the function's values at the points, if the solver computes one.
    factor
        Cholesky factor of K + Σ in the lower triangle, if the solver has it.
    """

    points: Float[Array, "M d"]
    weights: Float[Array, "M s"]
    residual: Float[Array, "N s"] | None
    info: Info
    rows: Int[Array, "M"] | None = None
    q: Variational | None = None
    factor: Float64[np.ndarray, "N N"] | None = None

    def append_columns(self, right: "Solution") -> "Solution":
        """Return a solution with the columns of `right` appended; it has the same system and the same points."""
        a, b = self.info, right.info
        info = dataclasses.replace(
            a,
            steps=a.steps + b.steps,
            passes=a.passes + b.passes,
            seconds=a.seconds + b.seconds,
            relative_residual=jnp.concatenate([a.relative_residual, b.relative_residual]),
            converged=jnp.concatenate([a.converged, b.converged]),
        )
        residual = None
        if self.residual is not None and right.residual is not None:
            residual = jnp.concatenate([self.residual, right.residual], axis=1)
        weights = jnp.concatenate([self.weights, right.weights], axis=1)
        return Solution(self.points, weights, residual, info, self.rows, self.q, right.factor)


class Solver(eqx.Module):
    """Abstract base class of solvers of (K + Σ) W = B, all columns together."""

    has_own_points: ClassVar[bool] = False
    """Whether the weights belong to points of the solver instead of rows of the data."""

    @abstractmethod
    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        run: Run | None = None,
    ) -> Solution:
        """Return the solution.

        Parameters
        ----------
        system
            The matrix K + Σ.
        targets
            The right-hand sides B.
        key
            Random key of the solver.
        init
            Weights to start from; None starts from zero.
        run
            Observer, progress bar and checkpoint; None has none of them.
        """

    def extend(
        self,
        solution: Solution,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        solve_key: PRNGKeyArray,
        run: Run | None = None,
    ) -> Solution:
        """Return the solution for the columns of further samples, which are appended to `solution` later.

        The default solves for these columns.

        Parameters
        ----------
        solution
            The solution so far.
        system
            The matrix K + Σ.
        targets
            The right-hand sides of the further samples.
        key
            Random key for a solver whose samples are themselves random.
        solve_key
            Key of the first solve, so that a solver on a random subset uses the same subset.
        run
            Observer, progress bar and checkpoint; None has none of them.
        """
        return self.solve(system, targets, key=solve_key, run=run)

    def local_correction(self, system: System) -> Local | None:
        """Return the local correction that this solver relies on, or None."""
        return None

    def with_local(self, local: Local) -> "Solver":
        """Return the solver to use if its solution will get the local correction `local`.

        The default is the solver itself; a subclass may return one that stops earlier. A local correction needs weights
        of rows of the data, so a solver whose weights belong to other points raises `ValueError`.
        """
        return self

    def support(self, system: System) -> Float[Array, "M d"]:
        """Return the points that the weights belong to; the default is the rows of the data."""
        return system.X


MORE = "allow more steps or take another solver"
"""Default advice of `ConvergenceWarning`."""


def warn_unless_converged(info: Info, advice: str = MORE) -> None:
    """Warn with the largest relative residual if a column has not converged."""
    missed = np.flatnonzero(~np.asarray(info.converged))
    if missed.size:
        worst = float(np.max(np.asarray(info.relative_residual)[missed]))
        warnings.warn(
            f"{info.solver} did not reach the tolerance {info.tolerance:.1e} in {info.steps} steps ({info.passes:.1f} "
            f"passes over the data): {missed.size} of {info.relative_residual.size} columns are above the tolerance, "
            f"and the largest of their relative residuals is {worst:.1e}. For a smaller residual {advice}; "
            "`posterior.info.mean_error` has the estimated error of predictions.",
            ConvergenceWarning,
            stacklevel=3,
        )
