"""The posterior of a GP, with more samples or more data, and its estimated errors."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import _checks as checks
from pathgp.functions import Canonical, Function
from pathgp.linalg.precision import KeepsPrecision, cast, dtype_of, in_own_precision, working_in
from pathgp.parallel.sharding import gathered, replicate, shard_rows
from pathgp.posterior.errors import check_errors
from pathgp.posterior.gp import GP
from pathgp.posterior.predict import Correction, Predictor
from pathgp.posterior.problem import Problem
from pathgp.posterior.variance import ExactVariance, VarianceRatio
from pathgp.runs.checkpoint import Checkpoint, open_slot
from pathgp.runs.run import Run
from pathgp.solvers import Auto, Info, Solution, Solver
from pathgp.solvers.inducing.base import Inducing
from pathgp.solvers.local import ComputedResidual, Local, Projection, Residual, StoredResidual
from pathgp.system.system import System, Targets

MORE_SAMPLES, MORE_DATA = 1, 2
"""Folded into keys, so that a key already used for `condition` gives other random numbers."""

NOTHING_LEFT = 1e-6
"""A relative residual up to this size is rounding and needs no local correction."""

ENTRIES_AT_ONCE = 100_000_000_000
"""Most kernel entries to compute for the residual at every row: two to three minutes on two cores."""


class Posterior(KeepsPrecision, eqx.Module):
    """The posterior of a GP given data: a mean function and sample functions that can be evaluated anywhere.

    The samples are (f|y)(·) = f(·) + k(·, X)(v − α) (pathwise conditioning; Wilson et al., 2020). Here f is a prior
    draw, v are the weights of the mean, and α are the weights of f(X) + ε. With a `local` correction, the mean and the
    samples are corrected for the residual that the solver left.

    `condition` returns a posterior; its arguments are rarely given by hand.

    Parameters
    ----------
    gp
        The GP, with the noise of the distinct rows.
    system
        The matrix K + Σ of the distinct rows.
    targets
        Right-hand sides: y − m for each target, then f(X) + ε for each prior draw.
    solution
        Weights, and the cost and residual of the solve.
    solver
        The solver, which also solves for further samples and data.
    key
        Random key of the solve.
    local
        The local correction, or None.
    predictor
        All that prediction needs, without what updates and further samples need; it can be saved alone.
    """

    gp: GP
    system: System
    targets: Targets
    solution: Solution
    solver: Solver
    key: PRNGKeyArray
    local: Local | None
    predictor: Predictor

    @classmethod
    def of(
        cls,
        problem: Problem,
        solution: Solution,
        solver: Solver,
        local: Local | None,
        projection: Projection | None,
        residual: Residual | None,
        ratio: VarianceRatio | None = None,
        exact: ExactVariance | None = None,
    ) -> "Posterior":
        """Return the posterior of a solved problem, whose `residual` is corrected by `projection`, if there is one."""
        gp, system, targets, correction = problem.gp, problem.system, problem.targets, None
        if projection is not None:
            # A neighbour may be any row, so every device has the right-hand sides of all rows.
            whole = (targets.signal, targets.noise) if system.mesh is None else (system.replicate(targets.total),)
            correction = Correction(projection, residual, whole)
        update = Function(Canonical(gp.kernel, solution.points, system.mesh), solution.weights)
        predictor = Predictor.of(problem.prior, update, gp.mean, correction, ratio, exact)
        return cls(gp, system, targets, solution, solver, problem.key, local, predictor)

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
    def prior(self) -> Function:
        """The prior draws f."""
        return self.predictor.prior

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.predictor.num_samples

    @property
    def num_targets(self) -> int:
        """The number of columns of y."""
        return self.predictor.num_targets

    @property
    def mean(self) -> Function:
        """The posterior mean: `mean(x)` has shape (n,), or (n, targets) for several targets."""
        return self.predictor.mean

    @property
    def samples(self) -> Function:
        """The posterior samples: `samples(x)` has shape (n, samples).

        Raises `ValueError` if there are several targets, or no samples.
        """
        return self.predictor.samples

    def sample(self, index: int) -> Function:
        """Return one posterior sample: `sample(i)(x)` has shape (n,)."""
        return self.predictor.sample(index)

    def deviations(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n s"]:
        """Return the samples minus the mean, f(x) − k(x, X)α, of shape (n, samples)."""
        return self.predictor.deviations(x)

    def predict(self, x: Shaped[ArrayLike, "..."]) -> tuple[Float[Array, "n *t"], Float[Array, "n"]]:
        """Return the mean and the variance of f(x), without noise, at little more than the cost of one of them.

        The variance is exact if the solver has factorised K + Σ, up to 8000 rows, and above where samples are too
        imprecise. Otherwise it is the mean square of the deviations of the samples. With a local correction, it is the
        variance of local predictions of f(x), known in closed form, times the ratio of both variances as estimated from
        the same samples. Much of their sampling error is common to both and cancels. The rest is reduced by shrinking
        the ratio towards that of other points (`pathgp.posterior.variance`).

        Parameters
        ----------
        x
            Query points, of shape (n, inputs).

        Returns
        -------
        mean
            The mean, of shape (n,), or (n, targets) for several targets.
        variance
            The variance, of shape (n,).

        Raises
        ------
        ValueError
            If the posterior has neither samples nor exact variances.
        """
        return self.predictor.predict(x)

    def variance(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """Return the variance of f(x), without noise, as `predict` does."""
        return self.predictor.variance(x)

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
    def local_residual(self) -> Residual | None:
        """The residual that the local correction is applied to; None without one, and if the solve is exact."""
        return None if self.predictor.correction is None else self.predictor.correction.residual

    def _with_columns(self, problem: Problem, solution: Solution, residual: Residual | None) -> "Posterior":
        """Return the posterior with other columns of the same system."""
        p, c = self.predictor, self.predictor.correction
        projection = None if c is None else c.projection
        return Posterior.of(problem, solution, self.solver, self.local, projection, residual, p.ratio, p.exact)

    @in_own_precision
    def map_samples(self, f: Callable[[Float[Array, "m s"]], Float[Array, "m s"]]) -> "Posterior":
        """Return the posterior whose prior draws, noise draws and weights of samples are linear maps f of the present.

        The columns of the means stay as they are.
        """
        t, old = self.num_targets, self.targets
        both = lambda columns: jnp.concatenate([columns[:, :t], f(columns[:, t:])], axis=1)
        prior = Function(self.prior.features, f(self.prior.weights))
        targets = Targets(both(old.signal), both(old.noise), None if old.draws is None else prior)
        residual = None if self.solution.residual is None else both(self.solution.residual)
        solution = dataclasses.replace(self.solution, weights=both(self.solution.weights), residual=residual)
        problem = dataclasses.replace(self.problem, targets=targets, prior=prior)
        corrected = None if self.local_residual is None else self.local_residual.map_columns(both)
        return self._with_columns(problem, solution, corrected)

    @in_own_precision
    def gathered(self) -> "Posterior":
        """Return the same posterior on one device of each process, so that it can be saved."""
        system, solution, predictor = self.system, self.solution, self.predictor
        if system.mesh is None:
            return self
        at_rows = solution.rows is None and not self.solver.has_own_points
        collect = system.gather_rows if at_rows else gathered
        residual = None if solution.residual is None else system.gather_rows(solution.residual)
        points, weights = collect(solution.points), collect(solution.weights)
        info, rows, q = gathered((solution.info, solution.rows, solution.q))
        problem = Problem(
            gp=gathered(self.gp),
            system=system.gathered(),
            targets=self.targets.map_columns(system.gather_rows),
            prior=gathered(self.prior),
            key=gathered(self.key),
        )
        projection = None
        if predictor.correction is not None:
            projection = dataclasses.replace(gathered(predictor.correction.projection), mesh=None)
        return Posterior.of(
            problem,
            Solution(points, weights, residual, info, rows, q),
            self.solver,
            self.local,
            projection,
            gathered(self.local_residual),
            predictor.ratio,
            gathered(predictor.exact),
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
        with slot as saved:
            run = Run(progress=progress, saved=saved)
            more = self.solver.extend(
                self.solution, self.system, new.targets, key=extend_key, solve_key=self.key, run=run
            )
        prior = Function(self.prior.features, _append_columns(self.prior.weights, new.prior.weights))
        targets = self.targets.append_columns(new.targets)
        problem = dataclasses.replace(self.problem, targets=targets, prior=prior)
        solution, residual = self.solution.append_columns(more), self.local_residual
        if residual is not None and solution.residual is not None:
            residual = _residual(self.system, targets, solution)
        elif residual is not None:
            residual = residual.map_columns(_append_columns, _residual(self.system, new.targets, more))
        return _with_errors(self._with_columns(problem, solution, residual))

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
    projection = residual = None
    if local is not None:
        projection = local.projection(system)
        residual = None if is_exact else _residual(system, problem.targets, solution)
    exact, kept = _exact_variance(system, solution), dataclasses.replace(solution, factor=None)
    return _with_errors(Posterior.of(problem, kept, solver, local, projection, residual, exact=exact))


def _exact_variance(system: System, solution: Solution) -> ExactVariance | None:
    """Return posterior variances from the factor of the solver, or None if it has none."""
    if solution.factor is None:
        return None
    whole = system.gathered()
    return ExactVariance(whole.kernel, whole.X, whole.noise_diagonal, solution.factor)


def _with_errors(posterior: Posterior) -> Posterior:
    """Return the posterior with its estimated errors in `info`; warn if they are large."""
    predictor, info = posterior.predictor, posterior.info
    if not isinstance(posterior.solver, Inducing):
        predictor, info = check_errors(posterior.problem, posterior.solution, predictor)
    # Always float32, because users read it outside the precision context of the weights.
    relative = info.relative_residual.astype(np.float32)
    info = dataclasses.replace(info, relative_residual=relative, precision=str(posterior.solution.weights.dtype))
    solution = dataclasses.replace(posterior.solution, info=info)
    return dataclasses.replace(posterior, solution=solution, predictor=predictor)


def _residual(system: System, targets: Targets, solution: Solution) -> Residual:
    """Return the residual b − (K + Σ)w: that of the solver, or a new one, which takes one pass over the data.

    With weights of a subset of rows, a pass of more than `ENTRIES_AT_ONCE` kernel entries would take too long. The
    product with K is then computed later, at the rows that a prediction needs.
    """
    if solution.residual is not None:
        return StoredResidual(system.replicate(solution.residual))
    if solution.rows is None:
        return StoredResidual(system.replicate(targets.total - system @ solution.weights))
    points, w = solution.points, solution.weights
    known = targets.total.at[solution.rows].add(-system.noise_diagonal[solution.rows, None] * w)
    if system.size * points.shape[0] > ENTRIES_AT_ONCE:
        return ComputedResidual(system.replicate(known), *replicate(system.mesh, (points, w)))
    return StoredResidual(system.replicate(known - system.values(Function(Canonical(system.kernel, points), w))))


def _append_columns(left: Float[Array, "n s"], right: Float[Array, "n t"]) -> Float[Array, "n u"]:
    """Return the columns of `left`, followed by those of `right`."""
    return jnp.concatenate([left, right], axis=1)
