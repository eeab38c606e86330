"""How processes join a job, and the mesh of their devices; what they compute together is in test_sharding.py."""

import pytest

from pathgp.parallel import jobs
from tests.support.layouts import free_address


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"coordinator": "localhost:1234"}, "process_id.*num_processes"),
        ({"coordinator": "localhost:1234", "process_id": 2, "num_processes": 2}, "process_id"),
    ],
)
def test_a_job_that_cannot_be_joined_is_refused_at_once(arguments, named, monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=named):
        jobs.join(**arguments)


def test_a_coordinator_that_does_not_answer_raises_an_error_that_names_it():
    address = free_address()
    with pytest.raises(ConnectionError, match=address):
        jobs.join(address, 1, 2, timeout=1)


@pytest.mark.parametrize("address", ["localhost", ":80", "localhost:http"])
def test_a_coordinator_without_host_or_port_is_refused(address):
    with pytest.raises(ValueError, match=f"coordinator .*{address!r}"):
        jobs.join(address, 1, 2)


def test_variables_of_the_environment_are_read(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "7")
    with pytest.raises(ValueError, match=r"process_id.*7"):
        jobs.join()
    monkeypatch.setenv("JAX_PROCESS_ID", "first")
    with pytest.raises(ValueError, match=r"JAX_PROCESS_ID.*'first'"):
        jobs.join()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"JAX_COORDINATOR_ADDRESS": "localhost:1234"}, True),
        ({"SLURM_STEP_NODELIST": "a[1-2]", "SLURM_NTASKS": "2"}, True),
        ({"SLURM_STEP_NODELIST": "a1", "SLURM_NTASKS": "1"}, False),  # one task of a step: nobody to join
        ({"SLURM_NTASKS": "2"}, False),  # a batch script, outside of any step
    ],
)
def test_the_environment_says_whether_there_is_a_job(variables, expected, monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "SLURM_STEP_NODELIST", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert jobs.is_job() is expected


@pytest.mark.parametrize("number", [0, 1000])
def test_a_mesh_of_devices_that_are_not_there_is_refused(number):
    with pytest.raises(ValueError, match=rf"devices .* {number}\b"):
        jobs.mesh(number)
