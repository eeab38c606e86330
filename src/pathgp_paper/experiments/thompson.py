"""Parallel Thompson sampling on draws from a GP, with any solver and a fixed amount of work per solve."""

import dataclasses
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import solvers
from pathgp.functions import Function
from pathgp.kernels import Matern32
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.solvers import ConvergenceWarning, DivergenceError, Solver
from pathgp.solvers.inducing.points import random_subset
from pathgp.thompson import Search, maximize
from pathgp.thompson.maximise import candidate_scale, candidates, check_bounds, maxima
from pathgp_paper.experiments.base import Result, Settings

RANDOM = "random"
OBJECTIVE_FEATURES = 5000
ENTRY = 50
"""Cost of a kernel entry in multiply-adds: about 1 ns at 50 G multiply-adds per second."""

SETUP = 1
"""Passes of a budget reserved for setup before the steps: a preconditioner, the factors of blocks, K_zz⁻¹."""

DRAW, START, NOISE, LOOP = range(4)


def passes_in_step(solver: dict[str, Any], N: int, columns: int) -> float:
    """Return the work of one step (one pass for SAP), in units of a product (K + Σ)V with all columns.

    A pass computes N² kernel entries and N² multiply-adds per column. A step of SGD uses its rows twice and draws
    features. A step of SVGP costs 6 M² multiply-adds per row of its batch, forward and backward.

    >>> passes_in_step({"name": "SDD", "batch_size": 100}, 1000, 50)
    0.1
    """
    D, once = solver.get("batch_size", 0), N * N * (ENTRY + columns)
    match solver["name"]:
        case "SDD":
            return D / N
        case "SGD":
            return (2 * D * N * (ENTRY + columns) + solver["num_features"] * N * (ENTRY + 2 * columns)) / once
        case "SVGP":
            return (D * solver["points"] * ENTRY + 6 * D * solver["points"] ** 2) / once
    return 1.0


def solver_of(
    options: dict[str, Any], passes: float | None, X: Float[Array, "N d"], s: int, key: PRNGKeyArray
) -> Solver:
    """Return the solver with these fields. If `passes` is given, it determines the number of steps."""
    fields = {name: value for name, value in options.items() if name != "name"}
    if passes is not None:
        steps = max(1, round((passes - SETUP) / passes_in_step(options, len(X), s + 1)))
        fields["passes" if options["name"] == "SAP" else "steps"] = steps
    if "points" in fields:
        fields["points"] = random_subset(X, min(fields["points"], len(X)), key=key)
    return getattr(solvers, options["name"])(**fields)


def optimise(settings: Settings) -> Result:
    """Return the largest value after each step, the times of the steps, and the residuals of the solves.

    All methods with the same seed and length scale start from the same data of the same function. Each step draws new
    samples and solves from zero, as in the paper. If a solve diverges, the remaining steps gain nothing.
    """
    d, initial, batch = settings["inputs"], settings["initial"], settings["batch"]
    kernel = Matern32(settings["lengthscale"])
    gp = GP(kernel, noise=settings["noise"])
    key = jax.random.key(settings["seed"])
    draw, start, noise, loop = (jax.random.fold_in(key, use) for use in (DRAW, START, NOISE, LOOP))
    feature_key, weight_key = jax.random.split(draw)
    features = kernel.features(feature_key, OBJECTIVE_FEATURES, d)
    g = Function(features, jax.random.normal(weight_key, (features.num,)))
    search = Search(**settings["search"])
    X = jax.random.uniform(start, (initial, d))
    y = observed(g, X, gp, jax.random.fold_in(noise, 0))
    found: dict[str, Any] = {"best": [float(jnp.max(y))], "seconds": [], "solve_seconds": [], "residual": []}
    for step in range(1, settings["steps"] + 1):
        clock, step_key = time.perf_counter(), jax.random.fold_in(loop, step)
        try:
            points, took, residual = next_points(settings, gp, X, y, search, step_key)
        except DivergenceError as error:  # no points to evaluate, so no gain in the remaining steps
            found["best"] += [found["best"][-1]] * (settings["steps"] + 1 - step)
            return found | {"failed": f"step {step}: {error}"}
        found["seconds"].append(time.perf_counter() - clock)
        found["solve_seconds"].append(took)
        found["residual"].append(residual)
        y_new = observed(g, points, gp, jax.random.fold_in(noise, step))
        X, y = jnp.concatenate([X, points]), jnp.concatenate([y, y_new])
        found["best"].append(float(jnp.max(y)))
    return found | {"found": float(jnp.mean(y[-batch:]))}


def next_points(
    settings: Settings, gp: GP, X: Float[Array, "N d"], y: Float[Array, "N"], search: Search, key: PRNGKeyArray
) -> tuple[Float[Array, "n d"], float, float]:
    """Return a maximum of each of `batch` samples, the seconds of the solve, and the median relative residual."""
    batch, d = settings["batch"], X.shape[1]
    if settings["method"] == RANDOM:
        return jax.random.uniform(key, (batch, d)), 0.0, 0.0
    sample_key, search_key, point_key = jax.random.split(key, 3)
    solver = solver_of(settings["solver"], settings["passes"], X, batch, point_key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = condition(
            gp, X, y, key=sample_key, solver=solver, num_samples=batch, num_features=settings["features"]
        )
    points, _ = maximize(posterior.samples, [(0.0, 1.0)] * d, key=search_key, X=X, y=y, search=search)
    residual = float(jnp.median(posterior.info.relative_residual))
    return jax.block_until_ready(points), posterior.info.seconds, residual


def observed(g: Function, X: Float[Array, "n d"], gp: GP, key: PRNGKeyArray) -> Float[Array, "n"]:
    """Return noisy observations g(x) + ε."""
    return g(X) + jnp.sqrt(gp.noise) * jax.random.normal(key, (X.shape[0],))


def illustrate(settings: Settings) -> Result:
    """Return one step in one dimension: the samples, the candidates, and the starts and ends of the ascents."""
    X = jax.random.uniform(jax.random.key(settings["seed"]), (settings["initial"], 1))
    gp = GP(Matern32(settings["lengthscale"]), noise=1e-3)
    y = jnp.sin(9 * X[:, 0]) + jnp.cos(23 * X[:, 0]) / 2
    sample_key, key = jax.random.split(jax.random.key(settings["seed"] + 1))
    samples = condition(gp, X, y, key=sample_key, num_samples=settings["samples"]).samples
    search = dataclasses.replace(Search(), rounds=3, candidates=7)
    bounds = [(0.0, 1.0)]
    box = check_bounds(bounds, 1)
    spread = candidate_scale(samples.features, box, X, None)
    looked = [candidates(k, box, (X, y), spread, search) for k in jax.random.split(key, search.rounds)]
    ends = maxima(samples, bounds, key=key, X=X, y=y, scale=None, search=search)
    x = jnp.linspace(0, 1, 401)[:, None]
    plain = lambda values: np.round(np.asarray(values, dtype=float), 4).tolist()
    half = search.rounds
    return {
        **{"x": plain(x[:, 0]), "samples": plain(samples(x)), "X": plain(X[:, 0]), "y": plain(y)},
        **{"looked": plain(jnp.concatenate(looked)[:, 0]), "looked_values": plain(samples(jnp.concatenate(looked)))},
        **{"starts": plain(ends.points[half:, :, 0]), "start_values": plain(ends.values[half:])},
        **{"ends": plain(ends.points[:half, :, 0]), "end_values": plain(ends.values[:half])},
    }
