"""`Auto`: chooses a solver by the number of rows, and reports the choice and its reason."""

import dataclasses
import logging
import warnings
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels.base import has_coordinates
from pathgp.runs.memory import memory_limit
from pathgp.runs.run import Run
from pathgp.solvers.base import ConvergenceWarning, DivergenceError, HandOverWarning, Solution, Solver
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.local import Local
from pathgp.solvers.sap import SAP
from pathgp.solvers.subset import SubsetOfData
from pathgp.system.system import System, Targets

logger = logging.getLogger("pathgp")

ROWS_PER_PASS = 300
"""Rows per pass of `SAP` before a factorisation takes over.

This is an estimate of the cost of a factorisation in passes.
"""


class Choice(NamedTuple):
    """A solver, the local correction that goes with it (None for none), and the reason for the choice."""

    solver: Solver
    local: Local | None
    reason: str


class Auto(Solver):
    """Choose a solver by the number of rows.

    Up to `exact_rows` rows (`exact_rows_float64` in float64) the solve is exact, by `Cholesky`. Up to `projected_rows`
    rows it is by block projections, `SAP`, with a local correction. Above that, `SAP` solves a random subset of the
    rows, `SubsetOfData`, and the local correction uses all rows. Without a local correction, because `local` is None or
    the kernel has no coordinates, `SAP` runs on all rows whatever their number.

    Up to `hand_over_rows` rows, `Cholesky` takes over with a `HandOverWarning` if block projections diverge or do not
    converge. It also takes over after 8, 16 or 32 passes if the extrapolated error would stay too large, see `SAP`.
    There must be enough memory for the factor.

    The choice and its reason are logged, and reported in `info.solver` and `info.reason`.

    Parameters
    ----------
    local
        Local correction for all but exact solves, which also makes variances more precise. None disables it.
    passes
        Maximum passes of `SAP` over the data; at most max(8, N / 300) if a factorisation can take over.
    error
        Estimated error of the mean at which `SAP` stops, see `SAP`.
    tolerance
        Relative residual that `SAP` has to reach as well.
    max_seconds
        Time limit of `SAP` in seconds. A solve that has used it up is not handed over.
    exact_rows
        Largest number of rows that are factorised directly in float32.
    exact_rows_float64
        The same in float64 (an estimate, not a measurement).
    hand_over_rows
        Largest number of rows at which a factorisation replaces block projections that do not converge.
    projected_rows
        Largest number of rows at which `SAP` runs on all of them.
    subset_rows
        Number of rows of the random subset above that.
    """

    local: Local | None = Local()
    passes: int = 60
    error: float = 0.03
    tolerance: float = 1.0
    max_seconds: float = float("inf")
    exact_rows: int = 4000
    exact_rows_float64: int = 8000
    hand_over_rows: int = 20_000
    projected_rows: int = 250_000
    subset_rows: int = 25_000

    def __check_init__(self) -> None:
        checks.require_instance(
            self.local, Local | None, "Auto.local", "a local projection such as Local(128), or None"
        )

    def choose(self, system: System) -> Choice:
        """Return the solver for `system`, its local correction and the reason."""
        N = system.size
        if (self.exact_rows_float64 if system.X.dtype == jnp.float64 else self.exact_rows) >= N:
            return Choice(Cholesky(), None, f"{N} rows are few enough to solve exactly")
        why_not = "`local` is None" if self.local is None else _no_coordinates(system)
        replaceable = self._can_factorise(system)
        projections = SAP(
            passes=min(self.passes, max(8, N // ROWS_PER_PASS)) if replaceable else self.passes,
            may_give_up=replaceable,
            error=self.error,
            tolerance=self.tolerance,
            max_seconds=self.max_seconds,
        )
        if why_not:
            return Choice(projections, None, f"{N} rows are too many to factorise, and {why_not}")
        few = dataclasses.replace(projections, block_size=1024, local=self.local)
        if self.projected_rows >= N:
            reason = f"{N} rows are too many to factorise; a local projection finishes what a few passes leave"
            return Choice(few, self.local, reason)
        reason = (
            f"{N} rows are too many for a pass over all pairs; {self.subset_rows} of them give what is global, and a "
            "local projection on all rows the rest"
        )
        return Choice(SubsetOfData(self.subset_rows, few), self.local, reason)

    def local_correction(self, system: System) -> Local | None:
        """Return the local correction of the chosen solver."""
        return self.choose(system).local

    def with_local(self, local: Local) -> "Auto":
        """Return this solver with `local` as its local correction."""
        return dataclasses.replace(self, local=local)

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        run: Run | None = None,
    ) -> Solution:
        """Solve with the chosen solver, and with `Cholesky` if that one fails and the system can be factorised.

        `info.reason` has the reason for the choice, or for the hand-over. Raises `DivergenceError` if the chosen solver
        diverges and the system cannot be factorised.
        """
        solver, _, reason = self.choose(system)
        logger.info("Auto chose %s: %s.", type(solver).__name__, reason)
        try:
            with warnings.catch_warnings():
                if self._can_factorise(system):
                    warnings.simplefilter("ignore", ConvergenceWarning)  # a factorisation can take over
                solution = solver.solve(system, targets, key=key, init=init, run=run)
            info, failed = solution.info, None
        except DivergenceError as error:
            if not self._can_factorise(system):
                raise
            solution, info, failed = None, None, str(error)
        # A solve that has used up its time is not handed over: the limit would be exceeded even further.
        if info is not None and not bool(jnp.all(info.converged)) and info.seconds < self.max_seconds:
            failed = f"{info.solver} stopped after {info.passes:.0f} passes without convergence"
        if solution is None or (failed and self._can_factorise(system)):
            reason = f"{failed}, so that {system.size} rows were factorised"
            # The warning points to the call of `condition`, four frames up.
            warnings.warn(f"Auto took over with Cholesky: {reason}.", HandOverWarning, stacklevel=4)
            solution = Cholesky().solve(system, targets, key=key)
        return dataclasses.replace(solution, info=dataclasses.replace(solution.info, reason=reason))

    def _can_factorise(self, system: System) -> bool:
        """Return whether `Cholesky` may take over: the matrix, and a copy of half of its size, fit into memory."""
        limit = memory_limit()
        return system.size <= self.hand_over_rows and (limit is None or 12 * system.size**2 < limit)


def _no_coordinates(system: System) -> str | None:
    """Return why neighbours cannot be searched with this kernel, or None if they can."""
    if has_coordinates(system.kernel, system.X):
        return None
    return f"{type(system.kernel).__name__} has no coordinates to find neighbours by"
