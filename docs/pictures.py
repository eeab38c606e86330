"""The pictures of the tutorials: `python docs/pictures.py [tabular samples optimisation million]`, some minutes."""

import pathlib
import re
import sys

import numpy as np
from PIL import Image

from pathgp.plots import calibration_panel, new_figure, predicted_panel, save_figure
from pathgp.solvers import Auto
from pathgp.thompson import Search, ThompsonSampler

FOLDER = pathlib.Path(__file__).parent
BLUE, ORANGE, GREY, SKY = "#0072B2", "#D55E00", "#777777", "#56B4E9"


def page(name, stop):
    """The names that the blocks of a tutorial define, up to the heading where it stops."""
    text = (FOLDER / "tutorials" / f"{name}.md").read_text().split(f"## {stop}")[0]
    names = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)), names)
    return names


def draw_tabular(figure):
    """Calibration, and predictions against true values."""
    names = page("tabular", "In a pipeline")
    y, mean, std = names["test"].rides.to_numpy(), names["mean"], names["std"]
    left, right = figure.subplots(1, 2)
    calibration_panel(left, y, mean, std)
    predicted_panel(right, y, mean, std, "rides")


def draw_samples(figure):
    """Some samples with their maxima, where the maxima of all are, and the averages."""
    names = page("samples", "Derivatives")
    x, f, places, heights = names["fine"][:, 0], names["f"], names["places"], names["heights"]
    left, middle, right = figure.subplots(1, 3, width_ratios=[2.2, 1, 1])
    left.plot(x, f[:, :25], color=SKY, linewidth=0.6, alpha=0.8)
    left.plot(places[:25, 0], heights[:25], "o", color=ORANGE, markersize=3, label="their maxima", zorder=4)
    left.plot(x, names["posterior"].mean(names["fine"]), color=BLUE, linewidth=1.8, label="mean")
    left.plot(names["X"][:, 0], names["y"], "k.", markersize=3, label="measurements")
    left.axhline(names["limit"], color=GREY, linestyle="--", linewidth=1, label="limit")
    left.set(xlabel="kilometre", ylabel="concentration", title="25 of 512 samples", xlim=(0, 10))
    left.legend(fontsize=8, loc="lower left")
    middle.hist(np.asarray(places[:, 0]), bins=40, range=(0, 10), color=ORANGE)
    middle.set(xlabel="kilometre", title="where the maximum is", xlim=(0, 10))
    right.hist(np.asarray(names["average"]), bins=30, color=BLUE)
    right.set(xlabel="concentration", title="average of 10 km")
    for axes in (middle, right):
        axes.set_ylabel("samples")


def draw_optimisation(figure):
    """The batches of an optimisation over the objective, and the best value after each."""
    objective = _objective()
    sampler = ThompsonSampler([(0.0, 1.0), (0.0, 1.0)], batch_size=40, search=Search(rounds=1), random_state=0)
    panels = figure.subplots(1, 5, width_ratios=[1, 1, 1, 1, 1.3])
    grid = np.linspace(0, 1, 100)
    height = objective(np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)).reshape(100, 100)
    best = []
    for i, axes in enumerate(panels[:4]):
        batch = sampler.ask()
        sampler.tell(batch, objective(batch))
        best.append(sampler.best().y)
        axes.contourf(grid, grid, -np.log(1 - height), levels=12, cmap="Blues")
        axes.plot(*batch.T, "o", color=ORANGE, markersize=3)
        axes.set(title=f"batch {i + 1}", aspect="equal", xticks=[0, 1], yticks=[0, 1])
    panels[4].plot(range(1, 5), -0.397887 - np.array(best), "o-", color=BLUE)
    panels[4].set(yscale="log", xlabel="batch", ylabel="below the maximum by", title="best so far", xticks=range(1, 5))


def _objective():
    """That of the tutorial."""
    text = (FOLDER / "tutorials" / "optimisation.md").read_text()
    names = {"np": np}
    exec(re.search(r"def objective.*?\n\n\n", text, flags=re.DOTALL)[0], names)
    return names["objective"]


def draw_million(figure):
    """Rows near a point: all, those of the subset, and the neighbours; and memory against rows, as measured."""
    rng = np.random.default_rng(0)
    left, right = figure.subplots(1, 2)
    rows = rng.uniform(-1, 1, size=(2400, 2))
    near = np.argsort(np.sum(rows**2, axis=1))[:128]
    subset = rng.choice(len(rows), int(len(rows) * Auto().subset_rows / 1_000_000), replace=False)
    left.plot(*rows.T, ".", color="#cccccc", markersize=1.5, label="rows")
    left.plot(*rows[subset].T, "o", color=BLUE, markersize=3, label="1 in 40: the subset, long-range")
    left.plot(*rows[near].T, ".", color=ORANGE, markersize=4, label="128 neighbours, short-range")
    left.plot(0, 0, "kx", markersize=8, label="the point that is asked about")
    left.set(aspect="equal", xticks=[], yticks=[], title="what a prediction uses")
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2)
    measured = re.findall(
        r"^\| (\w+), ([\d,]+) rows .*?\n.*?\n\| \*\*`condition\(gp, X, y\)`\*\* \| [\d.]+ \| [\d.]+ \| ([\d.]+)",
        (FOLDER / "benchmarks.md").read_text(),
        flags=re.MULTILINE,
    )
    N = np.array([int(rows.replace(",", "")) for _, rows, _ in measured])
    line = np.geomspace(8e3, 3e6)
    right.loglog(line, 4 * line**2 / 1e9, "--", color=GREY, label="the kernel matrix, 4N² bytes")
    right.loglog(N, [float(gb) for *_, gb in measured], "o", color=BLUE, label="measured, 64 samples (benchmarks)")
    right.set(xlabel="rows", ylabel="GB", title="memory")
    right.legend(fontsize=8)


SIZES = {"tabular": (9, 4.4), "samples": (10, 3.4), "optimisation": (11, 2.6), "million": (9, 4.4)}

if __name__ == "__main__":
    for name in sys.argv[1:] or SIZES:
        figure = new_figure(*SIZES[name])
        globals()[f"draw_{name}"](figure)
        path = FOLDER / "tutorials" / f"{name}.png"
        save_figure(figure, path)
        Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # a third of the size
