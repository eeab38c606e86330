"""The command `pathgp`."""

import argparse
import sys
from collections.abc import Sequence

from pathgp.cli import bench, data


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; what is wrong with the input is one sentence on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="pathgp", description="Gaussian processes whose posterior is functions.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    bench.add_to(commands)
    data.add_to(commands)
    parsed = parser.parse_args(arguments)
    try:
        parsed.run(parsed)
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        print(f"pathgp: {error}", file=sys.stderr)
        return 2
    return 0
