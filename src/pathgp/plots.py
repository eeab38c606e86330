"""Plots with Matplotlib (the extra `plots`)."""

import io
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float, Int

from pathgp.analysis.metrics import rmse
from pathgp.analysis.spectral import Basis, regions
from pathgp.posterior.posterior import Posterior
from pathgp.runs.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["convergence_panels", "new_figure", "posterior_panel", "predicted_panel", "save_figure"]

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#777777"  # Okabe and Ito's colours for colour-blind readers
SKY, GREEN, PURPLE = "#56b4e9", "#009e73", "#cc79a7"


def posterior_panel(axes: "Axes", posterior: Posterior, x: Float[Array, "n 1"], exact: Posterior | None = None) -> None:
    """Plot a posterior of one input: data, mean, two standard deviations and five samples.

    Parameters
    ----------
    axes
        Axes to draw on.
    posterior
        The posterior.
    x
        Points in increasing order, (n, 1).
    exact
        A posterior to compare with, drawn as its mean and two standard deviations.
    """
    posterior = posterior.gathered()  # on one device, without padding rows
    data, line = posterior.system.X[:, 0], x[:, 0]
    visible = (data >= line[0]) & (data <= line[-1])
    y = posterior.targets.signal[:, 0] + posterior.gp.mean
    axes.plot(data[visible][::5], y[visible][::5], ".", color=GREY, markersize=1, alpha=0.3, rasterized=True)
    mean, deviation = np.asarray(posterior.mean(x)), np.sqrt(posterior.variance(x))
    axes.fill_between(line, mean - 2 * deviation, mean + 2 * deviation, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(line, posterior.samples(x)[:, :5], color=BLUE, linewidth=0.5, alpha=0.6)
    axes.plot(line, mean, color=BLUE, linewidth=1.5, label="mean ± 2 sd, samples")
    if exact is not None:
        mean, deviation = np.asarray(exact.mean(x)), np.sqrt(exact.variance(x))
        axes.plot(line, mean, "--", color=ORANGE, linewidth=1, label="exact")
        for side in (-2, 2):
            axes.plot(line, mean + side * deviation, ":", color=ORANGE, linewidth=1)
    axes.set_xlim(float(line[0]), float(line[-1]))


def regions_panel(axes: "Axes", posterior: Posterior, x: Float[Array, "n 1"], basis: Basis | None = None) -> None:
    """Plot the shares of the three regions of `regions` along one input, stacked, with the data as ticks below.

    Parameters
    ----------
    axes
        Axes to draw on.
    posterior
        The posterior.
    x
        Points in increasing order, (n, 1).
    basis
        Basis from `basis_of`. None computes it.
    """
    scores, line = regions(posterior, x, basis=basis), np.asarray(x)[:, 0]
    data = np.asarray(posterior.system.gathered().X)[:, 0]
    axes.stackplot(
        line,
        *scores,
        labels=["interpolation", "extrapolation", "prior"],
        colors=[BLUE, ORANGE, "#dddddd"],
        alpha=0.75,
        linewidth=0,
    )
    visible = data[(data >= line[0]) & (data <= line[-1])]
    ticks = visible[:: max(1, len(visible) // 1000)]
    axes.plot(ticks, np.full(len(ticks), -0.03), "|", color=GREY, markersize=4, alpha=0.3, clip_on=False)
    axes.set(xlim=(line[0], line[-1]), ylim=(-0.06, 1), ylabel="share of k(x, x)")


def spectral_panel(
    axes: "Axes",
    basis: Basis,
    x: Float[Array, "n 1"],
    index: Sequence[int] = (0, 1, 4, 9, 14),
    error: Float[Array, "n"] | None = None,
) -> None:
    """Plot spectral basis functions of one input, dark for large eigenvalues, and optionally an error behind them.

    Parameters
    ----------
    axes
        Axes to draw on.
    basis
        The basis.
    x
        Points in increasing order, (n, 1).
    index
        Indices of the functions, from zero. Those beyond the basis are left out.
    error
        An error at the points, such as W2, filled in the background with its own axis on the right.
    """
    from matplotlib import colormaps

    line, values = np.asarray(x)[:, 0], basis.values(x)
    drawn = [i for i in index if i < len(basis.eigenvalues)]
    for place, i in enumerate(drawn):
        colour = colormaps["viridis"](place / max(1, len(drawn)))
        label = f"$u^{{({i + 1})}}$, λ = {basis.eigenvalues[i]:.3g}"
        axes.plot(line, values[:, i], color=colour, linewidth=1.2, label=label)
    axes.set(xlim=(line[0], line[-1]), ylabel="spectral basis functions")
    if error is not None:
        behind = axes.twinx()
        behind.fill_between(line, 0, np.asarray(error), color=ORANGE, alpha=0.25, linewidth=0)
        behind.set_ylim(0, 1.05 * max(float(np.max(error)), 1e-12))
        behind.set_ylabel("error", color=ORANGE)
        behind.tick_params(axis="y", colors=ORANGE)


def error_against_time(results: list[dict[str, Any]], title: str, path: pathlib.Path) -> None:
    """Plot test RMSE against seconds and save the figure.

    A solver that was observed has a curve. Each result has a marker where it ended. Failed results are left out.

    Parameters
    ----------
    results
        Results of `pathgp bench solve`, with the keys name, seconds, rmse and optionally curve or failed.
    title
        Title of the figure.
    path
        File to write.
    """
    from matplotlib import colormaps

    figure = new_figure()
    axes = figure.subplots()
    for i, result in enumerate(r for r in results if "failed" not in r):
        colour, marker = colormaps["tab20"]((2 * i + i // 10) % 20), "osD^vP*X"[i % 8]
        curve = [(s, e) for s, e in result.get("curve", []) if s > 0]
        if curve:
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1)
        size = 11 if result["name"] == "auto" else 7
        axes.plot(result["seconds"], result["rmse"], marker, color=colour, markersize=size, label=result["name"])
    axes.set(xscale="log", yscale="log", xlabel="seconds, compilation apart", ylabel="test RMSE", title=title)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:.2g}")
    axes.legend(fontsize=8, loc="upper right")
    save_figure(figure, path)


def new_figure(width: float = 7.0, height: float = 4.5) -> "Figure":
    """Return an empty figure.

    Parameters
    ----------
    width
        Width in inches.
    height
        Height in inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: pathlib.Path, force: bool = True) -> None:
    """Save a figure atomically, as PNG, PDF or SVG by the suffix of its name.

    Parameters
    ----------
    figure
        The figure.
    path
        File to write.
    force
        Whether to replace an existing file.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower(), dpi=150)
    write_atomically(path, buffer.getvalue(), force)


def line_panel(
    axes: "Axes",
    x: Float[np.ndarray, "n"],
    mean: Float[np.ndarray, "n"],
    deviation: Float[np.ndarray, "n"],
    samples: Float[np.ndarray, "n s"],
    data: tuple[Float[np.ndarray, "N"], Float[np.ndarray, "N"]] | None,
    names: tuple[str, str],
) -> None:
    """Plot predictions along one input: mean, two standard deviations of a new observation, samples and data.

    Parameters
    ----------
    axes
        Axes to draw on.
    x
        Points in increasing order.
    mean
        Predicted means.
    deviation
        Standard deviations of a new observation.
    samples
        Function samples, one per column.
    data
        Inputs and targets of the data, of which at most 3000 rows are drawn, or None.
    names
        Names of the input and the target.
    """
    x_name, y_name = map(_label, names)
    axes.fill_between(
        x, mean - 2 * deviation, mean + 2 * deviation, color=BLUE, alpha=0.2, linewidth=0, label="± 2 sd of a new row"
    )
    axes.plot(x, samples, color=SKY, linewidth=0.7, alpha=0.9)
    axes.plot([], [], color=SKY, linewidth=0.7, label=f"{samples.shape[1]} function samples")
    axes.plot(x, mean, color=BLUE, linewidth=1.8, label="mean")
    if data is not None:
        shown, label = subsample_rows(len(data[0]), 3000)
        axes.plot(data[0][shown], data[1][shown], "k.", markersize=3, alpha=0.4, zorder=0.5, label=label)
    axes.set(xlim=(x[0], x[-1]), xlabel=x_name, ylabel=y_name, title=f"{y_name} as a function of {x_name}")
    axes.legend(fontsize=8)


def map_panels(
    figure: "Figure",
    grid: tuple[Float[np.ndarray, "n"], Float[np.ndarray, "m"]],
    mean: Float[np.ndarray, "m n"],
    deviation: Float[np.ndarray, "m n"],
    data: Float[np.ndarray, "N 2"] | None,
    names: tuple[str, str, str],
) -> None:
    """Plot predictions over two inputs: a map of the mean, a map of the standard deviation, and the data on both.

    Parameters
    ----------
    figure
        Empty figure.
    grid
        Coordinates along the first and the second input.
    mean
        Predicted means on the grid.
    deviation
        Standard deviations of a new observation on the grid.
    data
        Inputs of the data, of which at most 1000 rows are drawn, or None.
    names
        Names of both inputs and of the target.
    """
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    first, second, target = map(_label, names)
    parts = ((mean, "viridis", f"mean of {target}"), (deviation, "cividis", f"sd of a new row of {target}"))
    for axes, (values, colours, title) in zip(panels, parts, strict=True):
        image = axes.pcolormesh(*grid, values, cmap=colours, shading="auto", rasterized=True)
        axes.contour(*grid, values, levels=6, colors="white", linewidths=0.5, alpha=0.7)
        figure.colorbar(image, ax=axes, label=target, shrink=0.9)
        if data is not None:
            shown, label = subsample_rows(len(data), 1000)
            axes.plot(*data[shown].T, ".", color=ORANGE, markersize=2, alpha=0.6, label=label)
            axes.legend(fontsize=8, loc="upper right", markerscale=3)
        axes.set(xlabel=first, ylabel=second, title=title)
        axes.set(xlim=(grid[0][0], grid[0][-1]), ylim=(grid[1][0], grid[1][-1]))


def calibration_panel(
    axes: "Axes", y: Float[np.ndarray, "n"], mean: Float[np.ndarray, "n"], deviation: Float[np.ndarray, "n"]
) -> None:
    """Plot the coverage of central intervals against their nominal level, with the 95 % band of chance.

    Parameters
    ----------
    axes
        Axes to draw on.
    y
        True values.
    mean
        Predicted means.
    deviation
        Standard deviations of a new observation.
    """
    from scipy.stats import binom, norm

    nominal = np.linspace(0.02, 0.98, 49)
    within = np.abs(y - mean)[:, None] <= norm.ppf((1 + nominal) / 2) * deviation[:, None]
    # With calibrated predictions the number of true values in an interval is binomial.
    low, high = (binom.ppf(q, len(y), nominal) / len(y) for q in (0.025, 0.975))
    axes.fill_between(nominal, low, high, color=GREY, alpha=0.3, linewidth=0, label="95 % of the time, by chance alone")
    axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="ideal")
    axes.plot(nominal, within.mean(axis=0), color=BLUE, linewidth=1.8, label="observed")
    axes.text(0.97, 0.13, "above the line: intervals too wide\nbelow: too narrow", ha="right", fontsize=8, color=GREY)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=f"calibration on {len(y):,} rows")
    axes.set(xlabel="nominal share of an interval around the mean", ylabel="share of true values within")
    axes.legend(fontsize=8, loc="upper left")


def predicted_panel(
    axes: "Axes",
    y: Float[np.ndarray, "n"],
    mean: Float[np.ndarray, "n"],
    deviation: Float[np.ndarray, "n"],
    target: str,
) -> None:
    """Plot predictions against true values, with two standard deviations of a new observation.

    Parameters
    ----------
    axes
        Axes to draw on.
    y
        True values, of which at most 1000 are drawn.
    mean
        Predicted means.
    deviation
        Standard deviations of a new observation.
    target
        Name of the target.
    """
    shown, label = subsample_rows(len(y), 1000)
    target = _label(target)
    axes.errorbar(
        y[shown], mean[shown], 2 * deviation[shown], fmt=".", color=BLUE, ecolor=SKY, elinewidth=0.6, markersize=3,
        alpha=0.5, label=f"mean ± 2 sd, {label}",
    )  # fmt: skip
    ends = [min(y[shown].min(), mean[shown].min()), max(y[shown].max(), mean[shown].max())]
    axes.plot(ends, ends, "--", color=ORANGE, linewidth=1.2, label="prediction = truth")
    axes.set(
        xlabel=f"true {target}",
        ylabel=f"predicted {target}",
        title=f"{target}: predicted against true, RMSE {rmse(y, mean):.4g}",
    )
    axes.legend(fontsize=8, loc="upper left")


def relevance_panel(axes: "Axes", relevance: Float[np.ndarray, "d"], names: Sequence[str], target: str) -> None:
    """Plot the relevance 1/ℓ of inputs as bars, the largest first, for at most twenty inputs.

    Parameters
    ----------
    axes
        Axes to draw on.
    relevance
        1/ℓ of each input, with the length scale ℓ in standard deviations of the input.
    names
        Names of the inputs.
    target
        Name of the target.
    """
    order = np.argsort(-relevance)[:20]
    axes.barh(range(len(order)), relevance[order], color=BLUE)
    axes.set_yticks(range(len(order)), [_label(names[i]) for i in map(int, order)])
    axes.invert_yaxis()
    note = "(an input that hardly varies stays at 1, where learning starts)"
    which = "" if len(order) == len(relevance) else f" (the first {len(order)} of {len(relevance)})"
    axes.set(
        xlabel=f"1 / length scale, in standard deviations of the input\n{note}",
        title=f"what {_label(target)} depends on{which}",
    )
    axes.grid(axis="x", alpha=0.3)


def convergence_panels(
    figure: "Figure",
    loss: Sequence[float],
    residuals: Float[np.ndarray, "s"],
    tolerance: float,
    solver: str,
) -> None:
    """Plot the loss of hyperparameter fitting, and the relative residuals of the mean and of each sample.

    Parameters
    ----------
    figure
        Empty figure.
    loss
        Loss after each step; empty if the hyperparameters were fixed.
    residuals
        Relative residuals, that of the mean first.
    tolerance
        Tolerance of the solver, drawn if it is positive.
    solver
        Name of the solver.
    """
    left, right = figure.subplots(1, 2)
    steps = np.arange(1, len(loss) + 1)
    left.plot(steps, loss, color=SKY, linewidth=0.8, label="each step")
    width = max(1, len(loss) // 20)
    if width > 1:
        smooth = np.convolve(loss, np.ones(width) / width, mode="valid")
        left.plot(steps[width - 1 :], smooth, color=BLUE, linewidth=1.8, label=f"mean of {width} steps")
        left.legend(fontsize=8)
    left.set(xlabel="step", ylabel="negative log likelihood per row", title="learning the hyperparameters")
    left.xaxis.get_major_locator().set_params(integer=True)
    if not len(loss):
        left.text(0.5, 0.5, "hyperparameters were fixed", ha="center", transform=left.transAxes, color=GREY)
    shown = np.maximum(residuals, 1e-16)  # a logarithmic axis has no zero
    right.plot(range(1, len(shown)), shown[1:], ".", color=BLUE, label="samples")
    right.plot([0], shown[:1], "D", color=ORANGE, markersize=6, label="mean")
    if tolerance > 0:
        right.axhline(tolerance, color=GREY, linestyle="--", linewidth=1, label=f"tolerance {tolerance:.1g}")
    right.set(yscale="log", xlabel="column of the system", ylabel="relative residual", title=f"where {solver} ended")
    right.legend(fontsize=8)


def subsample_rows(rows: int, most: int) -> tuple[Int[np.ndarray, "n"], str]:
    """Return the rows to draw and a label: all rows, or `most` of them at random, the same in every call.

    Parameters
    ----------
    rows
        Number of rows.
    most
        Largest number of rows to draw.

    >>> subsample_rows(3, 10)
    (array([0, 1, 2]), '3 rows')
    >>> subsample_rows(5000, 1000)[1]
    '1,000 of 5,000 rows'
    """
    if rows <= most:
        return np.arange(rows), f"{rows:,} rows"
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False)), f"{most:,} of {rows:,} rows"


def _label(name: str) -> str:
    """Return a name as an axis label: shortened in the middle, with dollar signs that do not start mathematics."""
    return (name if len(name) <= 30 else f"{name[:17]}…{name[-12:]}").replace("$", r"\$")
