"""Regret of Thompson sampling in batches, compared with Optuna's TPE and random search:

    python -m pathgp_paper.bench.optimise --seeds 5 --out docs/results/optimise.json

Minimises Hartmann-6, Ackley-10 and Levy-10 in batches of 50, with 1000 evaluations. The regret is the best value found
minus the global minimum.
"""

import argparse
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import optuna

from pathgp.cli.bench import store
from pathgp.thompson import ThompsonSampler
from pathgp_paper.bench.report import optimise_table


class Problem(NamedTuple):
    call: Callable[[np.ndarray], np.ndarray]
    bounds: list[tuple[float, float]]
    least: float


def hartmann6(X: np.ndarray) -> np.ndarray:
    A = np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    )
    P = 1e-4 * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    return -np.exp(-np.sum(A * (X[:, None] - P) ** 2, axis=2)) @ np.array([1.0, 1.2, 3.0, 3.2])


def ackley(X: np.ndarray) -> np.ndarray:
    root, wave = np.sqrt(np.mean(X**2, axis=1)), np.mean(np.cos(2 * np.pi * X), axis=1)
    return -20 * np.exp(-0.2 * root) - np.exp(wave) + 20 + np.e


def levy(X: np.ndarray) -> np.ndarray:
    w = 1 + (X - 1) / 4
    middle = np.sum((w[:, :-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:, :-1] + 1) ** 2), axis=1)
    last = (w[:, -1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[:, -1]) ** 2)
    return np.sin(np.pi * w[:, 0]) ** 2 + middle + last


PROBLEMS = {
    "Hartmann-6": Problem(hartmann6, [(0.0, 1.0)] * 6, -3.32237),
    "Ackley-10": Problem(ackley, [(-32.768, 32.768)] * 10, 0.0),
    "Levy-10": Problem(levy, [(-10.0, 10.0)] * 10, 0.0),
}

Run = Callable[[Problem, int, int, int], list[float]]


def run_pathgp(problem: Problem, evaluations: int, batch: int, seed: int) -> list[float]:
    sampler = ThompsonSampler(problem.bounds, direction="minimize", batch_size=batch, random_state=seed)
    values: list[float] = []
    while len(values) < evaluations:
        X = sampler.ask()
        y = problem.call(X)
        sampler.tell(X, y)
        values += y.tolist()
    return values


def run_tpe(problem: Problem, evaluations: int, batch: int, seed: int) -> list[float]:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True))
    while len(study.trials) < evaluations:
        trials = [study.ask() for _ in range(batch)]
        points = [[t.suggest_float(str(i), *pair) for i, pair in enumerate(problem.bounds)] for t in trials]
        for trial, value in zip(trials, problem.call(np.array(points)), strict=True):
            study.tell(trial, float(value))
    return [trial.value for trial in study.trials if trial.value is not None]


def run_random(problem: Problem, evaluations: int, batch: int, seed: int) -> list[float]:
    low, high = np.array(problem.bounds).T
    return problem.call(np.random.default_rng(seed).uniform(low, high, (evaluations, len(low)))).tolist()


METHODS: dict[str, Run] = {"pathgp": run_pathgp, "TPE": run_tpe, "random": run_random}


def main() -> None:
    parser = argparse.ArgumentParser(description="regret of batch optimisation")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    figures = []
    for name in arguments.problems:
        for method in arguments.methods:
            for seed in range(arguments.seeds):
                clock = time.perf_counter()
                values = METHODS[method](PROBLEMS[name], arguments.evaluations, arguments.batch, seed)
                regret = np.minimum.accumulate(values)[arguments.batch - 1 :: arguments.batch] - PROBLEMS[name].least
                seconds = time.perf_counter() - clock
                figures.append(
                    {"problem": name, "method": method, "seed": seed, "seconds": seconds, "regret": regret.tolist()}
                )
                print(f"{name:<12} {method:<8} seed {seed}: regret {regret[-1]:.4f} in {seconds:.0f} s", flush=True)
    print("\n".join(optimise_table({"figures": figures})))
    settings = {"evaluations": arguments.evaluations, "batch": arguments.batch}
    store(arguments.out, {"benchmark": "optimise", **settings, "figures": figures})


if __name__ == "__main__":
    main()
