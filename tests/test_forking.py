"""A process forked after JAX was used raises an error where it would hang; one forked before works."""

import subprocess
import sys

import pytest

# Each call runs in a forked child of its own, which ends within the time or is counted as hanging.
PROGRAM = """
import multiprocessing, sys, warnings
import numpy as np
warnings.simplefilter("ignore")  # JAX warns of every fork
import jax
from pathgp import GP, PathGPRegressor, condition, kernels
from pathgp.likelihood import fit_hyperparameters

X = np.random.default_rng(0).normal(size=(300, 2))
y = np.sin(X[:, 0])

def estimator():
    return PathGPRegressor("rbf", noise=0.1, hyperparameters="fixed", num_samples=2, random_state=0)

def outcome(call, sender):
    try:
        sender.send(str(np.shape(call())))
    except BaseException as error:
        sender.send(f"{type(error).__name__}: {error}")

def in_child(call, seconds):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=outcome, args=(call, sender))
    child.start()
    found = receiver.recv() if receiver.poll(seconds) else "hangs"
    child.kill()
    child.join()
    return found

if sys.argv[1] == "before":
    print("predict", in_child(lambda: estimator().fit(X, y).predict(X), 120))
model = estimator().fit(X, y)
model.predict(X)
model.save(sys.argv[2])
gp, key = GP(kernels.RBF(), noise=0.1), jax.random.key(0)
posterior = model.posterior_
calls = {
    "fit": lambda: estimator().fit(X, y).predict(X),
    "partial_fit": lambda: model.partial_fit(X, y).predict(X),
    "predict": lambda: model.predict(X, return_std=True),
    "sample_y": lambda: model.sample_y(X),
    "load": lambda: PathGPRegressor.load(sys.argv[2]).predict(X),
    "condition": lambda: condition(gp, X, y, key=key).mean(X),
    "fit_hyperparameters": lambda: fit_hyperparameters(gp, X, y, key=key)[0].noise,
    "mean": lambda: posterior.mean(X),
    "samples": lambda: posterior.samples(X),
    "deviations": lambda: posterior.deviations(X),
    "posterior.predict": lambda: posterior.predict(X),
    "with_samples": lambda: posterior.with_samples(2, key=key).samples(X),
    "update": lambda: posterior.update(X, y, key=key).mean(X),
}
for name, call in calls.items() if sys.argv[1] == "after" else ():
    print(name, in_child(call, 20))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forking is not the same elsewhere")


def run(when, folder):
    command = [sys.executable, "-c", PROGRAM, when, str(folder / "model")]
    environment = {"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_a_child_forked_after_jax_was_used_names_the_remedy(tmp_path):
    found = run("after", tmp_path)
    assert len(found) == 13
    wrong = {name: said for name, said in found.items() if not (said.startswith("RuntimeError") and "spawn" in said)}
    assert wrong == {}


def test_a_child_forked_before_jax_was_used_fits_and_predicts(tmp_path):
    assert run("before", tmp_path) == {"predict": "(300,)"}
