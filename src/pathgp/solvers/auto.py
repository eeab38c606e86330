"""The solver that chooses a solver, and says which and why."""

import dataclasses
import logging
from typing import NamedTuple

from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import checks
from pathgp.checkpoint import Slot
from pathgp.local import Local
from pathgp.solvers.base import Every, Solution, Solver
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.sap import SAP
from pathgp.solvers.subset import SubsetOfData
from pathgp.system import System, Targets

logger = logging.getLogger("pathgp")

EXACT_ROWS = 4000
PROJECTED_ROWS = 250_000
SUBSET_ROWS = 25_000


class Choice(NamedTuple):
    """A solver, the local projection that finishes what it leaves, and the reason in words."""

    solver: Solver
    local: Local | None
    reason: str


class Auto(Solver):
    """Exact up to 4000 rows; up to 250,000 block projections, above that on a subset of the rows.

    All but the exact solve leave to `local` what is short-range, and all have it make variances precise; None does
    without. Projections go on until a pass over the data changes predictions at the data by less than `settle` times
    what they leave unexplained, or leaves a relative residual within `tolerance`, or `passes` or `max_seconds` are used
    up.

    The choice and its reason are logged, and stand in `info.solver` and `info.reason`.
    """

    local: Local | None = Local()
    passes: int = 60
    settle: float = 0.0625
    tolerance: float = 0.001
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        checks.instance(self.local, Local | None, "Auto.local", "a local projection such as Local(128), or None")

    def choose(self, system: System) -> Choice:
        """The solver for a system, and the reason."""
        N = system.size
        why_not = "`local` is None" if self.local is None else _no_coordinates(system)
        if N <= EXACT_ROWS:
            local = None if why_not else self.local
            return Choice(Cholesky(), local, f"{N} rows are few enough to solve exactly")
        projections = SAP(
            passes=self.passes, settle=self.settle, tolerance=self.tolerance, max_seconds=self.max_seconds
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
        """Settles by this projection instead of its own."""
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
        """What the chosen solver returns, with the reason in its info."""
        solver, _, reason = self.choose(system)
        logger.info("Auto chose %s: %s.", type(solver).__name__, reason)
        solution = solver.solve(system, targets, key=key, init=init, observe=observe, progress=progress, saved=saved)
        return dataclasses.replace(solution, info=dataclasses.replace(solution.info, reason=reason))


def _no_coordinates(system: System) -> str | None:
    """Why neighbours cannot be found with this kernel, if they cannot."""
    try:
        system.kernel.coordinates(system.X[:1])
    except TypeError:
        return f"{type(system.kernel).__name__} has no coordinates to find neighbours by"
    return None
