"""Each peer that is installed does the same job: it agrees with the exact posterior."""

import numpy as np
import pytest

from pathgp.kernels import Matern32
from pathgp.posterior.gp import GP
from pathgp_paper import datasets
from pathgp_paper.bench.peers import PEERS

NEEDS = {
    "gpytorch": "gpytorch",
    "gpytorch-svgp": "gpytorch",  # with all 150 rows for points
    "botorch": "botorch",
    "gpboost-100": "gpboost",
    "gpboost-200": "gpboost",
}


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.filterwarnings("ignore")
def test_it_is_given_the_same_process(name):
    pytest.importorskip(NEEDS[name])
    data = datasets.synthetic(150, d=2)
    gp = GP(Matern32(np.array([1.0, 2.0]), 1.5), noise=0.08)
    exact, found = PEERS["scipy-float64"](data, gp), PEERS[name](data, gp)
    assert found["rmse"] == pytest.approx(exact["rmse"], rel=0.05)
    assert found["nll"] == pytest.approx(exact["nll"], abs=0.1)
