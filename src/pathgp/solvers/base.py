"""What a solver is, what it returns, and the one loop that all iterative solvers share."""

import dataclasses
import logging
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, PRNGKeyArray

from pathgp import _checks as checks
from pathgp.parallel.sharding import any_process
from pathgp.runs.checkpoint import Slot
from pathgp.solvers.local import Local
from pathgp.solvers.variational import Variational
from pathgp.system.system import System, Targets

logger = logging.getLogger("pathgp")


class ConvergenceWarning(UserWarning):
    """A solve ended before its residual reached the tolerance."""


class AccuracyWarning(UserWarning):
    """A posterior is estimated to be further from the exact one than is promised."""


class HandOverWarning(UserWarning):
    """The solver that was chosen did not converge, and another one took over."""


class DivergenceError(FloatingPointError):
    """A solve ran away to numbers that are not finite."""


class Info(eqx.Module):
    """What a solve took and how far it came."""

    solver: str = eqx.field(static=True)
    steps: int
    passes: float
    seconds: float
    tolerance: float
    """What the residual was to come to; zero for a direct solver, which leaves what rounding leaves."""
    relative_residual: Float[Array, "s"]
    """‖b − (K+Σ)w‖ / ‖b‖ of each column; on inducing points or a subset, that of the system they solve, which
    `InducingCG` measures in the norm of predictions."""
    converged: Bool[Array, "s"]
    """Whether each column met what its solver was asked for."""
    reason: str = eqx.field(static=True, default="")
    """Why this solver was chosen, where it was not chosen by the user; and what a solver had to add to go on."""
    precision: str = eqx.field(static=True, default="float32")
    """The dtype of the weights, and of everything that is computed with them."""
    mean_error: float | None = None
    """The estimated error of the posterior mean, rms in posterior standard deviations (`pathgp.posterior.accuracy`);
    None with inducing points, which approximate another posterior."""
    variance_error: float | None = None
    """The estimated relative error of `posterior.variance`, of which √(2/num_samples) is from the number of samples
    where there is no local projection to compare with."""


class Solution(eqx.Module):
    """The weights W of the functions k(·, points) @ W, and the residual columns b − (K+Σ)W if they came for free.

    `rows` says which rows of the data the points are, where they are some of them. `q` is the distribution of the
    function's values at the points, where the solver found one.
    """

    points: Float[Array, "M d"]
    weights: Float[Array, "M s"]
    residual: Float[Array, "N s"] | None
    info: Info
    rows: Int[Array, "M"] | None = None
    q: Variational | None = None
    factor: Float64[np.ndarray, "N N"] | None = None
    """The Cholesky factor of K + Σ in its lower triangle, where the solver has it."""

    def beside(self, right: "Solution") -> "Solution":
        """The columns of `right`, a solve of the same system on the same points, after these."""
        a, b = self.info, right.info
        info = dataclasses.replace(
            a,
            steps=a.steps + b.steps,
            passes=a.passes + b.passes,
            seconds=a.seconds + b.seconds,
            relative_residual=jnp.concatenate([a.relative_residual, b.relative_residual]),
            converged=jnp.concatenate([a.converged, b.converged]),
        )
        residual = None
        if self.residual is not None and right.residual is not None:
            residual = jnp.concatenate([self.residual, right.residual], axis=1)
        weights = jnp.concatenate([self.weights, right.weights], axis=1)
        return Solution(self.points, weights, residual, info, self.rows, self.q, right.factor)


class Snapshot(eqx.Module):
    """What an observer is shown in the course of a solve."""

    step: int
    passes: float
    seconds: float
    weights: Float[Array, "N s"]


class Every(eqx.Module):
    """Calls `call(snapshot)` every `steps` steps, for instance to draw a learning curve."""

    steps: int
    call: Callable[[Snapshot], None]

    def __check_init__(self) -> None:
        checks.at_least(self.steps, 1, "Every.steps")


class Solver(eqx.Module):
    """Solves (K + Σ) W = B, all columns together."""

    @abstractmethod
    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        observe: Every | None = None,
        progress: bool = False,
        saved: Slot | None = None,
    ) -> Solution:
        """The solution, started from the weights `init` (zero if None), or from where `saved` had come to."""

    def extend(
        self,
        solution: Solution,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        solve_key: PRNGKeyArray,
        progress: bool = False,
        saved: Slot | None = None,
    ) -> Solution:
        """Samples more, beside the columns of `solution`, which `solve_key` gave: here by solving for them.

        With the same key as before, so that a solver on a random subset takes the same one; `key` is for a solver whose
        samples are random themselves.
        """
        return self.solve(system, targets, key=solve_key, progress=progress, **going_on(saved))

    def counts_on(self, system: System) -> Local | None:
        """The local projection that finishes what this solver leaves on purpose, if it counts on one."""
        return None

    def counting_on(self, local: Local) -> "Solver":
        """The solver that it is when `local` will finish its work: itself, unless it then stops earlier.

        A local projection finishes the weights of rows of the data; a solver whose weights belong to other points
        refuses it here.
        """
        return self

    def support(self, system: System) -> Float[Array, "M d"]:
        """The points that the weights belong to: the rows of the data."""
        return system.X


MORE = "allow more steps or take another solver"
GROWN = 2.0
"""A column whose residual is this many times its smallest so far is taken back to there."""
MOST_RESTARTS = 3
ROUNDED = 1e-5
"""Of the scale of the merit of an iterate: differences that may be rounding."""
HALVED = 0.5
"""What one renewal of the residual must leave of that of another, else precision is used up."""


def going_on(saved: Slot | None) -> dict[str, Any]:
    """The argument `saved` of a solve, if there is a checkpoint: a solver that knows of none works without."""
    return {} if saved is None else {"saved": saved}


class Iterative(Solver):
    """A solver that repeats one step until the residual of every column is within `tolerance`.

    A subclass gives the pieces; `solve` is the loop. `plan` holds what stays the same, `state` what changes. Every
    floating-point array of the state has the columns as its last axis: a column that has converged is frozen there,
    so that it does not depend on which others are solved along.
    """

    tolerance: eqx.AbstractVar[float]
    max_seconds: eqx.AbstractVar[float]
    limits: ClassVar[tuple[str, ...]] = ("tolerance", "max_seconds")
    """Settings that only the loop looks at: what is compiled does not depend on them."""

    @abstractmethod
    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> Any:
        """The plan: what is computed once."""

    def prepared(self, system: System, targets: Targets, key: PRNGKeyArray) -> Any:
        """The plan from `prepare`, compiled; a solver that prepares itself on the host calls it as it is."""
        return _prepare(self, system, targets, key)

    def remark(self, plan: Any) -> str:
        """What the plan had to add to go on, for `Info.reason`."""
        return ""

    @abstractmethod
    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> Any:
        """The first state."""

    @abstractmethod
    def step(self, plan: Any, system: System, targets: Targets, state: Any) -> Any:
        """The next state."""

    @abstractmethod
    def weights(self, plan: Any, state: Any) -> Float[Array, "N s"]:
        """The weights that the state stands for."""

    @abstractmethod
    def residual(
        self, plan: Any, system: System, targets: Targets, state: Any
    ) -> tuple[Float[Array, "s"], Float[Array, "N s"] | None]:
        """The relative residual of each column, and the residual columns if they are at hand."""

    is_bounded: ClassVar[bool] = True
    """Whether an iterate that is worse than zero weights means that the solve has diverged."""
    recursive: ClassVar[bool] = False
    """Whether the residual is that of a recursion, from which rounding leads away.

    It is then computed anew at the end, and the solve goes on where that shows more, as long as this helps.
    """

    def renewed(self, plan: Any, system: System, targets: Targets, state: Any) -> Any:
        """The state with its residual computed from the weights."""
        return state

    def restarted(
        self,
        plan: Any,
        system: System,
        targets: Targets,
        state: Any,
        weights: Float[Array, "N s"],
        residual: Float[Array, "N s"] | None,
        grown: Bool[Array, "s"],
    ) -> Any:
        """The state in which columns that have grown begin again at these weights, without momentum."""
        return state

    def estimated_error(self, plan: Any, system: System, targets: Targets, state: Any) -> Float[Array, "s"]:
        """The estimated error of each column; zero for a method that has no estimate."""
        return jnp.zeros_like(targets.signal[0])

    def verdict(self, look: "Look", targets: Targets) -> Bool[Array, "s"]:
        """Whether each column has converged: its relative residual is within the tolerance."""
        return look.relative <= self.tolerance

    def gives_up(self, look: "Look", targets: Targets, history: list[float], looks: int) -> bool:
        """Whether the solve would not converge within so many looks, to be asked at each of them.

        `history` is the method's to write: what it has seen at earlier looks.
        """
        return False

    @abstractmethod
    def schedule(self, system: System) -> tuple[int, int, float]:
        """The most steps, the steps between two looks at the residual, and the passes over the data in a step."""

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        observe: Every | None = None,
        progress: bool = False,
        saved: Slot | None = None,
    ) -> Solution:
        """Steps until every column has converged, or the steps or the seconds are used up."""
        clock = time.perf_counter()
        points = self.support(system)
        last, check, passes = self.schedule(system)
        plan_key, start_key = jax.random.split(key)
        method = eqx.tree_at(lambda s: [getattr(s, name) for name in self.limits], self, [1] * len(self.limits))
        plan = method.prepared(system, targets, plan_key)
        state = _start(method, plan, system, targets, start_key, init)
        bar = progress_bar(type(self).__name__, last) if progress else None

        look = _look(method, plan, system, targets, state)
        converged = self.verdict(look, targets)
        best = _best(look, _weights(method, plan, state), targets)
        done, seconds, restarts = 0, 0.0, 0
        renewals, left = 0, [float("inf")] * 2  # the largest residual at the last two renewals
        history, given_up = [], False
        before = None if saved is None else saved.restore((state, converged, best))
        if before is not None:
            state, converged, best = before[0]
            restarts = int(before[1].get("restarts", 0))
            done, seconds = int(before[1]["steps"]), float(before[1]["seconds"])
            renewals, left = int(before[1].get("renewals", 0)), list(before[1].get("left", left))
            history, given_up = list(before[1].get("history", [])), bool(before[1].get("given_up", False))
            clock -= seconds
            look = _look(method, plan, system, targets, state)
        if bar is not None:
            bar.update(done)
        exhausted = lambda: left[1] > HALVED * left[0]
        while (
            done < last
            and not (bool(jnp.all(converged)) or exhausted() or given_up)
            and (done == 0 or self._in_time(system, seconds))
        ):
            until = [last, done + check - done % check]
            if observe is not None:
                until.append(done + observe.steps - done % observe.steps)
            if self.max_seconds < float("inf") or saved is not None:
                until.append(done + max(1, check // 10))
            advanced = min(until) - done
            state = _advance(method, plan, system, targets, state, converged, jnp.asarray(advanced))
            done += advanced
            if done % check == 0 or done == last:
                look = _look(method, plan, system, targets, state)
                now = _best(look, _weights(method, plan, state), targets)
                best, grown = _better(best, now, converged | ~jnp.asarray(self.is_bounded))
                if bool(jnp.any(grown)) and restarts == MOST_RESTARTS:
                    break
                if bool(jnp.any(grown)):
                    state, restarts = _restarted(method, plan, system, targets, state, best, grown), restarts + 1
                    look = _look(method, plan, system, targets, state)
                    logger.info("%s restarts %d columns whose residual grew.", type(self).__name__, int(grown.sum()))
                converged = converged | self.verdict(look, targets)
                if self.recursive and bool(jnp.all(converged)):
                    state, renewals = _renewed(method, plan, system, targets, state), renewals + 1
                    look = _look(method, plan, system, targets, state)
                    converged = self.verdict(look, targets)
                    best = _best(look, _weights(method, plan, state), targets)  # not a recursion's
                    left = [left[1], float(jnp.max(look.relative))]
                given_up = self.gives_up(look, targets, history, -(-last // check))
            seconds = time.perf_counter() - clock
            if observe is not None and done % observe.steps == 0:
                observe.call(Snapshot(done, done * passes, seconds, _weights(method, plan, state)))
            if bar is not None:
                bar.set_postfix_str(f"residual {float(jnp.max(look.relative)):.1e}", refresh=False)
                bar.update(advanced)
            if saved is not None:
                known = {
                    "restarts": restarts,
                    "renewals": renewals,
                    "left": left,
                    "history": history,
                    "given_up": given_up,
                }
                saved.keep((state, converged, best), steps=done, seconds=seconds, **known)
        if self.recursive and not (bool(jnp.all(converged)) or exhausted()):
            state, renewals = _renewed(method, plan, system, targets, state), renewals + 1
            look = _look(method, plan, system, targets, state)
            converged = self.verdict(look, targets)
        if done % check and done < last:  # out of time between two looks at the residual
            look = _look(method, plan, system, targets, state)
            converged = self.verdict(look, targets)
        if bar is not None:
            bar.close()
        now = _best(look, _weights(method, plan, state), targets)
        best, grown = _better(best, now, converged | ~jnp.asarray(self.is_bounded))
        if bool(jnp.any(grown)):
            state = _restarted(method, plan, system, targets, state, best, grown)
            look = _look(method, plan, system, targets, state)
            now = _best(look, _weights(method, plan, state), targets)
        self._refuse_divergence(now, grown, done)
        weights = jax.block_until_ready(now.weights)
        seconds = time.perf_counter() - clock
        taken = done, done * passes + renewals, seconds
        info = Info(type(self).__name__, *taken, self.tolerance, look.relative, converged, self.remark(plan))
        precise = f"{weights.dtype} allows none here: enable float64, or take more noise" if exhausted() else MORE
        warn_unless_converged(info, precise)
        return Solution(points, weights, look.residual, info)

    def _in_time(self, system: System, seconds: float) -> bool:
        return self.max_seconds == float("inf") or not any_process(system.mesh, seconds > self.max_seconds)

    def _refuse_divergence(self, now: "_Iterate", grown: Bool[Array, "s"], step: int) -> None:
        """Raises `DivergenceError` where weights are worse than zero, or were never better before they grew."""
        if self.is_bounded:
            least = now.merit <= jnp.where(grown, -ROUNDED, ROUNDED) * now.scale
        else:
            least = jnp.isfinite(now.relative)
        if not bool(jnp.all(least)):
            raise DivergenceError(
                f"{type(self).__name__} diverged: after {step} steps the weights are no better than zero (relative "
                f"residual {float(jnp.max(now.relative)):.1e}). Take a smaller step size, more noise, or another "
                "solver such as solvers.Auto()."
            )


class Look(eqx.Module):
    """What is measured between steps, when frozen columns are where they stopped."""

    relative: Float[Array, "s"]
    residual: Float[Array, "N s"] | None
    error: Float[Array, "s"]


class _Iterate(eqx.Module):
    """What a solve has come to.

    `merit` tells iterates apart, and is 0 for zero weights: where the residual is known, the objective
    ½wᵀHw − bᵀw = −½wᵀ(b + r), which falls from step to step even where the residual does not; else the relative
    residual less one.
    """

    relative: Float[Array, "s"]
    merit: Float[Array, "s"]
    scale: Float[Array, "s"]
    """Of a part of which the merit is rounded."""
    weights: Float[Array, "N s"]
    residual: Float[Array, "N s"] | None


@eqx.filter_jit
def _best(look: Look, weights: Array, targets: Targets) -> _Iterate:
    relative, residual = look.relative, look.residual
    if residual is None or weights.shape != targets.signal.shape:
        return _Iterate(relative, relative - 1, jnp.ones_like(relative), weights, residual)
    b = targets.total
    objective, size = -jnp.sum(weights * (b + residual), axis=0) / 2, jnp.sum(jnp.abs(weights * b), axis=0)
    return _Iterate(relative, objective, size, weights, residual)


@eqx.filter_jit
def _better(best: _Iterate, now: _Iterate, frozen: Array) -> tuple[_Iterate, Bool[Array, "s"]]:
    """The better iterate of each column, and the columns that are far from their best now, or not finite."""
    is_better = (now.merit < best.merit) & jnp.isfinite(now.relative)
    take = lambda new, old: jnp.where(is_better, new, old)
    grown = ~(now.relative <= GROWN * best.relative) & ~(now.merit <= best.merit + ROUNDED * best.scale)
    return jax.tree.map(take, now, best), grown & ~frozen


@eqx.filter_jit
def _restarted(
    solver: Iterative, plan: Any, system: System, targets: Targets, state: Any, best: _Iterate, grown: Array
) -> Any:
    again = solver.restarted(plan, system, targets, state, best.weights, best.residual, grown)
    return system.constrained(again)


def warn_unless_converged(info: Info, advice: str = MORE) -> None:
    """Says once how far a solve came that did not reach its tolerance."""
    missed = np.flatnonzero(~np.asarray(info.converged))
    if missed.size:
        worst = float(np.max(np.asarray(info.relative_residual)[missed]))
        warnings.warn(
            f"{info.solver} did not reach the tolerance {info.tolerance:.1e} in {info.steps} steps ({info.passes:.1f} "
            f"passes over the data): {missed.size} of {info.relative_residual.size} columns are above the tolerance, "
            f"and the largest of their relative residuals is {worst:.1e}. For a smaller residual {advice}; "
            "`posterior.info.mean_error` has the estimated error of predictions.",
            ConvergenceWarning,
            stacklevel=3,
        )


def progress_bar(name: str, total: int) -> Any:
    """A bar that counts steps."""
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=name, unit="step")


@eqx.filter_jit
def _prepare(solver: Iterative, system: System, targets: Targets, key: PRNGKeyArray) -> Any:
    return system.constrained(solver.prepare(system, targets, key))


@eqx.filter_jit
def _start(
    solver: Iterative, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Array | None
) -> Any:
    return system.constrained(solver.start(plan, system, targets, key, init))


@eqx.filter_jit
def _weights(solver: Iterative, plan: Any, state: Any) -> Float[Array, "N s"]:
    return solver.weights(plan, state)


@eqx.filter_jit
def _look(solver: Iterative, plan: Any, system: System, targets: Targets, state: Any) -> Look:
    return Look(*solver.residual(plan, system, targets, state), solver.estimated_error(plan, system, targets, state))


@eqx.filter_jit
def _renewed(solver: Iterative, plan: Any, system: System, targets: Targets, state: Any) -> Any:
    return system.constrained(solver.renewed(plan, system, targets, state))


# Wide vectors: the tiled product took a fifth less time with them on a CPU with AVX-512. Elsewhere it is untried.
@eqx.filter_jit(compiler_options={"xla_cpu_prefer_vector_width": "512"})  # pyright: ignore[reportCallIssue]
def _advance(
    solver: Iterative,
    plan: Any,
    system: System,
    targets: Targets,
    state: Any,
    frozen: Bool[Array, "s"],
    steps: Array,
) -> Any:
    """`steps` steps in one compiled loop; columns that are frozen keep their state."""
    new = jax.lax.fori_loop(0, steps, lambda _, s: solver.step(plan, system, targets, s), state)

    def keep(old_leaf: Array, new_leaf: Array) -> Array:
        is_columns = jnp.issubdtype(new_leaf.dtype, jnp.floating)
        return jnp.where(frozen, old_leaf, new_leaf) if is_columns else new_leaf

    return system.constrained(jax.tree.map(keep, state, new))
