"""What is of another kind than was asked for gets a sentence: users, unlike these tests, have no type checker."""

import subprocess
import sys

import pytest

SLIPS = {
    "condition(gp, X, y, key=key, solver='cg')": "solver must be a solver such as solvers.CG(), but it is 'cg'",
    "condition(gp, X, y, key=key, solver=solvers.CG)": "solver must be a solver such as solvers.CG(), but it is <class",
    "condition(gp, X, y, key=key, local=True)": "local must be a local projection such as Local(128), or None",
    "condition(gp, X, y, key=key, checkpoint='run')": "checkpoint must be a Checkpoint such as Checkpoint('folder')",
    "condition(gp, X, y, key=key, num_samples=2.5)": "num_samples must be an integer, but it is 2.5",
    "condition(gp.kernel, X, y, key=key)": "gp must be a GP such as GP(kernels.Matern32(0.5), noise=0.1)",
    "solvers.Auto(local=False)": "Auto.local must be a local projection such as Local(128), or None, but it is False",
    "fit_hyperparameters(gp, X, y, key=key, method='exact')": "method must be a method such as likelihood.Exact()",
    "fit_hyperparameters(gp, X, y, key=key, method=Exact)": "method must be a method such as likelihood.Exact()",
    "fit_hyperparameters(gp, X, y, key=key, prior=Bounds(0.1, 1))": "prior must be a Prior such as Prior(noise=",
    "Prior(noise=(0.1, 1))": "prior.noise must be a belief such as Bounds(0.01, 0.1), or None, but it is (0.1, 1)",
    "maximise(gp, [(0, 1)], key=key)": "functions must be a Function such as posterior.samples",
    "maximise(one, [(0, 1)], key=0)": "key must be a random key, such as jax.random.key(0), but it is 0",
    "gp.kernel + 1": "unsupported operand type(s) for +: 'RBF' and 'int'",
    "2 * gp.kernel": "unsupported operand type(s) for *: 'int' and 'RBF'",
    "gp.kernel(X, X[:, :1])": "X has 2 inputs, but Z has 1",
    "kernels.Tanimoto()(X, X[:, :1])": "X has 2 inputs, but Z has 1",
    "PathGPRegressor(solver=solvers.CG).fit(X, y)": "solver must be one of auto, cholesky, cg, sap, sdd, sgd, subset,",
    "PathGPRegressor(solver=None).fit(X, y)": "or an object such as solvers.CG(), but it is None",
}


@pytest.fixture(scope="module")
def said():
    code = f"""
import jax, numpy as np
from pathgp import GP, PathGPRegressor, condition, kernels, solvers
from pathgp.kernels.features import Constant
from pathgp.functions import Function
from pathgp.likelihood import Bounds, Exact, Prior, fit_hyperparameters
from pathgp.thompson import maximise

X, key, gp = np.zeros((3, 2)), jax.random.key(0), GP(kernels.RBF(), 0.1)
y, one = X[:, 0], Function(Constant(), np.ones((1, 1)))
for slip in {list(SLIPS)!r}:
    try:
        print("nothing", eval(slip))
    except Exception as error:
        print(str(error).replace("\\n", " "))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(SLIPS, run.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("slip", SLIPS)
def test_what_is_of_another_kind_is_named_beside_what_is_meant(said, slip):
    assert SLIPS[slip] in said[slip]
