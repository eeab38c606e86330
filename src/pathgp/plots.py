"""Pictures, with matplotlib (the extra `plots`)."""

import io
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float

from pathgp.files import write_atomically
from pathgp.gp import Posterior
from pathgp.spectral import Basis, regions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#777777"  # Okabe and Ito: told apart by colour-blind readers too


def posterior_panel(axes: "Axes", posterior: Posterior, x: Float[Array, "n 1"], exact: Posterior | None = None) -> None:
    """A posterior of one input: data, mean, two standard deviations and five samples, with the exact one beside."""
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
    """The shares of the three regions along one input, stacked to one, with the data as ticks below."""
    scores, line, data = regions(posterior, x, basis=basis), np.asarray(x)[:, 0], np.asarray(posterior.system.X)[:, 0]
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
    """Spectral basis functions of one input, dark for large eigenvalues, with an error such as W2 filled in behind.

    The error has an axis of its own, on the right.
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
    """Test RMSE against seconds: a curve for a solver that was watched, a mark where each contestant ended."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for i, result in enumerate(r for r in results if "failed" not in r):
        colour, marker = f"C{i % 10}", "osD^vP*X"[i % 8]
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
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    plt.close(figure)
    write_atomically(path, buffer.getvalue())
