"""Runs for `test_kill` to kill: `python -m tests.support.killed KIND FOLDER PAUSE` resumes from FOLDER, and says so."""

import pathlib
import sys
import time

import jax
import numpy as np

from pathgp import GP, Checkpoint, condition
from pathgp.kernels import Matern32
from pathgp.likelihood import NearestNeighbour, descent, fit_hyperparameters
from pathgp.solvers import SDD, Observer
from pathgp.thompson import Search, ThompsonSampler

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(20_000, 2)).astype(np.float32)
y = np.sin(2 * X[:, 0]) + X[:, 1] + np.float32(0.1) * rng.normal(size=len(X)).astype(np.float32)
GIVEN = GP(Matern32(1.0), noise=0.05)
STEPS = 1500


def progress(pause):
    print("on", flush=True)
    time.sleep(pause)


def solve(folder, pause):
    look = Observer(10, lambda _: progress(pause))
    kept = Checkpoint(folder, every_seconds=0)
    solver = SDD(steps=STEPS, batch_size=32, tolerance=0.0)
    posterior = condition(
        GIVEN, X, y, solver=solver, num_samples=8, key=jax.random.key(0), observe=look, checkpoint=kept
    )
    return [posterior.solution.weights, posterior.info.relative_residual, posterior.info.steps]


def learn(folder, pause):
    advance = descent.Record.advance
    descent.Record.advance = lambda self: (advance(self), progress(pause))
    method = NearestNeighbour(steps=STEPS // 10, neighbours=16, batch_size=32)
    kept = Checkpoint(folder, every_seconds=0)
    gp, trace = fit_hyperparameters(GIVEN, X, y, key=jax.random.key(1), method=method, checkpoint=kept)
    return [*jax.tree.leaves(gp), trace.loss]


def thompson(folder, pause):
    path = pathlib.Path(folder) / "search.safetensors"
    search = Search(rounds=2, candidates=256, steps=10)
    if path.exists():
        sampler = ThompsonSampler.load(path)
    else:
        sampler = ThompsonSampler([(0.0, 1.0), (-2.0, 2.0)], search=search, initial=8, batch_size=2, random_state=3)
    while sampler.told < 100:
        points = sampler.pending if len(sampler.pending) else sampler.ask()
        sampler.save(path)
        progress(pause)
        sampler.tell(points, -((points[:, 0] - 0.3) ** 2) - (points[:, 1] + 1) ** 2)
        sampler.save(path)
        progress(pause)
    return [sampler._state.X, sampler._state.y]


if __name__ == "__main__":
    kind, folder, pause = sys.argv[1:]
    result = {"solve": solve, "learn": learn, "thompson": thompson}[kind](folder, float(pause))
    np.savez(pathlib.Path(folder) / "result.npz", *[np.asarray(part) for part in result])
