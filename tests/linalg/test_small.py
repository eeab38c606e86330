import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.linalg.small import definite_solve


@pytest.fixture
def systems():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 7, 7))
    return A @ np.swapaxes(A, 1, 2) + np.eye(7), rng.normal(size=(5, 7, 2))


def test_each_of_a_batch_is_solved(systems, x64):
    H, B = systems
    np.testing.assert_allclose(jax.vmap(definite_solve)(H, B), np.linalg.solve(H, B), rtol=1e-9)
    one = np.linalg.solve(H, B[..., 0][..., None])[..., 0]
    np.testing.assert_allclose(jax.vmap(definite_solve)(H, B[..., 0]), one, rtol=1e-9)


def test_derivatives_are_those_of_the_inverse(systems, x64):
    """d(bᵀH⁻¹b) = −aᵀ dH a + 2aᵀ db with a = H⁻¹b, in batches too, and a second time."""
    H, b = (jnp.asarray(x) for x in (systems[0], systems[1][..., 0]))
    a = np.linalg.solve(H, b[..., None])[..., 0]
    form = lambda H, b: b @ definite_solve(H, b)
    by_H, by_b = jax.vmap(jax.grad(form, argnums=(0, 1)))(H, b)
    np.testing.assert_allclose(by_H, -a[:, :, None] * a[:, None, :], rtol=1e-8)
    np.testing.assert_allclose(by_b, 2 * a, rtol=1e-8)
    total = jax.grad(lambda H: jnp.sum(jax.vmap(form)(H, b)))(H)
    np.testing.assert_allclose(total, by_H, rtol=1e-10)
    twice = jax.vmap(jax.hessian(form, argnums=1))(H, b)
    np.testing.assert_allclose(twice, 2 * np.linalg.inv(H), rtol=1e-7, atol=1e-9)


def test_what_is_not_definite_spoils_its_own_solution_alone(systems):
    H, B = systems
    H[2] = -H[2]
    found = jax.vmap(definite_solve)(jnp.asarray(H, dtype=float), jnp.asarray(B, dtype=float))
    assert [bool(ok) for ok in np.isfinite(found).all(axis=(1, 2))] == [True, True, False, True, True]


@pytest.mark.xla
def test_no_batch_is_given_to_lapack(systems):
    """A call for a batch waits for threads of the pool that it sits on."""
    H, B = (jnp.asarray(x, dtype=float) for x in systems)
    program = jax.jit(jax.value_and_grad(lambda H: jnp.sum(jax.vmap(definite_solve)(H, B) ** 2))).lower(H).as_text()
    calls = [line for line in program.splitlines() if "lapack_" in line or "blas_" in line]
    assert calls
    assert not [line for line in calls if "tensor<5x" in line]
