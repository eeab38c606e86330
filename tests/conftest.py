"""Shared by all tests: JAX on the CPU, float32 unless PATHGP_TEST_X64 asks for float64."""

import os

# Most of the time of a test is compilation, and much of that is optimisation, with which slow tests run.
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
if os.environ.get("PATHGP_TEST_OPTIMISED", "") != "1":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_TO_COMPILE}"
    # Each operation of a program would remember where it was called from, through all of pytest.
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

# One thread of BLAS for each process: the threads of two workers on two cores wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

os.environ["PATHGP_COMPILATION_CACHE"] = "off"  # no test depends on what an earlier run has compiled

if os.environ.get("PATHGP_TEST_X64", "") == "1":
    os.environ["JAX_ENABLE_X64"] = "1"  # also for the processes that tests start

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", os.environ.get("PATHGP_TEST_X64", "") == "1")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def x64():
    """Float64 for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """A small model, fitted by the command line."""
    from tests.support.small_model import fit_small_model

    return fit_small_model(tmp_path_factory.mktemp("model"))
