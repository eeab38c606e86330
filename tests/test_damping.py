import jax
import jax.numpy as jnp
import numpy as np

from pathgp.damping import damped, resolved


def test_noise_that_is_resolved_is_taken_as_it_is():
    K = jnp.exp(-((jnp.arange(20.0)[:, None] - jnp.arange(20.0)) ** 2))
    noise = jnp.linspace(0.1, 0.2, 20)
    L, taken = damped(jnp.linalg.cholesky, K, noise)
    np.testing.assert_array_equal(taken, noise)
    np.testing.assert_allclose(L @ L.T, np.asarray(K) + np.diag(noise), atol=1e-6)


def test_what_is_not_resolved_is_raised_to_it():
    """The largest eigenvalue of a matrix of ones is its size."""
    K = jnp.ones((50, 50), jnp.float32)
    assert 50 * 2**-23 <= float(resolved(K)) <= 4 * 50 * 2**-23
    _, taken = damped(jnp.linalg.cholesky, K, jnp.full(50, 1e-12).at[0].set(0.5))
    assert float(taken[0]) == 0.5
    assert float(taken[1]) >= float(resolved(K))


def test_a_matrix_that_rounding_made_indefinite_is_raised_by_no_more_than_four_times_what_it_lacks():
    lacking = 1e-2
    v = jnp.where(jnp.arange(64) % 2 == 0, 0.125, -0.125)  # a unit vector, orthogonal to the ones
    K = jnp.ones((64, 64), jnp.float32) - lacking * jnp.outer(v, v)
    L, taken = damped(jnp.linalg.cholesky, K, jnp.full(64, 1e-6))
    assert np.all(np.isfinite(L))
    assert lacking * 0.99 <= float(taken[0]) <= 4 * lacking * 1.01


def test_a_matrix_without_numbers_comes_to_an_end():
    L, _ = jax.jit(lambda K: damped(jnp.linalg.cholesky, K, jnp.ones(3)))(jnp.full((3, 3), jnp.nan))
    assert np.all(np.isnan(np.tril(L)[np.tril_indices(3)]))
