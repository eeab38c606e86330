"""The loop of all iterative solvers: steps, checks of the residual, restarts, and the best iterate of each column."""

import logging
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from pathgp.parallel.sharding import any_over_processes
from pathgp.runs.run import Run
from pathgp.solvers.base import MORE, DivergenceError, Info, Solution, Solver, warn_unless_converged
from pathgp.system.system import System, Targets

logger = logging.getLogger("pathgp")

GROWN = 2.0
"""A column whose residual exceeds that of its best iterate by this factor is restarted at that iterate."""
MOST_RESTARTS = 3
"""Restarts after which a solve whose residual grows again gives up."""
ROUNDED = 1e-5
"""Differences in merit up to this share of the scale of the merit may be rounding."""
PROBED = 1.0
"""A residual that is only estimated on some rows may exceed that of zero weights by this share: SGD minimises another
objective, and its residual may rise in the first steps."""


class Iterative(Solver):
    """Abstract base class of solvers that repeat one step until the residual of every column is within `tolerance`.

    `solve` is the loop. A subclass implements:

    - `prepare`: compute the plan, a pytree that stays constant during the solve;
    - `start` and `step`: compute the first state, and the next state from the present one;
    - `weights` and `residual`: compute the weights of a state, and their relative residual;
    - `schedule`: return the number of steps, the steps between two checks, and the cost of a step.

    The other methods have defaults. Every floating-point array of the state must have the columns as its last axis. A
    column that has converged is frozen, so that its solution does not depend on the other columns of the solve.

    A subclass has the fields `tolerance`, the relative residual at which a column has converged, and `max_seconds`, the
    time limit.
    """

    tolerance: eqx.AbstractVar[float]
    max_seconds: eqx.AbstractVar[float]
    limits: ClassVar[tuple[str, ...]] = ("tolerance", "max_seconds")
    """Settings that only the loop on the host reads, so changing them does not recompile."""

    @abstractmethod
    def prepare(self, system: System, targets: Targets, key: PRNGKeyArray) -> Any:
        """Return the plan, which is computed once per solve."""

    def make_plan(self, system: System, targets: Targets, key: PRNGKeyArray) -> Any:
        """Return the plan from `prepare`, compiled; a solver that prepares on the host overrides this."""
        return _prepare(self, system, targets, key)

    def note(self, plan: Any) -> str:
        """Return a remark for `Info.reason`, for instance on the jitter that the plan needed."""
        return ""

    @abstractmethod
    def start(
        self, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> Any:
        """Return the first state, at the weights `init`, or at zero weights if it is None."""

    @abstractmethod
    def step(self, plan: Any, system: System, targets: Targets, state: Any) -> Any:
        """Return the state after one step."""

    @abstractmethod
    def weights(self, plan: Any, state: Any) -> Float[Array, "N s"]:
        """Return the weights of a state."""

    @abstractmethod
    def residual(
        self, plan: Any, system: System, targets: Targets, state: Any
    ) -> tuple[Float[Array, "s"], Float[Array, "N s"] | None]:
        """Return the relative residual of each column, and the residual itself, or None if it needs further work."""

    final_passes: ClassVar[float] = 0.0
    """Passes over the data for the residual after the last step, for which time is reserved."""
    is_bounded: ClassVar[bool] = True
    """Whether a solve has diverged if its weights are worse than zero weights."""

    def confirm(self, solve: "Solve", at: "Position") -> "Position":
        """Return the position, confirmed; called when all columns seem to have converged, and at the end.

        A solver whose residual comes from a recursion recomputes it here, and may find that it has not converged.
        """
        return at

    def is_exhausted(self, at: "Position") -> bool:
        """Return whether working precision is exhausted, so that the residual cannot decrease further."""
        return False

    def restart(
        self,
        plan: Any,
        system: System,
        targets: Targets,
        state: Any,
        weights: Float[Array, "N s"],
        residual: Float[Array, "N s"] | None,
        grown: Bool[Array, "s"],
    ) -> Any:
        """Return the state with the columns `grown` restarted at `weights`, without momentum."""
        return state

    def estimated_error(self, plan: Any, system: System, targets: Targets, state: Any) -> Float[Array, "s"]:
        """Return the estimated error of each column; zero for a solver without an estimate."""
        return jnp.zeros_like(targets.signal[0])

    def has_converged(self, look: "Look", targets: Targets) -> Bool[Array, "s"]:
        """Return whether each column has converged; by default, if its relative residual is within `tolerance`."""
        return look.relative <= self.tolerance

    def should_stop(self, look: "Look", targets: Targets, history: list[float], looks: int) -> bool:
        """Return whether to stop because the solve will not converge; called at each check.

        Parameters
        ----------
        look
            Measurements at this check.
        targets
            The right-hand sides.
        history
            Numbers that this method may append to and that it gets again at the next check.
        looks
            Number of checks in the whole solve.
        """
        return False

    @abstractmethod
    def schedule(self, system: System) -> tuple[int, int, float]:
        """Return the maximum number of steps, the steps between two checks of the residual, and the passes per step."""

    def solve(
        self,
        system: System,
        targets: Targets,
        *,
        key: PRNGKeyArray,
        init: Float[Array, "N s"] | None = None,
        run: Run | None = None,
    ) -> Solution:
        """Step until every column has converged, or the limit of steps or seconds is reached.

        Raises `DivergenceError` if the solve has diverged, and warns if a column has not converged.
        """
        self.support(system)  # raises an error about unsuitable points before any work
        run = Run() if run is None else run
        last, check, _ = self.schedule(system)
        with run.started(type(self).__name__, last, self.max_seconds):
            solve, at = self._begin(system, targets, key, init)
            at = solve.resume(run, at)
            while at.steps < last and not solve.is_done(at) and (at.steps == 0 or self._in_time(system, run)):
                stop = run.next_stop(at.steps, check, last, is_timed=self.max_seconds < float("inf"))
                advanced, at = stop - at.steps, solve.advance(at, stop)
                if at.steps % check == 0 or at.steps == last:
                    at = solve.check(at)
                at = at._replace(seconds=run.seconds)
                solve.report(run, advanced, at)
            return solve.finish(run, at)

    def _begin(
        self, system: System, targets: Targets, key: PRNGKeyArray, init: Float[Array, "N s"] | None
    ) -> tuple["Solve", "Position"]:
        plan_key, start_key = jax.random.split(key)
        # Constants instead of the limits, so that other limits do not recompile.
        method = eqx.tree_at(lambda s: [getattr(s, name) for name in self.limits], self, [1] * len(self.limits))
        plan = method.make_plan(system, targets, plan_key)
        state = _start(method, plan, system, targets, start_key, init)
        solve = Solve(self, method, plan, system, targets)
        look = solve.look(state)
        return solve, Position(state, self.has_converged(look, targets), solve.iterate(state, look), look)

    def _in_time(self, system: System, run: Run) -> bool:
        _, _, passes = self.schedule(system)
        is_over = run.seconds_left(self.final_passes / passes) < 0
        return self.max_seconds == float("inf") or not any_over_processes(system.mesh, is_over)


class Position(NamedTuple):
    """The progress of a solve: its state, best iterates and counters."""

    state: Any
    converged: Bool[Array, "s"]
    best: "Iterate"
    look: "Look"
    steps: int = 0
    seconds: float = 0.0
    restarts: int = 0
    renewals: int = 0
    """Number of times the residual of a recursion was recomputed from the weights; each takes a pass over the data."""
    left: tuple[float, float] = (float("inf"), float("inf"))
    """The largest relative residual at the last two renewals."""
    history: tuple[float, ...] = ()
    """Values that `should_stop` has kept from earlier checks."""
    has_given_up: bool = False


class Solve(NamedTuple):
    """One solve: the solver, the solver with constant limits for compiled code, its plan, and the problem."""

    solver: Iterative
    method: Iterative
    plan: Any
    system: System
    targets: Targets

    def look(self, state: Any) -> "Look":
        """Return the residual and the estimated error of a state."""
        return _look(self.method, self.plan, self.system, self.targets, state)

    def weights(self, state: Any) -> Float[Array, "N s"]:
        """Return the weights of a state."""
        return _weights(self.method, self.plan, state)

    def iterate(self, state: Any, look: "Look") -> "Iterate":
        """Return the weights of a state with their merit."""
        return _iterate(look, self.weights(state), self.targets)

    def is_done(self, at: Position) -> bool:
        """Return whether the solve has converged, exhausted working precision or given up."""
        return bool(jnp.all(at.converged)) or self.solver.is_exhausted(at) or at.has_given_up

    def advance(self, at: Position, stop: int) -> Position:
        """Return the position after the steps up to `stop`; columns that have converged are frozen."""
        steps = jnp.asarray(stop - at.steps)
        state = _advance(self.method, self.plan, self.system, self.targets, at.state, at.converged, steps)
        return at._replace(state=state, steps=stop)

    def check(self, at: Position) -> Position:
        """Check the residual: update the best iterates, restart columns that have grown, and test for convergence."""
        solver, targets = self.solver, self.targets
        look = self.look(at.state)
        at, grown = self._with_best(at._replace(look=look))
        if bool(jnp.any(grown)):
            if at.restarts == MOST_RESTARTS:
                return at._replace(has_given_up=True)
            logger.info("%s restarts %d columns whose residual grew.", type(solver).__name__, int(grown.sum()))
            at = self._restart_columns(at, grown)._replace(restarts=at.restarts + 1)
        at = at._replace(converged=at.converged | solver.has_converged(at.look, targets))
        if bool(jnp.all(at.converged)):
            at = solver.confirm(self, at)
        last, check, _ = solver.schedule(self.system)
        history = list(at.history)
        has_given_up = solver.should_stop(at.look, targets, history, -(-last // check))
        return at._replace(history=tuple(history), has_given_up=has_given_up)

    def _with_best(self, at: Position) -> tuple[Position, Bool[Array, "s"]]:
        """Return the position with the best iterate of each column updated, and the columns that have grown."""
        now = self.iterate(at.state, at.look)
        best, grown = _better(at.best, now, at.converged | ~jnp.asarray(self.solver.is_bounded))
        return at._replace(best=best), grown

    def _restart_columns(self, at: Position, grown: Bool[Array, "s"]) -> Position:
        state = _restart(self.method, self.plan, self.system, self.targets, at.state, at.best, grown)
        return at._replace(state=state, look=self.look(state))

    def resume(self, run: Run, at: Position) -> Position:
        """Return the position stored in the checkpoint, or `at` if there is none."""
        before = run.restore((at.state, at.converged, at.best))
        if before is None:
            return at
        (state, converged, best), numbers = before
        whole = {name: int(numbers.get(name, 0)) for name in ("steps", "restarts", "renewals")}
        return Position(
            *(state, converged, best, self.look(state)),
            **whole,
            seconds=float(numbers["seconds"]),
            left=tuple(numbers.get("left", at.left)),
            history=tuple(numbers.get("history", ())),
            has_given_up=bool(numbers.get("given_up", False)),
        )

    def report(self, run: Run, advanced: int, at: Position) -> None:
        """Pass the position to the observer, the progress bar and the checkpoint."""
        _, _, passes = self.solver.schedule(self.system)
        remark = f"residual {float(jnp.max(at.look.relative)):.1e}"
        run.report(advanced, at.steps, at.steps * passes, lambda: self.weights(at.state), remark)
        counts = {"restarts": at.restarts, "renewals": at.renewals, "left": at.left, "history": at.history}
        arrays = at.state, at.converged, at.best
        run.save(arrays, steps=at.steps, seconds=at.seconds, given_up=at.has_given_up, **counts)

    def finish(self, run: Run, at: Position) -> Solution:
        """Return the solution, with columns that have grown at their best iterates.

        Warns if a column has not converged. Raises `DivergenceError` if the weights of a column are worse than zero
        weights, or if a column has grown and was never better than zero weights. If `is_bounded` is False, it is raised
        only if a residual is not finite.
        """
        solver, targets = self.solver, self.targets
        last, check, passes = solver.schedule(self.system)
        if not (bool(jnp.all(at.converged)) or solver.is_exhausted(at)):
            at = solver.confirm(self, at)._replace(best=at.best, left=at.left)
        if at.steps % check and at.steps < last:  # the time limit was reached between two checks
            look = self.look(at.state)
            at = at._replace(look=look, converged=solver.has_converged(look, targets))
        at, grown = self._with_best(at)
        if bool(jnp.any(grown)):
            at = self._restart_columns(at, grown)
        now = self.iterate(at.state, at.look)
        self._check_divergence(now, grown, at.steps)
        weights = jax.block_until_ready(now.weights)
        name, remark = type(solver).__name__, solver.note(self.plan)
        taken = at.steps, at.steps * passes + at.renewals, run.seconds
        info = Info(name, *taken, solver.tolerance, at.look.relative, at.converged, remark)
        precise = f"{weights.dtype} allows none here: enable float64, or take more noise"
        warn_unless_converged(info, precise if solver.is_exhausted(at) else MORE)
        return Solution(solver.support(self.system), weights, at.look.residual, info)

    def _check_divergence(self, now: "Iterate", grown: Bool[Array, "s"], step: int) -> None:
        if self.solver.is_bounded:
            margin = PROBED if now.residual is None else ROUNDED
            is_good = now.merit <= jnp.where(grown, -ROUNDED, margin) * now.scale
        else:
            is_good = jnp.isfinite(now.relative)
        if not bool(jnp.all(is_good)):
            raise DivergenceError(
                f"{type(self.solver).__name__} diverged: after {step} steps the weights are no better than zero "
                f"(relative residual {float(jnp.max(now.relative)):.1e}). Take a smaller step size, more noise, or "
                "another solver such as solvers.Auto()."
            )


class Look(eqx.Module):
    """Measurements of a state between steps; those of frozen columns belong to the state they stopped in."""

    relative: Float[Array, "s"]
    residual: Float[Array, "N s"] | None
    error: Float[Array, "s"]


class Iterate(eqx.Module):
    """The weights of a state and their merit, by which iterates are compared.

    The smaller the merit the better; it is 0 for zero weights. If the residual is known, the merit is the objective
    ½wᵀHw − bᵀw = −½wᵀ(b + r), which decreases at every step even if the residual does not. Otherwise it is the relative
    residual minus one.
    """

    relative: Float[Array, "s"]
    merit: Float[Array, "s"]
    scale: Float[Array, "s"]
    """Size of the terms that the merit is a sum of, to which its rounding is relative."""
    weights: Float[Array, "N s"]
    residual: Float[Array, "N s"] | None


@eqx.filter_jit
def _iterate(look: Look, weights: Array, targets: Targets) -> Iterate:
    relative, residual = look.relative, look.residual
    if residual is None or weights.shape != targets.signal.shape:
        return Iterate(relative, relative - 1, jnp.ones_like(relative), weights, residual)
    b = targets.total
    objective, size = -jnp.sum(weights * (b + residual), axis=0) / 2, jnp.sum(jnp.abs(weights * b), axis=0)
    return Iterate(relative, objective, size, weights, residual)


@eqx.filter_jit
def _better(best: Iterate, now: Iterate, frozen: Array) -> tuple[Iterate, Bool[Array, "s"]]:
    """Return the better iterate of each column, and which columns have grown or are not finite."""
    is_better = (now.merit < best.merit) & jnp.isfinite(now.relative)
    take = lambda new, old: jnp.where(is_better, new, old)
    grown = ~(now.relative <= GROWN * best.relative) & ~(now.merit <= best.merit + ROUNDED * best.scale)
    return jax.tree.map(take, now, best), grown & ~frozen


@eqx.filter_jit
def _restart(
    solver: Iterative, plan: Any, system: System, targets: Targets, state: Any, best: Iterate, grown: Array
) -> Any:
    again = solver.restart(plan, system, targets, state, best.weights, best.residual, grown)
    return system.constrain_sharding(again)


@eqx.filter_jit
def _prepare(solver: Iterative, system: System, targets: Targets, key: PRNGKeyArray) -> Any:
    return system.constrain_sharding(solver.prepare(system, targets, key))


@eqx.filter_jit
def _start(
    solver: Iterative, plan: Any, system: System, targets: Targets, key: PRNGKeyArray, init: Array | None
) -> Any:
    return system.constrain_sharding(solver.start(plan, system, targets, key, init))


@eqx.filter_jit
def _weights(solver: Iterative, plan: Any, state: Any) -> Float[Array, "N s"]:
    return solver.weights(plan, state)


@eqx.filter_jit
def _look(solver: Iterative, plan: Any, system: System, targets: Targets, state: Any) -> Look:
    return Look(*solver.residual(plan, system, targets, state), solver.estimated_error(plan, system, targets, state))


# With wide vectors, the tiled product took a fifth less time on a CPU with AVX-512; other CPUs were not measured.
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
    """Return the state after `steps` steps in one compiled loop; frozen columns keep their state."""
    new = jax.lax.fori_loop(0, steps, lambda _, s: solver.step(plan, system, targets, s), state)

    def keep(old_leaf: Array, new_leaf: Array) -> Array:
        is_columns = jnp.issubdtype(new_leaf.dtype, jnp.floating)
        return jnp.where(frozen, old_leaf, new_leaf) if is_columns else new_leaf

    return system.constrain_sharding(jax.tree.map(keep, state, new))
