"""The problem that a posterior solves: a GP, the linear system of its data, and prior draws."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from pathgp.functions import Function
from pathgp.kernels.features import Features
from pathgp.posterior.gp import GP
from pathgp.solvers import Solver
from pathgp.system.duplicates import DistinctRows, merge_duplicates
from pathgp.system.system import System, Targets


class Problem(eqx.Module):
    """A GP, the system K + Σ of its data, the right-hand sides, prior draws, and the key of the solver."""

    gp: GP
    system: System
    targets: Targets
    prior: Function
    key: PRNGKeyArray

    @classmethod
    def of(
        cls,
        gp: GP,
        X: Float[Array, "N d"],
        y: Float[Array, "N t"],
        num_samples: int,
        num_features: int,
        key: PRNGKeyArray,
    ) -> "Problem":
        """Return the problem of a GP and data, with new prior draws.

        With the same key, the draws of another GP are the same standard normal draws, scaled by its hyperparameters.
        """
        feature_key, draw_key, noise_key, solve_key = jax.random.split(key, 4)
        system = System(gp.kernel, X, gp.noise)
        prior = _draw(gp.kernel.features(feature_key, num_features, X.shape[1]), num_samples, draw_key)
        targets = _mean_targets(y, gp).append_columns(_sample_targets(system, prior, noise_key))
        return cls(gp, system, targets, prior, solve_key)

    def merge_duplicates(self) -> tuple["Problem", DistinctRows | None]:
        """Return the problem with each distinct input once, and which row became which; None without duplicates."""
        system, targets, found = merge_duplicates(self.system, self.targets)
        if found is None:
            return self, None
        return dataclasses.replace(self, gp=_with_noise(self.gp, system.noise), system=system, targets=targets), found

    def shard(self, mesh: Mesh | None) -> "Problem":
        """Return the problem with its rows sharded over the devices of a mesh."""
        system = self.system.shard(mesh)
        return dataclasses.replace(self, system=system, targets=self.targets.map_columns(system.shard_rows))

    def with_stored_kernel(self, keep_bytes: int) -> "Problem":
        """Return the problem with K in memory, if it fits in `keep_bytes`."""
        return dataclasses.replace(self, system=self.system.with_stored_kernel(keep_bytes))

    def with_rows(
        self, X: Float[Array, "n d"], y: Float[Array, "n t"], noise: Float[Array, "..."], key: PRNGKeyArray
    ) -> "Problem":
        """Return the problem with more rows, on one device; the prior draws stay the same."""
        old, new = self.system, System(self.gp.kernel, X, noise)
        targets = _mean_targets(y, self.gp).append_columns(_sample_targets(new, self.prior, key))
        if old.noise.ndim or noise.ndim:
            noise = jnp.concatenate([old.noise_diagonal, new.noise_diagonal])
        system = System(self.gp.kernel, jnp.concatenate([old.X, X]), noise, old.tile)
        gp = _with_noise(self.gp, noise)
        return dataclasses.replace(self, gp=gp, system=system, targets=self.targets.append_rows(targets))

    def with_draws(self, num: int, *, draw_key: PRNGKeyArray, noise_key: PRNGKeyArray) -> "Problem":
        """Return the problem of `num` new prior draws only, on the same features."""
        prior = _draw(self.prior.features, num, draw_key)
        return dataclasses.replace(self, prior=prior, targets=_sample_targets(self.system, prior, noise_key))

    def start(
        self, init: Float[Array, "M s"] | None, solver: Solver, merged: DistinctRows | None
    ) -> Float[Array, "P s"] | None:
        """Return weights to start from as the solver expects them: merged and sharded as the rows are.

        Weights of a solver with points of its own stay as they are. Raises `ValueError` if `init` has another shape
        than the weights.
        """
        if init is None:
            return None
        if not solver.has_own_points and merged is not None and init.shape[0] == merged.of_row.size:
            init = merged.sums(init)
        rows = solver.support(self.system).shape[0] if solver.has_own_points else self.system.size
        expected = rows, self.targets.signal.shape[1]
        if init.shape != expected:
            raise ValueError(f"init must have the shape {expected} of the weights, but its shape is {init.shape}.")
        return init if solver.has_own_points else self.system.shard_rows(init)


def _with_noise(gp: GP, noise: Float[Array, "..."]) -> GP:
    """Return the GP with the noise of each row, if it has one per row."""
    return gp if gp.noise.ndim == 0 else GP(gp.kernel, noise, gp.mean)


def _draw(features: Features, num: int, key: PRNGKeyArray) -> Function:
    """Return `num` draws from the prior."""
    return Function(features, jax.random.normal(key, (features.num, num)))


def _mean_targets(y: Float[Array, "N t"], gp: GP) -> Targets:
    """Return y − m, one column per target."""
    return Targets(y - gp.mean, jnp.zeros_like(y))


def _sample_targets(system: System, prior: Function, key: PRNGKeyArray) -> Targets:
    """Return f(X) and ε ~ N(0, Σ), one column per prior draw f."""
    return Targets(system.values(prior), system.noise_draws(key, prior.weights.shape[1]), prior)
