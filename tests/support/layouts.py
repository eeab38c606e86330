"""Run by test_sharding.py in processes of its own: one small problem, solved on a given layout of devices.

    layouts.py SOLVERS DEVICES                                            one process with several devices
    layouts.py SOLVERS PROCESS_ID NUM_PROCESSES COORDINATOR [LOST DOING]  one process of several, with one device

SOLVERS are names with semicolons between, or none for what is quick. Prints JSON: weights, predictions, and what
compiled programs communicate. At the end of a job the process LOST vanishes: in the midst of a solve that is kept in
SHARED_FOLDER/lost, which all are DOING, or while the other rests. Or it is asked to stop in the midst of such a solve.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pathgp import GP, Checkpoint, Local, condition, storage
from pathgp.kernels import Matern32
from pathgp.likelihood import NearestNeighbour, Pathwise, fit_hyperparameters
from pathgp.parallel import jobs
from pathgp.posterior.problem import Problem
from pathgp.solvers import (
    CG,
    SAP,
    SDD,
    SGD,
    SGPR,
    SVGP,
    Cholesky,
    InducingCG,
    InducingCholesky,
    InducingSGD,
    Observer,
    SubsetOfData,
)
from pathgp.system.system import System, Targets

N, D, S, BATCH = 503, 3, 5, 64
rng = np.random.default_rng(0)
X, V = rng.uniform(-2, 2, (N, D)), rng.normal(size=(N, S))
NOISE = np.linspace(0.05, 0.2, N)
y = np.sin(X.sum(axis=1)) + np.sqrt(NOISE) * rng.normal(size=N)
x = rng.uniform(-2, 2, (7, D))
ROWS = np.array([3, 500, 77, 126, 125, 251])
LOCAL = Local(neighbours=16)
HEARTBEAT = 10
TIMEOUT = 900
"""Seconds: a job that hangs is ended, and the test fails."""

SOLVERS = {  # made when they are asked for: a process joins a job before it computes anything
    "SDD": lambda: SDD(steps=60, batch_size=BATCH),
    "SGD": lambda: SGD(steps=30, batch_size=BATCH),
    "SAP": lambda: SAP(passes=2, block_size=BATCH),
    "SAP, plain": lambda: SAP(passes=2, block_size=BATCH, accelerated=False, factor_bytes=0),
    "SAP, local": lambda: SAP(passes=2, block_size=BATCH, local=LOCAL),
    "CG": lambda: CG(steps=6, rank=20),
    "InducingCG": lambda: InducingCG(X[:51], steps=12, tolerance=0.0),  # with the residual computed anew once
    "InducingSGD": lambda: InducingSGD(X[:51], steps=20, descent=SGD(batch_size=BATCH)),
    "SVGP": lambda: SVGP(X[:51], steps=20, batch_size=BATCH),
    "Cholesky": lambda: Cholesky(),
    "InducingCholesky": lambda: InducingCholesky(X[:51]),
    "SGPR": lambda: SGPR(X[:51]),
    "SubsetOfData": lambda: SubsetOfData(rows=101),
    "SubsetOfData, SAP": lambda: SubsetOfData(rows=101, solver=SAP(passes=2, block_size=BATCH)),
}


STEPPING = ["SAP", "SDD", "SGD", "CG", "InducingCG", "InducingSGD"]
"""Those with steps in a loop, of which it is counted what they communicate."""


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def key():
    return jax.random.key(0)


def posterior(mesh, solver="SAP", local=None, num_samples=S - 1):
    options = {"local": local, "num_samples": num_samples, "num_features": 100, "key": key(), "mesh": mesh}
    return condition(GP(Matern32(0.7), NOISE), X, y, solver=SOLVERS[solver](), **options)


def predictions(p):
    """The mean at the points x, its variance, then each sample."""
    mean, variance = (np.asarray(part)[:, None] for part in p.predict(x))
    return np.concatenate([mean, variance, np.asarray(p.samples(x))], axis=1).tolist()


def posteriors(mesh):
    """What is predicted where a projection finishes a solve on all rows, or on some; and with more samples and data."""
    local, subset = posterior(mesh, "SAP, local"), posterior(mesh, "SubsetOfData, SAP", LOCAL)
    first = condition(GP(Matern32(0.7), 0.1), X[:400], y[:400], solver=Cholesky(), num_samples=2, key=key(), mesh=mesh)
    grown = first.with_samples(2, key=key()).update(X[400:], y[400:], key=key())
    slope = jax.grad(lambda point: local.samples(point[None])[0, 1])(jnp.asarray(x[0], float))
    values = {"local": local, "subset": subset, "grown": grown}
    return {"slope": np.asarray(slope).tolist(), **{name: predictions(p) for name, p in values.items()}}


def system_and_targets(mesh):
    system = System(Matern32(0.7), jnp.asarray(X, float), jnp.asarray(NOISE, float), (32, 64)).shard(mesh)
    return system, Targets(jnp.asarray(V, float), jnp.asarray(2 * V, float)).map_columns(system.shard_rows)


def products(mesh):
    """Each product of the system, and the derivative of vᵀHv by the length scale."""
    system, targets = system_and_targets(mesh)

    @jax.jit
    def compute(system, targets):
        W, B = targets.signal, jnp.asarray(ROWS)
        quadratic = lambda kernel: jnp.sum(W[:, 0] * (dataclasses.replace(system, kernel=kernel) @ W)[:, 0])
        return {
            "whole": system @ W,
            "columns": system.columns(B, W[: len(ROWS)]),
            "block": system.block(B),
            "residual": system.residual_rows(B, targets, W),
            "misfit": system.misfit_rows(B, 2 * W, W),
            "mean noise": system.mean_noise,
            "derivative": jax.grad(quadratic)(system.kernel).lengthscale,
        }

    values = compute(system, targets)
    whole = {name: system.gather_rows(values[name]) for name in ("whole", "columns")}
    return {name: np.asarray(value).tolist() for name, value in {**values, **whole}.items()}


def learned(mesh):
    """Hyperparameters, losses and gradients, of `Pathwise` with the weights at the end."""
    return {
        "Pathwise": learned_by(Pathwise(steps=2, probes=4, passes=2, num_features=100, block_size=BATCH, mesh=mesh)),
        "NearestNeighbour": learned_by(NearestNeighbour(steps=3, neighbours=8, batch_size=BATCH - 1, mesh=mesh)),
    }


def learned_by(method):
    gp, trace = fit_hyperparameters(GP(Matern32([0.7] * D), 0.1), X, y, key=key(), method=method)
    found = [*gp.kernel.lengthscale.tolist(), float(gp.kernel.variance), float(gp.noise), float(gp.mean)]
    weights = [] if trace.weights is None else np.asarray(trace.weights)[:, :2].ravel().tolist()
    return [*found, *trace.loss, *trace.gradient, *weights]


STOP = 5


def resumed(mesh, others, folder, name="SAP"):
    """The weights of a solve on a mesh, with rows that repeat others and a start; of one that is stopped and goes on.

    That is on the same mesh, then on each of the others. Also the steps at which they go on.
    """
    rows = np.r_[:N, :51, 7]
    init = np.linspace(-1, 1, len(rows) * S).reshape(-1, S)
    given = {"solver": SOLVERS[name](), "num_samples": S - 1, "num_features": 100, "key": key()}
    seen = []

    def look(snapshot):
        seen.append(snapshot.step)
        if len(seen) == STOP:
            raise KeyboardInterrupt

    def solve(mesh, **settings):
        p = condition(
            GP(Matern32(0.7), NOISE[rows]),
            X[rows],
            y[rows],
            init=jnp.asarray(init, float),
            mesh=mesh,
            **given,
            **settings,
        )
        return np.asarray(p.gathered().solution.weights).tolist()

    results = {"alone": solve(None), "undisturbed": solve(mesh), "resumed": [], "from": []}
    stopped = Checkpoint(folder / "stopped", every_seconds=0)
    with contextlib.suppress(KeyboardInterrupt):
        solve(mesh, checkpoint=stopped, observe=Observer(1, look))
    for i, other in enumerate([mesh, *others]):
        if jax.process_index() == 0:
            shutil.copytree(stopped.directory, folder / str(i))
        jobs.barrier()
        solved = solve(other, checkpoint=Checkpoint(folder / str(i)), observe=Observer(1, look))
        results["resumed"].append(solved)
        results["from"].append(seen[STOP])
        del seen[STOP:]
    return results


COLLECTIVE = r"= (\S.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("


def communication(f, *arguments):
    """The shapes of what devices tell each other in a compiled program."""
    text = jax.jit(f).lower(*arguments).compile().as_text()
    found = []
    for shapes, kind in re.findall(COLLECTIVE, text):
        for shape in re.findall(r"\w+\[([\d,]*)\]", shapes):
            found.append([kind, *map(int, filter(None, shape.split(",")))])
    return sorted(found)


def steps(mesh, names):
    """What one step of each solver and a whole product communicate."""
    found = {}
    for name in names:
        system, targets = system_and_targets(mesh)
        solver = SOLVERS[name]()
        if name.startswith("Inducing"):  # which know no prior functions here: columns that ask for a mean
            targets = Targets(targets.signal, jnp.zeros_like(targets.noise))
        plan = solver.make_plan(system, targets, key())
        state = system.constrain_sharding(eqx.filter_jit(solver.start)(plan, system, targets, key(), None))
        step = lambda *arguments, solver=solver: arguments[1].constrain_sharding(solver.step(*arguments))
        found[name] = communication(step, plan, system, targets, state)
    found["product"] = communication(lambda system, W: system @ W, system, targets.signal)
    return found


def weights(name, mesh):
    options = (X, y[:, None], S - 1, 100, key())
    posed = Problem.of(GP(Matern32(0.7), NOISE), *map(jnp.asarray, options[:2]), *options[2:])
    posed = dataclasses.replace(posed, system=dataclasses.replace(posed.system, tile=(32, 64))).shard(mesh)
    system, targets, solve_key = posed.system, posed.targets, posed.key
    solution = SOLVERS[name]().solve(system, targets, key=solve_key)
    found = solution.weights if solution.weights.shape[0] < N else system.gather_rows(solution.weights)
    return np.asarray(found).tolist()


def one_process(names, devices):
    mesh = jobs.mesh(devices)
    both = lambda f: [f(None), f(mesh)]
    results = {"products": products(mesh), "steps": steps(mesh, STEPPING if names else ["SAP"])}
    results["solvers"] = {name: both(lambda m, name=name: weights(name, m)) for name in names}
    if names:
        results |= {"learned": both(learned), "posteriors": both(posteriors)}
    alone, split = posterior(None), posterior(mesh)
    results["predictions"] = [predictions(alone), predictions(split)]
    kept = (split.system.X, split.targets.signal, split.solution.weights, split.solution.residual)
    results["shards"] = [[shard.data.shape for shard in array.addressable_shards] for array in kept]
    update = split.predictor.update
    results["communication"] = communication(lambda f, x: f(x), update, jnp.asarray(x, float))
    with tempfile.TemporaryDirectory() as folder:
        storage.save(pathlib.Path(folder) / "model", split.gathered())
        loaded = storage.load(pathlib.Path(folder) / "model")
        two, four = jobs.mesh(2), mesh
        of_each = {name: pathlib.Path(folder) / name for name in ("SAP", *(["SDD", "SGD", "CG"] if names else []))}
        results["resumed"] = {name: resumed(two, [four, None], path, name) for name, path in of_each.items()}
    results["loaded"] = [list(loaded.solution.weights.shape), np.asarray(loaded.mean(x)).tolist()]
    return results


def one_of_several(names, process_id, num_processes, coordinator):
    jobs.join(coordinator, process_id, num_processes, timeout=400, heartbeat=HEARTBEAT)
    mesh = jobs.mesh()
    results = {"devices": mesh.size, "local": jax.local_device_count()}
    results["solvers"] = {name: weights(name, mesh) for name in names}
    if names:
        results |= {"learned": learned(mesh), "posteriors": posteriors(mesh)}
        results["resumed"] = resumed(mesh, [], pathlib.Path(os.environ["SHARED_FOLDER"]))
    p = posterior(mesh)
    results["predictions"] = predictions(p)
    results["shards"] = [shard.data.shape for shard in p.solution.weights.addressable_shards]
    results["gathered"] = np.asarray(p.gathered().solution.weights).tolist()
    print(json.dumps(results), flush=True)
    lose(mesh, process_id, *sys.argv[5:])


def kept(mesh, folder, look, every_seconds=0):
    """A solve with a checkpoint, of which nothing but the last step is ever lost, and a look at every step."""
    settings = {"solver": SOLVERS["SAP"](), "num_samples": S - 1, "num_features": 100, "key": key(), "mesh": mesh}
    checkpoint, observe = Checkpoint(folder, every_seconds), Observer(1, look)
    return condition(GP(Matern32(0.7), NOISE), X, y, checkpoint=checkpoint, observe=observe, **settings)


def lose(mesh, process_id, lost="1", doing="solves"):
    """One process vanishes, while the other waits for it or does something else."""

    def vanish(snapshot=None):
        if process_id == int(lost) and (snapshot is None or snapshot.step >= STOP):
            os.kill(os.getpid(), signal.SIGKILL)

    def ask(snapshot):
        if process_id == int(lost) and snapshot.step == STOP:
            signal.raise_signal(signal.SIGTERM)

    if doing == "stops":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        kept(mesh, pathlib.Path(os.environ["SHARED_FOLDER"]) / "stopped", ask, every_seconds=1e9)
    with jobs.report_lost_process():
        if doing == "solves":
            kept(mesh, pathlib.Path(os.environ["SHARED_FOLDER"]) / "lost", vanish)
        vanish()
        while True:
            time.sleep(0.1)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*did not reach the tolerance")
    solvers = list(filter(None, sys.argv[1].split(";")))
    if len(sys.argv) == 3:
        print(json.dumps(one_process(solvers, int(sys.argv[2]))))
    else:
        one_of_several(solvers, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
