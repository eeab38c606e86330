"""`pathgp data`: the list of data sets."""

import argparse
import json
import os
from typing import Any

from pathgp.cli.common import add_data_dir
from pathgp_paper import datasets


def add_to(commands: Any) -> None:
    """Add `data list` to the command line."""
    data = commands.add_parser("data", help="list the data sets").add_subparsers(required=True, metavar="ACTION")
    names = data.add_parser("list", help="name, rows, inputs, and whether each is present")
    add_data_dir(names)
    names.add_argument("--json", action="store_true", help="print JSON")
    names.set_defaults(run=data_list)


def data_list(arguments: argparse.Namespace) -> None:
    """Print the list, and where to get missing data sets."""
    entries = datasets.known()
    print(json.dumps([entry._asdict() for entry in entries], indent=2) if arguments.json else table(entries))
    missing = [entry.name for entry in entries if not entry.present]
    if missing and not arguments.json:
        folder = os.environ.get("PATHGP_DATA") or "a folder given by PATHGP_DATA or --data-dir"
        print(f"\nMissing: {', '.join(missing)}. Get them from {datasets.ORIGIN}.")
        print(f"Put them in {folder}, as {datasets.LAYOUT}.")


def table(entries: list[datasets.Entry]) -> str:
    """Return one line per data set."""
    head = f"{'name':<16} {'N':>9} {'inputs':>6}  {'present':<8} from"
    size = lambda number: "any" if number is None else str(number)
    return "\n".join(
        [head]
        + [f"{e.name:<16} {size(e.N):>9} {size(e.d):>6}  {'yes' if e.present else 'no':<8} {e.origin}" for e in entries]
    )
