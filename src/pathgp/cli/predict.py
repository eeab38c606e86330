"""`pathgp predict`: means and standard deviations for the rows of a table, in constant memory."""

import argparse
import pathlib
import sys
from typing import Any

import numpy as np

from pathgp.cli.common import add_allow_unknown, add_command, check_out, print_message, say_dialect

CHUNK = 16_384
"""Rows predicted at once by default."""


def add_to(commands: Any) -> None:
    """Add `predict` to the command line."""
    parser = add_command(
        commands,
        "predict",
        "predict every row of a table, in constant memory",
        run,
        """
pathgp predict model.safetensors new.csv --out predictions.csv
pathgp predict model.safetensors new.parquet --out predictions.parquet --quantiles 0.05 0.95 --keep id
pathgp predict model.safetensors new.csv | head""",
    )
    add_input_and_output(parser)
    parser.add_argument(
        "--quantiles", nargs="+", type=float, default=[], metavar="Q", help="also write these quantiles, each in (0, 1)"
    )


def add_input_and_output(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the model, the table and the output."""
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path, help="a model file written by `pathgp fit`")
    parser.add_argument("file", metavar="FILE", type=pathlib.Path, help="a table with the inputs; columns in any order")
    parser.add_argument("--out", type=pathlib.Path, help=".csv, .csv.gz or .parquet (default: CSV on stdout)")
    parser.add_argument(
        "--chunk", type=int, default=CHUNK, metavar="ROWS", help="rows per chunk (default: %(default)s)"
    )
    parser.add_argument("--keep", nargs="+", default=[], metavar="COLUMN", help="also copy these columns of FILE")
    add_allow_unknown(parser)
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")


def run(arguments: argparse.Namespace) -> None:
    """Write `mean` and `sd` for each row of the table, in its order; `sd` is that of a new observation."""
    from scipy.special import ndtri

    for q in arguments.quantiles:
        if not 0 < q < 1:
            raise ValueError(f"--quantiles must be between 0 and 1, but one is {q}.")
    if len(set(arguments.quantiles)) < len(arguments.quantiles):
        given = " ".join(map(str, arguments.quantiles))
        raise ValueError(f"--quantiles {given} has duplicates: give each quantile once.")

    def columns(fitted: Any, X: np.ndarray) -> dict[str, np.ndarray]:
        mean, sd = fitted.predict(X)
        return {"mean": mean, "sd": sd, **{f"q{q}": mean + ndtri(q) * sd for q in arguments.quantiles}}

    stream(arguments, columns)


def stream(arguments: argparse.Namespace, columns: Any) -> None:
    """Read the table in chunks, compute the columns of each, and write them at once."""
    from tqdm import tqdm

    from pathgp._checks import require_at_least
    from pathgp.cli.fitted import FILLED, load
    from pathgp.cli.tables.files import counted, is_parquet, listed, table_writer

    require_at_least(arguments.chunk, 1, "--chunk")
    if arguments.out is not None:
        check_out(arguments.out, arguments.force)
        is_parquet(arguments.out)
    fitted = load(arguments.model)
    say_dialect(arguments.file)
    rows = missing = 0
    with (
        table_writer(arguments.out, sys.stdout.buffer, arguments.force) as write,
        tqdm(unit=" rows", unit_scale=True, disable=not sys.stderr.isatty()) as bar,
    ):
        for block in fitted.encoding.blocks(
            arguments.file, rows=arguments.chunk, allow_unknown=arguments.allow_unknown, keep=arguments.keep
        ):
            found = columns(fitted, block.X)
            twice = [name for name in arguments.keep if name in found]
            if twice:
                raise ValueError(
                    f"--keep names {listed(twice)}, which is also a column of the output: rename it in FILE first."
                )
            write({**block.kept, **found})
            bar.update(len(block.X))
            rows, missing = rows + len(block.X), missing + block.missing
    if missing:
        print_message(FILLED.format(counted(missing, "missing value")))
    if arguments.out is not None:
        print_message(f"wrote {rows:,} rows to {arguments.out}.")
