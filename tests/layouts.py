"""Run by test_sharding.py in processes of its own: one small problem, solved on a given layout of devices.

    layouts.py SOLVERS DEVICES                               one process with several devices
    layouts.py SOLVERS PROCESS_ID NUM_PROCESSES COORDINATOR  one process of several, with one device

SOLVERS are names with commas between. Prints JSON: weights, predictions, and what compiled programs communicate.
"""

import json
import pathlib
import re
import sys
import tempfile
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from pathgp import GP, condition, distributed, storage
from pathgp.kernels import Matern32
from pathgp.likelihood import NearestNeighbour, fit_hyperparameters
from pathgp.solvers import (
    CG,
    SAP,
    SDD,
    SGD,
    Cholesky,
    InducingCG,
    InducingCholesky,
    InducingSGD,
    SubsetOfData,
)
from pathgp.system import System, Targets

N, D, S, BATCH = 501, 3, 5, 64
rng = np.random.default_rng(0)
X, V = rng.uniform(-2, 2, (N, D)), rng.normal(size=(N, S))
NOISE = np.linspace(0.05, 0.2, N)
y = np.sin(X.sum(axis=1)) + np.sqrt(NOISE) * rng.normal(size=N)
x = rng.uniform(-2, 2, (7, D))
ROWS = np.array([3, 500, 77, 126, 125, 251])

SOLVERS = {  # made when they are asked for: a process joins a job before it computes anything
    "SDD": lambda: SDD(steps=60, batch_size=BATCH),
    "SGD": lambda: SGD(steps=30, batch_size=BATCH),
    "SAP": lambda: SAP(passes=2, block_size=BATCH),
    "CG": lambda: CG(steps=6, rank=20),
    "InducingCG": lambda: InducingCG(X[:51], steps=4),
    "InducingSGD": lambda: InducingSGD(X[:51], steps=20, descent=SGD(batch_size=BATCH)),
    "Cholesky": lambda: Cholesky(),
    "InducingCholesky": lambda: InducingCholesky(X[:51]),
    "SubsetOfData": lambda: SubsetOfData(rows=101),
}


def key():
    return jax.random.key(0)


def posterior(mesh):
    gp = GP(Matern32(0.7), NOISE)
    return condition(gp, X, y, solver=SOLVERS["SAP"](), num_samples=S - 1, num_features=100, key=key(), mesh=mesh)


def predictions(p):
    """The mean at the points x, then each sample."""
    mean = np.asarray(p.mean(x))[:, None]
    return np.concatenate([mean, np.asarray(p.samples(x))], axis=1).tolist()


def system_and_targets(mesh):
    system = System(Matern32(0.7), jnp.asarray(X, float), jnp.asarray(NOISE, float), (32, 64)).split(mesh)
    return system, system.placed(Targets(jnp.asarray(V, float), jnp.asarray(2 * V, float)))


def products(mesh):
    """Each product of the system, and the derivative of vᵀHv by the length scale."""
    system, targets = system_and_targets(mesh)

    @jax.jit
    def compute(system, targets):
        W, B = targets.signal, jnp.asarray(ROWS)
        quadratic = lambda kernel: jnp.sum(W[:, 0] * (System(kernel, *rest, mesh=system.mesh) @ W)[:, 0])
        rest = system.X, system.noise, system.tile
        return {
            "whole": system @ W,
            "rows": system.rows(B, W),
            "columns": system.columns(B, W[: len(ROWS)]),
            "block": system.block(B),
            "residual": system.residual_rows(B, targets, W),
            "mean noise": system.mean_noise,
            "derivative": jax.grad(quadratic)(system.kernel).lengthscale,
        }

    values = compute(system, targets)
    whole = {name: system.collected(values[name]) for name in ("whole", "columns")}
    return {name: np.asarray(value).tolist() for name, value in {**values, **whole}.items()}


def learned(mesh):
    method = NearestNeighbour(steps=3, neighbours=8, batch_size=BATCH, mesh=mesh)
    gp, trace = fit_hyperparameters(GP(Matern32([0.7] * D), 0.1), X, y, key=key(), method=method)
    return [*gp.kernel.lengthscale.tolist(), float(gp.kernel.variance), float(gp.noise), float(gp.mean), *trace.loss]


COLLECTIVE = r"= (\S.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("


def communication(f, *arguments):
    """The shapes of what devices tell each other in a compiled program."""
    text = jax.jit(f).lower(*arguments).compile().as_text()
    found = []
    for shapes, kind in re.findall(COLLECTIVE, text):
        for shape in re.findall(r"\w+\[([\d,]*)\]", shapes):
            found.append([kind, *map(int, filter(None, shape.split(",")))])
    return sorted(found)


def steps(mesh):
    """What one step of each solver, a whole product and a prediction communicate."""
    system, targets = system_and_targets(mesh)
    found = {}
    for name in ("SDD", "SGD", "SAP"):
        solver = SOLVERS[name]()
        plan = jax.jit(solver.prepare)(system, targets, key())
        state = system.constrained(jax.jit(solver.start)(plan, system, targets, key(), None))
        step = lambda *arguments, solver=solver: arguments[1].constrained(solver.step(*arguments))
        found[name] = communication(step, plan, system, targets, state)
    found["product"] = communication(lambda system, W: system @ W, system, targets.signal)
    return found


def weights(name, mesh):
    system, targets = system_and_targets(mesh)
    solution = SOLVERS[name]().solve(system, targets, key=key())
    found = solution.weights if solution.weights.shape[0] < N else system.collected(solution.weights)
    return np.asarray(found).tolist()


def one_process(names, devices):
    mesh = distributed.mesh(devices)
    results = {"products": products(mesh), "steps": steps(mesh), "learned": [learned(None), learned(mesh)]}
    results["solvers"] = {name: [weights(name, None), weights(name, mesh)] for name in names}
    split = posterior(mesh)
    results["predictions"] = [predictions(posterior(None)), predictions(split)]
    kept = (split.system.X, split.targets.signal, split.solution.weights, split.solution.residual)
    results["shards"] = [[shard.data.shape for shard in array.addressable_shards] for array in kept]
    results["communication"] = communication(lambda f, x: f(x), split.samples, jnp.asarray(x, float))
    with tempfile.TemporaryDirectory() as folder:
        storage.save(pathlib.Path(folder) / "model", split.gathered())
        loaded = storage.load(pathlib.Path(folder) / "model")
    results["loaded"] = [list(loaded.solution.weights.shape), predictions(loaded)]
    return results


def one_of_several(names, process_id, num_processes, coordinator):
    distributed.join(coordinator, process_id, num_processes, timeout=200)
    mesh = distributed.mesh()
    results = {"devices": mesh.size, "local": jax.local_device_count(), "learned": learned(mesh) if names else None}
    results["solvers"] = {name: weights(name, mesh) for name in names}
    p = posterior(mesh)
    results["predictions"] = predictions(p)
    results["shards"] = [shard.data.shape for shard in p.solution.weights.addressable_shards]
    results["gathered"] = np.asarray(p.gathered().solution.weights).tolist()
    return results


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*did not reach the tolerance")
    solvers = list(filter(None, sys.argv[1].split(",")))
    if len(sys.argv) == 3:
        print(json.dumps(one_process(solvers, int(sys.argv[2]))))
    else:
        print(json.dumps(one_of_several(solvers, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
