"""The packed factors against NumPy's in float64, and what they take of memory."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.kernels import RBF, Matern32
from pathgp.solvers import InducingCG, loop
from pathgp.solvers.inducing.base import gram_product
from pathgp.solvers.inducing.packed import Packed, pack
from tests.support.problems import problem

RATIO = 3.0


def positive(M):
    A = np.random.default_rng(0).normal(size=(M, M))
    return A @ A.T / M + 0.1 * np.eye(M)


@pytest.mark.parametrize("block", [7, 16, 48, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 2e-4)])
def test_both_factors_are_in_one_array(block, dtype, tolerance):
    K = positive(48)
    H = K.astype(dtype)
    D = pack(H, RATIO, block)
    L = np.linalg.cholesky(K)
    second = np.linalg.cholesky(np.eye(48) + RATIO * L.T @ L).T
    np.testing.assert_allclose(np.tril(H), L, atol=tolerance)
    np.testing.assert_allclose(np.sqrt(D)[:, None] * (np.triu(H, 1) + np.eye(48)), second, atol=tolerance)
    assert H.dtype == D.dtype == dtype


def test_it_is_the_inverse_that_it_says(x64):
    z = np.random.default_rng(0).normal(size=(40, 3))
    r = np.random.default_rng(1).normal(size=(40, 2))
    found = jax.jit(Packed.__call__)(Packed.of(Matern32(0.8, 2.0), jnp.asarray(z), RATIO, 1e-3), jnp.asarray(r))
    distance = np.sqrt(3) / 0.8 * np.linalg.norm(z[:, None] - z[None], axis=-1)
    K = 2 * (1 + distance) * np.exp(-distance) + 1e-3 * np.eye(40)
    np.testing.assert_allclose(found, np.linalg.solve(K + RATIO * K @ K, r), rtol=1e-8, atol=1e-10)


@pytest.mark.xla
def test_it_is_applied_without_a_copy():
    z = jax.random.normal(jax.random.key(0), (512, 3))
    packed = Packed.of(Matern32(), z, RATIO, 1e-3)
    compiled = jax.jit(Packed.__call__).lower(packed, jnp.ones((512, 4))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < packed.factors.nbytes / 4


def test_jitter_grows_until_the_factors_exist(key):
    z = jnp.repeat(jax.random.normal(key, (40, 2)), 3, axis=0)
    asked = float(jnp.finfo(float).eps) ** 1.75  # far below rounding
    assert asked < float(Packed.of(RBF(), z, RATIO, asked).jitter) < 1e-3
    with pytest.raises(ValueError, match="not positive definite"):
        Packed.of(RBF().scaled(jnp.array(-1.0)), z, RATIO, 1e-3)


def test_a_solve_says_what_its_preconditioner_had_to_add(key):
    system, targets = problem(N=300)
    solver = InducingCG(system.X[:40], steps=2)
    plan = solver.prepare(system, targets, key)
    assert solver.solve(system, targets, key=key).info.reason == solver.note(plan) == ""
    more = eqx.tree_at(lambda p: p.precondition.jitter, plan, 1000 * plan.ridge)
    assert "K_zz" in solver.note(more)


@pytest.mark.xla
def test_one_compilation_serves_other_length_scales_and_numbers_of_steps(key):
    system, targets = problem(N=300)
    InducingCG(system.X[:40], steps=2).solve(system, targets, key=key)
    compiled = loop._advance._cached._cache_size()
    other = eqx.tree_at(lambda s: s.kernel.lengthscale, system, 0.5 * system.kernel.lengthscale)
    InducingCG(system.X[:40], steps=3).solve(other, targets, key=key)
    assert compiled == loop._advance._cached._cache_size()


@pytest.mark.parametrize("tile", [(16, 50), (512, 2048)])
def test_the_product_in_one_pass_is_the_dense_one(tile):
    system, _ = problem(N=333, uneven=True, tile=tile)
    z, V = system.X[:21] + 0.1, np.random.default_rng(2).normal(size=(21, 3))
    difference = np.asarray(system.X, dtype=np.float64)[:, None] - np.asarray(z, dtype=np.float64)[None]
    distance = np.sqrt(3) * np.linalg.norm(difference, axis=-1)
    K_Xz = (1 + distance) * np.exp(-distance)
    expected = K_Xz.T @ np.diag(1 / np.asarray(system.noise, dtype=np.float64)) @ K_Xz @ V
    found = gram_product(z, system, jnp.asarray(V, dtype=float))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


SCRIPT = """
import pathlib, re, warnings
import jax, jax.numpy as jnp
from pathgp.kernels import Matern32
from pathgp.solvers import InducingCG
from pathgp.system.system import System, Targets
warnings.simplefilter("ignore")
X = jax.random.normal(jax.random.key(0), (10_000, 8))
b = Targets(jnp.sin(X[:, :3]), jnp.zeros((10_000, 3)))
system = System(Matern32(2.0), X, jnp.array(0.1))
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
def solve(M):
    InducingCG(X[:M], steps=2).solve(system, b, key=jax.random.key(0))
    return peak()
before = solve(100)
print((solve(5000) - before) / (4 * 5000**2))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_there_is_one_matrix_of_points_by_points():
    """It is 2.0: the matrix of 100 MB, and as much of tiles, panels and programs. A second one would make it 3."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert 0.9 < float(run.stdout) < 2.5
