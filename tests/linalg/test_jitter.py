import jax
import jax.numpy as jnp
import numpy as np

from pathgp.linalg.jitter import damped_inverse_factor


def taken(K, noise):
    """The matrix that a factor belongs to, less K: what was put on the diagonal."""
    inverse = np.asarray(damped_inverse_factor(K, noise), dtype=np.float64)
    return np.diag(np.linalg.inv(inverse.T @ inverse) - np.asarray(K, dtype=np.float64))


def test_noise_that_is_resolved_is_taken_as_it_is():
    K = jnp.exp(-((jnp.arange(20.0)[:, None] - jnp.arange(20.0)) ** 2))
    noise = jnp.linspace(0.1, 0.2, 20)
    np.testing.assert_allclose(taken(K, noise), noise, rtol=1e-4)


def test_less_than_float32_resolves_is_raised_to_it():
    """The top eigenvalue of a matrix of ones is its size, and its rounding 2⁻²³ of that."""
    K = jnp.ones((50, 50), jnp.float32)
    added = taken(K, jnp.full(50, 1e-12).at[0].set(0.5))
    np.testing.assert_allclose(added[0], 0.5, rtol=1e-3)
    assert np.all(added[1:] > 0.5 * 50 * 2**-23)
    assert np.all(added[1:] < 16 * 50 * 2**-23)


def test_a_matrix_that_rounding_made_indefinite_is_raised_by_a_little_more_than_it_lacks():
    """A pair of rows lacks ε: of the inverse's diagonal 1/2(δ − ε) + 1/2δ ≤ 2/δ only if δ is 1.5 ε and more."""
    lacking = 1e-2
    v = jnp.zeros(64, jnp.float32).at[:2].set(jnp.array([0.5**0.5, -(0.5**0.5)], jnp.float32))
    K = jnp.ones((64, 64), jnp.float32) - lacking * jnp.outer(v, v)
    assert 1.5 * lacking * 0.99 <= np.mean(taken(K, jnp.full(64, 1e-6, jnp.float32))) <= 6 * lacking * 1.01


def test_a_matrix_without_numbers_comes_to_an_end():
    factor = jax.jit(damped_inverse_factor)(jnp.full((3, 3), jnp.nan), jnp.ones(3))
    assert np.all(np.isnan(np.asarray(factor)[np.tril_indices(3)]))
