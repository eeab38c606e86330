"""Hyperparameter fitting of the estimator: one GP for all targets, in standardised units, from weighted rows."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import likelihood
from pathgp._checks import as_floats
from pathgp.estimator.registry import KERNELS, look_up
from pathgp.estimator.standardize import fit_scaling
from pathgp.likelihood import FittingMethod, Trace
from pathgp.likelihood.base import default_lengthscale_factor
from pathgp.likelihood.calibration import calibrated
from pathgp.likelihood.parameters import to_parameters
from pathgp.linalg.namespace import on_device, on_host
from pathgp.parallel.sharding import broadcast_from_first
from pathgp.posterior.gp import GP
from pathgp.runs.checkpoint import Checkpoint
from pathgp.solvers import SubsetOfData


def initial_gp(
    kernel: Any, noise: Any, learns: bool, X: Float[np.ndarray, "N d"], Y: Float[np.ndarray, "N t"], weights: Any
) -> GP:
    """Return the GP that the estimator's parameters describe; unset ones follow the rules of `likelihood.default_gp`.

    Raise `ValueError` if `noise` is an array.
    """
    if np.ndim(noise) > 0:
        raise ValueError(
            f"noise must be one number, but its shape is {np.shape(noise)}: for a noise variance per row use "
            "sample_weight; a row of weight w has noise variance noise/w."
        )
    counts = np.ones(len(X)) if weights is None else weights
    spread = fit_scaling(X, counts).scale
    centre, scale = fit_scaling(Y, counts, "y")
    # `fit_target_scaling` gives a constant target the scale 1: its variance of zero must count instead.
    level = float(np.mean(np.where(np.ptp(Y, axis=0) > 0, scale**2, 0))) or 1.0
    if isinstance(kernel, str):
        lengthscale = default_lengthscale_factor(X.shape[1]) * np.where(spread > 0, spread, 1)
        kernel = look_up(KERNELS, kernel, "kernel")(lengthscale, level)
    return GP(kernel, level / 10 if noise is None else noise, float(np.mean(centre)) if learns else 0.0)


def fit_gp(
    start: GP,
    X: Float[np.ndarray, "N d"],
    Y: Float[np.ndarray, "N t"],
    weights: Any,
    *,
    method: FittingMethod,
    key: PRNGKeyArray,
    mesh: Mesh | None,
    progress: bool,
    checkpoint: Checkpoint | None,
) -> tuple[GP, list[Trace]]:
    """Fit the hyperparameters to each target; return their mean over the targets, and the traces.

    The mean is geometric, except that of the prior means, which is arithmetic. The noise returned is that of a row of
    weight one. The scale of a nearly noiseless GP is calibrated (`likelihood.calibration`), unless rows have weights.
    Constant targets say nothing about the hyperparameters and are skipped, unless all targets are constant.
    """
    found, traces = [], []
    varies = np.ptp(Y, axis=0) > 0
    for i in np.flatnonzero(varies) if varies.any() else range(Y.shape[1]):
        y = Y[:, i]
        begun = GP(start.kernel, row_noise(start.noise, weights), start.mean)
        kept = None if checkpoint is None else checkpoint.with_part(f"target{i}")
        gp, trace = likelihood.fit_hyperparameters(
            begun, X, y, key=key, method=method, progress=progress, checkpoint=kept
        )
        # A row of weight w has the noise noise/w, so the mean over the rows is noise · mean(1/w).
        noise = np.mean(np.asarray(gp.noise)) * (1.0 if weights is None else 1 / np.mean(1 / weights))
        # With floor 0 the parameters reproduce this noise exactly.
        found.append(to_parameters(on_host(GP(gp.kernel, noise, gp.mean)), floor=0.0))
        traces.append(trace)
    # Kernel and noise are stored as logarithms: an arithmetic mean of these is a geometric mean.
    average = jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *found)
    kernel, noise = average.kernel_and_noise()
    gp = on_device(GP(kernel, noise, average.mean), start.mean.dtype)
    if weights is None:
        gp = calibrated(gp, X, Y[:, varies], key=key)
    return broadcast_from_first(mesh, gp), traces


def row_noise(noise: Float[Array, ""], weights: Any) -> Float[Array, "..."]:
    """Return the noise variance of each row, noise/weight, or `noise` itself without weights."""
    return noise if weights is None else as_floats(np.asarray(noise) / weights)


def with_limits(solver: Any, **limits: float) -> Any:
    """Return the solver with these limits set where it has such fields; `SubsetOfData` passes them to its inner solver.

    >>> from pathgp.solvers import SAP
    >>> with_limits(SubsetOfData(100, SAP()), max_seconds=2.0).solver.max_seconds
    2.0
    """
    if isinstance(solver, SubsetOfData):
        return dataclasses.replace(solver, solver=with_limits(solver.solver, **limits))
    known = {name: limit for name, limit in limits.items() if hasattr(solver, name)}
    return dataclasses.replace(solver, **known) if known else solver
