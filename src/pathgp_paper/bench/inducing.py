# pyright: reportCallIssue=false
"""Inducing points at a million rows, the cost of a step of their gradient descent, and the choice of points:

    python -m pathgp_paper.bench.inducing million [--rows 1000000] [--points 20000] [--out FILE]
    python -m pathgp_paper.bench.inducing steps [--out FILE]
    python -m pathgp_paper.bench.inducing choose [--out FILE]

`million`: mean and 16 samples given synthetic rows of a known function of 8 inputs with noise. The reference is an
exact GP on as many random rows as there are points. Each runs in a separate process. The excess is the test RMSE minus
the standard deviation of the noise. InducingCG stops when its predictions at the data are within about 3 % of their
size. Processor time is reported with wall-clock time, and indicates the time on two otherwise idle cores.

`steps`: seconds per step of InducingSGD against N at fixed M, and against M at fixed N, with the log-log slopes.

`choose`: each method of choosing points among two million rows of 10 inputs, with length scales from 0.5 to 20 standard
deviations, in a separate process.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
import warnings

import jax
import numpy as np

from pathgp import GP, condition
from pathgp.cli.bench import store
from pathgp.kernels import Matern32
from pathgp.solvers import SGD, InducingCG, InducingSGD, Observer, SubsetOfData
from pathgp.solvers.inducing.points import eliminate, greedy, k_means, random_subset
from pathgp_paper.bench.contest import peak_gigabytes

INPUTS, SAMPLES, NOISE = 8, 16, 0.1
PROCESS = GP(Matern32(3.0, 2.0), noise=NOISE)
CHOICES = {"random": random_subset, "elimination": lambda X, num, key: eliminate(PROCESS.kernel, X, num=num, key=key)}
CONTESTANTS = ("exact", "cg", "sgd")


def truth(X):
    return np.sin(2 * X[:, 0]) + X[:, 1] * np.cos(X[:, 2]) + 0.5 * np.sin(X[:, 3] + X[:, 4])


def rows(number):
    rng = np.random.default_rng(0)
    X, x = rng.normal(size=(number, INPUTS)).astype(np.float32), rng.normal(size=(5000, INPUTS)).astype(np.float32)
    return X, truth(X) + np.sqrt(NOISE) * rng.normal(size=number), x


def solve(name, a):
    """Run one contestant, and return seconds, memory, excess, and the ratio of its error to the spread of samples."""
    X, y, x = rows(a.rows)
    before, clock, processor = peak_gigabytes(), time.perf_counter(), time.process_time()
    if name == "exact":
        solver = SubsetOfData(a.points)
    else:
        points = CHOICES[a.choice](X, a.points, key=jax.random.key(1))
        by_gradient = InducingSGD(points, a.sgd_steps, SGD(learning_rate=a.rate, sample_learning_rate=a.rate))
        solver = InducingCG(points, a.cg_steps, tolerance=0.03) if name == "cg" else by_gradient
    chosen = time.perf_counter() - clock
    posterior = condition(PROCESS, X, y, solver=solver, num_samples=SAMPLES, key=jax.random.key(0))
    mean, variance = map(np.asarray, posterior.predict(x))
    error = np.mean((mean - truth(x)) ** 2)
    return {
        "name": name,
        "rows": a.rows,
        "points": posterior.solution.points.shape[0],
        "choosing_seconds": chosen,
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
        "gigabytes": peak_gigabytes(),
        "gigabytes_before": before,
        "rmse": float(np.sqrt(NOISE + error)),
        "excess": float(np.sqrt(NOISE + error) - np.sqrt(NOISE)),
        "error_over_spread": float(np.sqrt(error / np.mean(variance))),
        "steps": posterior.info.steps,
        "residual": float(np.max(posterior.info.relative_residual)),
    }


def million(a):
    results = []
    for name in a.only:
        own = [f"--rows={a.rows}", f"--points={a.points}", f"--choice={a.choice}", f"--rate={a.rate}"]
        own += [f"--cg-steps={a.cg_steps}", f"--sgd-steps={a.sgd_steps}"]
        run = subprocess.run([sys.executable, __file__, "one", *own, "--only", name], capture_output=True, text=True)
        if run.returncode:
            print(f"{name:<8} failed: {(run.stderr.strip().splitlines() or ['?'])[-1]}", flush=True)
            continue
        r = json.loads(run.stdout.splitlines()[-1])
        results.append(r)
        spent = f"{r['seconds']:8.1f} s ({r['processor_seconds']:.0f} s of processors)"
        print(
            f"{name:<8} {r['rows']:>8} rows {r['points']:>6} points {spent}"
            f" {r['gigabytes']:5.2f} GB  RMSE {r['rmse']:.4f}, the noise {NOISE**0.5:.4f}, excess "
            f"{r['excess']:.5f}, error/spread {r['error_over_spread']:.2f}, residual {r['residual']:.1e}",
            flush=True,
        )
    return {"benchmark": "inducing-million", "results": results}


def seconds_a_step(number, points):
    """Return the minimum time per step over intervals of 20 steps. Other load on the machine can only increase it."""
    X, y, _ = rows(number)
    marks = []
    solver, watch = InducingSGD(X[:points], 121, tolerance=0.0), Observer(20, lambda s: marks.append(s.seconds))
    condition(PROCESS, X, y, solver=solver, num_samples=SAMPLES, observe=watch, key=jax.random.key(0))
    return float(np.min(np.diff(marks[:6]))) / 20


def steps(a):
    figures = {}
    for label, sizes, measure in (
        ("rows", [50_000, 200_000, 1_000_000], lambda n: seconds_a_step(n, 4096)),
        ("points", [1000, 4000, 8000, 32_000], lambda m: seconds_a_step(max(50_000 // a.shrink, m), m)),
    ):
        sizes = [size // a.shrink for size in sizes]
        found = [measure(size) for size in sizes]
        slope = float(np.polyfit(np.log(sizes), np.log(found), 1)[0])
        figures[label] = {"sizes": sizes, "seconds_a_step": found, "slope": slope}
        table = "  ".join(f"{size}: {1000 * t:.1f} ms" for size, t in zip(sizes, found, strict=True))
        print(f"a step of InducingSGD against {label:<6} {table}   slope {slope:.2f}", flush=True)
    return {"benchmark": "inducing-steps", **figures}


KERNEL = Matern32(np.geomspace(0.5, 20, 10))
WAYS = {
    "random_subset, 20,000": lambda X, key: random_subset(X, 20_000, key=key),
    "k_means, 1000": lambda X, key: k_means(KERNEL, X, 1000, key=key),
    "greedy, 1000": lambda X, key: greedy(KERNEL, X, 1000, key=key),
    "eliminate, ratio .5": lambda X, key: eliminate(KERNEL, X, ratio=0.5, key=key),
    "eliminate, 20,000": lambda X, key: eliminate(KERNEL, X, num=20_000, key=key),
}


def choose_one(name, a):
    X = np.random.default_rng(0).normal(size=(2_000_000 // a.shrink, 10)).astype(np.float32)
    before, clock = peak_gigabytes(), time.perf_counter()
    points = WAYS[name](X, jax.random.key(0)).shape[0]
    seconds = time.perf_counter() - clock
    return {
        "name": name,
        "points": points,
        "seconds": seconds,
        "gigabytes": peak_gigabytes(),
        "gigabytes_before": before,
    }


def choose(a):
    results = []
    for name in WAYS:
        command = [sys.executable, __file__, "choose", f"--shrink={a.shrink}", "--way", name]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        results.append(json.loads(run.stdout.splitlines()[-1]))
        r = results[-1]
        print(f"{name:<24} {r['points']:>8} points {r['seconds']:6.0f} s {r['gigabytes']:5.2f} GB", flush=True)
    return {"benchmark": "inducing-choices", "rows": 2_000_000 // a.shrink, "results": results}


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("benchmark", choices=["million", "steps", "choose", "one"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--choice", choices=sorted(CHOICES), default="random")
    parser.add_argument("--cg-steps", type=int, default=20)
    parser.add_argument("--sgd-steps", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=0.01, help="the learning rate of InducingSGD")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=["exact", "cg"])
    parser.add_argument(
        "--shrink", type=int, default=1, help="divide the sizes of `steps` and `choose` by this, to try them out"
    )
    parser.add_argument("--way", choices=WAYS, help="of `choose`, this one, in this process")
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    warnings.simplefilter("ignore")
    if a.benchmark == "one":
        print(json.dumps(solve(a.only[0], a)))
        return
    if a.way is not None:
        print(json.dumps(choose_one(a.way, a)))
        return
    store(a.out, {"million": million, "steps": steps, "choose": choose}[a.benchmark](a))


if __name__ == "__main__":
    main()
