"""`pathgp evaluate`: scores of a model on rows with known targets."""

import argparse
import pathlib
from typing import Any

import numpy as np
from jaxtyping import Float

from pathgp.cli.common import add_allow_unknown, add_command, show

LEVELS = (50, 90, 95)
"""Levels, in per cent, of the intervals whose coverage is reported."""


def add_to(commands: Any) -> None:
    """Add `evaluate` to the command line."""
    parser = add_command(
        commands,
        "evaluate",
        "score a model on rows with known targets",
        run,
        """
pathgp evaluate model.safetensors test.csv
pathgp evaluate model.safetensors test.parquet --json""",
    )
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path, help="a model file written by `pathgp fit`")
    parser.add_argument("file", metavar="FILE", type=pathlib.Path, help="a table with the inputs and the target")
    add_allow_unknown(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Predict the rows and print the scores."""
    from pathgp.cli.fitted import load, predict_known

    fitted = load(arguments.model)
    y, mean, sd = predict_known(fitted, arguments.file, arguments.allow_unknown)
    result = {"target": fitted.encoding.target, **scores(y, mean, sd)}
    show(result, {"rows": f"{len(y):,}", **lines(result)}, arguments.json)


def scores(y: Float[np.ndarray, "n"], mean: Float[np.ndarray, "n"], sd: Float[np.ndarray, "n"]) -> dict[str, Any]:
    """Return RMSE, R², mean negative log-likelihood, and the coverage of central intervals.

    >>> import numpy as np
    >>> scores(np.array([0.0, 2.0]), np.array([0.0, 1.0]), np.array([1.0, 1.0]))["r2"]
    0.5
    """
    from scipy.special import ndtri

    error = y - mean
    spread = np.sum((y - y.mean()) ** 2)
    return {
        "rows": len(y),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nll": float(np.mean(np.log(2 * np.pi * sd**2) + (error / sd) ** 2) / 2),
        "r2": float(1 - np.sum(error**2) / spread) if spread > 0 else None,
        "coverage": {str(p): float(np.mean(np.abs(error) <= ndtri((1 + p / 100) / 2) * sd)) for p in LEVELS},
    }


def lines(result: dict[str, Any]) -> dict[str, str]:
    """Return the scores in words."""
    covered = ", ".join(f"{p} % interval {100 * share:.1f} %" for p, share in result["coverage"].items())
    return {
        "RMSE": f"{result['rmse']:.5g}" + ("" if result["r2"] is None else f"  (R² {result['r2']:.4f})"),
        "NLL": f"{result['nll']:.4f}",
        "coverage": covered,
    }
