"""Points per second at which a posterior is evaluated: `pathgp bench predict`."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.solvers import Auto
from pathgp_paper.datasets import Dataset

CHUNK = 10_240
"""Points per chunk, as when samples are written to a file chunk by chunk."""


class Row(NamedTuple):
    """The throughput of one kind of prediction."""

    asked: str
    points: int
    seconds: float
    points_per_second: float


def run(data: Dataset, gp: GP, points: int) -> tuple[Posterior, list[Row]]:
    """Time the mean, mean and variance, and 64 samples at `points` points near the test rows, after compilation.

    The local projection is also timed separately, because it takes most of the time.
    """
    posterior = condition(gp, data.X, data.y, key=jax.random.key(0), solver=Auto())
    rng = np.random.default_rng(0)
    rows = data.X_test[rng.integers(len(data.X_test), size=points)]
    x = (rows + 0.01 * rng.normal(size=rows.shape)).astype(np.float32)
    asked: dict[str, Callable[[np.ndarray], Array]] = {
        "mean": posterior.mean,
        "mean and variance": lambda x: posterior.predict(x)[1],
        "64 samples": posterior.samples,
    }
    correction = posterior.predictor.correction
    if correction is not None and correction.residual is not None:
        asked["local projection alone"] = correction.residual.function(correction.projection)
    return posterior, [_timed(name, f, x) for name, f in asked.items()]


def _timed(name: str, f: Callable[[np.ndarray], Array], x: np.ndarray) -> Row:
    chunks = np.split(x, range(CHUNK, len(x), CHUNK))
    for size in {len(chunk) for chunk in chunks}:
        f(x[:size]).block_until_ready()
    start = time.perf_counter()
    for chunk in chunks:
        np.asarray(f(chunk))
    seconds = time.perf_counter() - start
    return Row(name, len(x), seconds, len(x) / seconds)


def table(rows: list[Row]) -> str:
    """Return the table as text."""
    lines = [f"{r.asked:<24} {r.points:8d} {r.seconds:8.2f} {r.points_per_second:12.0f}" for r in rows]
    return "\n".join([f"{'asked for':<24} {'points':>8} {'seconds':>8} {'points/s':>12}", *lines])
