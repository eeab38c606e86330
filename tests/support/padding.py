"""A posterior as it is on devices that do not divide its rows."""

import dataclasses

import jax
import jax.numpy as jnp

from pathgp.posterior import Posterior
from pathgp.system.system import System


def with_padding(posterior, rows):
    """The posterior on a mesh, here of one device, with so many rows of padding after those of the data."""
    pad = lambda A, mode: jnp.pad(A, [(0, rows)] + [(0, 0)] * (A.ndim - 1), mode=mode)
    edge, zero = (lambda A: pad(A, "edge")), (lambda A: pad(A, "constant"))
    s, solution = posterior.system, posterior.solution
    noise = s.noise if s.noise.ndim == 0 else edge(s.noise)
    mesh = jax.make_mesh((1,), ("rows",))
    system = System(s.kernel, edge(s.X), noise, s.tile, mesh=mesh, real_rows=s.size)
    padded = dataclasses.replace(
        solution, points=system.X, weights=zero(solution.weights), residual=zero(solution.residual)
    )
    targets = posterior.targets.map_columns(zero)
    problem = dataclasses.replace(posterior.problem, system=system, targets=targets)
    return Posterior.of(problem, padded, posterior.solver, posterior.local, projection=None, residual=None)
