"""The Gaussian process, its posterior, and `condition`: the paper in ten lines."""

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float64, PRNGKeyArray, Shaped

from pathgp import _checks as checks
from pathgp.functions import Canonical, Function
from pathgp.linalg.precision import cast, dtype_of, in_own_precision, working_in
from pathgp.parallel.sharding import gathered, replicate, shard_rows
from pathgp.posterior.accuracy import Errors, HostSolution, Probes, estimate_errors, evaluate_probes
from pathgp.posterior.gp import GP
from pathgp.posterior.predict import Predictive
from pathgp.posterior.problem import Problem
from pathgp.posterior.variance import ExactVariance, VarianceRatio
from pathgp.runs.checkpoint import Checkpoint, open_slot
from pathgp.runs.run import Run
from pathgp.solvers import Auto, Info, Solution, Solver
from pathgp.solvers.base import AccuracyWarning
from pathgp.solvers.inducing.base import Inducing
from pathgp.solvers.local import Local, Projection
from pathgp.system.system import System, Targets

MORE_SAMPLES, MORE_DATA, PROBE = 1, 2, 3
"""So that a key which was given to `condition` already draws something else."""

NOTHING_LEFT = 1e-6
"""A relative residual that is rounding: nothing is left to be finished locally."""

PROMISED_ERROR = 0.1
"""Of the mean in posterior standard deviations, and of the variance relatively: above, there is a warning."""

FACTOR_ROWS = 8000
"""Up to here a posterior keeps the factor of K + Σ, 0.5 GB; above, only where samples give no precise variances."""

ENTRIES_AT_ONCE = 100_000_000_000
"""Kernel entries that are computed at once to know the residual at every row: two to three minutes on two cores."""


class Posterior(Predictive):
    """A Gaussian process given data: a mean function and sample functions, to be evaluated anywhere.

    The samples are (f|y)(·) = f(·) + k(·, X)(v − α), where f is a prior draw, v the weights of the mean and α the
    weights of the draw's own values at the data (pathwise conditioning; Wilson et al., 2020). Where there is a `local`
    projection, `finish` adds to both what the solver left undone, the columns `unfinished`.
    """

    gp: GP
    system: System
    targets: Targets
    prior: Function
    solution: Solution
    solver: Solver
    key: PRNGKeyArray
    local: Local | None = None
    projection: Projection | None = None
    unfinished: Float[Array, "m s"] | None = None
    observations: Float[Array, "N s"] | None = None
    """The right-hand sides, whole on every device, where rows are split and a projection looks at them."""
    ratio: VarianceRatio | None = None
    """How posterior variances compare with those of the local projection, where there is one."""
    exact: ExactVariance | None = None
    """Posterior variances by the factor of K + Σ, where the solver has it."""

    @property
    def info(self) -> Info:
        """What the solve took and how far it came."""
        return self.solution.info

    @property
    @in_own_precision
    def chosen_solver(self) -> Solver:
        """The solver, or the one that it chose for this system."""
        return self.solver.choose(self.system).solver if isinstance(self.solver, Auto) else self.solver

    @property
    def draws(self) -> Function:
        """The prior draws f."""
        return self.prior

    @property
    def num_targets(self) -> int:
        """The number of columns of y."""
        return self.targets.signal.shape[1] - self.num_samples

    @property
    def prior_mean(self) -> Float[Array, ""]:
        """The constant mean of the prior."""
        return self.gp.mean

    @property
    def update_at_points(self) -> Function:
        """k(·, points) W."""
        return Function(Canonical(self.gp.kernel, self.solution.points, self.system.mesh), self.solution.weights)

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return Problem(self.gp, self.system, self.targets, self.prior, self.key)

    @property
    def _solved(self) -> tuple[Any, ...]:
        """What was solved and how, as far as more of it depends on it."""
        old = self.gathered()
        return old.gp, old.system, old.targets, old.solution.weights, old.solver, old.key

    @property
    def observed(self) -> tuple[Float[Array, "N s"], ...]:
        """Columns whose sum is y − m for each target, then f(X) + ε for each draw."""
        if self.observations is not None:
            return (self.observations,)
        return self.targets.signal, self.targets.noise

    @in_own_precision
    def gathered(self) -> "Posterior":
        """The same posterior on one device, or on one of each process: it can be saved, and predicts the same."""
        system, solution = self.system, self.solution
        if system.mesh is None:
            return self
        at_rows = solution.rows is None and not self.solver.has_own_points
        collect = system.gather_rows if at_rows else gathered
        residual = None if solution.residual is None else system.gather_rows(solution.residual)
        points, weights = collect(solution.points), collect(solution.weights)
        info, rows, q = gathered((solution.info, solution.rows, solution.q))
        return dataclasses.replace(
            self,
            gp=gathered(self.gp),
            system=system.gathered(),
            targets=self.targets.map_columns(system.gather_rows),
            prior=gathered(self.prior),
            solution=Solution(points, weights, residual, info, rows, q),
            key=gathered(self.key),
            projection=None if self.projection is None else dataclasses.replace(gathered(self.projection), mesh=None),
            unfinished=gathered(self.unfinished),
            observations=None,
            exact=gathered(self.exact),
        )

    @in_own_precision
    def with_noise_of_rows(self) -> "Posterior":
        """The same posterior with a variance of the noise for each row, where it had one for all."""
        system = self.system
        noise = system.gather_rows(system.noise_diagonal)
        split = dataclasses.replace(system, noise=shard_rows(system.mesh, noise, mode="edge"))
        return dataclasses.replace(self, gp=GP(self.gp.kernel, noise, self.gp.mean), system=split)

    @in_own_precision
    def with_samples(
        self, num: int, *, key: PRNGKeyArray, progress: bool = False, checkpoint: Checkpoint | None = None
    ) -> "Posterior":
        """The same posterior with `num` samples more. Only the new columns are solved."""
        checks.require_int(num, 1, "num")
        checks.require_key(key)
        slot = open_slot(checkpoint, "samples", lambda: {"the posterior": self._solved, "num": num, "the key": key})
        draw_key, noise_key, extend_key = jax.random.split(jax.random.fold_in(key, MORE_SAMPLES), 3)
        new = self.problem.with_draws(num, draw_key=draw_key, noise_key=noise_key)
        prior, targets = new.prior, new.targets
        with slot as saved:
            run = Run(progress=progress, saved=saved)
            solution = self.solver.extend(
                self.solution, self.system, targets, key=extend_key, solve_key=self.key, run=run
            )
        unfinished, observations = self.unfinished, self.observations
        if unfinished is not None:
            unfinished = _append_columns(unfinished, _unfinished(self.system, targets, solution))
        if observations is not None:
            observations = _append_columns(observations, self.system.replicate(targets.total))
        extended = dataclasses.replace(
            self,
            targets=self.targets.append_columns(targets),
            prior=Function(prior.features, _append_columns(self.prior.weights, prior.weights)),
            solution=self.solution.beside(solution),
            unfinished=unfinished,
            observations=observations,
        )
        return _with_errors(extended)

    def update(
        self,
        X_new: Shaped[ArrayLike, "..."],
        y_new: Shaped[ArrayLike, "..."],
        *,
        key: PRNGKeyArray,
        noise: Shaped[ArrayLike, "..."] | None = None,
        progress: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> "Posterior":
        """The posterior given more data, solved again from the present weights, in tiles.

        Where the present noise is one variance for each row, `noise` gives those of the new rows. A `checkpoint` is
        like that of `condition`, beside which it may be kept.
        """
        dtype = np.promote_types(dtype_of(self), jnp.result_type(float))  # JAX's may have been another when it was made
        with working_in(dtype):
            return cast(self, dtype)._updated(X_new, y_new, key, noise, progress, checkpoint)

    def _updated(
        self,
        X_new: Shaped[ArrayLike, "..."],
        y_new: Shaped[ArrayLike, "..."],
        key: PRNGKeyArray,
        noise: Shaped[ArrayLike, "..."] | None,
        progress: bool,
        checkpoint: Checkpoint | None,
    ) -> "Posterior":
        checks.require_key(key)
        X = checks.as_inputs(X_new, "X_new")
        if X.shape[1] != self.system.X.shape[1]:
            raise ValueError(f"X_new has {X.shape[1]} inputs, but the posterior was given {self.system.X.shape[1]}.")
        self.gp.kernel.check_inputs(X)
        y = checks.as_targets(y_new, X.shape[0], "y_new", "X_new")
        if y.shape[1] != self.num_targets:
            raise ValueError(f"y_new has {y.shape[1]} targets, but the posterior was given {self.num_targets}.")
        data = {"X_new": X, "y_new": y, "noise": noise, "the key": key}
        slot = open_slot(checkpoint, "update", lambda: {"the posterior": self._solved, **data})
        noise_key, solve_key = jax.random.split(jax.random.fold_in(key, MORE_DATA))
        noise = checks.noise_for_new_rows(self.gp.noise, noise, X.shape[0])
        old = self.gathered()
        larger = old.problem.with_rows(X, y, noise, noise_key)
        init = None  # a subset of more rows has other rows, for which there are no weights
        if self.solution.rows is None:
            new_weights = 0 if self.solver.has_own_points else X.shape[0]
            init = jnp.pad(old.solution.weights, ((0, new_weights), (0, 0)))
        problem, merged = larger.merge_duplicates()
        problem = problem.shard(self.system.mesh)
        init = problem.start(init, self.solver, merged)
        local = self.local or self.solver.local_correction(problem.system)
        with slot as saved:
            run = Run(progress=progress, saved=saved)
            solution = self.solver.solve(problem.system, problem.targets, key=solve_key, init=init, run=run)
        return posterior_of(dataclasses.replace(problem, key=solve_key), solution, self.solver, local)


def posterior_of(problem: Problem, solution: Solution, solver: Solver, local: Local | None) -> Posterior:
    """Return the posterior of a solved problem, with its estimated errors and the local correction of its residual."""
    system, info = problem.system, solution.info
    is_direct = solution.factor is not None  # its residual is rounding, however large; other solvers stop earlier
    finished = (info.relative_residual <= NOTHING_LEFT) | (info.converged & is_direct)
    is_exact = bool(jnp.all(finished)) and solution.rows is None
    is_sharded = local is not None and system.mesh is not None
    posterior = Posterior(
        gp=problem.gp,
        system=system,
        targets=problem.targets,
        prior=problem.prior,
        solution=solution,
        solver=solver,
        key=problem.key,
        local=local,
        projection=None if local is None else local.projection(system),
        unfinished=None if local is None or is_exact else _unfinished(system, problem.targets, solution),
        observations=system.replicate(problem.targets.total) if is_sharded else None,
        exact=_exact_variance(system, solution),
    )
    return _with_errors(dataclasses.replace(posterior, solution=dataclasses.replace(solution, factor=None)))


def _exact_variance(system: System, solution: Solution) -> ExactVariance | None:
    """Posterior variances by the factor that the solver has computed, if it has."""
    if solution.factor is None:
        return None
    whole = system.gathered()
    return ExactVariance(whole.kernel, whole.X, whole.noise_diagonal, solution.factor)


def _with_errors(posterior: Posterior) -> Posterior:
    """With its estimated errors in `info`, and a warning where they are above what is promised."""
    info = dataclasses.replace(posterior.info, precision=str(posterior.solution.weights.dtype))
    if not isinstance(posterior.solver, Inducing):
        posterior, found = _compare_at_probes(posterior)
        info = dataclasses.replace(info, mean_error=found.mean, variance_error=found.variance)
        _warn_of_errors(found, info)
    # As float32 whatever the precision of the weights, for it is read outside.
    info = dataclasses.replace(info, relative_residual=info.relative_residual.astype(np.float32))
    return dataclasses.replace(posterior, solution=dataclasses.replace(posterior.solution, info=info))


def _compare_at_probes(posterior: Posterior) -> tuple[Posterior, Errors]:
    """The posterior with the ratio of its variances to local ones, and its errors, both estimated at a few points."""
    system, solution = posterior.system, posterior.solution
    host = lambda columns: np.asarray(system.gather_rows(columns))
    at_rows = solution.rows is None
    solved = HostSolution(
        kernel=posterior.gp.kernel,
        X=host(system.X),
        noise=host(system.noise_diagonal),
        b=host(posterior.targets.total),
        residual=None if solution.residual is None else host(solution.residual),
        points=host(solution.points) if at_rows else np.asarray(solution.points),
        weights=host(solution.weights) if at_rows else np.asarray(solution.weights),
        rows=None if at_rows else np.asarray(solution.rows),
        variance=posterior.exact,
    )
    probes = evaluate_probes(solved, posterior.projection, jax.random.fold_in(posterior.key, PROBE))
    draws = np.asarray(posterior.prior(probes.x), np.float64)
    ratio = probes.ratio(draws)
    posterior = dataclasses.replace(posterior, ratio=cast(ratio, solution.weights.dtype))
    sampled = dataclasses.replace(posterior, exact=None)
    if posterior.exact is None or (system.size > FACTOR_ROWS and posterior.num_samples):
        found = _estimate_at_probes(sampled, probes, draws)
        if posterior.exact is None or found.bias <= PROMISED_ERROR / 2:
            return sampled, found
    return posterior, _estimate_at_probes(posterior, probes, draws)


def _estimate_at_probes(posterior: Posterior, probes: Probes, draws: Float64[np.ndarray, "p s"]) -> Errors:
    """The errors of what a posterior predicts at the probes."""
    if posterior.num_samples or posterior.exact is not None:
        mean, variance = (np.asarray(a, np.float64) for a in posterior.predict(probes.x))
    else:
        mean, variance = np.asarray(posterior.mean(probes.x), np.float64), probes.variance
    mean = mean.reshape(len(mean), -1) - float(posterior.prior_mean)
    return estimate_errors(probes, draws, mean, variance, posterior.ratio)


def _warn_of_errors(found: Errors, info: Info) -> None:
    what = []
    if not found.mean <= PROMISED_ERROR:
        what.append(f"the mean is off by about {found.mean:.2g} posterior standard deviations")
    if not found.bias <= PROMISED_ERROR:
        what.append(f"the variance is off by about {100 * found.bias:.2g} %")
    if what:
        warnings.warn(
            f"the posterior is not exact: with {info.solver} in {info.precision} {' and '.join(what)} (estimated), and "
            f"the largest relative residual is {float(jnp.max(info.relative_residual)):.1e}. Allow more steps or a "
            "smaller tolerance, or take solvers.Auto() or solvers.Cholesky().",
            AccuracyWarning,
            stacklevel=5,
        )


def _unfinished(system: System, targets: Targets, solution: Solution) -> Float[Array, "m s"]:
    """The residual b − (K + Σ)w: the solver's own, or one pass over the data.

    Where the weights belong to so many other points that a pass is long, it is left to be computed at the rows that
    are asked for: the weights of `Projection.rows` follow after the part of the residual that does not need them.
    """
    if solution.residual is not None:
        return system.replicate(solution.residual)
    if solution.rows is None:
        return system.replicate(targets.total - system @ solution.weights)
    points, w = solution.points, solution.weights
    residual = targets.total.at[solution.rows].add(-system.noise_diagonal[solution.rows, None] * w)
    if system.size * points.shape[0] > ENTRIES_AT_ONCE:
        return jnp.concatenate([system.replicate(residual), -replicate(system.mesh, w)])
    return system.replicate(residual - system.values(Function(Canonical(system.kernel, points), w)))


def _append_columns(left: Float[Array, "n s"], right: Float[Array, "n t"]) -> Float[Array, "n u"]:
    """The columns of the right after those of the left."""
    return jnp.concatenate([left, right], axis=1)
