"""Jobs of several processes, on one or more hosts, and the mesh of all their devices.

Every process runs the same program on the same data, and each device holds its own rows. Every process must make the
same calls to a posterior, such as `posterior.mean(x)`, and each gets the whole result.
"""

import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

LOST = "another process of the job has ended, so this one cannot continue: check its last output, and restart the job."

BROKEN = r"(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED)\b"
"""Pattern of the errors that JAX raises when another process of the job is lost."""


def join(
    coordinator: str | None = None,
    process_id: int | None = None,
    num_processes: int | None = None,
    *,
    timeout: int = 300,
    heartbeat: int = 30,
) -> None:
    """Join a job of several processes; call it in every process before any computation.

    It returns when all processes have joined. Arguments that are None are read from the environment variables
    JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID and JAX_NUM_PROCESSES. If none of them is set either, they come from a
    scheduler that JAX knows: Slurm, Open MPI, Kubernetes or Cloud TPU.

    If a process of the job is lost, the others end with an error message: at once if they wait for it, otherwise
    within about `heartbeat` seconds, when JAX aborts them.

    Parameters
    ----------
    coordinator
        The address "host:port" of process 0, the same in all processes.
    process_id
        The number of this process, from 0 to `num_processes` − 1.
    num_processes
        The number of processes in the job.
    timeout
        The seconds after which joining fails if not all processes have joined.
    heartbeat
        The seconds without a sign of life after which a process counts as lost.

    Raises
    ------
    ValueError
        If only some of the first three settings are known, `process_id` is out of range, or a variable is not a number.
    ConnectionError
        If the coordinator does not answer within `timeout` seconds.
    """
    settings = {
        "coordinator": coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS"),
        "process_id": _number(process_id, "JAX_PROCESS_ID"),
        "num_processes": _number(num_processes, "JAX_NUM_PROCESSES"),
    }
    missing = [name for name, value in settings.items() if value is None]
    if missing and len(missing) < len(settings):
        raise ValueError(
            f"{' and '.join(missing)} must also be given: to join a job, give coordinator, process_id and "
            "num_processes together, or none of them under a scheduler such as Slurm."
        )
    if not missing and not 0 <= settings["process_id"] < settings["num_processes"]:
        raise ValueError(
            f"process_id must be from 0 to {settings['num_processes'] - 1}, one less than num_processes, but it is "
            f"{settings['process_id']}."
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # used on CPUs only
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM itself
    address, identity, number = settings.values()
    if address is not None and identity > 0:
        _await_coordinator(address, timeout)
    jax.distributed.initialize(
        address, number, identity, initialization_timeout=timeout, heartbeat_timeout_seconds=heartbeat
    )
    with _stdout_as_stderr():  # Gloo writes a greeting to stdout when peers first connect
        multihost_utils.sync_global_devices("join")


def barrier() -> None:
    """Wait until every process of the job has called this; a single process does not wait."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("meet")


def is_job() -> bool:
    """Return whether the environment, by JAX's variables or a Slurm step, describes a job of several processes."""
    in_step = "SLURM_STEP_NODELIST" in os.environ and os.environ.get("SLURM_NTASKS", "1") != "1"
    return "JAX_COORDINATOR_ADDRESS" in os.environ or in_step


def mesh(devices: int | None = None) -> Mesh:
    """Return a mesh with one axis over the devices of all processes, for `condition(..., mesh=mesh())`.

    Parameters
    ----------
    devices
        The number of devices; None takes all. A job of several processes must take all.

    Raises
    ------
    ValueError
        If `devices` is not from 1 to the number of devices, or would leave out some of a job of several processes.

    >>> mesh(1).size
    1
    """
    present = jax.devices()
    number = len(present) if devices is None else devices
    if not 1 <= number <= len(present):
        raise ValueError(
            f"devices must be from 1 to {len(present)}, the number of devices, but it is {number}: for more on a CPU, "
            'call `jax.config.update("jax_num_cpu_devices", …)` before any computation.'
        )
    if number < len(present) and jax.process_count() > 1:
        raise ValueError(
            f"devices is {number}, but the {jax.process_count()} processes must use all of their {len(present)} "
            "devices: omit devices, or start fewer processes."
        )
    return Mesh(np.array(present[:number]), ("rows",))


@contextmanager
def report_lost_process() -> Iterator[None]:
    """Context manager that raises `ConnectionError` if its block fails because another process is lost."""
    try:
        yield
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        if jax.process_count() > 1 and re.match(BROKEN, str(error)):
            raise ConnectionError(f"{LOST} ({' '.join(str(error).split())})") from error
        raise


def _await_coordinator(address: str, timeout: float) -> None:
    """Wait until process 0 accepts connections: JAX would abort this process if it did not."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ValueError(f'coordinator must be "host:port", but it is {address!r}.')
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=max(1.0, end - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise ConnectionError(
                    f"the coordinator {address} did not answer within {timeout} seconds ({error}): check that process "
                    "0 runs there, and that its port is reachable."
                ) from error
        time.sleep(0.2)


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Context manager that redirects standard output to standard error, also that of C++ code."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _number(given: int | None, variable: str) -> int | None:
    if given is not None or variable not in os.environ:
        return given
    if not os.environ[variable].isdecimal():
        raise ValueError(f"the environment variable {variable} must be an integer, but it is {os.environ[variable]!r}.")
    return int(os.environ[variable])
