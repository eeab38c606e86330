"""The solver that chooses a solver, and says which and why."""

import dataclasses
import logging
import warnings
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels.base import has_coordinates
from pathgp.runs.checkpoint import Slot
from pathgp.runs.memory import memory_limit
from pathgp.solvers.base import ConvergenceWarning, DivergenceError, Every, HandOverWarning, Solution, Solver
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.local import Local
from pathgp.solvers.sap import SAP
from pathgp.solvers.subset import SubsetOfData
from pathgp.system.system import System, Targets

logger = logging.getLogger("pathgp")

EXACT_ROWS, EXACT_ROWS_FLOAT64 = 4000, 8000
"""Up to this many rows the system is factorised at once. The limit for float64 is an estimate, not a measurement."""
HAND_OVER_ROWS = 20_000
"""Up to here a factorisation takes the place of projections that do not converge, if there is memory for it."""
ROWS_PER_PASS = 300
"""Projections get one pass per this many rows before a factorisation takes over: an estimate of its cost in passes."""
PROJECTED_ROWS = 250_000
SUBSET_ROWS = 25_000


class Choice(NamedTuple):
    """A solver, the local projection that finishes what it leaves, and the reason in words."""

    solver: Solver
    local: Local | None
    reason: str


class Auto(Solver):
    """Exact up to 4000 rows (8000 in float64); up to 250,000 block projections, above that on a subset of the rows.

    All but the exact solve leave to `local` what is short-range, and have it make variances precise; None does
    without. Projections end when the estimated error of the mean is below `error`, see `SAP`, and the relative
    residual within `tolerance`, or `passes` or `max_seconds` are used up. Up to 20,000 rows a
    factorisation takes over where they do not converge, or after 8, 16 or 32 passes where the error, extrapolated,
    would stay too large; there is a warning.

    The choice and its reason are logged, and stand in `info.solver` and `info.reason`.
    """

    local: Local | None = Local()
    passes: int = 60
    error: float = 0.03
    tolerance: float = 1.0
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        checks.instance(self.local, Local | None, "Auto.local", "a local projection such as Local(128), or None")

    def choose(self, system: System) -> Choice:
        """The solver for a system, and the reason."""
        N = system.size
        why_not = "`local` is None" if self.local is None else _no_coordinates(system)
        if (EXACT_ROWS_FLOAT64 if system.X.dtype == jnp.float64 else EXACT_ROWS) >= N:
            return Choice(Cholesky(), None, f"{N} rows are few enough to solve exactly")
        replaceable = _can_factorise(system)
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
        if N <= PROJECTED_ROWS:
            reason = f"{N} rows are too many to factorise; a local projection finishes what a few passes leave"
            return Choice(few, self.local, reason)
        reason = (
            f"{N} rows are too many for a pass over all pairs; {SUBSET_ROWS} of them give what is global, and a local "
            "projection on all rows the rest"
        )
        return Choice(SubsetOfData(SUBSET_ROWS, few), self.local, reason)

    def counts_on(self, system: System) -> Local | None:
        """The local projection of the choice."""
        return self.choose(system).local

    def counting_on(self, local: Local) -> "Auto":
        """Uses this projection instead of its own."""
        return dataclasses.replace(self, local=local)

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        observe: Every | None = None,
        progress: bool = False,
        saved: Slot | None = None,
    ) -> Solution:
        """What the chosen solver returns, with the reason in its info; exact where that does not converge."""
        solver, _, reason = self.choose(system)
        logger.info("Auto chose %s: %s.", type(solver).__name__, reason)
        try:
            with warnings.catch_warnings():
                if _can_factorise(system):
                    warnings.simplefilter("ignore", ConvergenceWarning)  # there is another way
                solution = solver.solve(
                    system, targets, key=key, init=init, observe=observe, progress=progress, saved=saved
                )
            info, failed = solution.info, None
        except DivergenceError as error:
            if not _can_factorise(system):
                raise
            solution, info, failed = None, None, str(error)
        if info is not None and not bool(jnp.all(info.converged)) and info.seconds < self.max_seconds:
            failed = f"{info.solver} stopped after {info.passes:.0f} passes without convergence"
        if solution is None or (failed and _can_factorise(system)):
            reason = f"{failed}, so that {system.size} rows were factorised"
            warnings.warn(f"Auto took over with Cholesky: {reason}.", HandOverWarning, stacklevel=4)
            solution = Cholesky().solve(system, targets, key=key, progress=progress)
        return dataclasses.replace(solution, info=dataclasses.replace(solution.info, reason=reason))


def _can_factorise(system: System) -> bool:
    """Whether a float64 matrix of all pairs, and a copy of a part of it, fit into memory."""
    limit = memory_limit()
    return system.size <= HAND_OVER_ROWS and (limit is None or 12 * system.size**2 < limit)


def _no_coordinates(system: System) -> str | None:
    """Why neighbours cannot be found with this kernel, if they cannot."""
    if has_coordinates(system.kernel, system.X):
        return None
    return f"{type(system.kernel).__name__} has no coordinates to find neighbours by"
