"""Pictures, with matplotlib (the extra `plots`)."""

import io
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float

from pathgp.files import write_atomically
from pathgp.gp import Posterior

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
