"""Hyperparameters fitted to a data set, and the resulting predictions: `pathgp bench learn`."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathgp.kernels import Matern32
from pathgp.likelihood import (
    Exact,
    FittingMethod,
    NearestNeighbour,
    Neighbourhoods,
    Pathwise,
    default_gp,
    fit_hyperparameters,
)
from pathgp.likelihood.nearest import estimate
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp_paper.bench.scores import scores
from pathgp_paper.datasets import Dataset

METHODS: dict[str, list[FittingMethod]] = {
    "nearest": [NearestNeighbour()],
    "neighbourhoods": [Neighbourhoods()],
    "pathwise": [NearestNeighbour(), Pathwise()],
    "exact": [Exact()],
}
"""Fitting methods run in sequence, each from the result of the previous one."""


def learn(data: Dataset, method: str = "nearest") -> tuple[GP, dict[str, Any]]:
    """Fit hyperparameters from the default starting values, and return the GP and the cost of the fit.

    The loss is the nearest-neighbour estimate at the end for every method, so that methods can be compared.
    """
    start = time.perf_counter()
    gp, left_out = default_gp(data.X, data.y), 0
    for part in METHODS[method]:
        gp, trace = fit_hyperparameters(gp, data.X, data.y, key=jax.random.key(0), method=part, progress=True)
        left_out += trace.left_out
    seconds = time.perf_counter() - start
    loss = estimate(gp, data.X, data.y, key=jax.random.key(1))
    return gp, {"method": method, "learn_seconds": seconds, "loss": loss, "left_out": left_out}


def judge(data: Dataset, gp: GP) -> dict[str, Any]:
    """Return test RMSE and NLL of the posterior given all rows."""
    start = time.perf_counter()
    posterior = condition(gp, data.X, data.y, key=jax.random.key(0))
    mean, variance = jax.block_until_ready(posterior.predict(data.X_test))
    found = scores(data, np.asarray(mean), np.asarray(variance) + float(jnp.mean(gp.noise)))
    return {"seconds": time.perf_counter() - start, "reason": posterior.info.reason, **found}


def as_published(gp: GP) -> dict[str, Any]:
    """Return the hyperparameters in the layout of the published ones: standard deviations, not variances."""
    assert isinstance(gp.kernel, Matern32)
    return {
        "length_scale": np.asarray(gp.kernel.lengthscale, dtype=float).tolist(),
        "signal_scale": float(jnp.sqrt(gp.kernel.variance)),
        "noise_scale": float(jnp.sqrt(gp.noise)),
        "mean": float(gp.mean),
    }
