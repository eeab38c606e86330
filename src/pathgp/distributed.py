"""Several processes, on one host or many: how they join one job, and the mesh of all their devices.

Every process runs the same program on the same data, and each device keeps its rows. What is asked of a posterior,
for instance `posterior.mean(x)`, every process asks, and every process is given all of it.
"""

import os

import jax
import numpy as np
from jax.sharding import Mesh


def join(
    coordinator: str | None = None,
    process_id: int | None = None,
    num_processes: int | None = None,
    *,
    timeout: int = 300,
) -> None:
    """Joins the job, before any computation; returns when all processes have, or fails after `timeout` seconds.

    `coordinator` is the address "host:port" of process 0, the same for all. What is not given is taken from the
    variables JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID and JAX_NUM_PROCESSES; where there is none of them either, from
    the scheduler, as far as JAX knows it: Slurm, Open MPI, Kubernetes, Cloud TPU.
    """
    settings = {
        "coordinator": coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS"),
        "process_id": _number(process_id, "JAX_PROCESS_ID"),
        "num_processes": _number(num_processes, "JAX_NUM_PROCESSES"),
    }
    missing = [name for name, value in settings.items() if value is None]
    if missing and len(missing) < len(settings):
        raise ValueError(
            f"{' and '.join(missing)} must be given too: a process joins a job by coordinator, process_id and "
            "num_processes together, or by none of them where a scheduler such as Slurm started it."
        )
    if not missing and not 0 <= settings["process_id"] < settings["num_processes"]:
        raise ValueError(
            f"process_id must be from 0 to {settings['num_processes'] - 1}, one less than num_processes, but it is "
            f"{settings['process_id']}."
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # read on CPUs only
    address, identity, number = settings.values()
    jax.distributed.initialize(address, number, identity, initialization_timeout=timeout)


def mesh(devices: int | None = None) -> Mesh:
    """A mesh over all devices of all processes, for `condition(..., mesh=mesh())`; or over the first `devices`.

    >>> mesh(1).size
    1
    """
    present = jax.devices()
    number = len(present) if devices is None else devices
    if not 1 <= number <= len(present):
        raise ValueError(
            f"devices must be from 1 to {len(present)}, the devices that there are, but it is {number}: on a CPU, "
            '`jax.config.update("jax_num_cpu_devices", …)`, before any computation, makes more of them.'
        )
    if number < len(present) and jax.process_count() > 1:
        raise ValueError(
            f"devices is {number}, but the {jax.process_count()} processes have {len(present)}, and none may be left "
            "out: leave devices out, or start fewer processes."
        )
    return Mesh(np.array(present[:number]), ("rows",))


def _number(given: int | None, variable: str) -> int | None:
    if given is not None or variable not in os.environ:
        return given
    if not os.environ[variable].isdecimal():
        raise ValueError(f"the variable {variable} must be a number, but it is {os.environ[variable]!r}.")
    return int(os.environ[variable])
