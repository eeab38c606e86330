"""Figure 6: parallel Thompson sampling. A place for it: the loop that it needs is not a part of this version."""

from typing import TYPE_CHECKING

from pathgp.experiments.base import Cell, Experiment, NotRun, Record, Result, Settings, Table
from pathgp.experiments.verdicts import Behaviour, Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAINS = {"random": (0.04, 0.04), "CG": (1.00, 1.68), "SVGP": (0.93, 1.67), "SGD": (1.65, 1.77), "SDD": (1.74, 1.80)}
"""Of the authors' runs: the mean gain over the best of the first rows, with the small and the large budget."""


class Thompson(Experiment):
    """Which method's samples find the largest values."""

    name = "thompson"
    title = "Parallel Thompson sampling"
    reproduces = "Figure 6 and its appendix figure"
    published = (
        "Draws from a Matérn-3/2 process on [0, 1]^8 with length scales from 0.1 to 0.5, 50k observations to start, 30 "
        "steps of 1000 points each. With a small budget SGD gains about twice as much over the best of the first rows "
        "as CG and SVGP, and all gain more than random search; with a large budget all end alike, SGD soonest."
    )

    def cells(self, scale: str) -> list[Cell]:
        """One cell, until the loop is there."""
        return [Cell("all", {"scale": scale})]

    def compute(self, settings: Settings) -> Result:
        """Refused with the reason."""
        raise NotRun("the ask-and-tell loop of Thompson sampling is not a part of this version")

    def figure(self, records: list[Record]) -> "Figure | None":
        """None yet."""
        return None

    def tables(self, records: list[Record]) -> list[Table]:
        """The authors' gains."""
        lines = [[name, *(f"{gain:.2f}" for gain in gains)] for name, gains in GAINS.items()]
        return [Table("The authors' runs: mean gain over the first best", ["method", "small budget", "large"], lines)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """The main one."""
        why = records[0].not_run
        what = "With a small budget SGD gains the most"
        return [Behaviour(what, "gain of the best other method / gain of SGD", None, 1.0, why)]


EXPERIMENT = Thompson()
