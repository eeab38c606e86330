"""Scores of a contestant."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from pathgp.analysis import metrics
from pathgp_paper.datasets import Dataset

Result = dict[str, Any]


def scores(data: Dataset, mean: np.ndarray, variance: np.ndarray) -> Result:
    """Return test RMSE and NLL. `variance` includes the noise."""
    m, v, y = (jnp.asarray(x, dtype=float) for x in (mean, variance, data.y_test))
    return {"rmse": float(metrics.rmse(y, m)), "nll": float(metrics.nll(y, m, v))}
