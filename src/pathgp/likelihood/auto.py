"""`Auto`: chooses the method of hyperparameter fitting by the number of rows, and reports the reason."""

import logging
from typing import NamedTuple

from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.likelihood.base import FittingMethod, Trace
from pathgp.likelihood.exact import Exact
from pathgp.likelihood.nearest import NearestNeighbour
from pathgp.likelihood.priors import Prior
from pathgp.posterior.gp import GP
from pathgp.runs.checkpoint import Slot

logger = logging.getLogger("pathgp")


class Choice(NamedTuple):
    """A method of hyperparameter fitting, and the reason for the choice."""

    method: FittingMethod
    reason: str


class Auto(FittingMethod):
    """Choose `Exact` up to `exact_rows` rows, and `NearestNeighbour` above.

    The choice and its reason are logged.

    Parameters
    ----------
    exact
        Method for few rows.
    nearest
        Method for many rows.
    exact_rows
        Largest number of rows that are fitted by `exact`.

    >>> Auto().choose(1001).reason
    '1001 rows are more than the 1000 of an exact fit'
    """

    exact: Exact = Exact()
    nearest: NearestNeighbour = NearestNeighbour()
    exact_rows: int = 1000

    def __check_init__(self) -> None:
        checks.require_at_least(self.exact_rows, 0, "Auto.exact_rows")

    def choose(self, rows: int) -> Choice:
        """Return the method for this number of rows, and the reason."""
        if rows <= self.exact_rows:
            return Choice(self.exact, f"{rows} rows are at most the {self.exact_rows} of an exact fit")
        return Choice(self.nearest, f"{rows} rows are more than the {self.exact_rows} of an exact fit")

    def fit(
        self,
        gp: GP,
        X: Float[Array, "N d"],
        y: Float[Array, "N"],
        key: PRNGKeyArray,
        progress: bool,
        prior: Prior,
        saved: Slot | None = None,
    ) -> tuple[GP, Trace]:
        """Return the result of the chosen method."""
        method, reason = self.choose(X.shape[0])
        logger.info("Hyperparameters are fitted by %s: %s.", type(method).__name__, reason)
        return method.fit(gp, X, y, key, progress, prior, saved)
