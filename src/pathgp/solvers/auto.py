"""The solver that chooses a solver, and says which and why."""

import logging

from jaxtyping import Array, Float, PRNGKeyArray

from pathgp.solvers.base import Every, Solution, Solver
from pathgp.solvers.cholesky import Cholesky
from pathgp.solvers.sap import SAP
from pathgp.system import System, Targets

logger = logging.getLogger("pathgp")

EXACT_ROWS = 4000


class Auto(Solver):
    """Exact up to `EXACT_ROWS` rows, where a factorisation takes a second or two; block projections above.

    Projections end when a pass over the data changes predictions at the data by less than `settle` times what they
    leave unexplained, or leaves a relative residual within `tolerance`. The choice and its reason are logged, and
    `info.solver` names what ran.
    """

    settle: float = 0.05
    tolerance: float = 0.001
    max_seconds: float = float("inf")

    def choose(self, system: System) -> tuple[Solver, str]:
        """The solver for a system, and the reason in words."""
        if system.size <= EXACT_ROWS:
            return Cholesky(), f"{system.size} rows are few enough to solve exactly"
        solver = SAP(passes=60, settle=self.settle, tolerance=self.tolerance, max_seconds=self.max_seconds)
        return solver, f"{system.size} rows are too many to factorise in a second or two"

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        observe: Every | None = None,
        progress: bool = False,
    ) -> Solution:
        """What the chosen solver returns."""
        solver, reason = self.choose(system)
        logger.info("Auto chose %s: %s.", type(solver).__name__, reason)
        return solver.solve(system, targets, key=key, init=init, observe=observe, progress=progress)
