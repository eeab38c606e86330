"""Table 1: RMSE, RMSE at low noise, minutes and NLL on the UCI data sets, over splits."""

import time
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from pathgp import metrics
from pathgp.experiments import published
from pathgp.experiments.base import Cell, Experiment, Record, Result, Settings, Table, canvas, find, mean_of
from pathgp.experiments.problems import LOW_NOISE, conditioned, problem, solver_of
from pathgp.experiments.scores import scores
from pathgp.experiments.verdicts import Behaviour, Claim, Number, ratio
from pathgp.solvers import DivergenceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {"rmse": "RMSE", "low_noise_rmse": "RMSE at low noise", "minutes": "minutes", "nll": "NLL"}
SETS = {
    "smoke": ["synthetic"],
    "machine": ["elevators", "pol", "bike", "protein", "keggdirected"],
    "paper": list(published.DATASETS),
}
SPLITS = {"smoke": 1, "machine": 2, "paper": 5}
EXACT_LIKE = ("Auto", "SAP", "SDD")
"""This library's, which are compared with the paper's best row on the smaller sets, CG."""


def solvers(scale: str, dataset: str) -> list[dict[str, Any]]:
    """The paper's three, and this library's; limited in time but at the scale of the paper."""
    if scale == "smoke":
        return [{"name": "Auto"}, {"name": "SGD", "steps": 50}, {"name": "CG", "steps": 50}]
    if scale == "machine":
        limit = {"max_seconds": 100.0}
        return [
            {"name": "Auto", "max_seconds": 300.0},
            {"name": "SGD", "steps": 10_000, **limit},
            {"name": "CG", "steps": 1000, **limit},
            {"name": "SAP", "passes": 60, **limit},
            {"name": "SDD", "steps": 10_000, **limit},
            {"name": "SVGP", "points": 1024, "steps": 2000, "batch_size": 512},
        ]
    large = dataset in ("3droad", "song", "buzz", "houseelectric")
    rates = {"song": 1e-3, "houseelectric": 1e-3, "buzz": 1e-4}
    return [
        {"name": "Auto"},
        {"name": "SGD", "steps": 100_000, "sample_learning_rate": rates.get(dataset, 0.1)},
        {"name": "CG", "steps": 100 if large else 1000},
        {"name": "SAP"},
        {"name": "SDD", "steps": 100_000},
        {"name": "SVGP", "points": 4096, "steps": 20_000},
    ]


class Regression(Experiment):
    """Quality at the published hyperparameters, so that solvers alone are compared."""

    name = "regression"
    title = "Regression on the UCI data sets"
    reproduces = "Table 1"
    published = (
        "Nine data sets, hyperparameters shared by all methods, 64 samples for the variances. CG is best on the five "
        "smaller sets, where SGD comes close; SGD is best on the larger ones but for buzz. At a noise variance of 1e-6 "
        "SGD's RMSE stays as it is, CG's gets far worse, and SVGP fails."
    )

    def cells(self, scale: str) -> list[Cell]:
        """A cell for each data set, split, noise and solver; low noise for the mean alone."""
        samples = 4 if scale == "smoke" else 64
        rows = 300 if scale == "smoke" else None
        found = []
        for split in range(SPLITS[scale]):
            for dataset in SETS[scale]:
                for noise, num in ((None, samples), (LOW_NOISE, 0)):
                    for solver in solvers(scale, dataset):
                        if noise is not None and solver["name"] not in ("SGD", "CG", "Auto"):
                            continue
                        settings = {"dataset": dataset, "split": split, "rows": rows, "noise": noise, "samples": num}
                        name = f"{dataset}-{split}-{solver['name'].lower()}{'' if noise is None else '-low-noise'}"
                        found.append(Cell(name, {**settings, "solver": solver}))
        return found

    def compute(self, settings: Settings) -> Result:
        """Scores on all test rows. Compilation counts, so that a long solve is done once."""
        data, gp = problem(settings)
        start = time.perf_counter()
        solver = solver_of(settings["solver"], data, gp)
        try:
            posterior = conditioned(gp, data, solver, settings["samples"])
        except DivergenceError as error:
            return {"failed": str(error)}
        info = posterior.info
        found = {"solver": info.solver, "steps": info.steps, "passes": info.passes}
        found["residual"] = float(np.max(info.relative_residual))
        if settings["samples"]:
            mean, variance = posterior.predict(data.X_test)
            found |= scores(data, np.asarray(mean), np.asarray(variance) + float(gp.noise))
        else:
            found["low_noise_rmse"] = float(metrics.rmse(posterior.mean(data.X_test), jnp.asarray(data.y_test)))
        return {**found, "minutes": (time.perf_counter() - start) / 60}

    def figure(self, records: list[Record]) -> "Figure | None":
        """RMSE and NLL of each solver, with the paper's as lines."""
        names = [name for name in SETS["paper"] + SETS["smoke"] if find(records, dataset=name)]
        figure, axes = canvas(2, len(names), max(2.2 * len(names) + 0.6, 4.5), 5.2)
        for column, name in enumerate(names):
            for panel, score in zip(axes[:, column], ("rmse", "nll"), strict=True):
                found = {s: _mean(records, name, s, score) for s in _solver_names(records)}
                bars = [(solver, value) for solver, value in found.items() if value is not None]
                panel.bar([b[0] for b in bars], [b[1] for b in bars], color=[_colour(b[0]) for b in bars], width=0.7)
                for solver, style in (("SGD", ":"), ("CG", "--"), ("SVGP", "-.")):
                    entry = published.REGRESSION[score][solver].get(name)
                    if entry is not None:
                        panel.axhline(entry[0], color="black", ls=style, lw=1, label=f"paper, {solver}")
                panel.axhline(0, color="#999999", lw=0.5)
                panel.tick_params(axis="x", rotation=90)
            axes[0, column].set_title(name)
        axes[0, 0].set_ylabel("test RMSE")
        axes[1, 0].set_ylabel("test NLL")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """A table for each score: the paper's rows, then ours."""
        names = list(dict.fromkeys(record.settings["dataset"] for record in records))
        tables = []
        for score, title in SCORES.items():
            lines = [
                [f"paper: {solver}", *(published.text(row.get(name)) for name in names)]
                for solver, row in published.REGRESSION[score].items()
            ]
            for solver in _solver_names(records):
                lines.append([f"here: {solver}", *(_text(records, name, solver, score) for name in names)])
            tables.append(Table(f"{title}, mean over splits (their number in brackets)", ["", *names], lines))
        budget = [
            [f"here: {s}", *(_text(records, name, s, "passes") for name in names)] for s in _solver_names(records)
        ]
        tables.append(Table("Passes over the data, at the tuned noise", ["", *names], budget))
        return tables

    def claims(self, records: list[Record]) -> list[Claim]:
        """Every number beside its own row; this library's solvers beside CG; and what low noise does."""
        claims: list[Claim] = []
        for name in dict.fromkeys(record.settings["dataset"] for record in records):
            for score in ("rmse", "low_noise_rmse", "nll"):
                for solver in _solver_names(records):
                    row = "CG" if solver in EXACT_LIKE else solver
                    entry = published.REGRESSION[score].get(row, {}).get(name)
                    asked = [r for r in _of(records, name, solver) if (score == "low_noise_rmse") == _low(r)]
                    if entry is None or not asked or (score == "low_noise_rmse" and solver in EXACT_LIKE):
                        continue
                    why = next((_why(r) for r in asked if _why(r)), "")
                    done = [r for r in asked if r.result is not None and score in r.result]
                    beside = f" (beside the paper's {row})" if row != solver else ""
                    steps = mean_of(done, "steps")
                    after = f" after {steps:.0f} steps" if solver == "SGD" and steps is not None else ""
                    what = f"{name}, {solver}{beside}: {SCORES[score]}{after}"
                    claims.append(Number(what, *entry, mean_of(done, score), len(done), why))
            for solver, limit in (("SGD", 1.05), ("CG", None)):
                low, tuned = (_mean(records, name, solver, score) for score in ("low_noise_rmse", "rmse"))
                if limit is not None:
                    what = f"{name}: low noise leaves SGD's RMSE as it is"
                    claims.append(Behaviour(what, "low noise / tuned", ratio(low, tuned), limit, "not both were run"))
                else:
                    what = f"{name}: low noise makes CG's RMSE worse"
                    claims.append(Behaviour(what, "tuned / low noise", ratio(tuned, low), 0.95, "not both were run"))
        return claims


def _low(record: Record) -> bool:
    return record.settings["noise"] is not None


def _why(record: Record) -> str:
    return record.not_run or ("" if record.result is None else record.result.get("failed", ""))


def _solver_names(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(record.settings["solver"]["name"] for record in records))


def _of(records: list[Record], dataset: str, solver: str) -> list[Record]:
    return [r for r in records if r.settings["dataset"] == dataset and r.settings["solver"]["name"] == solver]


def _scored(records: list[Record], dataset: str, solver: str, score: str) -> list[Record]:
    """Those which have the score; the minutes are those of the solve at the tuned noise."""
    done = [r for r in _of(records, dataset, solver) if r.result is not None and score in r.result]
    return [r for r in done if (score == "low_noise_rmse") == _low(r)]


def _mean(records: list[Record], dataset: str, solver: str, score: str) -> float | None:
    return mean_of(_scored(records, dataset, solver, score), score)


def _text(records: list[Record], dataset: str, solver: str, score: str) -> str:
    done = _scored(records, dataset, solver, score)
    mean = mean_of(done, score)
    return "—" if mean is None else f"{mean:.3f} ({len(done)})"


def _colour(solver: str) -> str:
    colours = {"SGD": "#0072b2", "CG": "#d55e00", "SVGP": "#009e73", "Auto": "#222222"}
    return colours.get(solver, "#888888")


EXPERIMENT = Regression()
