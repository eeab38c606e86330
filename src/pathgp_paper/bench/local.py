"""Accuracy of passes over the data and of the local projection, separately and combined, on real data sets:

    PATHGP_DATA=... python -m pathgp_paper.bench.local elevators pol bike --out docs/results/local.json

Reports test RMSE and NLL with published hyperparameters on split 0, for several numbers of neighbours and tapers.
"""

import argparse
import json
import pathlib
import warnings

import jax
import jax.numpy as jnp

from pathgp import Local, condition
from pathgp.analysis import metrics
from pathgp.cli.bench import store
from pathgp.functions import Function
from pathgp.posterior import Predictor
from pathgp.solvers import SAP, SubsetOfData
from pathgp_paper import datasets


def main() -> None:
    parser = argparse.ArgumentParser(description="local projection")
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    figures = {name: measure(name) for name in arguments.datasets}
    print(json.dumps(figures, indent=2))
    store(arguments.out, {"benchmark": "local", "figures": figures})


def measure(name: str) -> dict[str, list[float]]:
    data, gp = datasets.load(name), datasets.published_gp(name)
    y_test = jnp.asarray(data.y_test)
    rows: dict[str, list[float]] = {}

    def add(label: str, mean: jax.Array, deviations: jax.Array) -> None:
        variance = jnp.mean(deviations**2, axis=1) + gp.noise
        rows[label] = [float(metrics.rmse(y_test, mean)), float(metrics.nll(y_test, mean, variance))]
        print(name, label, *(f"{x:.4f}" for x in rows[label]), flush=True)

    for passes in (1, 2, 3):
        label, options = f"{passes} pass{'es' if passes > 1 else ''}", {"block_size": 1024, "tolerance": 0.0}
        p = condition(gp, data.X, data.y, solver=SAP(passes, **options), key=jax.random.key(0))
        add(f"{label} alone", p.mean(data.X_test), p.deviations(data.X_test))
        p = condition(gp, data.X, data.y, solver=SAP(passes, local=Local(), **options), key=jax.random.key(0))
        update = Predictor.of(p.prior, p.predictor.update, p.gp.mean, correction=None)
        mean, deviations = update.mean(data.X_test), update.deviations(data.X_test)
        for neighbours, taper in ((64, 0.25), (128, 0.0), (128, 0.25), (128, 0.5), (256, 0.25)):
            projection = Local(neighbours, taper).projection(p.system)
            finish = Function(projection, p.solution.residual)(data.X_test)
            setting = f"{neighbours} neighbours, taper {taper}"
            add(f"{label} + local, {setting}", mean + finish[:, 0], deviations - finish[:, 1:])
            if passes == 1:
                alone = Function(projection, p.targets.total)(data.X_test)
                add(f"local alone, {setting}", alone[:, 0], p.prior(data.X_test) - alone[:, 1:])
    subset = SubsetOfData(4096)
    p = condition(gp, data.X, data.y, solver=subset, local=Local(), key=jax.random.key(0))
    add("subset of 4096 rows + local", p.mean(data.X_test), p.deviations(data.X_test))
    return rows


if __name__ == "__main__":
    main()
