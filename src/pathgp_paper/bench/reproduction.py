"""Stores the results of `pathgp experiment run` for the documentation page on the paper:

    python -m pathgp_paper.bench.reproduction DIR

DIR is the output folder of the runs. Writes a file with tables and verdicts for each experiment that has a result, and
one file with a line per experiment.
"""

import argparse
import pathlib

from pathgp.cli.bench import store
from pathgp_paper.experiments import experiments
from pathgp_paper.experiments.base import Experiment, load
from pathgp_paper.experiments.report import scale_of
from pathgp_paper.experiments.verdicts import summary

RESULTS = pathlib.Path(__file__).parents[3] / "docs" / "results"


def found(experiment: Experiment, out: pathlib.Path) -> dict:
    """Return the stored results of an experiment, at the scale that `scale_of` chooses."""
    scale = scale_of(experiment, out)
    records = load(experiment, scale, out)
    done, claims = [r for r in records if r.result is not None], experiment.claims(records)
    return {
        "name": experiment.name,
        "reproduces": experiment.reproduces,
        "scale": scale,
        "cells": [len(done), len(records)],
        "minutes": sum(record.seconds for record in done) / 60,
        "where": sorted({record.where for record in done}),
        "verdicts": summary(claims),
        "claims": [[claim.what, *claim.cells, claim.verdict] for claim in claims],
        "tables": [table._asdict() for table in experiment.tables(records)] if done else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="store what experiments have found")
    parser.add_argument("out", type=pathlib.Path, metavar="DIR")
    a = parser.parse_args()
    lines = []
    for experiment in experiments():
        result = found(experiment, a.out)
        if result["cells"][0]:
            store(RESULTS / f"paper-{experiment.name}.json", {"benchmark": "paper", **result})
        lines.append({name: result[name] for name in ("name", "reproduces", "scale", "cells", "minutes", "verdicts")})
        print(experiment.name, result["scale"], result["cells"], result["verdicts"])
    store(RESULTS / "paper.json", {"benchmark": "paper-verdicts", "lines": lines})


if __name__ == "__main__":
    main()
