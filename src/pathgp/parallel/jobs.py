"""Several processes, on one host or many: how they join one job, and the mesh of all their devices.

Every process runs the same program on the same data, and each device keeps its rows. What is asked of a posterior,
for instance `posterior.mean(x)`, every process asks, and every process is given all of it.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

LOST = "another process of the job is gone, so this one cannot go on: see what that one said last, and start all again."

UNANSWERED = (
    "did not answer within {} seconds, or not all processes came: see that process 0 runs there, that its port can be "
    "reached, and that all are started with the same num_processes."
)

HERALD = """
import os, sys
while said := os.read(0, 64):
    if int(sys.argv[1]) in said:
        os.write(2, f"pathgp: {sys.argv[2]}\\n".encode())
"""
"""Prints a sentence when it is told of a signal, and ends with the process that would tell it."""

BROKEN = r"(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED)\b"


def join(
    coordinator: str | None = None,
    process_id: int | None = None,
    num_processes: int | None = None,
    *,
    timeout: int = 300,
    heartbeat: int = 30,
) -> None:
    """Joins the job, before any computation; returns when all processes have, or fails after `timeout` seconds.

    `coordinator` is the address "host:port" of process 0, the same for all. What is not given is taken from the
    variables JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID and JAX_NUM_PROCESSES; where there is none of them either, from
    the scheduler, as far as JAX knows it: Slurm, Open MPI, Kubernetes, Cloud TPU.

    When a process of the job is gone, the others end too, with a sentence: at once where they wait for it, else within
    about `heartbeat` seconds.
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
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    address, identity, number = settings.values()
    where = "The coordinator" if address is None else f"The coordinator {address}"
    before = signal.set_wakeup_fd(-1)
    waiting = _leave_a_sentence(f"{where} {UNANSWERED.format(timeout)}")
    try:
        jax.distributed.initialize(
            address, number, identity, initialization_timeout=timeout, heartbeat_timeout_seconds=heartbeat
        )
    except BaseException:
        signal.set_wakeup_fd(before)
        raise
    else:
        _leave_a_sentence(LOST)
    finally:
        os.close(waiting)
    with _stdout_as_stderr():  # on which Gloo greets its peers when they first meet
        multihost_utils.sync_global_devices("join")


def meet() -> None:
    """Waits until all processes of the job are here; alone, for nobody."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("meet")


def is_job() -> bool:
    """Whether the environment says that this process is one of several: JAX's own variables, or a step of Slurm."""
    in_step = "SLURM_STEP_NODELIST" in os.environ and os.environ.get("SLURM_NTASKS", "1") != "1"
    return "JAX_COORDINATOR_ADDRESS" in os.environ or in_step


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


@contextmanager
def together() -> Iterator[None]:
    """What fails inside because another process is gone raises a ConnectionError that says so."""
    try:
        yield
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        if jax.process_count() > 1 and re.match(BROKEN, str(error)):
            raise ConnectionError(f"{LOST} ({' '.join(str(error).split())})") from error
        raise


def _leave_a_sentence(sentence: str) -> int:
    """Has a sentence said when JAX aborts, after the pages that JAX says; until what is returned is closed.

    JAX ends a process that has lost another by abort(), in the midst of whatever it does, and no Python runs then. But
    the number of the signal is still written to Python's wakeup pipe, at the end of which a small process waits.
    """
    end, start = os.pipe()
    os.set_blocking(start, False)
    command = [sys.executable, "-S", "-c", HERALD, str(int(signal.SIGABRT)), sentence]
    subprocess.Popen(command, stdin=end, stdout=subprocess.DEVNULL, start_new_session=True)
    os.close(end)
    signal.signal(signal.SIGABRT, lambda *_: None)
    signal.set_wakeup_fd(start, warn_on_full_buffer=False)
    return start


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """What is written to standard output, by C++ too, goes to standard error."""
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
        raise ValueError(f"the variable {variable} must be a number, but it is {os.environ[variable]!r}.")
    return int(os.environ[variable])
