"""Gradients of the marginal likelihood from posterior samples, on all rows, without an N x N matrix."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.likelihood.base import FittingMethod, Trace
from pathgp.likelihood.descent import Record, decaying_adam, norm
from pathgp.likelihood.parameters import NOISE_FLOOR_FLOAT32, Parameters, to_parameters, trainable_mask
from pathgp.likelihood.priors import Prior
from pathgp.linalg.tiles import pad_rows
from pathgp.parallel.sharding import gathered, padded_rows, replicate, require_one_axis, shard_map_rows, shard_rows
from pathgp.posterior.gp import GP
from pathgp.posterior.problem import Problem
from pathgp.runs.checkpoint import Slot
from pathgp.solvers import SAP
from pathgp.solvers.base import ConvergenceWarning, DivergenceError

TILE_ROWS = 2048
"""Rows and columns of a tile of H in the gradient."""


class Pathwise(FittingMethod):
    """Gradient of the exact marginal likelihood, estimated by solving for the posterior (Lin et al., NeurIPS 2024).

    A step solves the system of `condition` with `probes` samples, H[v, z₁ … z_s] = [y − m, ξ₁ … ξ_s], where
    ξ = f(X) + ε ~ N(0, H), so that z ~ N(0, H⁻¹) and E zᵀ∂H z = tr(H⁻¹∂H). The gradient of −log p(y) is

        −½ vᵀ∂H v + (1/2s) Σⱼ zⱼᵀ∂H zⱼ,    and −1ᵀv for the mean,

    summed over tiles of H, each of which is differentiated by itself. The random numbers in ξ are drawn once, as
    standard frequencies and normal draws that are scaled by the current length scales and noise. The solution then
    changes little from step to step, and each solve has a warm start from the one before. A few `passes` of block
    projection, or a residual within `tolerance`, are enough.

    The optimiser is Adam with a decaying rate. It takes minutes where `NearestNeighbour` takes seconds, so start from
    the result of that. The loss in the trace is relative to the start: it is the gradient integrated along the path by
    the trapezoidal rule.

    The GP that is returned is that of the last solve, so `trace.weights` are the weights of its posterior. With the key
    that was given to `fit_hyperparameters`, and `num_samples=probes`,

        condition(gp, X, y, key=key, num_samples=probes, init=trace.weights)

    has the same samples, and continues that solve.

    With a `mesh`, its devices share the rows of every solve and the tiles of every gradient. For the gradients all
    devices have the whole of X and of the solution.

    Parameters
    ----------
    steps
        Maximum number of steps.
    probes
        Number s of samples.
    passes
        Maximum passes over the data of `SAP` in each step.
    learning_rate
        Initial learning rate of Adam.
    tolerance
        Relative residual at which a solve stops.
    num_features
        Number of random features of the samples.
    block_size
        Rows in a block of `SAP`.
    max_seconds
        Time limit in seconds.
    mesh
        Mesh of one axis over which the work is sharded.
    """

    steps: int = 30
    probes: int = 64
    passes: int = 5
    learning_rate: float = 0.1
    tolerance: float = 0.01
    num_features: int = 2000
    block_size: int = 1024
    max_seconds: float = float("inf")
    mesh: Mesh | None = eqx.field(static=True, default=None, converter=require_one_axis)

    def __check_init__(self) -> None:
        for name in ("steps", "probes", "passes"):
            checks.require_at_least(getattr(self, name), 1, f"Pathwise.{name}")

    def fit(
        self,
        gp: GP,
        X: Float[Array, "N d"],
        y: Float[Array, "N"],
        key: PRNGKeyArray,
        progress: bool,
        prior: Prior,
        saved: Slot | None = None,
    ) -> tuple[GP, Trace]:
        """Take `steps` steps, or as many as there is time for, and return the GP of the last completed one.

        Raises `ValueError` if the gradient is not finite at the start.
        """
        p = start = prior.projected(to_parameters(gp, NOISE_FLOOR_FLOAT32))  # its solves are in float32
        solver = SAP(passes=self.passes, block_size=self.block_size, tolerance=self.tolerance)
        state: Any = decaying_adam(self.learning_rate, self.steps).init(eqx.filter(p, trainable_mask(p)))
        done: _Point | None = None
        zeros = lambda: shard_rows(self.mesh, jnp.zeros((X.shape[0], self.probes + 1), X.dtype))
        # A point with the structure that `restore` has to return.
        nothing = None if saved is None else _Point(p, zeros(), p)
        with Record(self.steps, self.max_seconds, progress, saved, "−Δ log p(y)/N", self.mesh) as record:
            (p, state, before), first = record.resumed((p, state, nothing))
            done = before if first else None
            for step in range(first, self.steps):
                if record.out_of_time:
                    break
                solver = dataclasses.replace(solver, max_seconds=record.seconds_left)
                point = self._solve(p, X, y, key, solver, done, prior, step)
                if point is not None:
                    change = 0.0 if done is None else record.loss[-1] + float(_difference(done, point))
                    done = point
                    record.add(change, float(norm(eqx.filter(done.gradient, trainable_mask(p)))))
                    record.advance()
                    p, state = _move(self, done.p, done.gradient, state, prior)
                else:
                    record.left_out += 1
                    if done is None:
                        break
                    # The solve diverged or the gradient is not finite, so half of the step is tried next.
                    p = _half_way(done.p, p)
                record.save((p, state, done), step + 1)
        if done is None and not record.interrupted:
            raise ValueError(
                "the gradient is not finite at the starting values: start from more noise, from the result of "
                "NearestNeighbour(), or scale X to about one."
            )
        weights = None if done is None else gathered(done.weights)[: X.shape[0]]
        trace = record.trace()._replace(since_start=True, weights=weights)
        return gathered(start if done is None else done.p).gp(), trace

    def _solve(
        self,
        p: Parameters,
        X: Float[Array, "N d"],
        y: Float[Array, "N"],
        key: PRNGKeyArray,
        solver: SAP,
        before: "_Point | None",
        prior: Prior,
        step: int,
    ) -> "_Point | None":
        """Return the solution and the gradient at the parameters p, or None if they are not finite."""
        system, targets, solve_key = _problem(self, p, X, y, key)
        init = None if before is None else before.weights
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # few passes are intended
                weights = solver.solve(system, targets, key=jax.random.fold_in(solve_key, step), init=init).weights
        except DivergenceError:
            return None
        gradient = gradient_per_row(p, X, weights, prior, self.mesh)
        finite = bool(jnp.all(jnp.isfinite(ravel_pytree(gradient)[0])))
        return _Point(p, weights, gradient) if finite else None


class _Point(eqx.Module):
    """The parameters at a step, with the solution [v, z₁ … z_s] and the gradient there."""

    p: Parameters
    weights: Float[Array, "N s"]
    gradient: Parameters


@eqx.filter_jit
def gradient_per_row(
    p: Parameters, X: Float[Array, "N d"], weights: Float[Array, "P s"], prior: Prior, mesh: Mesh | None = None
) -> Parameters:
    """Return the gradient of (−log p(y) + penalty of the prior)/N, from the solution [v, z₁ … z_s].

    It is the gradient of Σ_c a_c w_cᵀ H w_c with the columns w_c held fixed, where a = (−½, 1/2s … 1/2s), and −1ᵀv for
    the mean.
    """
    weights, probes = replicate(mesh, weights)[: X.shape[0]], weights.shape[1] - 1
    a = jnp.concatenate([jnp.array([-0.5]), jnp.full(probes, 0.5 / probes)]).astype(weights.dtype)
    gp, pull_back = jax.vjp(lambda q: q.gp(), p)
    by_row = weights**2 @ a
    cotangent = eqx.tree_at(
        lambda g: (g.kernel, g.noise, g.mean),
        gp,
        (
            quadratic_gradient(gp.kernel, X, weights, a, mesh),
            by_row if gp.noise.ndim else jnp.sum(by_row),
            -jnp.sum(weights[:, 0]),
        ),
    )
    (gradient,) = pull_back(cotangent)
    penalty = jax.grad(lambda q: prior.penalty(q.gp()))(p)
    return jax.tree.map(lambda g, h: (g + h) / X.shape[0], gradient, penalty)


def quadratic_gradient(
    kernel: Kernel, X: Float[Array, "N d"], W: Float[Array, "N s"], a: Float[Array, "s"], mesh: Mesh | None = None
) -> Kernel:
    """Return ∂/∂kernel of Σ_c a_c w_cᵀ k(X, X) w_c = Σᵢⱼ k(xᵢ, xⱼ) (W diag(a) Wᵀ)ᵢⱼ.

    The matrix is symmetric, so each pair of row tiles is visited once. The gradient of a tile is added to the sum
    immediately, so that nothing of a tile is kept in memory.
    """
    rows = min(TILE_ROWS, X.shape[0])
    X_tiles = pad_rows(X, rows).reshape(-1, rows, X.shape[1])
    W_tiles = pad_rows(W, rows, mode="constant").reshape(-1, rows, W.shape[1])
    i, j = jnp.triu_indices(X_tiles.shape[0])
    # Off-diagonal tiles count twice; the pairs that pad a mesh count zero times.
    times = pad_rows(jnp.where(i == j, 1, 2), padded_rows(mesh, 1), mode="constant")
    i, j = (pad_rows(x, padded_rows(mesh, 1)) for x in (i, j))

    def some(pairs: tuple[Array, Array, Array], kernel: Kernel, X_tiles: Array, W_tiles: Array, a: Array) -> Kernel:
        def add_tile(total: Kernel, pair: tuple[Array, Array, Array]) -> tuple[Kernel, None]:
            i, j, times = pair
            G = times * ((W_tiles[i] * a) @ W_tiles[j].T)
            gradient = jax.grad(lambda k: jnp.sum(k(X_tiles[i], X_tiles[j]) * G))(kernel)
            return jax.tree.map(jnp.add, total, gradient), None

        return jax.lax.scan(add_tile, jax.tree.map(jnp.zeros_like, kernel), pairs)[0]

    return shard_map_rows(mesh, some, ((i, j, times),), (kernel, X_tiles, W_tiles, a), total=True)


@eqx.filter_jit
def _problem(method: Pathwise, p: Parameters, X: Float[Array, "N d"], y: Float[Array, "N"], key: PRNGKeyArray) -> Any:
    problem = Problem.of(p.gp(), X, y[:, None], method.probes, method.num_features, key).shard(method.mesh)
    return problem.system, problem.targets, problem.key


@eqx.filter_jit
def _move(method: Pathwise, p: Parameters, gradient: Parameters, state: Any, prior: Prior) -> tuple[Parameters, Any]:
    moving, fixed = eqx.partition(p, trainable_mask(p))
    descending: Any = eqx.filter(gradient, trainable_mask(p))
    update, state = decaying_adam(method.learning_rate, method.steps).update(descending, state, moving)
    return prior.projected(eqx.combine(eqx.apply_updates(moving, update), fixed)), state


@eqx.filter_jit
def _difference(a: _Point, b: _Point) -> Float[Array, ""]:
    """Return the loss at b minus that at a, by the trapezoidal rule."""
    flat = lambda tree: ravel_pytree(eqx.filter(tree, trainable_mask(tree)))[0]
    return (flat(a.gradient) + flat(b.gradient)) @ (flat(b.p) - flat(a.p)) / 2


def _half_way(a: Parameters, b: Parameters) -> Parameters:
    """Return the mean of two sets of parameters."""
    return jax.tree.map(lambda x, y: (x + y) / 2, a, b)
