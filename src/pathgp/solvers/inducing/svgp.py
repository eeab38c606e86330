"""Stochastic variational inference: a distribution of the values at inducing points, fitted by minibatches."""

import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.kernels import Kernel
from pathgp.linalg.jitter import LARGEST_SHARE, least_noise
from pathgp.parallel.sharding import map_over_devices
from pathgp.runs.run import Run
from pathgp.solvers.base import DivergenceError, Info, Solution, warn_unless_converged
from pathgp.solvers.batches import Batches
from pathgp.solvers.inducing.base import Inducing, right_hand_side
from pathgp.solvers.variational import Variational, whitening, with_jitter
from pathgp.system.system import System, Targets

CHECKS = 100
"""Number of points of the ELBO curve."""


class _Parameters(eqx.Module):
    """The whitened mean m, C with the logarithm of its diagonal, and the points if they move."""

    mean: Float[Array, "M"]
    lower: Float[Array, "M M"]
    points: Float[Array, "M d"] | None

    @property
    def factor(self) -> Float[Array, "M M"]:
        """The lower triangular factor C."""
        return jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(jnp.diag(self.lower)))


class _State(eqx.Module):
    parameters: _Parameters
    optimizer: Any
    batches: Batches
    jitter: Float[Array, ""]
    total: Float[Array, ""]
    """Sum of the ELBO estimates since the last point of the curve."""


class SVGP(Inducing):
    """Stochastic variational inference (Hensman et al., 2013) for u = f(z), whitened: q(u) = N(Lm, LSLᵀ), LLᵀ = K_zz.

    Maximises minibatch estimates of

        ELBO = Σᵢ [log N(yᵢ; aᵢᵀm, Σᵢᵢ) − (k(xᵢ, xᵢ) − ‖aᵢ‖² + aᵢᵀSaᵢ) / 2Σᵢᵢ] − KL(N(m, S) ‖ N(0, I)),

    with aᵢ = L⁻¹k(z, xᵢ), by Adam with a cosine decay of the learning rate to zero. A step costs M² times the size of
    the batch, and M³ if the points move. The kernel and the noise are those of the GP and are not fitted. The jitter of
    K_zz is raised until its factor is finite, and reported in `info.reason`. The distribution and its ELBO curve are in
    `solution.q`.

    Samples are f(·) + k(·, z) K_zz⁻¹(u − f(z)), u ~ q(u), with the prior draws f.

    There is no linear system, but the optimum of q has a closed form, (I + AAᵀ)m = AΣ^−½y and S = (I + AAᵀ)⁻¹ (`SGPR`).
    The relative residual is the distance of the final q from it: ‖AΣ^−½y − (I + AAᵀ)m‖ / ‖AΣ^−½y‖ for the mean, and
    ‖Cᵀ(I + AAᵀ)Cξ − ξ‖ / ‖ξ‖ for a sample u = L(m + Cξ).

    Parameters
    ----------
    points
        The inducing points z.
    steps
        Number of steps, all of which are taken.
    batch_size
        Number of rows in a minibatch.
    learning_rate
        Initial learning rate of Adam.
    move_points
        Whether the points are optimised too.
    tolerance
        Relative residual up to which a column is reported as converged.
    """

    points: Float[Array, "M d"] = eqx.field(converter=lambda x: checks.as_inputs(x, "points"))
    steps: int = 5000
    batch_size: int = 1024
    learning_rate: float = 0.03
    move_points: bool = False
    tolerance: float = 0.1

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "SVGP.steps")
        checks.require_at_least(self.batch_size, 1, "SVGP.batch_size")
        checks.as_positive(self.learning_rate, "SVGP.learning_rate")

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "M s"] | None = None,
        run: Run | None = None,
    ) -> Solution:
        """Take all steps, then draw one sample of q for each prior draw. `init` starts the mean if the points stay.

        Raises `ValueError` unless the targets have exactly one mean, if the prior draws are not known, or if K_zz is
        not positive definite at the points; and `DivergenceError` if the ELBO becomes infinite or NaN.
        """
        self.support(system)
        if targets.num_means != 1:
            raise ValueError(
                f"SVGP fits one distribution to one column of observations, but {targets.num_means} columns of the "
                "targets ask for a mean: solve for each with its samples alone."
            )
        targets.draws_at(self.points)  # raises now, not after all steps, if the prior draws are not known
        y = targets.signal[:, 0]
        batch_key, sample_key = jax.random.split(key)
        # As arrays, so that other values do not recompile.
        dynamic = jnp.asarray(self.steps), jnp.asarray(self.learning_rate), jnp.asarray(self.tolerance)
        method = eqx.tree_at(lambda s: (s.steps, s.learning_rate, s.tolerance), self, dynamic)
        state, L_inverse = _start(method, system, batch_key, None if init is None or self.move_points else init[:, 0])
        self._refuse_jitter(system, state)
        passes = min(self.batch_size, system.size) / system.size * self.points.shape[0] / system.size
        check, done, counted = max(1, self.steps // CHECKS), 0, 0
        curve: list[tuple[int, float]] = []
        run = Run() if run is None else run
        with run.started("SVGP", self.steps):
            if (before := run.restore(state)) is not None:
                state, numbers = before
                done, counted = int(numbers["steps"]), int(numbers["counted"])
                curve = [(int(step), float(value)) for step, value in numbers["curve"].reshape(-1, 2)]
            while done < self.steps:
                stop = run.next_stop(done, check, self.steps)
                state = _advance(method, system, y, L_inverse, state, jnp.asarray(stop - done))
                advanced, done, counted = stop - done, stop, counted + stop - done
                if done % check == 0 or done == self.steps:
                    curve.append((done, float(state.total) / counted))
                    state, counted = eqx.tree_at(lambda s: s.total, state, jnp.zeros_like(state.total)), 0
                    self._refuse_divergence(curve[-1][1], done)
                weights_now = lambda state=state: self._found(system, targets, state, sample_key)[2]
                run.report(advanced, done, done * passes, weights_now, f"ELBO {curve[-1][1]:.4g}" if curve else "")
                run.save(state, steps=done, counted=counted, curve=curve, seconds=run.seconds)
        points, q, weights, relative = self._found(system, targets, state, sample_key)
        steps, elbo = zip(*curve, strict=True)
        q = dataclasses.replace(q, steps=jnp.asarray(steps, int), elbo=jnp.asarray(elbo, y.dtype))
        seconds = run.seconds
        info = self._info(self.steps, passes * self.steps, seconds, relative, q)
        warn_unless_converged(info)
        return Solution(points, weights, None, info, None, q)

    def extend(
        self,
        solution: Solution,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        solve_key: PRNGKeyArray,
        run: Run | None = None,
    ) -> Solution:
        """Draw more samples from the fitted distribution. No step is taken."""
        clock, q = time.perf_counter(), solution.q
        assert q is not None
        f_z = targets.draws_at(solution.points)
        xi = jax.random.normal(key, f_z.shape)
        weights, relative = _columns(system, targets.signal[:, 0], solution.points, q, f_z, xi)
        info = self._info(0, 0.0, time.perf_counter() - clock, relative[1:], q)
        return Solution(solution.points, weights[:, 1:], None, info, None, q)

    def _found(
        self, system: System, targets: Targets, state: _State, key: PRNGKeyArray
    ) -> tuple[Float[Array, "M d"], Variational, Float[Array, "M s"], Float[Array, "s"]]:
        """Return the points, the distribution, the weights of all columns and their relative residuals."""
        p = state.parameters
        points = self.points if p.points is None else p.points
        q = Variational(p.mean, p.factor, state.jitter)
        f_z = targets.draws_at(points)
        xi = jax.random.normal(key, f_z.shape)
        return points, q, *_columns(system, targets.signal[:, 0], points, q, f_z, xi)

    def _info(self, steps: int, passes: float, seconds: float, relative: Float[Array, "s"], q: Variational) -> Info:
        reason = f"{float(q.jitter):.0e} was added to the diagonal of K_zz"
        return Info("SVGP", steps, passes, seconds, self.tolerance, relative, relative <= self.tolerance, reason)

    def _refuse_jitter(self, system: System, state: _State) -> None:
        limit = LARGEST_SHARE * float(jnp.mean(system.kernel.diag(self.points)))
        if float(state.jitter) > limit:
            raise ValueError(
                f"K_zz is not positive definite at the inducing points even with {limit:.1e} added to its diagonal: "
                "look at the kernel's hyperparameters, or choose other points."
            )

    def _refuse_divergence(self, elbo: float, step: int) -> None:
        if not np.isfinite(elbo):
            raise DivergenceError(
                f"SVGP diverged: after {step} steps the ELBO is not finite. Take a smaller learning_rate or more noise."
            )

    def optimizer(self) -> optax.GradientTransformation:
        """Return Adam with a cosine decay of the learning rate to zero at the last step."""
        return optax.adam(lambda count: self.learning_rate * (1 + jnp.cos(jnp.pi * count / self.steps)) / 2)


@eqx.filter_jit
def _start(
    solver: SVGP, system: System, key: PRNGKeyArray, init: Float[Array, "M"] | None
) -> tuple[_State, Float[Array, "M M"]]:
    """Return the state with q(u) = p(u), or with the mean of a warm start, and L⁻¹ at the points."""
    z, M = solver.points, solver.points.shape[0]
    K_zz = system.kernel(z, z)
    jitter, L_inverse = with_jitter(system.kernel, z, least_noise(K_zz))
    # Weights v = K_zz⁻¹Lm have the whitened mean m = L⁻¹K_zz v.
    mean = jnp.zeros(M, z.dtype) if init is None else L_inverse @ (K_zz @ init + jitter * init)
    parameters = _Parameters(mean, jnp.zeros((M, M), z.dtype), z if solver.move_points else None)
    optimizer = solver.optimizer().init(parameters)  # pyright: ignore[reportArgumentType]
    state = _State(parameters, optimizer, Batches.start(key, system.size), jitter, jnp.zeros((), z.dtype))
    return state, L_inverse


def elbo(
    parameters: _Parameters,
    L_inverse: Float[Array, "M M"],
    points: Float[Array, "M d"],
    system: System,
    y: Float[Array, "N"],
    batch: Int[Array, "b"],
) -> Float[Array, ""]:
    """Return the estimate of the ELBO from the rows of a batch."""
    m, C = parameters.mean, parameters.factor

    def fits(X: Array, y: Array, noise: Array, kernel: Kernel, L_inverse: Array, z: Array, m: Array, C: Array) -> Array:
        A = L_inverse @ kernel(z, X)
        # The bound at 0 is for rounding where a row is close to a point.
        unexplained = jnp.maximum(kernel.diag(X) - jnp.sum(A**2, axis=0), 0)
        misfit = (y - m @ A) ** 2 + unexplained + jnp.sum((C.T @ A) ** 2, axis=0)
        return -(jnp.log(2 * jnp.pi * noise) + misfit / noise) / 2

    rows = system.inputs(batch), y[batch], system.noise_diagonal[batch]
    fit = map_over_devices(system.mesh, fits, rows, (system.kernel, L_inverse, points, m, C))
    divergence = (jnp.sum(C**2) + m @ m - m.shape[0]) / 2 - jnp.trace(parameters.lower)
    return system.size * jnp.mean(fit) - divergence


@eqx.filter_jit
def _advance(
    solver: SVGP,
    system: System,
    y: Float[Array, "N"],
    fixed: Float[Array, "M M"],
    state: _State,
    steps: Array,
) -> _State:
    """Take `steps` steps in one compiled loop. `fixed` is L⁻¹, used if the points stay."""
    optimizer = solver.optimizer()

    def step(_: Array, state: _State) -> _State:
        batch, batches = state.batches.next(min(solver.batch_size, system.size))
        jitter = state.jitter
        if state.parameters.points is not None:
            # Points that move closer together may need a larger jitter; it never decreases.
            jitter, _ = with_jitter(system.kernel, state.parameters.points, jitter)

        def loss(p: _Parameters) -> Float[Array, ""]:
            z = solver.points if p.points is None else p.points
            L_inverse = fixed if p.points is None else whitening(system.kernel, z, jitter)
            return -elbo(p, L_inverse, z, system, y, batch) / system.size

        value, gradient = jax.value_and_grad(loss)(state.parameters)
        update, optimizer_state = optimizer.update(gradient, state.optimizer)
        parameters = eqx.apply_updates(state.parameters, update)
        return _State(parameters, optimizer_state, batches, jitter, state.total - system.size * value)

    return jax.lax.fori_loop(0, steps, step, state)


@eqx.filter_jit
def _columns(
    system: System,
    y: Float[Array, "N"],
    z: Float[Array, "M d"],
    q: Variational,
    f_z: Float[Array, "M s"],
    xi: Float[Array, "M s"],
) -> tuple[Float[Array, "M t"], Float[Array, "t"]]:
    """Return the weights of the mean and the samples, and their relative residuals, with one pass over the data."""
    L_inverse = whitening(system.kernel, z, q.jitter)
    U = jnp.concatenate([q.mean[:, None], q.factor @ xi], axis=1)
    fitted = system.of(z, L_inverse.T @ U)
    both = right_hand_side(z, system, jnp.concatenate([y[:, None], fitted], axis=1))
    both = L_inverse @ both
    right, HU = both[:, :1], both[:, 1:] + U
    norm = lambda columns: jnp.linalg.norm(columns, axis=0)
    of_mean = norm(right - HU[:, :1]) / jnp.where(norm(right) > 0, norm(right), 1)
    of_samples = norm(q.factor.T @ HU[:, 1:] - xi) / norm(xi)
    return q.weights(L_inverse, f_z, xi), jnp.concatenate([of_mean, of_samples])
