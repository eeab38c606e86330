"""Seconds and peak memory for the maxima of 1000 posterior samples, with N = 10,000 rows and 8 inputs:

    python -m pathgp_paper.bench.maximise --out docs/results/maximise.json

The samples come from `condition` with the solver `Auto` (block projections and a local projection at each point).
"""

import argparse
import dataclasses
import json
import pathlib
import resource
import time
import warnings

import jax
import jax.numpy as jnp

from pathgp import GP, condition
from pathgp.cli.bench import store
from pathgp.kernels import Matern32
from pathgp.solvers import Auto
from pathgp.thompson import Search, maximize


def main() -> None:
    parser = argparse.ArgumentParser(description="maxima of posterior samples")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=8)
    parser.add_argument("--lengthscale", type=float, default=0.3)
    parser.add_argument("--passes", type=int, default=60, help="the most passes over the data of the solve before")
    parser.add_argument("--out", type=pathlib.Path)
    for field in dataclasses.fields(Search):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    figures = measure(arguments)
    print(json.dumps(figures, indent=2))
    store(arguments.out, {"benchmark": "maximise", "figures": figures})


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    search = Search(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Search)})
    gp = GP(Matern32(arguments.lengthscale), noise=1e-6)
    truth_key, data_key, condition_key, key = jax.random.split(jax.random.key(0), 4)
    X = jax.random.uniform(data_key, (arguments.rows, arguments.inputs))
    phi = gp.kernel.features(truth_key, 5000, arguments.inputs)
    y = jax.lax.map(lambda x: phi(x[None])[0] @ jax.random.normal(truth_key, (phi.num,)), X, batch_size=256)
    clock = time.perf_counter()
    posterior = condition(
        gp, X, y, key=condition_key, solver=Auto(passes=arguments.passes), num_samples=arguments.samples
    )
    samples = jax.block_until_ready(posterior.samples)
    conditioned = time.perf_counter() - clock
    before = _gigabytes()
    clock = time.perf_counter()
    bounds, busy = [(0, 1)] * arguments.inputs, time.process_time()
    _, values = jax.block_until_ready(maximize(samples, bounds, key=key, X=X, y=y, search=search))
    seconds, busy, peak = time.perf_counter() - clock, time.process_time() - busy, _gigabytes()
    clock, only_candidates = time.perf_counter(), dataclasses.replace(search, steps=0)
    _, coarse = jax.block_until_ready(maximize(samples, bounds, key=key, X=X, y=y, search=only_candidates))
    return {
        "condition_seconds": conditioned,
        "gigabytes_before": before,
        "maximise_seconds": seconds,
        "processor_seconds": busy,
        "candidates_seconds": time.perf_counter() - clock,
        "gigabytes": peak,
        "mean_maximum": float(jnp.mean(values)),
        "mean_best_candidate": float(jnp.mean(coarse)),
        "best_datum": float(jnp.max(y)),
    }


def _gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
