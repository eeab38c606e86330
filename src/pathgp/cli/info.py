"""`pathgp info`: description of a model."""

import argparse
import pathlib
from typing import Any

from pathgp.cli.common import add_command, show


def add_to(commands: Any) -> None:
    """Add `info` to the command line."""
    parser = add_command(
        commands,
        "info",
        "describe a model and how it was fitted",
        run,
        """
pathgp info model.safetensors
pathgp info model.safetensors --json""",
    )
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path, help="a model file written by `pathgp fit`")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print the target, the kernel with the length scale of each input, the noise, the solve and the versions."""
    from pathgp.cli.fitted import load

    fitted = load(arguments.model)
    summary = fitted.summary()
    lines = fitted.lines()
    scales, constant = summary["lengthscales"], fitted.constant
    width = max((len(name) for name in scales), default=0)
    listed = [
        f"\n  {name:<{width}}  " + (f"{constant[name]:g} in every row" if name in constant else f"{scale:.4g}")
        for name, scale in sorted(scales.items(), key=lambda item: (item[0] in constant, item[1]))
    ]
    lines["length scales"] = "in standard deviations of each input, the most relevant first" + "".join(listed)
    lines["versions"] = f"pathgp {summary['pathgp_version']}, file format {summary['format_version']}"
    show(summary, lines, arguments.json)
