"""`pathgp plot`: plots of a model and of its accuracy."""

import argparse
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pathgp.cli.common import add_command, check_picture, print_message

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pathgp.cli.fitted import Fitted

GRID = 80
"""Points along each side of a map."""


def add_to(commands: Any) -> None:
    """Add `plot` to the command line."""
    parser = add_command(
        commands,
        "plot",
        "plot a model or the quality of its predictions",
        run,
        """
pathgp plot model.safetensors --out picture.png                       # the default kind for the model
pathgp plot model.safetensors test.csv --kind calibration --out calibration.png
pathgp plot model.safetensors --kind relevance --out relevance.pdf""",
    )
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path, help="a model file written by `pathgp fit`")
    parser.add_argument("file", metavar="FILE", nargs="?", type=pathlib.Path, help="a table with known targets")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="output file: .png, .pdf or .svg")
    parser.add_argument("--kind", choices=sorted(KINDS), help="default: posterior for one input, map for two, else "
                        "predicted with FILE and relevance without")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")


def run(arguments: argparse.Namespace) -> None:
    """Draw one figure and save it."""
    from pathgp import plots
    from pathgp.cli.fitted import load

    check_picture(arguments.out, arguments.force)
    fitted = load(arguments.model)
    kind = arguments.kind or default_kind(len(fitted.encoding.inputs), arguments.file is not None)
    plots.save_figure(KINDS[kind](fitted, arguments.file), arguments.out, arguments.force)
    print_message(f"wrote the {kind} plot to {arguments.out}.")


def default_kind(inputs: int, with_rows: bool) -> str:
    """Return the most informative kind of plot for a model.

    >>> [default_kind(1, False), default_kind(2, True), default_kind(9, True), default_kind(9, False)]
    ['posterior', 'map', 'predicted', 'relevance']
    """
    return {1: "posterior", 2: "map"}.get(inputs, "predicted" if with_rows else "relevance")


def posterior(fitted: "Fitted", file: pathlib.Path | None) -> "Figure":
    """Return a figure of mean, standard deviations and five samples along the only input."""
    from pathgp import plots

    _need_inputs(fitted, "posterior", 1)
    rows = None if file is None else fitted.encoding.read(file)
    ((low, high),) = fitted.ranges
    x = np.linspace(low, high, 400)
    mean, sd = fitted.predict(x[:, None])
    samples = fitted.samples(x[:, None], min(5, fitted.num_samples))
    figure = plots.new_figure()
    data = None if rows is None else (rows.inputs[:, 0], rows.y)
    plots.line_panel(figure.subplots(), x, mean, sd, samples, data, (fitted.encoding.inputs[0], fitted.target))
    return figure


def map_of_two(fitted: "Fitted", file: pathlib.Path | None) -> "Figure":
    """Return a figure of mean and standard deviation over the two inputs."""
    from pathgp import plots

    _need_inputs(fitted, "map", 2)
    data = None if file is None else np.concatenate([block.X for block in fitted.encoding.blocks(file)])
    first, second = (np.linspace(low, high, GRID) for low, high in fitted.ranges)
    points = np.column_stack([axis.ravel() for axis in np.meshgrid(first, second)])
    mean, sd = (values.reshape(GRID, GRID) for values in fitted.predict(points))
    one, other = fitted.encoding.inputs
    figure = plots.new_figure(11, 4.5)
    plots.map_panels(figure, (first, second), mean, sd, data, (one, other, fitted.target))
    return figure


def calibration(fitted: "Fitted", file: pathlib.Path | None) -> "Figure":
    """Return a figure of the coverage of intervals against their nominal level."""
    from pathgp import plots
    from pathgp.cli.fitted import predict_known

    figure = plots.new_figure(5.5, 5.5)
    plots.calibration_panel(figure.subplots(), *predict_known(fitted, _need_file(file, "calibration")))
    return figure


def predicted(fitted: "Fitted", file: pathlib.Path | None) -> "Figure":
    """Return a figure of predictions against true values."""
    from pathgp import plots
    from pathgp.cli.fitted import predict_known

    figure = plots.new_figure(6, 5.5)
    y, mean, sd = predict_known(fitted, _need_file(file, "predicted"))
    plots.predicted_panel(figure.subplots(), y, mean, sd, fitted.target)
    return figure


def relevance(fitted: "Fitted", file: pathlib.Path | None) -> "Figure":
    """Return a figure of the relevance 1/ℓ of each input."""
    from pathgp import plots

    _need_no_file(file, "relevance")
    scales = {name: s for name, s in fitted.summary()["lengthscales"].items() if name not in fitted.constant}
    if not scales:
        raise ValueError(
            "--kind relevance needs a length scale and an input that varies: use another --kind for this model."
        )
    figure = plots.new_figure(7, 1.5 + 0.25 * min(20, len(scales)))
    plots.relevance_panel(figure.subplots(), 1 / np.array(list(scales.values())), list(scales), fitted.target)
    return figure


def convergence(fitted: "Fitted", file: pathlib.Path | None) -> "Figure":
    """Return a figure of the loss of hyperparameter fitting and the residuals of the solve."""
    from pathgp import plots

    _need_no_file(file, "convergence")
    figure = plots.new_figure(9.5, 4)
    info = fitted.model.info_
    plots.convergence_panels(figure, fitted.loss, np.asarray(info.relative_residual), info.tolerance, info.solver)
    return figure


KINDS: dict[str, Callable[["Fitted", pathlib.Path | None], "Figure"]] = {
    "posterior": posterior,
    "map": map_of_two,
    "calibration": calibration,
    "predicted": predicted,
    "relevance": relevance,
    "convergence": convergence,
}
"""Figures by the value of `--kind`."""


def _need_inputs(fitted: "Fitted", kind: str, inputs: int) -> None:
    present = len(fitted.encoding.inputs)
    if present != inputs:
        raise ValueError(
            f"--kind {kind} needs a model with {inputs} input{'s'[: inputs - 1]}, but this one has {present}: use "
            "relevance, or predicted with a table."
        )


def _need_file(file: pathlib.Path | None, kind: str) -> pathlib.Path:
    if file is None:
        raise ValueError(f"--kind {kind} needs a table with known targets: give it after the model.")
    return file


def _need_no_file(file: pathlib.Path | None, kind: str) -> None:
    if file is not None:
        raise ValueError(f"--kind {kind} plots only the model, without a table: leave out {file}.")
