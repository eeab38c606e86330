"""`pathgp experiment`: the paper's tables and figures, computed on this machine."""

import argparse
import json
import pathlib
import sys
from typing import Any

from pathgp.cli.common import Interrupted, add_data_dir


def add_to(commands: Any) -> None:
    """Add `experiment list`, `run` and `report` to the command line."""
    actions = commands.add_parser("experiment", help="reproduce the tables and figures of the paper").add_subparsers(
        required=True, metavar="ACTION"
    )
    names = actions.add_parser("list", help="list the experiments and what they reproduce")
    names.add_argument("--json", action="store_true", help="print JSON")
    names.set_defaults(run=experiment_list)
    run = actions.add_parser("run", help="run an experiment, or resume an interrupted run")
    run.add_argument("name", metavar="NAME", help="a name shown by `pathgp experiment list`, or `all`")
    run.add_argument(
        "--scale", default="smoke", help="smoke (seconds; the default), machine (two cores, 30 minutes) or paper"
    )
    run.add_argument(
        "--out", type=pathlib.Path, required=True, help="folder for the results, the figure and the report section"
    )
    run.add_argument("--only", default="", help="run only the cells whose name contains this, for example elevators-0")
    run.add_argument(
        "--minutes",
        type=float,
        help="start no cell after this many minutes (default: 30 at scale machine, else no limit)",
    )
    add_data_dir(run)
    run.set_defaults(run=experiment_run)
    report = actions.add_parser("report", help="write one HTML file with the results of all runs")
    report.add_argument(
        "--out", type=pathlib.Path, required=True, help="the folder given to `pathgp experiment run --out`"
    )
    report.add_argument("--scale", help="scale of all experiments (default: for each, the scale with the most results)")
    report.add_argument(
        "--published",
        type=pathlib.Path,
        metavar="FOLDER",
        help="folder with the figures of the paper as NAME.png, to show next to ours",
    )
    report.set_defaults(run=experiment_report)


def experiment_list(arguments: argparse.Namespace) -> None:
    """Print the experiments."""
    from pathgp_paper.experiments import experiments

    rows = [{"name": e.name, "title": e.title, "reproduces": e.reproduces} for e in experiments()]
    lines = [f"{row['name']:<24} {row['reproduces']:<44} {row['title']}" for row in rows]
    print(json.dumps(rows, indent=2) if arguments.json else "\n".join(lines))


def experiment_run(arguments: argparse.Namespace) -> None:
    """Compute the missing cells, then draw the figure and write the section."""
    from pathgp._checks import require_at_least
    from pathgp_paper import experiments as paper
    from pathgp_paper.experiments import base, report

    check_scale(arguments.scale)
    if arguments.out.exists() and not arguments.out.is_dir():
        raise FileExistsError(f"--out {arguments.out} is a file: give a folder, which is created if needed.")
    require_at_least(0 if arguments.minutes is None else arguments.minutes, 0, "--minutes")
    chosen = paper.experiments() if arguments.name == "all" else [paper.named(arguments.name)]
    cells = [cell.name for experiment in chosen for cell in experiment.cells(arguments.scale)]
    if not any(arguments.only in name for name in cells):
        raise ValueError(f"--only {arguments.only!r} matches no cell: the cells are {', '.join(cells[:40])}.")
    say = lambda line: print(line, file=sys.stderr, flush=True)
    limits = {"only": arguments.only, "minutes": arguments.minutes}
    try:
        for experiment in chosen:
            base.run(experiment, arguments.scale, arguments.out, **limits, say=say)
            section = report.publish(experiment, arguments.scale, arguments.out)
            print(f"{experiment.name}: {section.verdict}; {arguments.out / experiment.name / arguments.scale}")
    except KeyboardInterrupt:
        kept = f"the finished cells are in {arguments.out}: to resume, run the same command again."
        raise Interrupted(kept) from None


def experiment_report(arguments: argparse.Namespace) -> None:
    """Write the report and print its path."""
    from pathgp_paper.experiments import experiments, report

    if arguments.scale is not None:
        check_scale(arguments.scale)
    print(report.write(experiments(), arguments.out, arguments.scale, arguments.published))


def check_scale(scale: str) -> None:
    """Raise `ValueError` if the scale is unknown."""
    from pathgp_paper.experiments.base import SCALES

    if scale not in SCALES:
        raise ValueError(f"--scale must be one of {', '.join(SCALES)}, but it is {scale!r}.")
