"""Repeated runs of `pathgp bench solve` over splits, noise variances or numbers of rows:

    PATHGP_DATA=... python -m pathgp_paper.bench.sweeps splits [--out docs/results/splits.json]
    PATHGP_DATA=... python -m pathgp_paper.bench.sweeps noise [--out docs/results/noise.json]
    python -m pathgp_paper.bench.sweeps rows [--out docs/results/rows.json]

`splits`: the default solver compared with an exact one on all splits of each data set. `noise`: the same on split 0
with a noise variance of 1e-6, and the default solver with the published one. `rows`: seconds against the number of
synthetic rows, and the log-log slope.
"""

import argparse
import pathlib
import sys

import numpy as np

from pathgp.cli.bench import contested, store

EXACT = {"elevators": "scipy-float32", "pol": "scipy-float32", "bike": "cholesky"}
"""Exact solver of each data set. float32 suffices for two of them, but loses positive definiteness on bike. Data sets
with more rows take too long.
"""
DATASETS = (*EXACT, "keggdirected", "protein")
LOW = 1e-6
ROWS = (4096, 8192, 16_384, 32_768, 65_536)


def one(name, dataset, *, n=None, split=0, noise=None):
    options = {"dataset": dataset, "n": n, "split": split, "noise": noise, "hyperparameters": None, "test_rows": None}
    found = contested(name, argparse.Namespace(**options, timeout=1200.0))
    found |= {"dataset": dataset, "split": split, "noise": noise}
    print(
        " ".join(str(found.get(k, "")) for k in (*options, "name", "seconds", "rmse", "nll", "failed")), file=sys.stderr
    )
    return found


def splits(a):
    contests = [(name, d, split) for d in a.datasets for split in a.splits for name in ("auto", EXACT.get(d)) if name]
    return {"results": [one(name, d, split=split) for name, d, split in contests]}


def noise(a):
    """Compare with float64 Cholesky where feasible, because float32 cannot resolve such a small noise variance."""
    tuned = [one("auto", d) for d in a.datasets]
    low = [one(name, d, noise=LOW) for d in a.datasets for name in ("auto", "cholesky" if d in EXACT else None) if name]
    return {"results": tuned + low}


def rows(a):
    results = [one("auto", "synthetic", n=n) for n in a.rows]
    slope = np.polyfit(np.log(a.rows), np.log([r["seconds"] for r in results]), 1)[0]
    return {"results": results, "slope": float(slope)}


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sweep", choices=["splits", "noise", "rows"])
    parser.add_argument("--datasets", nargs="+", default=DATASETS)
    parser.add_argument("--splits", nargs="+", type=int, default=range(5))
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    figures = {"splits": splits, "noise": noise, "rows": rows}[a.sweep](a)
    if "slope" in figures:
        print(f"slope {figures['slope']:.2f}")
    store(a.out, {"benchmark": a.sweep, **figures})


if __name__ == "__main__":
    main()
