"""Several devices and processes: rows sharded over a mesh, and jobs of `jax.distributed`."""

from pathgp.parallel.jobs import barrier, is_job, join, mesh

__all__ = ["barrier", "is_job", "join", "mesh"]
