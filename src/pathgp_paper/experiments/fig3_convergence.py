"""Figure 3 and its appendix figure: convergence of SGD and CG in four norms, at tuned and at low noise."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from pathgp.analysis import metrics
from pathgp.plots import BLUE, ORANGE
from pathgp.solvers import CG, SGD, Cholesky, Observer, Solver
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
from pathgp_paper.experiments.problems import LOW_NOISE, Watch, at_weights, conditioned, problem, rehearsed
from pathgp_paper.experiments.verdicts import Behaviour, Claim, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISES = {"tuned": None, "low": LOW_NOISE}
NORMS = {
    "rmse": "test RMSE",
    "to_exact": "RMSE to the exact mean",
    "weights": "error of the weights",
    "rkhs": "error in the RKHS",
}
BASE = {
    "smoke": {"rows": 300, "steps": 50, "max_seconds": 60.0, "test_rows": None},
    "machine": {"rows": None, "steps": 20_000, "max_seconds": 60.0, "test_rows": None},
    "paper": {"rows": None, "steps": 100_000, "max_seconds": float(10**9), "test_rows": None},
}
SETS = {
    "smoke": ("synthetic",),
    "machine": ("elevators", "pol", "bike"),
    "paper": ("elevators", "pol", "bike", "protein"),
}


class Convergence(Experiment):
    """Compare the convergence of predictions with that of weights."""

    name = "convergence"
    title = "Convergence of the mean at tuned and low noise"
    reproduces = "Figure 3 and its appendix figure"
    published = (
        "On elevators (in the appendix also pol, bike, protein), against time on an A100: SGD's test RMSE falls "
        "steadily and comes close to that of the exact process, while its weights make hardly any progress towards the "
        "exact ones; CG reaches them in the end, but its first steps increase the test error. With a noise scale of "
        "1e-3 CG takes far longer, and SGD's curves hardly change."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return one cell per data set and noise. It runs both solvers, because both need the exact solution."""
        return [
            Cell(f"{name}-{noise}-noise", {**BASE[scale], "dataset": name, "noise": value})
            for name in SETS[scale]
            for noise, value in NOISES.items()
        ]

    def compute(self, settings: Settings) -> Result:
        """Return the four norms along the iterations of both solvers."""
        data, gp = problem(settings)
        exact = conditioned(gp, data, Cholesky(), 0)
        v, target, y = exact.solution.weights, exact.mean(data.X_test), jnp.asarray(data.y_test)
        limit, steps = settings["max_seconds"], settings["steps"]
        every = {"SGD": max(1, steps // 500), "CG": 1}
        options: list[Solver] = [SGD(steps=steps, max_seconds=limit), CG(steps=min(steps, 1000), max_seconds=limit)]
        found: Result = {
            "exact_rmse": float(metrics.rmse(y, target)),
            "weights_norm": float(jnp.linalg.norm(v)),
        }
        found["rkhs_norm"] = float(metrics.rkhs_error(gp.kernel, exact.system.X, 0 * v, v)[0])
        for solver in options:
            watch, name = Watch(), type(solver).__name__
            posterior = rehearsed(gp, data, solver, 0, Observer(every[name], watch))
            watch.finish(posterior)
            means = [at_weights(posterior, w).mean(data.X_test) for w in watch.weights]
            W = jnp.concatenate(watch.weights, axis=1)
            V = jnp.repeat(v, W.shape[1], axis=1)
            found[name] = {
                "steps": watch.steps,
                "seconds": watch.seconds,
                "rmse": [float(metrics.rmse(y, mean)) for mean in means],
                "to_exact": [float(metrics.rmse(target, mean)) for mean in means],
                "weights": metrics.weight_error(W, V).tolist(),
                "rkhs": metrics.rkhs_error(gp.kernel, exact.system.X, W, V).tolist(),
            }
        return found

    def figure(self, records: list[Record]) -> "Figure":
        """Draw one row per data set and one column per norm."""
        names = list(dict.fromkeys(record.settings["dataset"] for record in find(records)))
        figure, axes = canvas(len(names), len(NORMS), 11.5, 2.9 * len(names) + 0.5)
        for line, name in zip(axes, names, strict=True):
            for noise, style in zip(NOISES.values(), ("-", "--"), strict=True):
                for record in find(records, dataset=name, noise=noise):
                    _draw(line, record, "" if noise is None else ", low noise", style)
            line[0].set_title(name, fontsize=10)
            for panel in line[:2]:  # the other norms span many decades
                plain_log_ticks(panel.yaxis)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return the final errors of each solver."""
        lines = []
        for record in find(records):
            result, low = record.result, record.settings["noise"] is not None
            assert result is not None
            for name in ("SGD", "CG"):
                run = result[name]
                relative = [f"{run[norm][-1] / result[f'{norm}_norm']:.2f}" for norm in ("weights", "rkhs")]
                errors = [f"{run['rmse'][-1]:.3f}", f"{result['exact_rmse']:.3f}", f"{run['to_exact'][-1]:.3f}"]
                took = [str(run["steps"][-1]), f"{run['seconds'][-1]:.0f}"]
                lines.append([record.settings["dataset"], "low" if low else "tuned", name, *took, *errors, *relative])
        head = ["data", "noise", "solver", "steps", "seconds", "RMSE", "exact RMSE", "to exact", "weights", "RKHS"]
        return [Table("Where the solvers end; the last two errors relative to the exact solution", head, lines)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims of section 3.4 and appendix B, for each data set."""
        claims: list[Claim] = []
        why = "not run here yet"
        for name in dict.fromkeys(record.settings["dataset"] for record in records):
            tuned, low = (
                next((r.result for r in find(records, dataset=name, noise=noise)), None) for noise in NOISES.values()
            )
            end = lambda result, solver, norm: None if result is None else result[solver][norm][-1]
            largest = lambda result, solver: None if result is None else max(result[solver]["rmse"])
            sgd = end(tuned, "SGD", "rmse")
            claims += [
                Behaviour(
                    f"{name}: SGD's test error falls steadily",
                    "last RMSE / least RMSE",
                    ratio(sgd, None if tuned is None else min(tuned["SGD"]["rmse"])),
                    1.05,
                    why,
                ),
                Behaviour(
                    f"{name}: CG's early steps predict worse than none",
                    "1 / largest RMSE of CG (targets have variance 1)",
                    ratio(1.0, largest(tuned, "CG")),
                    1.0,
                    why,
                ),
                Behaviour(
                    f"{name}: SGD's weights stay far from the exact ones",
                    "‖v*‖ / error of SGD's weights",
                    ratio(None if tuned is None else tuned["weights_norm"], end(tuned, "SGD", "weights")),
                    2.0,
                    why,
                ),
                Behaviour(
                    f"{name}: low noise leaves SGD's test error as it is",
                    "RMSE at low noise / at tuned noise",
                    ratio(end(low, "SGD", "rmse"), sgd),
                    1.05,
                    why,
                ),
                Behaviour(
                    f"{name}: low noise slows CG down",
                    "RMSE to exact of CG, tuned / low, same budget",
                    ratio(end(tuned, "CG", "to_exact"), end(low, "CG", "to_exact")),
                    0.5,
                    why,
                ),
            ]
        return claims


def _draw(line: np.ndarray, record: Record, suffix: str, style: str) -> None:
    result = record.result
    assert result is not None
    for panel, (norm, label) in zip(line, NORMS.items(), strict=True):
        for solver, colour in (("SGD", BLUE), ("CG", ORANGE)):
            seconds = np.maximum(result[solver]["seconds"], 1e-3)
            panel.plot(seconds, result[solver][norm], style, color=colour, lw=1.3, label=solver + suffix)
        panel.set(xscale="log", yscale="log", xlabel="seconds", ylabel=label)


EXPERIMENT = Convergence()
