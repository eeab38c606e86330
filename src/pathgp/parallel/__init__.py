"""Several devices and processes: rows sharded over a mesh, and jobs of `jax.distributed`."""

from pathgp.parallel.jobs import is_job, join, meet, mesh, together

__all__ = ["is_job", "join", "meet", "mesh", "together"]
