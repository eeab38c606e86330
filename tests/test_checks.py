"""What is of another kind than was asked for gets a sentence: users, unlike these tests, have no type checker."""

import re
import subprocess
import sys

import pytest

SLIPS = {
    "condition(gp, X, y, key=key, solver='cg')": "solver.*'cg'",
    "condition(gp, X, y, key=key, solver=solvers.CG)": "solver.*<class",
    "condition(gp, X, y, key=key, local=True)": "local.*True",
    "condition(gp, X, y, key=key, checkpoint='run')": "checkpoint.*'run'",
    "condition(gp, X, y, key=key, num_samples=2.5)": r"num_samples.*2\.5",
    "condition(gp.kernel, X, y, key=key)": r"\bgp\b",
    "solvers.Auto(local=False)": r"Auto\.local.*False",
    "fit_hyperparameters(gp, X, y, key=key, method='exact')": r"method.*likelihood\.Exact\(\)",
    "fit_hyperparameters(gp, X, y, key=key, method=Exact)": r"method.*likelihood\.Exact\(\)",
    "fit_hyperparameters(gp, X, y, key=key, prior=Bounds(0.1, 1))": "prior.*Bounds",
    "Prior(noise=(0.1, 1))": r"prior\.noise.*\(0\.1, 1\)",
    "maximise(gp, [(0, 1)], key=key)": "functions",
    "maximise(one, [(0, 1)], key=0)": "key.* 0",
    "gp.kernel + 1": "'RBF' .*'int'",
    "2 * gp.kernel": "'int' .*'RBF'",
    "gp.kernel(X, X[:, :1])": "X .*2.*Z .*1",
    "kernels.Tanimoto()(X, X[:, :1])": "X .*2.*Z .*1",
    "PathGPRegressor(solver=solvers.CG).fit(X, y)": "solver.*CG",
    "PathGPRegressor(solver=None).fit(X, y)": "solver.*None",
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
    assert re.search(SLIPS[slip], said[slip])
