"""Figure 5: test RMSE and NLL against time, for SGD and CG."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pathgp.plots import BLUE, ORANGE
from pathgp.solvers import Observer
from pathgp_paper.bench.scores import scores
from pathgp_paper.experiments import published
from pathgp_paper.experiments.base import (
    Cell,
    Experiment,
    Record,
    Result,
    Settings,
    Table,
    canvas,
    find,
    plain_log_ticks,
)
from pathgp_paper.experiments.problems import Watch, at_weights, problem, rehearsed, root_mean_square, solver_of
from pathgp_paper.experiments.verdicts import Behaviour, Claim, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = {
    "smoke": {"rows": 300, "samples": 4, "test_rows": None},
    "machine": {"rows": None, "samples": 16, "test_rows": 1500},
    "paper": {"rows": None, "samples": 64, "test_rows": None},
}
SETS = {
    "smoke": ("synthetic",),
    "machine": ("elevators", "pol", "bike", "protein"),
    "paper": ("pol", "elevators", "bike"),
}
SETS["paper"] += ("protein", "keggdirected", "3droad", "song", "buzz", "houseelectric")
LIMITS = {"smoke": (50, 60.0), "machine": (10_000, 60.0), "paper": (100_000, float(10**9))}
"""Number of steps of SGD, and seconds per solver."""


class Traces(Experiment):
    """Compare the progress of SGD and CG over time."""

    name = "traces"
    title = "Test error and likelihood against time"
    reproduces = "Figure 5"
    published = (
        "Test RMSE and NLL against time on a TPUv2 core: SGD makes nearly all of its progress in its first few "
        "iterations and improves almost monotonically; the first steps of CG increase the test error, so that it is "
        "poor when it is stopped early."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return one cell per data set and solver."""
        steps, seconds = LIMITS[scale]
        found = []
        for name in SETS[scale]:
            rate = published.SAMPLE_RATES.get(name, 0.1)
            sgd = {"name": "SGD", "steps": steps, "sample_learning_rate": rate, "max_seconds": seconds}
            for solver in (sgd, {"name": "CG", "steps": min(steps, 1000), "max_seconds": seconds}):
                settings = {**BASE[scale], "dataset": name, "solver": solver}
                found.append(Cell(f"{name}-{solver['name'].lower()}", settings))
        return found

    def compute(self, settings: Settings) -> Result:
        """Return scores on test rows at steps about 30 % apart."""
        data, gp = problem(settings)
        solver, watch = solver_of(settings["solver"], data, gp), Watch()
        every = 1 if settings["solver"]["name"] == "CG" else max(1, settings["solver"]["steps"] // 500)
        posterior = rehearsed(gp, data, solver, settings["samples"], Observer(every, watch))
        watch.finish(posterior)
        found = []
        for weights in watch.weights:
            mean, variance = at_weights(posterior, weights).predict(data.X_test)
            found.append(scores(data, np.asarray(mean), np.asarray(variance) + float(gp.noise)))
        zero = root_mean_square(data.y_test)
        curves: dict[str, Any] = {name: [score[name] for score in found] for name in ("rmse", "nll")}
        return {"steps": watch.steps, "seconds": watch.seconds, "rmse_of_zero": zero, **curves}

    def figure(self, records: list[Record]) -> "Figure":
        """Draw one column per data set, with RMSE above NLL."""
        names = list(dict.fromkeys(record.settings["dataset"] for record in find(records)))
        figure, axes = canvas(2, len(names), max(3.1 * len(names), 5.0), 5.4)
        for column, name in enumerate(names):
            for record in find(records, dataset=name):
                result, solver = record.result, record.settings["solver"]["name"]
                assert result is not None
                for panel, score in zip(axes[:, column], ("rmse", "nll"), strict=True):
                    colour = BLUE if solver == "SGD" else ORANGE
                    panel.plot(
                        np.maximum(result["seconds"], 1e-3), result[score], "o-", ms=3, color=colour, label=solver
                    )
            axes[0, column].set(title=name, xscale="log", yscale="log")
            plain_log_ticks(axes[0, column].yaxis)
            axes[1, column].set(xscale="log", xlabel="seconds")
            if axes[1, column].get_ylim()[1] > 10:
                axes[1, column].set_yscale("symlog", linthresh=1.0)
                axes[1, column].yaxis.set_major_formatter("{x:g}")
        axes[0, 0].set_ylabel("test RMSE")
        axes[1, 0].set_ylabel("test NLL")
        axes[0, 0].legend()
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return the scores after a tenth of the time and at the end."""
        lines = []
        for record in find(records):
            result = record.result
            assert result is not None
            early = _early(result)
            numbers = [max(result["rmse"]), *(result[score][i] for score in ("rmse", "nll") for i in (early, -1))]
            solver, took = record.settings["solver"]["name"], f"{result['seconds'][-1]:.0f}"
            lines.append([record.settings["dataset"], solver, took, *(f"{number:.3f}" for number in numbers)])
        head = ["data", "solver", "seconds", "largest RMSE", "RMSE early", "RMSE", "NLL early", "NLL"]
        return [Table("Early is after a tenth of the time", head, lines)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims: early progress of SGD, and iterates of CG that are worse than predicting zero."""
        claims: list[Claim] = []
        for name in dict.fromkeys(record.settings["dataset"] for record in records):
            done = {r.settings["solver"]["name"]: r for r in find(records, dataset=name)}
            why = next((r.not_run for r in records if r.settings["dataset"] == name and r.not_run), "")
            sgd, cg = (None if solver not in done else done[solver].result for solver in ("SGD", "CG"))
            left = None
            if sgd is not None:
                end = sgd["rmse"][-1]
                left = ratio(sgd["rmse"][_early(sgd)] - end, sgd["rmse_of_zero"] - end)
            claims += [
                Behaviour(
                    f"{name}: SGD makes most of its progress early",
                    "share of the fall in RMSE left after a tenth of the time",
                    left,
                    0.25,
                    why,
                ),
                Behaviour(
                    f"{name}: early iterates of CG are worse than none",
                    "RMSE of predicting zero / largest RMSE of CG",
                    None if cg is None else ratio(cg["rmse_of_zero"], max(cg["rmse"])),
                    1.0,
                    why,
                ),
            ]
        return claims


def _early(result: Result) -> int:
    """Return the index of the first snapshot after a tenth of the time."""
    return int(np.searchsorted(result["seconds"], 0.1 * result["seconds"][-1]))


EXPERIMENT = Traces()
