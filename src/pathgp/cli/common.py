"""Functions shared by the commands: help, messages on stderr, results on stdout, checks of output files."""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a message about the files that were kept."""


def add_command(
    commands: Any, name: str, purpose: str, run: Callable[[argparse.Namespace], int | None], examples: str
) -> argparse.ArgumentParser:
    """Add a command with its purpose and examples in `--help`."""
    shown = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    parser = commands.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=f"examples:\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option `--data-dir`."""
    parser.add_argument(
        "--data-dir", type=pathlib.Path, help="folder of the data sets (default: the environment variable PATHGP_DATA)"
    )


def add_allow_unknown(parser: argparse.ArgumentParser) -> None:
    """Add the option for categories that were not in the fitted data."""
    parser.add_argument(
        "--allow-unknown", action="store_true", help="encode an unseen category as no category, instead of an error"
    )


@contextmanager
def data_dir(folder: pathlib.Path | None) -> Iterator[None]:
    """Set PATHGP_DATA to this folder, if any, for this process and those that it starts."""
    before = os.environ.get("PATHGP_DATA")
    try:
        if folder is not None:
            os.environ["PATHGP_DATA"] = os.path.abspath(folder)  # absolute, because its parent is used too
        yield
    finally:
        if folder is not None:
            os.environ.pop("PATHGP_DATA", None)
            os.environ.update({} if before is None else {"PATHGP_DATA": before})


def print_message(sentence: str) -> None:
    """Print a line on stderr."""
    print(f"pathgp: {sentence}", file=sys.stderr, flush=True)


def say_dialect(path: pathlib.Path) -> None:
    """Print how a CSV file is read, if its columns are not separated by commas."""
    from pathgp.cli.tables.files import dialect

    if ".csv" in path.name.lower() and path.is_file() and (found := dialect(path)).separator != ",":
        between = {";": "semicolons", "\t": "tabs"}[found.separator]
        print_message(f"{path}: columns are separated by {between}, and the decimal point is {found.point!r}.")


def one_line(message: object, most: int = 2000) -> str:
    """Return a message as one line, cut in the middle if it is very long: its end has the remedy."""
    line = " ".join(str(message).split())
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-most // 2 :]}"


def show(result: Mapping[str, Any], lines: Mapping[str, str], as_json: bool) -> None:
    """Print the result on stdout: as JSON, or as one line per part."""
    if as_json:
        print(json.dumps(result))
    else:
        width = max(len(name) for name in lines) + 2
        print("\n".join(f"{name:<{width}}{text}" for name, text in lines.items()))


def check_picture(path: pathlib.Path, force: bool) -> None:
    """Raise an error, before any work, if no figure can be written to `path`."""
    check_out(path, force)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{path} must end in .png, .pdf or .svg.")


def check_seed(seed: int) -> None:
    """Raise `ValueError`, before any work, if the seed is out of range."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed must be from 0 to {2**32 - 1}, but it is {seed}.")


def check_out(path: pathlib.Path, force: bool) -> None:
    """Raise an error, before any work, if `path` cannot be written, or exists and `force` is not given."""
    from pathgp.runs.atomic import check_writable

    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the path of a file.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe, not a regular file: choose another path.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it first.")
    if os.path.lexists(path) and not force:
        raise FileExistsError(f"{path} already exists: choose another path, or add --force to overwrite it.")
    check_writable(path)
