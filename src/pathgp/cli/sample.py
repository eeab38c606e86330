"""`pathgp sample`: posterior function samples at the rows of a table."""

import argparse
from typing import Any

import numpy as np

from pathgp.cli.common import add_command
from pathgp.cli.predict import add_input_and_output, stream


def add_to(commands: Any) -> None:
    """Add `sample` to the command line."""
    parser = add_command(
        commands,
        "sample",
        "evaluate posterior samples at the rows of a table",
        run,
        """
pathgp sample model.safetensors new.csv --num-samples 10 --out samples.csv
pathgp sample model.safetensors grid.parquet --out samples.parquet""",
    )
    add_input_and_output(parser)
    parser.add_argument(
        "--num-samples", type=int, default=10, metavar="N", help="number of samples (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write a column `sample_i` for each of the first samples of the model, without noise."""

    def columns(fitted: Any, X: np.ndarray) -> dict[str, np.ndarray]:
        drawn = fitted.samples(X, arguments.num_samples)
        return {f"sample_{i + 1}": column for i, column in enumerate(drawn.T)}

    stream(arguments, columns)
