"""Figure 6: parallel Thompson sampling with a small and a large budget per solve."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pathgp.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY
from pathgp_paper.experiments.base import Cell, Experiment, Record, Result, Settings, Table, canvas, find
from pathgp_paper.experiments.thompson import RANDOM, illustrate, optimise
from pathgp_paper.experiments.verdicts import Behaviour, Claim, ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL, LARGE = "small", "large"
GAINS = {"random": (0.04, 0.04), "CG": (1.00, 1.68), "SVGP": (0.93, 1.67), "SGD": (1.65, 1.77), "SDD": (1.74, 1.80)}
"""Mean gain over the best initial row in the authors' runs, with the small and the large budget."""

COLOURS = {"SAP": BLUE, "SDD": SKY, "SGD": GREEN, "CG": ORANGE, "SVGP": PURPLE, RANDOM: GREY}

PROBLEM = {"inputs": 8, "noise": 1e-6}
SIZES: dict[str, Settings] = {
    "smoke": {"initial": 60, "batch": 4, "steps": 2, "features": 100, "seeds": 1, "lengthscales": [0.5]},
    "machine": {
        **{"initial": 2000, "batch": 100, "steps": 10, "features": 1000, "seeds": 5},
        **{"lengthscales": [0.1, 0.2, 0.3, 0.4, 0.5]},
    },
    "paper": {
        **{"initial": 50_000, "batch": 1000, "steps": 30, "features": 2000, "seeds": 10},
        **{"lengthscales": [0.1, 0.2, 0.3, 0.4, 0.5]},
    },
}
PASSES = {"smoke": (3.0, 6.0), "machine": (3.0, 15.0)}
"""Small and large budget of a solve, in passes over the data, the same for all methods. The scale `paper` uses the
paper's numbers of steps instead."""

TOLERANCE = 1e-4
SOLVERS: dict[str, dict[str, Any]] = {
    "SAP": {"block_size": 512, "tolerance": TOLERANCE},
    "CG": {"tolerance": TOLERANCE},
    "SDD": {"batch_size": 64, "tolerance": TOLERANCE},
    "SVGP": {"points": 128, "batch_size": 64, "learning_rate": 0.05},
    "SGD": {"batch_size": 64, "num_features": 32, "tolerance": TOLERANCE},
}
"""Fields of the solvers. Batches, points and features are small: on data of this size, a budget of passes would
otherwise allow only a few steps."""

PAPER_SOLVERS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "SAP": ("passes", 10, {"tolerance": TOLERANCE}),
    "CG": ("steps", 10, {"tolerance": TOLERANCE}),
    "SDD": ("steps", 15_000, {"batch_size": 500, "tolerance": TOLERANCE}),
    "SVGP": ("steps", 20_000, {"points": 1024}),
    "SGD": (
        "steps",
        15_000,
        {"batch_size": 500, "learning_rate": 0.3, "sample_learning_rate": 3e-4, "tolerance": TOLERANCE},
    ),
}
"""Name and value of the field that the small budget limits, and the other fields. The large budget is five times it."""

ILLUSTRATION = {"method": "illustration", "initial": 8, "samples": 3, "lengthscale": 0.15, "seed": 3}


class Thompson(Experiment):
    """Compare methods by the largest value that their samples find."""

    name = "thompson"
    title = "Parallel Thompson sampling"
    reproduces = "Figure 6 and its appendix figures"
    published = (
        "Draws from a Matérn-3/2 process on [0, 1]^8 with length scales from 0.1 to 0.5, 50k observations to start, 30 "
        "steps of 1000 points each. With a small budget SGD gains about twice as much over the best of the first rows "
        "as CG and SVGP, and all gain more than random search; with a large budget all end alike, SGD soonest."
    )

    def cells(self, scale: str) -> list[Cell]:
        """Return the illustration, then a run per seed, length scale, budget and method: comparisons complete early."""
        size = SIZES[scale]
        shared = PROBLEM | {name: size[name] for name in ("initial", "batch", "steps", "features")}
        found = [Cell("illustration", ILLUSTRATION)]
        for seed in range(size["seeds"]):
            for ell in size["lengthscales"]:
                own = shared | {"seed": seed, "lengthscale": ell, "search": search(scale, ell)}
                for budget in (SMALL, LARGE):
                    found += [
                        Cell(f"{name.lower()}-{budget}-{ell}-{seed}", own | of_method(scale, name, budget))
                        for name in SOLVERS
                    ]
                found.append(Cell(f"{RANDOM}-{ell}-{seed}", own | {"method": RANDOM, "budget": None}))
        return found

    def compute(self, settings: Settings) -> Result:
        """Return the best value by step, or the data of the illustration."""
        return illustrate(settings) if settings["method"] == "illustration" else optimise(settings)

    def figure(self, records: list[Record]) -> "Figure":
        """Draw gains by step and by time per budget; below, gains by length scale and one step in one dimension."""
        figure, axes = canvas(2, 4, 15.0, 7.2)
        for i, budget in enumerate((SMALL, LARGE)):
            by_step, by_time, by_lengthscale = axes[0, 2 * i], axes[0, 2 * i + 1], axes[1, i]
            for method in COLOURS:
                runs = runs_of(records, method, budget)
                if not runs:
                    continue
                gains = np.array([gain_curve(run) for run in runs])
                mean, error = gains.mean(axis=0), standard_error(gains)
                style = {"color": COLOURS[method], "lw": 1.5}
                time = seconds(runs)
                for panel, x in ((by_step, np.arange(len(mean))), (by_time, time)):
                    if method == RANDOM and panel is by_time:  # random search has no solve to time
                        continue
                    panel.plot(x, mean, label=method, **style)
                    panel.fill_between(x, mean - error, mean + error, color=COLOURS[method], alpha=0.2, lw=0)
                points = by_scale(runs)
                by_lengthscale.plot(list(points), list(points.values()), "o-", ms=4, label=method, **style)
            by_step.set(xlabel="step", ylabel="gain over the first best", title=f"{budget} budget")
            by_time.set(xlabel="seconds", title=f"{budget} budget, by time")
            by_lengthscale.set(xlabel="length scale", ylabel="gain at the end", title=f"{budget} budget, at the end")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS), frameon=False)
        for record in find(records, method="illustration"):
            _draw_illustration(axes[1, 2], axes[1, 3], record)
        return figure

    def tables(self, records: list[Record]) -> list[Table]:
        """Return our gains with the authors', and the cost of the solves."""
        lines = []
        for method in COLOURS:
            found = [runs_of(records, method, budget) for budget in (SMALL, LARGE)]
            paper = GAINS.get(method)
            lines.append(
                [method, *map(_gain_text, found), *(["", ""] if paper is None else [f"{gain:.2f}" for gain in paper])]
            )
        caption = "Gain over the best of the first rows: mean ± standard error (runs); the authors' runs beside"
        head = ["method", "small", "large", "authors: small", "authors: large"]
        return [Table(caption, head, lines), _cost_table(records)]

    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the claims of the paper's section 4.2, on the length scales where both methods were run.

        A length scale counts only if both methods were run with all seeds of the scale.
        """
        seeds = len({record.settings["seed"] for record in records if record.settings["method"] in COLOURS})
        why = f"not all {seeds} seeds were run"
        pair = lambda a, b, budget: ratio(*paired_gains(records, a, b, budget, seeds))
        claims: list[Claim] = []
        for ours in ("SGD", "SDD", "SAP"):
            for other in ("CG", "SVGP"):
                what = f"With the small budget {ours} gains at least 1.3 times as much as {other}"
                claims.append(Behaviour(what, f"gain of {other} / {ours}", pair(other, ours, SMALL), 1 / 1.3, why))
        for ours in ("SGD", "SDD", "SAP"):
            for other in ("CG", "SVGP"):
                what = f"With the large budget {ours} gains at least as much as {other}"
                claims.append(Behaviour(what, f"gain of {other} / {ours}", pair(other, ours, LARGE), 1.0, why))
        for budget in (SMALL, LARGE):
            for ours in ("SAP", "SDD", "SGD", "CG", "SVGP"):
                what = f"With the {budget} budget random search gains less than half of {ours}"
                claims.append(Behaviour(what, f"gain of random / {ours}", pair(RANDOM, ours, budget), 0.5, why))
        return claims


def search(scale: str, lengthscale: float) -> Settings:
    """Return the fields of `Search`, those of the paper at the scale `paper`."""
    if scale == "smoke":
        return {"rounds": 1, "candidates": 64, "steps": 3}
    if scale == "machine":
        return {"rounds": 2, "candidates": 4096, "steps": 30}
    paper = {"rounds": 30, "candidates": 50_000, "steps": 100, "final_rate": 1.0, "patience": 100, "tolerance": 0.0}
    return paper | {"learning_rate": 0.001 / (lengthscale / 2)}


def of_method(scale: str, name: str, budget: str) -> Settings:
    """Return the fields of the solver, and the number of passes it may use."""
    which = (SMALL, LARGE).index(budget)
    if scale == "paper":
        limit, count, fields = PAPER_SOLVERS[name]
        passes, fields = None, fields | {limit: count * (5 if which else 1)}
    else:
        passes, fields = PASSES[scale][which], SOLVERS[name]
        if scale == "smoke" and "points" in fields:
            fields = fields | {"points": 16}
    return {"method": name, "budget": budget, "passes": passes, "solver": {"name": name, **fields}}


def runs_of(records: list[Record], method: str, budget: str) -> list[Record]:
    """Return the runs of a method with this budget. Random search has no budget."""
    return find(records, method=method, budget=None if method == RANDOM else budget)


def gain_curve(record: Record) -> np.ndarray:
    """Return the best value so far minus the best of the initial rows, by step."""
    assert record.result is not None
    best = np.asarray(record.result["best"])
    return best - best[0]


def standard_error(values: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean over the first axis; zero for one run."""
    return np.asarray(values.std(axis=0, ddof=min(1, len(values) - 1)) / np.sqrt(len(values)))


def seconds(runs: list[Record]) -> np.ndarray:
    """Return the cumulative time by step. Medians over runs exclude compilation and other load on the machine."""
    steps = len(gain_curve(runs[0])) - 1
    taken = [run.result["seconds"] for run in runs if run.result is not None]
    filled = [[*times, *[0.0] * (steps - len(times))] for times in taken]  # a run that diverged takes no further steps
    return np.concatenate([[0.0], np.cumsum(np.median(filled, axis=0))])


def by_scale(runs: list[Record]) -> dict[float, float]:
    """Return the mean final gain for each length scale."""
    scales = sorted({run.settings["lengthscale"] for run in runs})
    return {ell: float(np.mean([gain_curve(run)[-1] for run in find(runs, lengthscale=ell)])) for ell in scales}


def paired_gains(
    records: list[Record], one: str, other: str, budget: str, seeds: int
) -> tuple[float | None, float | None]:
    """Return the mean gains of two methods over the length scales that both ran with at least `seeds` seeds."""
    problem = lambda run: (run.settings["lengthscale"], run.settings["seed"])
    first, second = (
        {problem(run): float(gain_curve(run)[-1]) for run in runs_of(records, method, budget)}
        for method in (one, other)
    )
    both = sorted(set(first) & set(second))
    counts = Counter(lengthscale for lengthscale, _ in both)
    both = [pair for pair in both if counts[pair[0]] >= seeds]
    if not both:
        return None, None
    return float(np.mean([first[key] for key in both])), float(np.mean([second[key] for key in both]))


def _gain_text(runs: list[Record]) -> str:
    if not runs:
        return "not run"
    gains = np.array([gain_curve(run)[-1] for run in runs])
    return f"{gains.mean():.2f} ± {float(standard_error(gains)):.2f} ({len(gains)})"


MEASURED = ("solve_seconds", "seconds", "residual")


def _cost_table(records: list[Record]) -> Table:
    """Return the cost of the solves, which shows how equal the budgets are."""
    lines = []
    for budget in (SMALL, LARGE):
        for method in SOLVERS:
            runs = [run.result for run in runs_of(records, method, budget) if run.result is not None]
            if runs:
                medians = (np.median(np.concatenate([run[n] for run in runs])) for n in MEASURED)
                solve, step, residual = medians
                lines.append([method, budget, f"{solve:.2f}", f"{step:.2f}", f"{residual:.1e}"])
    caption = (
        "Medians over all steps: seconds of a solve and of a step with its maximisation, and the residual of samples "
        "(of SVGP, how far it is from its own optimum)"
    )
    return Table(caption, ["method", "budget", "solve", "step", "residual"], lines)


def _draw_illustration(looks: Any, climbs: Any, record: Record) -> None:
    """Draw the candidates and the best of each round (left), and the ends of the ascents (right)."""
    assert record.result is not None
    r = {name: np.asarray(values) for name, values in record.result.items()}
    for i, colour in enumerate((BLUE, ORANGE, GREEN)[: r["samples"].shape[1]]):
        for panel in (looks, climbs):
            panel.plot(r["x"], r["samples"][:, i], color=colour, lw=1)
        looks.plot(r["looked"], r["looked_values"][:, i], ".", ms=4, color=colour)
        looks.plot(r["starts"][:, i], r["start_values"][:, i], "o", ms=7, mfc="none", color=colour)
        climbs.plot(r["ends"][:, i], r["end_values"][:, i], "^", ms=6, mfc="none", color=colour)
        best = np.argmax(r["end_values"][:, i])
        climbs.plot(r["ends"][best, i], r["end_values"][best, i], "*", ms=12, color=colour)
    for panel in (looks, climbs):
        panel.plot(r["X"], r["y"], "x", color="black", ms=5)
        panel.set_xlabel("x")
    looks.set_title("nearby locations, the best of each round", fontsize=10)
    climbs.set_title("where gradient ascent ends, the best a star", fontsize=10)


EXPERIMENT = Thompson()
