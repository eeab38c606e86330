import jax
import jax.numpy as jnp
import numpy as np

from pathgp import kernels


def test_sums_and_products_are_those_of_the_matrices(key):
    X, Z = jax.random.normal(key, (5, 3)), jax.random.normal(jax.random.key(1), (4, 3))
    a, b = kernels.RBF(0.7, 2.0), kernels.Matern12(1.3, 0.5)
    A, B = np.asarray(a(X, Z)), np.asarray(b(X, Z))
    np.testing.assert_allclose((a + b)(X, Z), A + B, rtol=1e-6)
    np.testing.assert_allclose((a * b)(X, Z), A * B, rtol=1e-6)
    np.testing.assert_allclose((a * b + a)(X, Z), A * B + A, rtol=1e-6)
    np.testing.assert_allclose((a + b).diag(X), 2.5, rtol=1e-6)
    np.testing.assert_allclose((a * b).diag(X), 1.0, rtol=1e-6)


def test_a_kernel_is_a_pytree():
    k = jax.tree.map(lambda leaf: 2 * leaf, kernels.RBF(0.7, 2.0) + kernels.RBF())
    assert [float(leaf) for leaf in jax.tree.leaves(k)] == [np.float32(1.4), 4.0, 2.0, 2.0]
    traced = jax.jit(lambda ell: kernels.Matern32(ell)(jnp.zeros((1, 2)), jnp.ones((1, 2))))(0.5)
    np.testing.assert_allclose(traced, kernels.Matern32(0.5)(jnp.zeros((1, 2)), jnp.ones((1, 2))))
