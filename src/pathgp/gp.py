"""The Gaussian process, its posterior, and `condition`: the paper in ten lines."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import checks
from pathgp.checkpoint import Checkpoint, slot_of
from pathgp.functions import Canonical, Function
from pathgp.local import Local, Projection
from pathgp.predictive import Predictive
from pathgp.problem import GP, PROCESS, draw, mean_targets, parts, problem, sample_targets, split
from pathgp.repeats import Places, put_together
from pathgp.sharding import everywhere, gathered, placed
from pathgp.solvers import Auto, Cholesky, Every, Info, Solution, Solver
from pathgp.solvers.base import going_on
from pathgp.system import System, Targets

MORE_SAMPLES, MORE_DATA = 1, 2
"""So that a key which was given to `condition` already draws something else."""

NOTHING_LEFT = 1e-6
"""A relative residual that is rounding: nothing is left to be finished locally."""

RESOLVED_NOISE = 0.3
"""Of the noise's standard deviation: rounding of the mean that is not worth a word."""

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

    @property
    def info(self) -> Info:
        """What the solve took and how far it came."""
        return self.solution.info

    @property
    def draws(self) -> Function:
        """The prior draws f."""
        return self.prior

    @property
    def num_targets(self) -> int:
        """The number of columns of y."""
        return self.targets.signal.shape[1] - self.num_samples

    @property
    def level(self) -> Float[Array, ""]:
        """The constant mean of the prior."""
        return self.gp.mean

    @property
    def update_at_points(self) -> Function:
        """k(·, points) W."""
        return Function(Canonical(self.gp.kernel, self.solution.points, self.system.mesh), self.solution.weights)

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

    def gathered(self) -> "Posterior":
        """The same posterior on one device, or on one of each process: it can be saved, and predicts the same."""
        system, solution = self.system, self.solution
        if system.mesh is None:
            return self
        at_rows = solution.rows is None and self.solver.support(system) is system.X
        collect = system.collected if at_rows else gathered
        residual = None if solution.residual is None else system.collected(solution.residual)
        points, weights = collect(solution.points), collect(solution.weights)
        info, rows, q = gathered((solution.info, solution.rows, solution.q))
        return dataclasses.replace(
            self,
            gp=gathered(self.gp),
            system=system.gathered(),
            targets=self.targets.each(system.collected),
            prior=gathered(self.prior),
            solution=Solution(points, weights, residual, info, rows, q),
            key=gathered(self.key),
            projection=None if self.projection is None else dataclasses.replace(gathered(self.projection), mesh=None),
            unfinished=gathered(self.unfinished),
            observations=None,
        )

    def with_noise_of_rows(self) -> "Posterior":
        """The same posterior with a variance of the noise for each row, where it had one for all."""
        system = self.system
        noise = system.collected(system.noise_diagonal)
        split = dataclasses.replace(system, noise=placed(system.mesh, noise, mode="edge"))
        return dataclasses.replace(self, gp=GP(self.gp.kernel, noise, self.gp.mean), system=split)

    def with_samples(
        self, num: int, *, key: PRNGKeyArray, progress: bool = False, checkpoint: Checkpoint | None = None
    ) -> "Posterior":
        """The same posterior with `num` samples more. Only the new columns are solved."""
        checks.whole(num, 1, "num")
        checks.random_key(key)
        slot = slot_of(checkpoint, "samples", lambda: {"the posterior": self._solved, "num": num, "the key": key})
        draw_key, noise_key, extend_key = jax.random.split(jax.random.fold_in(key, MORE_SAMPLES), 3)
        prior = draw(self.prior.features, num, draw_key)
        targets = sample_targets(self.system, prior, noise_key)
        with slot as saved:
            solution = self.solver.extend(
                self.solution,
                self.system,
                targets,
                key=extend_key,
                solve_key=self.key,
                progress=progress,
                **going_on(saved),
            )
        unfinished, observations = self.unfinished, self.observations
        if unfinished is not None:
            unfinished = _beside(unfinished, _unfinished(self.system, targets, solution))
        if observations is not None:
            observations = _beside(observations, self.system.everywhere(targets.total))
        return dataclasses.replace(
            self,
            targets=self.targets.beside(targets),
            prior=Function(prior.features, _beside(self.prior.weights, prior.weights)),
            solution=self.solution.beside(solution),
            unfinished=unfinished,
            observations=observations,
        )

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
        if self.system.X.dtype != jnp.result_type(float):  # it was stored when JAX had another precision
            present = jax.tree.map(lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, self)
            return present.update(X_new, y_new, key=key, noise=noise, progress=progress, checkpoint=checkpoint)
        checks.random_key(key)
        X = checks.inputs(X_new, "X_new")
        if X.shape[1] != self.system.X.shape[1]:
            raise ValueError(f"X_new has {X.shape[1]} inputs, but the posterior was given {self.system.X.shape[1]}.")
        self.gp.kernel.check_inputs(X)
        y = checks.columns(y_new, X.shape[0], "y_new", "X_new")
        if y.shape[1] != self.num_targets:
            raise ValueError(f"y_new has {y.shape[1]} targets, but the posterior was given {self.num_targets}.")
        data = {"X_new": X, "y_new": y, "noise": noise, "the key": key}
        slot = slot_of(checkpoint, "update", lambda: {"the posterior": self._solved, **data})
        noise_key, solve_key = jax.random.split(jax.random.fold_in(key, MORE_DATA))
        new = System(self.gp.kernel, X, checks.noise_of_update(self.gp.noise, noise, X.shape[0]))
        old = self.gathered()
        targets = mean_targets(y, self.gp).beside(sample_targets(new, old.prior, noise_key))
        all_noise = new.noise
        if old.system.noise.ndim or new.noise.ndim:
            all_noise = jnp.concatenate([old.system.noise_diagonal, new.noise_diagonal])
        system = System(new.kernel, jnp.concatenate([old.system.X, X]), all_noise, self.system.tile)
        init = None  # other rows of a larger set give no start
        if self.solution.rows is None:
            new_weights = self.solver.support(system).shape[0] - old.solution.weights.shape[0]
            init = jnp.pad(old.solution.weights, ((0, new_weights), (0, 0)))
        system, all_targets, places = put_together(system, old.targets.above(targets))
        init = _at_places(init, places, self.solver, system)
        gp = self.gp if self.gp.noise.ndim == 0 else GP(self.gp.kernel, system.noise, self.gp.mean)
        system, all_targets = split(system, all_targets, self.system.mesh)
        init = _at_rows(init, self.solver, system)
        local = self.local or self.solver.counts_on(system)
        with slot as saved:
            solution = self.solver.solve(
                system, all_targets, key=solve_key, init=init, progress=progress, **going_on(saved)
            )
        return _posterior(gp, system, all_targets, self.prior, solution, self.solver, solve_key, local)


def condition(
    gp: GP,
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    solver: Solver = Auto(),  # noqa: B008, a frozen value
    local: Local | None = None,
    num_samples: int = 64,
    num_features: int = 2000,
    keep_bytes: int = 0,
    init: Float[Array, "M s"] | None = None,
    mesh: Mesh | None = None,
    observe: Every | None = None,
    progress: bool = False,
    checkpoint: Checkpoint | None = None,
) -> Posterior:
    """The posterior of `gp` given observations y at the rows of X: a vector, or a column for each of several targets.

    All of it is one linear system with many right-hand sides, (K + Σ)W = [y − m | f₁(X) + ε₁ | … | f_s(X) + ε_s],
    where the prior draws f are `num_features` random features with normal weights. Several targets share the kernel,
    the noise and the samples' deviations from the mean: each is one column y − m more.

    `local` finishes the solve at each point where the posterior is evaluated, so that a few passes over the data are
    enough; and it makes variances more precise than samples alone do. If None, it is what the solver counts on.

    K is computed anew, in tiles, for every product, unless it fits in `keep_bytes`: a solver of many passes is then
    faster, and its result the same.

    Rows that repeat the inputs of others are put together with them first, which does not change the posterior:
    `posterior.system` has each place once.

    `init` are weights to start from, the column of the mean first, such as `trace.weights` of `likelihood.Pathwise`.
    Those of samples belong to the draws of this key.

    With a `mesh` of one axis, for instance `pathgp.distributed.mesh()`, the rows of the data and of all columns are
    split over its devices, and every product is computed where the rows are. The result is the same, but for rounding.
    A local projection needs any row, so for it every device has X, y, the samples' targets and the residual whole.

    With a `checkpoint` the same call goes on where an iterative solver was stopped, to the same result; on another
    mesh too, but for rounding.

    >>> import jax, jax.numpy as jnp
    >>> from pathgp.kernels import Matern32
    >>> X = jnp.linspace(0, 1, 50)[:, None]
    >>> posterior = condition(GP(Matern32(0.3), noise=0.01), X, jnp.sin(6 * X[:, 0]), key=jax.random.key(0))
    >>> x = jnp.array([[0.25], [0.5]])
    >>> posterior.mean(x).shape, posterior.samples(x).shape
    ((2,), (2, 64))
    """
    checks.instance(gp, GP, "gp", PROCESS)
    checks.instance(solver, Solver, "solver", "a solver such as solvers.CG()")
    checks.instance(local, Local | None, "local", "a local projection such as Local(128), or None")
    X = checks.inputs(X)
    gp.kernel.check_inputs(X)
    y = checks.columns(y, X.shape[0])
    checks.noise_variance(gp.noise, X.shape[0])
    checks.whole(num_samples, 0, "num_samples")
    checks.whole(num_features, 1, "num_features")
    checks.random_key(key)
    sizes = {"num_samples": num_samples, "num_features": num_features, "keep_bytes": keep_bytes}
    asked = {"X": X, "y": y, **parts(gp), "the solver": solver, "local": local, "init": init, "the key": key, **sizes}
    slot = slot_of(checkpoint, "solve", lambda: asked)
    system, prior, targets, solve_key = problem(gp, X, y, num_samples, num_features, key)
    system, targets, places = put_together(system, targets)
    if places is not None:
        gp = gp if gp.noise.ndim == 0 else GP(gp.kernel, system.noise, gp.mean)
        init = _at_places(init, places, solver, system)
    system, targets = split(system, targets, mesh)
    system = system.kept(keep_bytes)
    if local is not None:
        solver = solver.counting_on(local)
        gp.kernel.coordinates(X[:1])  # a kernel without coordinates is refused before the long work
    local = local or solver.counts_on(system)
    support = solver.support(system)
    expected = (system.size if support is system.X else support.shape[0], targets.signal.shape[1])
    if init is not None and init.shape != expected:
        raise ValueError(f"init must have the shape {expected} of the weights, but its shape is {init.shape}.")
    init = _at_rows(init, solver, system)
    with slot as saved:
        solution = solver.solve(
            system, targets, key=solve_key, init=init, observe=observe, progress=progress, **going_on(saved)
        )
    return _posterior(gp, system, targets, prior, solution, solver, solve_key, local)


def _at_rows(init: Float[Array, "M s"] | None, solver: Solver, system: System) -> Float[Array, "P s"] | None:
    """Weights where the solver wants them: those of rows where the rows are."""
    return init if init is None or solver.support(system) is not system.X else system.placed(init)


def _posterior(
    gp: GP,
    system: System,
    targets: Targets,
    prior: Function,
    solution: Solution,
    solver: Solver,
    key: PRNGKeyArray,
    local: Local | None,
) -> Posterior:
    """With the local projection of what the solve left undone, if anything."""
    info = solution.info
    direct = info.solver == Cholesky.__name__  # what it leaves is rounding, however large; others may settle before
    finished = (info.relative_residual <= NOTHING_LEFT) | (info.converged & direct)
    exact = bool(jnp.all(finished)) and solution.rows is None
    split = local is not None and system.mesh is not None
    if system.mesh is None:
        _warn_of_rounding(gp, solution, targets)
    return Posterior(
        gp=gp,
        system=system,
        targets=targets,
        prior=prior,
        solution=solution,
        solver=solver,
        key=key,
        local=local,
        projection=None if local is None else local.projection(system),
        unfinished=None if local is None or exact else _unfinished(system, targets, solution),
        observations=system.everywhere(targets.total) if split else None,
    )


def _warn_of_rounding(gp: GP, solution: Solution, targets: Targets) -> None:
    """Says so where the values k(x, points) w, a sum of large terms that cancel, are uncertain by as much as the data.

    Its rounding is about that of one term times ‖w‖, as dense computations in float64 confirm.
    """
    weights = solution.weights[:, : targets.num_means]
    term = float(jnp.max(gp.kernel.diag(solution.points))) * float(jnp.finfo(weights.dtype).eps)
    rounding, deviation = term * float(jnp.max(jnp.linalg.norm(weights, axis=0))), float(jnp.min(gp.noise)) ** 0.5
    if rounding > RESOLVED_NOISE * deviation:
        warnings.warn(
            f"in {weights.dtype} the mean is rounded to about {rounding:.1g}, but the standard deviation of the noise "
            f'is {deviation:.1g}: call `jax.config.update("jax_enable_x64", True)` first, or take more noise.',
            stacklevel=4,
        )


def _unfinished(system: System, targets: Targets, solution: Solution) -> Float[Array, "m s"]:
    """The residual b − (K + Σ)w: the solver's own, or one pass over the data.

    Where the weights belong to so many other points that a pass is long, it is left to be computed at the rows that
    are asked for: the weights of `Projection.rows` follow after the part of the residual that does not need them.
    """
    if solution.residual is not None:
        return system.everywhere(solution.residual)
    if solution.rows is None:
        return system.everywhere(targets.total - system @ solution.weights)
    points, w = solution.points, solution.weights
    residual = targets.total.at[solution.rows].add(-system.noise_diagonal[solution.rows, None] * w)
    if system.size * points.shape[0] > ENTRIES_AT_ONCE:
        return jnp.concatenate([system.everywhere(residual), -everywhere(system.mesh, w)])
    return system.everywhere(residual - system.values(Function(Canonical(system.kernel, points), w)))


def _at_places(
    init: Float[Array, "n s"] | None, places: Places | None, solver: Solver, system: System
) -> Float[Array, "m s"] | None:
    """Weights of rows put together as the rows were; those of other points as they are."""
    if init is None or places is None or init.shape[0] != places.of_row.size or solver.support(system) is not system.X:
        return init
    return places.sums(init)


def _beside(left: Float[Array, "n s"], right: Float[Array, "n t"]) -> Float[Array, "n u"]:
    """The columns of the right after those of the left."""
    return jnp.concatenate([left, right], axis=1)
