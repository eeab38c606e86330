import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.kernels import Matern32, Tanimoto
from pathgp.solvers import CG, SAP, SDD, SGD
from pathgp.system.system import System, Targets
from tests.support.problems import problem


def make(N=1500, d=5, noise=0.3, tile=(128, 256)):
    X = jax.random.normal(jax.random.key(0), (N, d))
    return System(Matern32(jnp.linspace(0.8, 2.0, d)), X, jnp.asarray(noise), tile)


def dense(system):
    X = np.asarray(system.X, dtype=np.float64) / np.asarray(system.kernel.lengthscale, dtype=np.float64)
    r = np.sqrt(3) * np.linalg.norm(X[:, None] - X[None], axis=-1)
    return (1 + r) * np.exp(-r) + np.diag(np.broadcast_to(np.asarray(system.noise, dtype=np.float64), len(X)))


@pytest.mark.parametrize("noise", [0.3, "rows"])
def test_products_rows_columns_and_blocks(noise, key):
    system = make(noise=0.3 if noise == 0.3 else np.linspace(0.1, 2.0, 1500))
    H, V = dense(system), jax.random.normal(key, (1500, 4))
    K = H - np.diag(np.asarray(system.noise_diagonal))
    B = jnp.array([3, 1400, 77, 12, 1499])
    np.testing.assert_allclose(system @ V, H @ V, atol=2e-3)
    np.testing.assert_allclose(system.misfit_rows(B, 2 * V, V), (K @ V - 2 * V)[B], atol=1e-3)
    np.testing.assert_allclose(system.columns(B, V[B]), K[:, B] @ V[B], atol=1e-4)
    np.testing.assert_allclose(system.block(B), H[np.ix_(B, B)], atol=1e-5)
    targets = Targets(V, 2 * V)
    np.testing.assert_allclose(system.residual_rows(B, targets, V), (3 * V - H @ V)[B], atol=2e-3)


@pytest.mark.parametrize("tile", [(128, 256), (100, 333), (512, 2048), (4096, 4096), (1, 1500)])
def test_neither_tiles_nor_padding_change_a_product(tile, key):
    V = jax.random.normal(key, (1500, 3))
    np.testing.assert_allclose(make(tile=tile) @ V, make(tile=(500, 750)) @ V, atol=1e-3)


def test_padding_with_empty_fingerprints_adds_nothing(key):
    X = jax.random.bernoulli(key, 0.3, (37, 16)).astype(float)
    V = jax.random.normal(key, (37, 2))
    H = Tanimoto()(X, X) + 0.1 * jnp.eye(37)
    np.testing.assert_allclose(System(Tanimoto(), X, jnp.array(0.1), (8, 8)) @ V, H @ V, rtol=1e-4, atol=1e-4)


@pytest.mark.xla
def test_a_product_never_holds_more_than_tiles():
    system = make(N=20_000, tile=(512, 2048))
    V = jnp.ones((20_000, 1))
    compiled = jax.jit(lambda system, V: system @ V).lower(system, V).compile()
    matrix_bytes = 20_000**2 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < matrix_bytes / 50


def test_norms_of_empty_columns_are_safe_to_divide_by():
    targets = Targets(jnp.array([[3.0, 0.0], [0.0, 0.0]]), jnp.array([[0.0, 0.0], [4.0, 0.0]]))
    np.testing.assert_allclose(targets.norms, [5.0, 1.0])


@pytest.mark.parametrize("solver", [CG(steps=5), SAP(passes=2, block_size=64), SDD(steps=50), SGD(steps=20)])
def test_keeping_the_matrix_changes_no_result(solver, caplog):
    system, targets = problem(N=300)
    with caplog.at_level(logging.INFO, logger="pathgp"):
        kept = system.with_stored_kernel(300**2 * 8)
    assert kept.K is not None
    assert "System keeps K" in caplog.text
    key = jax.random.key(0)
    one, other = (solver.solve(s, targets, key=key).weights for s in (system, kept))
    np.testing.assert_allclose(one, other, atol=2e-3 * float(jnp.max(jnp.abs(one))))


def test_a_matrix_that_does_not_fit_is_not_kept():
    system, _ = problem(N=300)
    assert system.with_stored_kernel(300**2 * 4 - 1).K is None
    assert system.with_stored_kernel(0).K is None
