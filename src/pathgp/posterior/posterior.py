"""The posterior of a GP, with more samples or more data, and its estimated errors."""

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
"""Folded into keys, so that a key already used for `condition` gives other random numbers."""

NOTHING_LEFT = 1e-6
"""A relative residual up to this size is rounding and needs no local correction."""

PROMISED_ERROR = 0.1
"""Limit of the estimated errors, above which there is a warning.

It is in posterior standard deviations for the mean, and relative for the variance.
"""

FACTOR_ROWS = 8000
"""Up to this many rows a posterior keeps the factor of K + Σ (0.5 GB).

Above, it keeps the factor only if samples do not give precise variances.
"""

ENTRIES_AT_ONCE = 100_000_000_000
"""Most kernel entries to compute for the residual at every row: two to three minutes on two cores."""


class Posterior(Predictive):
    """The posterior of a GP given data: a mean function and sample functions that can be evaluated anywhere.

    The samples are (f|y)(·) = f(·) + k(·, X)(v − α) (pathwise conditioning; Wilson et al., 2020). Here f is a prior
    draw, v are the weights of the mean, and α are the weights of f(X) + ε. With a `local` correction, `finish` corrects
    the mean and the samples for the residual that the solver left.

    `condition` returns a posterior; its arguments are rarely given by hand.

    Parameters
    ----------
    gp
        The GP, with the noise of the distinct rows.
    system
        The matrix K + Σ of the distinct rows.
    targets
        Right-hand sides: y − m for each target, then f(X) + ε for each prior draw.
    prior
        The prior draws f.
    solution
        Weights, and the cost and residual of the solve.
    solver
        The solver, which also solves for further samples and data.
    key
        Random key of the solve.
    local
        The local correction, or None.
    projection
        Features of the local correction of this system, or None.
    unfinished
        Residual that the local correction is applied to; None if there is no correction or the solve is exact.
    observations
        The right-hand sides replicated on every device, if rows are sharded and there is a local correction; else None.
    ratio
        Ratio of posterior variances to those of the local correction, if there is one.
    exact
        Posterior variances from the factor of K + Σ, if it is kept.
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
    ratio: VarianceRatio | None = None
    exact: ExactVariance | None = None

    @property
    def info(self) -> Info:
        """The cost and residual of the solve, and the estimated errors."""
        return self.solution.info

    @property
    @in_own_precision
    def chosen_solver(self) -> Solver:
        """The solver, or the one that `Auto` chooses for this system."""
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
        """The update k(·, points) W by the weights of the solver, without the local correction."""
        return Function(Canonical(self.gp.kernel, self.solution.points, self.system.mesh), self.solution.weights)

    @property
    def problem(self) -> Problem:
        """The problem that was solved."""
        return Problem(self.gp, self.system, self.targets, self.prior, self.key)

    @property
    def _solved(self) -> tuple[Any, ...]:
        """All that further samples or data depend on, to identify a checkpoint."""
        old = self.gathered()
        return old.gp, old.system, old.targets, old.solution.weights, old.solver, old.key

    @property
    def observed(self) -> tuple[Float[Array, "N s"], ...]:
        """Arrays of columns whose sum is y − m for each target, then f(X) + ε for each draw."""
        if self.observations is not None:
            return (self.observations,)
        return self.targets.signal, self.targets.noise

    @in_own_precision
    def gathered(self) -> "Posterior":
        """Return the same posterior on one device of each process, so that it can be saved."""
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
        """Return the same posterior with one noise variance per row, even if all rows share one."""
        system = self.system
        noise = system.gather_rows(system.noise_diagonal)
        split = dataclasses.replace(system, noise=shard_rows(system.mesh, noise, mode="edge"))
        return dataclasses.replace(self, gp=GP(self.gp.kernel, noise, self.gp.mean), system=split)

    @in_own_precision
    def with_samples(
        self, num: int, *, key: PRNGKeyArray, progress: bool = False, checkpoint: Checkpoint | None = None
    ) -> "Posterior":
        """Return the posterior with more samples; the solver runs only for the new columns.

        Parameters
        ----------
        num
            Number of samples to add.
        key
            Random key of the new samples.
        progress
            Whether to show a progress bar.
        checkpoint
            Directory from which the same call resumes after an interruption, with the same result.

        Returns
        -------
        posterior
            The posterior with the new samples after the present ones, and with new estimated errors.

        Raises
        ------
        ValueError
            If an argument is not valid.
        DivergenceError
            If an iterative solver diverges.
        """
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
            solution=self.solution.append_columns(solution),
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
        """Return the posterior given more data, by solving again from the present weights.

        K is not stored for this solve but computed in tiles.

        Parameters
        ----------
        X_new
            Inputs of the new rows.
        y_new
            Observations at the new rows, one column per target.
        key
            Random key of the solve and of the noise draws at the new rows.
        noise
            Noise variances of the new rows if the present rows have one each; else None.
        progress
            Whether to show a progress bar.
        checkpoint
            Directory from which the same call resumes, as in `condition`; it may be the directory given there.

        Returns
        -------
        posterior
            The posterior given all data, with as many samples as before.

        Raises
        ------
        ValueError
            If an argument is not valid.
        DivergenceError
            If an iterative solver diverges.
        """
        # The precision that JAX is set to may have changed since the posterior was made.
        dtype = np.promote_types(dtype_of(self), jnp.result_type(float))
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
        init = None  # a subset of more rows contains other rows, which have no weights yet
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
    is_direct = solution.factor is not None  # the residual of a factorisation is rounding, however large
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
    """Return posterior variances from the factor of the solver, or None if it has none."""
    if solution.factor is None:
        return None
    whole = system.gathered()
    return ExactVariance(whole.kernel, whole.X, whole.noise_diagonal, solution.factor)


def _with_errors(posterior: Posterior) -> Posterior:
    """Return the posterior with its estimated errors in `info`; warn if they exceed `PROMISED_ERROR`."""
    info = dataclasses.replace(posterior.info, precision=str(posterior.solution.weights.dtype))
    if not isinstance(posterior.solver, Inducing):
        posterior, found = _compare_at_probes(posterior)
        info = dataclasses.replace(info, mean_error=found.mean, variance_error=found.variance)
        _warn_of_errors(found, info)
    # Always float32, because users read it outside the precision context of the weights.
    info = dataclasses.replace(info, relative_residual=info.relative_residual.astype(np.float32))
    return dataclasses.replace(posterior, solution=dataclasses.replace(posterior.solution, info=info))


def _compare_at_probes(posterior: Posterior) -> tuple[Posterior, Errors]:
    """Return the posterior with the ratio of its variances to local ones, and its errors, estimated at a few points."""
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
    """Return the estimated errors of the predictions at the probes."""
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
    """Return the residual b − (K + Σ)w: that of the solver, or a new one, which takes one pass over the data.

    With weights of a subset of rows, a pass of more than `ENTRIES_AT_ONCE` kernel entries would take too long. The
    product with K is then computed later, at the rows that a prediction needs. The result is the part of the residual
    without this product, followed by the negative weights, which `Projection.rows` multiplies.
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
    """Return the columns of `left`, followed by those of `right`."""
    return jnp.concatenate([left, right], axis=1)
