"""Verdicts on the numbers and claims of the paper, computed from measurements by one rule (`RULE`)."""

import math
from typing import NamedTuple

AGREES, BETTER, WORSE, DIFFERS, NOT_RUN = "agrees", "better", "worse", "differs", "not run"

PAPER_SPLITS = 5
ROUNDING = 0.005
LEAST_ERROR = 0.0025

RULE = (
    "A number, of which less is better, agrees with that of the authors' runs on the same splits where they differ by "
    "at most 0.005, the rounding of the paper's tables. Where theirs are not known split by split, it agrees with the "
    "table's within rounding and two standard errors of the difference, √(1 + 5/n) times the paper's for n splits here "
    "and five there, where the paper's ± 0.00 is taken as 0.0025. Else it is better or worse. A claim about behaviour "
    "is one measured number with a limit: it agrees where the number is within the limit, and differs where it is not. "
    "What was not measured is not run, with the reason."
)


class Number(NamedTuple):
    """A number of the paper and ours, where less is better. Ours is the mean over `splits` splits, or None if not run.

    `paper_error` is None if the paper's number is the mean over the same splits.
    """

    what: str
    paper: float
    paper_error: float | None
    ours: float | None
    splits: int = 1
    why: str = ""

    @property
    def tolerance(self) -> float:
        """Rounding plus two standard errors of the difference; one split varies √5 times as much as the mean of five.

        >>> round(Number("RMSE", 0.35, 0.01, 0.36, splits=5).tolerance, 4)
        0.0333
        """
        if self.paper_error is None:
            return ROUNDING
        error = max(self.paper_error, LEAST_ERROR)
        return ROUNDING + 2 * error * math.sqrt(1 + PAPER_SPLITS / max(self.splits, 1))

    @property
    def verdict(self) -> str:
        """The verdict. NaN means that a run failed, and is worse."""
        if self.ours is None:
            return NOT_RUN
        if abs(self.ours - self.paper) <= self.tolerance:
            return AGREES
        return BETTER if self.ours < self.paper else WORSE

    @property
    def cells(self) -> list[str]:
        """Cells of the report: the paper's number, ours, and the tolerance."""
        known = self.ours is not None and math.isfinite(self.ours)
        ours = f"{self.ours:.3f} ({self.splits} splits)" if known else self.why
        paper = f"{self.paper:.3f}" if self.paper_error is None else f"{self.paper:.2f} ± {self.paper_error:.2f}"
        return [paper, ours, f"± {self.tolerance:.3f}"]


class Behaviour(NamedTuple):
    """A claim of the paper about behaviour, as a measured number that must not exceed a limit."""

    what: str
    measure: str
    measured: float | None
    at_most: float
    why: str = ""

    @property
    def verdict(self) -> str:
        """The verdict."""
        if self.measured is None:
            return NOT_RUN
        return AGREES if self.measured <= self.at_most else DIFFERS

    @property
    def cells(self) -> list[str]:
        """Cells of the report: the measure, its value, and the limit."""
        found = self.why if self.measured is None else f"{self.measured:.3g}"
        return [self.measure, found, f"at most {self.at_most:.3g}"]


Claim = Number | Behaviour


def summary(claims: list[Claim]) -> str:
    """Return the number of claims with each verdict.

    >>> summary([Behaviour("a", "b", 1.0, 2.0), Behaviour("a", "b", 3.0, 2.0), Behaviour("a", "b", 0.0, 2.0)])
    'agrees 2, differs 1'
    """
    words = [claim.verdict for claim in claims]
    counts = [(word, words.count(word)) for word in (AGREES, BETTER, WORSE, DIFFERS, NOT_RUN)]
    return ", ".join(f"{word} {count}" for word, count in counts if count) or NOT_RUN


def ratio(a: float | None, b: float | None) -> float | None:
    """Return a / b, or None if one was not measured or b is zero."""
    return None if a is None or b is None or b == 0 else a / b
