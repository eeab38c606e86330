"""Shared by all tests: JAX on the CPU, float32 unless PATHGP_TEST_X64 asks for float64."""

import os

# Most of the time of a test is compilation, and much of that is optimisation, with which slow tests run.
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
FOR_TESTS = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
"""What a process that is to run as users run it must not be given."""
OPTIMISED = os.environ.get("PATHGP_TEST_OPTIMISED", "") == "1"
if not OPTIMISED:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_TO_COMPILE}"
    # Each operation of a program would remember where it was called from, through all of pytest.
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", os.environ.get("PATHGP_TEST_X64", "") == "1")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Programs that run for a moment are compiled as they are written, here and in processes that a test starts.

    They run many times as long, so that those of tests that compute much are optimised a little: see `computes`.
    """
    doctest = not item.path.name.startswith("test_")
    computes = OPTIMISED or doctest or any(item.get_closest_marker(name) for name in ("computes", "slow"))
    jax.config.update("jax_disable_most_optimizations", not computes)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(not computes))


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
    from small_model import fit_small_model

    jax.config.update("jax_disable_most_optimizations", False)  # a fit measures how fast this machine computes
    return fit_small_model(tmp_path_factory.mktemp("model"))
