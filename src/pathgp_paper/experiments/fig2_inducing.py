"""Figure 2 (right) and its table: SGD with decreasing numbers of inducing points, against time."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from pathgp.solvers import SGD, InducingSGD, Observer
from pathgp.solvers.inducing.points import eliminate
from pathgp_paper.bench.scores import scores
from pathgp_paper.experiments import published
from pathgp_paper.experiments.base import Cell, Experiment, Record, Result, Settings, Table, canvas, find
from pathgp_paper.experiments.problems import Watch, at_weights, problem, rehearsed
from pathgp_paper.experiments.verdicts import Behaviour, Claim, Number, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (1.0, 0.6, 0.23, 0.12)
"""Shares of the paper's 1.84 million rows: all, 1.10 million, 431 thousand and 219 thousand."""

BASE = {
    "smoke": {"dataset": "synthetic", "rows": 300, "steps": 50, "samples": 4, "test_rows": None},
    "machine": {"dataset": "houseelectric", "rows": 30_000, "steps": 500, "samples": 16, "test_rows": 2000},
    "paper": {"dataset": "houseelectric", "rows": None, "steps": 100_000, "samples": 64, "test_rows": None},
}


class InducingTime(Experiment):
    """Measure the accuracy lost and the time saved by fewer inducing points."""

    name = "inducing-time"
    title = "Inducing points against time"
    reproduces = "Figure 2 (right) and the table of inducing points"
    published = (
        "On houseelectric (2 million rows), test RMSE and NLL against time for SGD and its inducing-point variants: "
        "the time for 100k steps falls nearly linearly with the number of points, from 68 minutes for all rows to 17 "
        "for 219 thousand points, and RMSE and NLL get less than 10 % worse."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return one cell per share of the rows that become inducing points, the smallest first."""
        shares = (0.25, 1.0) if scale == "smoke" else sorted(SHARES)
        name = BASE[scale]["dataset"]
        return [Cell(f"{name}-{round(100 * share)}-percent", {**BASE[scale], "share": share}) for share in shares]

    def compute(self, settings: Settings) -> Result:
        """Return scores along the descent. Times exclude the choice of the points."""
        data, gp = problem(settings)
        N, steps = len(data.X), settings["steps"]
        descent = SGD(steps=steps, sample_learning_rate=published.SAMPLE_RATES["houseelectric"])
        solver, M = descent, N
        if settings["share"] < 1:
            points = eliminate(gp.kernel, data.X, key=jax.random.key(1), num=max(2, round(settings["share"] * N)))
            solver, M = InducingSGD(points=points, steps=steps, descent=descent), points.shape[0]
        watch = Watch()
        posterior = rehearsed(gp, data, solver, settings["samples"], Observer(max(1, steps // 50), watch))
        watch.finish(posterior)
        found = []
        for weights in watch.weights:
            mean, variance = at_weights(posterior, weights).predict(data.X_test)
            found.append(scores(data, np.asarray(mean), np.asarray(variance) + float(gp.noise)))
        curves = {name: [score[name] for score in found] for name in ("rmse", "nll")}
        return {"M": M, "N": N, "steps": watch.steps, "seconds": watch.seconds, **curves}

    def figure(self, records: list[Record]) -> "Figure":
        """Draw RMSE and NLL against time, and time against the number of points."""
        figure, axes = canvas(1, 3, 10.5, 3.6)
        done = sorted(find(records), key=_points)
        for i, record in enumerate(done):
            result = record.result
            assert result is not None
            label = f"M = {result['M']:,}" + (" (all rows)" if result["M"] == result["N"] else "")
            for panel, name in zip(axes[0], ("rmse", "nll"), strict=False):
                panel.plot(result["seconds"], result[name], "o-", ms=3, color=f"C{i}", label=label)
            axes[0, 2].plot(result["M"], result["seconds"][-1], "o", color=f"C{i}")
        for panel, name in zip(axes[0], ("test RMSE", "test NLL"), strict=False):
            panel.set(xscale="log", xlabel="seconds", ylabel=name)
        axes[0, 2].set(xlabel="number of points", ylabel=f"seconds for {records[0].settings['steps']} steps")
        axes[0, 2].set_xlim(left=0)
        axes[0, 2].set_ylim(bottom=0)
        axes[0, 0].legend(fontsize=8)
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return our table and the paper's."""
        ours = [
            [f"{r['M']:,}", f"{r['M'] / r['N']:.2f}", f"{r['rmse'][-1]:.3f}", f"{r['nll'][-1]:.3f}", _minutes(r)]
            for r in (record.result for record in find(records))
            if r is not None
        ]
        theirs = [
            [f"{M:,}", f"{M / 1_844_352:.2f}", *(published.text(row[name]) for name in ("rmse", "nll", "minutes"))]
            for M, row in published.INDUCING.items()
        ]
        head, base = ["M", "of N", "RMSE", "NLL", "minutes"], records[0].settings
        rows = "all" if base["rows"] is None else f"{base['rows']:,}"
        return [
            Table(f"Here: {base['dataset']}, {rows} training rows, {base['steps']:,} steps", head, ours),
            Table("The paper: houseelectric, 100,000 steps", head, theirs),
        ]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims: time falls with the number of points, while the scores hardly change."""
        done = sorted(find(records), key=_points)
        all_rows = next((r.result for r in done if r.settings["share"] == 1), None)
        few = next((r.result for r in done if r.settings["share"] < 1), None)
        end = lambda result, name: None if result is None else result[name][-1]
        saved = ratio(end(few, "seconds"), end(all_rows, "seconds"))
        shares = ratio(None if few is None else few["M"], None if all_rows is None else all_rows["M"])
        worse = None if few is None or all_rows is None else few["nll"][-1] - all_rows["nll"][-1]
        why = "not both all rows and fewer points were run"
        claims: list[Claim] = [
            Behaviour(
                "Time falls roughly linearly with the points",
                "share of time / share of points, fewest to all",
                ratio(saved, shares),
                2.0,
                why,
            ),
            Behaviour(
                "RMSE gets less than 10 % worse",
                "RMSE with the fewest points / with all rows",
                ratio(end(few, "rmse"), end(all_rows, "rmse")),
                1.1,
                why,
            ),
            Behaviour("NLL hardly changes", "NLL with the fewest less that with all rows", worse, 0.1, why),
        ]
        whole = [r for r in done if r.settings["dataset"] == "houseelectric" and r.settings["rows"] is None]
        for M, row in published.INDUCING.items():
            near = [r.result for r in whole if r.result is not None and abs(r.result["M"] / M - 1) < 0.1]
            why = "all 2 million rows for 100,000 steps are for the scale `paper`"
            for name in ("rmse", "nll"):
                value = near[0][name][-1] if near else None
                claims.append(Number(f"{name.upper()}, M = {M:,}", *row[name], value, why=why))
        return claims


def _minutes(result: Result) -> str:
    return f"{result['seconds'][-1] / 60:.2f}"


def _points(record: Record) -> int:
    assert record.result is not None
    return record.result["M"]


EXPERIMENT = InducingTime()
