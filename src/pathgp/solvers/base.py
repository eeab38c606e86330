"""The interface of a solver, what it returns, and the warnings it gives."""

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
    """A solve ended before its residual reached the tolerance."""


class AccuracyWarning(UserWarning):
    """A posterior is estimated to be further from the exact one than is promised."""


class HandOverWarning(UserWarning):
    """The solver that was chosen did not converge, and another one took over."""


class DivergenceError(FloatingPointError):
    """A solve ran away to numbers that are not finite."""


class Info(eqx.Module):
    """What a solve took and how far it came."""

    solver: str = eqx.field(static=True)
    steps: int
    passes: float
    seconds: float
    tolerance: float
    """What the residual was to come to; zero for a direct solver, which leaves what rounding leaves."""
    relative_residual: Float[Array, "s"]
    """‖b − (K+Σ)w‖ / ‖b‖ of each column; on inducing points or a subset, that of the system they solve, which
    `InducingCG` measures in the norm of predictions."""
    converged: Bool[Array, "s"]
    """Whether each column met what its solver was asked for."""
    reason: str = eqx.field(static=True, default="")
    """Why this solver was chosen, where it was not chosen by the user; and what a solver had to add to go on."""
    precision: str = eqx.field(static=True, default="float32")
    """The dtype of the weights, and of everything that is computed with them."""
    mean_error: float | None = None
    """The estimated error of the posterior mean, rms in posterior standard deviations (`pathgp.posterior.accuracy`);
    None with inducing points, which approximate another posterior."""
    variance_error: float | None = None
    """The estimated relative error of `posterior.variance`, of which √(2/num_samples) is from the number of samples
    where there is no local projection to compare with."""


class Solution(eqx.Module):
    """The weights W of the functions k(·, points) @ W, and the residual columns b − (K+Σ)W if they came for free.

    `rows` says which rows of the data the points are, where they are some of them. `q` is the distribution of the
    function's values at the points, where the solver found one.
    """

    points: Float[Array, "M d"]
    weights: Float[Array, "M s"]
    residual: Float[Array, "N s"] | None
    info: Info
    rows: Int[Array, "M"] | None = None
    q: Variational | None = None
    factor: Float64[np.ndarray, "N N"] | None = None
    """The Cholesky factor of K + Σ in its lower triangle, where the solver has it."""

    def beside(self, right: "Solution") -> "Solution":
        """The columns of `right`, a solve of the same system on the same points, after these."""
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
    """Solves (K + Σ) W = B, all columns together."""

    has_own_points: ClassVar[bool] = False
    """Whether the weights belong to points of the solver, and not to rows of the data."""

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
        system, targets : K + Σ, and the right-hand sides
        key : for the random choices of the solver
        init : weights to start from; zero if None
        run : observer, progress bar and checkpoint; none of them if None
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
        """Return the columns of further samples, which are to follow those of `solution`: here by solving for them.

        `solve_key` is the key of the first solve, so that a solver on a random subset takes the same one. `key` is for
        a solver whose samples are random themselves.
        """
        return self.solve(system, targets, key=solve_key, run=run)

    def local_correction(self, system: System) -> Local | None:
        """The local projection that finishes what this solver leaves on purpose, if it counts on one."""
        return None

    def with_local(self, local: Local) -> "Solver":
        """The solver that it is when `local` will finish its work: itself, unless it then stops earlier.

        A local projection finishes the weights of rows of the data; a solver whose weights belong to other points
        refuses it here.
        """
        return self

    def support(self, system: System) -> Float[Array, "M d"]:
        """The points that the weights belong to: the rows of the data."""
        return system.X


MORE = "allow more steps or take another solver"


def warn_unless_converged(info: Info, advice: str = MORE) -> None:
    """Says once how far a solve came that did not reach its tolerance."""
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
