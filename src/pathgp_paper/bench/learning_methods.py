"""Every hyperparameter fitting method on every data set, compared with the published hyperparameters:

    python -m pathgp_paper.bench.learning_methods --out FILE [--datasets NAME ...] [--methods NAME ...]

Each method starts from default values in a separate process (`pathgp bench learn`). It then predicts the test rows from
all training rows with the default solver, as for the published hyperparameters. Results that are
already in FILE are not computed again.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from pathgp.cli.bench import contested, store
from pathgp_paper.datasets import published_gp

SMALL, LARGE = (
    ("elevators", "pol", "bike"),
    ("protein", "keggdirected", "houseelectric", "britainmagnetic", "beijingair"),
)
METHODS = ("published", "nearest", "neighbourhoods", "pathwise")
TEST_ROWS = {"houseelectric": 10_000}
TIMEOUT = 3600.0
ALL_PAIRS = ("houseelectric", "britainmagnetic", "beijingair")
"""Data sets on which the passes of `Pathwise` over all pairs of rows would take hours."""


def published(dataset):
    """Return the result of the default solver with the published hyperparameters."""
    try:
        published_gp(dataset)
    except ValueError:
        return {"failed": "none are published"}
    options = {"n": None, "split": 0, "noise": None, "hyperparameters": None, "timeout": TIMEOUT}
    return contested("auto", argparse.Namespace(dataset=dataset, test_rows=TEST_ROWS.get(dataset), **options))


def learned(dataset, method):
    """Return the result of one method on one data set, or the reason why there is none."""
    if method == "pathwise" and dataset in ALL_PAIRS:
        return {"failed": "too many pairs of rows"}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "learned.json"
        command = [sys.executable, "-m", "pathgp", "bench", "learn", "--dataset", dataset, "--method", method]
        command += ["--out", str(out)]
        command += [f"--test-rows={TEST_ROWS[dataset]}"] if dataset in TEST_ROWS else []
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            stored = json.loads(out.read_text()) if out.is_file() else {}
            return {**stored, "failed": f"stopped after {TIMEOUT:.0f} s"}
        if run.returncode:
            return {"failed": (run.stderr.strip().splitlines() or ["?"])[-1]}
        return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--datasets", nargs="+", default=(*SMALL, *LARGE))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    a = parser.parse_args()
    before = json.loads(a.out.read_text())["results"] if a.out.is_file() else []
    results = {(r["dataset"], r["method"]): r for r in before}
    for method in a.methods:
        for dataset in a.datasets:
            if (dataset, method) in results:
                continue
            found = published(dataset) if method == "published" else learned(dataset, method)
            results[dataset, method] = {**found, "dataset": dataset, "method": method}
            shown = {k: found.get(k, "") for k in ("learn_seconds", "gigabytes", "rmse", "nll", "failed")}
            print(dataset, method, *shown.values(), flush=True)
            store(a.out, {"benchmark": "learning", "results": list(results.values())})


if __name__ == "__main__":
    main()
