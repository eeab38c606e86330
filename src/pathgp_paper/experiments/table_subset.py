"""The subset-of-data tables of appendix B: the exact posterior given a subset of the rows."""

import time
from typing import TYPE_CHECKING

import numpy as np

from pathgp.plots import BLUE
from pathgp.solvers import SubsetOfData
from pathgp_paper.bench.scores import scores
from pathgp_paper.experiments import published
from pathgp_paper.experiments.base import Cell, Experiment, Record, Result, Settings, Table, canvas, find, mean_of
from pathgp_paper.experiments.problems import conditioned, problem
from pathgp_paper.experiments.verdicts import Claim, Number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = {"5%": 0.05, "10%": 0.10}
ROWS = {"25000": 25_000, "50000": 50_000}
SMALL, LARGE = published.DATASETS[:5], published.DATASETS[5:]
SPLITS = {"smoke": 1, "machine": 2, "paper": 5}


class Subset(Experiment):
    """Measure the accuracy lost by using only a subset of the data."""

    name = "subset-of-data"
    title = "Subsets of the data"
    reproduces = "the subset-of-data tables of appendix B"
    published = (
        "An exact process on 5 % or 10 % of the smaller data sets, or on 25 or 50 thousand rows of the larger: worse "
        "than all methods of table 1 on most sets, and as good or better on houseelectric and buzz in RMSE."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return one cell per data set, split and size. The larger sets need the memory of the scale `paper`."""
        sets = [("synthetic", SHARES)] if scale == "smoke" else [(name, SHARES) for name in SMALL]
        sets += [(name, ROWS) for name in LARGE] if scale == "paper" else []
        samples = 4 if scale == "smoke" else 512  # many, since the paper's variances here are exact
        rows = 300 if scale == "smoke" else None
        found = []
        for split in range(SPLITS[scale]):
            for name, sizes in sets:
                for label, size in sizes.items():
                    settings = {"dataset": name, "split": split, "rows": rows, "size": label, "value": size}
                    found.append(Cell(f"{name}-{split}-{label.rstrip('%')}", {**settings, "samples": samples}))
        return found

    def compute(self, settings: Settings) -> Result:
        """Return scores on all test rows."""
        data, gp = problem(settings)
        size = settings["value"]
        rows = round(size * len(data.X)) if size < 1 else size
        start = time.perf_counter()
        posterior = conditioned(gp, data, SubsetOfData(rows=rows), settings["samples"])
        mean, variance = posterior.predict(data.X_test)
        found = scores(data, np.asarray(mean), np.asarray(variance) + float(gp.noise))
        return {"rows": rows, "minutes": (time.perf_counter() - start) / 60, **found}

    def figure(self, records: list[Record]) -> "Figure":
        """Draw our numbers against the paper's, one point per entry of the tables."""
        figure, axes = canvas(1, 2, 8.0, 3.8)
        for panel, score in zip(axes[0], ("rmse", "nll"), strict=True):
            ends = []
            for label, name, entry in _entries(score):
                ours = mean_of(find(records, dataset=name, size=label), score)
                if ours is not None:
                    ends += [entry[0], ours]
                    fewer = label in ("5%", "25000")
                    panel.plot(entry[0], ours, "o" if fewer else "s", color=BLUE, ms=6)
                    side = {"xytext": (7 if fewer else -7, -3), "ha": "left" if fewer else "right"}
                    panel.annotate(f"{name} {label}", (entry[0], ours), fontsize=7, textcoords="offset points", **side)
            if ends:
                panel.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#999999", lw=0.8)
            panel.margins(x=0.65, y=0.15)
            panel.set(xlabel=f"paper: {score.upper()}", ylabel=f"here: {score.upper()}")
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return one table per score, with the paper's rows above ours."""
        names = list(dict.fromkeys(record.settings["dataset"] for record in records))
        labels = list(dict.fromkeys(record.settings["size"] for record in records))
        tables = []
        for score in ("rmse", "nll"):
            lines = []
            for label in labels:
                theirs = published.SUBSET[score][label]
                lines.append([f"paper: {label}", *(published.text(theirs.get(name)) for name in names)])
                ours = [find(records, dataset=name, size=label) for name in names]
                text = lambda done, score=score: f"{mean_of(done, score):.3f} ({len(done)})" if done else "—"
                lines.append([f"here: {label}", *map(text, ours)])
            tables.append(Table(f"{score.upper()}, mean over splits (their number in brackets)", ["", *names], lines))
        return tables

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return one claim per number of the tables."""
        claims: list[Claim] = []
        for score in ("rmse", "nll"):
            for label, name, entry in _entries(score):
                done = find(records, dataset=name, size=label)
                asked = [r for r in records if r.settings["dataset"] == name and r.settings["size"] == label]
                why = next((r.not_run for r in asked if r.not_run), "not a part of this scale")
                ours = mean_of(done, score)
                claims.append(Number(f"{name}, {label}: {score.upper()}", *entry, ours, len(done), why))
        return claims


def _entries(score: str) -> list[tuple[str, str, published.Entry]]:
    rows = published.SUBSET[score]
    return [(label, name, entry) for label, row in rows.items() for name, entry in row.items()]


EXPERIMENT = Subset()
