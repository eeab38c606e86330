"""The Gaussian process, its posterior, and `condition`: the paper in ten lines."""

from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pathgp import checks
from pathgp.features import Constant, Features
from pathgp.functions import Canonical, Function
from pathgp.kernels import Kernel
from pathgp.solvers import Auto, Every, Info, Solution, Solver
from pathgp.system import System, Targets

Columns = TypeVar("Columns")


class GP(eqx.Module):
    """A Gaussian process prior and the noise of its observations, y = f(x) + ε.

    `noise` is the variance of ε: one number, or one for each row of the data. `mean` is a constant.
    """

    kernel: Kernel
    noise: Float[Array, "..."] = eqx.field(converter=partial(checks.positive, name="noise"))
    mean: Float[Array, ""] = eqx.field(converter=checks.floats, default=0.0)


class Posterior(eqx.Module):
    """A Gaussian process given data: a mean function and sample functions, to be evaluated anywhere.

    The samples are (f|y)(·) = f(·) + k(·, X)(v − α), where f is a prior draw, v the weights of the mean and α the
    weights of the draw's own values at the data (pathwise conditioning; Wilson et al., 2020).
    """

    gp: GP
    system: System
    targets: Targets
    prior: Function
    solution: Solution
    solver: Solver

    @property
    def info(self) -> Info:
        """What the solve took and how far it came."""
        return self.solution.info

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.prior.weights.shape[1]

    @property
    def _canonical(self) -> Features:
        return Canonical(self.gp.kernel, self.solution.points)

    @property
    def mean(self) -> Function:
        """The posterior mean: `mean(x)` has shape (n,)."""
        update = Function(self._canonical, self.solution.weights[:, 0])
        return update + Function(Constant(), self.gp.mean[None])

    @property
    def deviations(self) -> Function:
        """The samples less the mean, f(·) − k(·, X)α: `deviations(x)` has shape (n, samples)."""
        if self.num_samples == 0:
            raise ValueError(
                "this posterior has no samples: condition with num_samples of at least 1, or add some with "
                "`posterior.with_samples(num, key=key)`."
            )
        return self.prior - Function(self._canonical, self.solution.weights[:, 1:])

    @property
    def samples(self) -> Function:
        """The posterior samples: `samples(x)` has shape (n, samples)."""
        deviations = self.deviations
        mean_part = jnp.zeros_like(deviations.weights).at[self.prior.features.num :].set(self.solution.weights[:, :1])
        both = Function(deviations.features, deviations.weights + mean_part)
        return both + Function(Constant(), self.gp.mean[None])

    def sample(self, index: int) -> Function:
        """One posterior sample: `sample(i)(x)` has shape (n,)."""
        if not -self.num_samples <= index < self.num_samples:
            raise ValueError(f"index is {index}, but the posterior has {self.num_samples} samples.")
        return self.samples[index]

    def variance(self, x: Shaped[ArrayLike, "..."]) -> Float[Array, "n"]:
        """The variance of f(x), without noise, estimated from the samples (their mean is known)."""
        return jnp.mean(self.deviations(x) ** 2, axis=1)

    def with_samples(self, num: int, *, key: PRNGKeyArray, progress: bool = False) -> "Posterior":
        """The same posterior with `num` samples more. Only the new columns are solved."""
        checks.at_least(num, 1, "num")
        draw_key, noise_key, solve_key = jax.random.split(key, 3)
        prior = _draw(self.prior.features, num, draw_key)
        targets = _sample_targets(self.system, prior, noise_key)
        solution = self.solver.solve(self.system, targets, key=solve_key, progress=progress)
        return Posterior(
            self.gp,
            self.system,
            _beside(self.targets, targets),
            Function(prior.features, _beside(self.prior.weights, prior.weights)),
            _joined(self.solution, solution),
            self.solver,
        )

    def update(
        self,
        X_new: Shaped[ArrayLike, "..."],
        y_new: Shaped[ArrayLike, "..."],
        *,
        key: PRNGKeyArray,
        noise: Shaped[ArrayLike, "..."] | None = None,
        progress: bool = False,
    ) -> "Posterior":
        """The posterior given more data, solved again from the present weights.

        Where the present noise is one variance for each row, `noise` gives those of the new rows.
        """
        X, y = check_data(X_new, y_new, "X_new", "y_new", self.system.X.shape[1])
        new_gp = GP(self.gp.kernel, _noise_of_update(self.gp.noise, noise, X.shape[0]), self.gp.mean)
        noise_key, solve_key = jax.random.split(key)
        new = System(self.gp.kernel, X, new_gp.noise)
        targets = _beside(_mean_targets(y, self.gp), _sample_targets(new, self.prior, noise_key))
        all_targets = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), self.targets, targets)
        all_noise = self.gp.noise if self.gp.noise.ndim == 0 else jnp.concatenate([self.gp.noise, new_gp.noise])
        gp = GP(self.gp.kernel, all_noise, self.gp.mean)
        system = System(gp.kernel, jnp.concatenate([self.system.X, X]), all_noise, self.system.tile)
        init = jnp.pad(self.solution.weights, ((0, X.shape[0]), (0, 0)))
        solution = self.solver.solve(system, all_targets, key=solve_key, init=init, progress=progress)
        return Posterior(gp, system, all_targets, self.prior, solution, self.solver)


def condition(
    gp: GP,
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    *,
    key: PRNGKeyArray,
    solver: Solver = Auto(),  # noqa: B008, a frozen value
    num_samples: int = 64,
    num_features: int = 2000,
    observe: Every | None = None,
    progress: bool = False,
) -> Posterior:
    """The posterior of `gp` given observations y at the rows of X.

    All of it is one linear system with many right-hand sides, (K + Σ)W = [y − m | f₁(X) + ε₁ | … | f_s(X) + ε_s],
    where the prior draws f are `num_features` random features with normal weights.

    >>> import jax, jax.numpy as jnp
    >>> from pathgp.kernels import Matern32
    >>> X = jnp.linspace(0, 1, 50)[:, None]
    >>> posterior = condition(GP(Matern32(0.3), noise=0.01), X, jnp.sin(6 * X[:, 0]), key=jax.random.key(0))
    >>> x = jnp.array([[0.25], [0.5]])
    >>> posterior.mean(x).shape, posterior.samples(x).shape
    ((2,), (2, 64))
    """
    X, y = check_data(X, y)
    checks.noise_variance(gp.noise, X.shape[0])
    checks.at_least(num_samples, 0, "num_samples")
    feature_key, draw_key, noise_key, solve_key = jax.random.split(key, 4)
    system = System(gp.kernel, X, gp.noise)
    prior = _draw(gp.kernel.features(feature_key, num_features, X.shape[1]), num_samples, draw_key)
    targets = _beside(_mean_targets(y, gp), _sample_targets(system, prior, noise_key))
    solution = solver.solve(system, targets, key=solve_key, observe=observe, progress=progress)
    return Posterior(gp, system, targets, prior, solution, solver)


def check_data(
    X: Shaped[ArrayLike, "..."],
    y: Shaped[ArrayLike, "..."],
    X_name: str = "X",
    y_name: str = "y",
    inputs: int | None = None,
) -> tuple[Float[Array, "N d"], Float[Array, "N"]]:
    """The data as arrays, refused with a sentence if they are not fit to learn from."""
    X = checks.inputs(X, X_name)
    if inputs is not None and X.shape[1] != inputs:
        raise ValueError(f"{X_name} has {X.shape[1]} inputs, but the posterior was given {inputs}.")
    return X, checks.outputs(y, X.shape[0], y_name)


def _draw(features: Features, num: int, key: PRNGKeyArray) -> Function:
    return Function(features, jax.random.normal(key, (features.num, num)))


def _mean_targets(y: Float[Array, "N"], gp: GP) -> Targets:
    return Targets((y - gp.mean)[:, None], jnp.zeros((y.shape[0], 1)))


def _sample_targets(system: System, prior: Function, key: PRNGKeyArray) -> Targets:
    """f(X) and ε ~ N(0, Σ), a column for each prior draw f."""
    noise = jax.random.normal(key, (system.size, prior.weights.shape[1]))
    return Targets(prior(system.X), jnp.sqrt(system.noise_diagonal)[:, None] * noise)


def _beside(left: Columns, right: Columns) -> Columns:
    """The columns of the right after those of the left."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), left, right)


def _joined(left: Solution, right: Solution) -> Solution:
    """The columns of two solves of one system."""
    a, b = left.info, right.info
    info = Info(
        a.solver,
        a.steps + b.steps,
        a.passes + b.passes,
        a.seconds + b.seconds,
        a.tolerance,
        jnp.concatenate([a.relative_residual, b.relative_residual]),
        jnp.concatenate([a.converged, b.converged]),
    )
    both = left.residual is not None and right.residual is not None
    residual = _beside(left.residual, right.residual) if both else None
    return Solution(left.points, _beside(left.weights, right.weights), residual, info)


def _noise_of_update(
    present: Float[Array, "..."], given: Shaped[ArrayLike, "..."] | None, rows: int
) -> Float[Array, "..."]:
    if present.ndim == 0:
        if given is not None:
            raise ValueError(
                "noise was given for the new rows, but the posterior has one variance for all rows: condition with "
                "one for each row to give each its own."
            )
        return present
    if given is None:
        raise ValueError("noise is missing: the posterior has a variance for each row, so give those of the new rows.")
    return jnp.broadcast_to(checks.noise_variance(checks.positive(given, "noise"), rows), (rows,))
