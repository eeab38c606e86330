"""Kernels of NumPy parameters on NumPy arrays: the same numbers as by JAX, without JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import kernels
from pathgp.linalg.namespace import on_host
from tests.support.compilations import counted_compilations

K = kernels
ALL = {
    "rbf": lambda d: K.RBF(np.linspace(0.5, 2, d), 1.3),
    "matern12": lambda d: K.Matern12(np.linspace(0.5, 2, d), 1.3),
    "matern32 with one length scale": lambda d: K.Matern32(0.7, 1.3),
    "matern32 with a vector of one": lambda d: K.Matern32([0.7], 1.3),
    "matern52": lambda d: K.Matern52(np.linspace(0.5, 2, d), 1.3),
    "rational quadratic": lambda d: K.RationalQuadratic(np.linspace(0.5, 2, d), 1.3, 0.6),
    "sum": lambda d: K.Matern32(0.7) + K.RBF(np.linspace(0.5, 2, d), 0.2),
    "product": lambda d: K.Matern32(2.0) * (K.RBF(1.5, 0.5) + K.RationalQuadratic(3.0)),
}


@pytest.fixture(params=ALL)
def name(request):
    return request.param


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize("d", [1, 8, 14])
def test_the_matrix_and_the_diagonal_are_those_of_jax(name, d, x64):
    kernel, X, Z = ALL[name](d), points(30, d) + 100, points(20, d, seed=1) + 100
    Z[:5] = X[:5]
    host = on_host(kernel)
    K, diagonal = host(X, Z), host.diag(X)
    assert isinstance(K, np.ndarray)
    assert isinstance(diagonal, np.ndarray)
    np.testing.assert_allclose(K, kernel(jnp.asarray(X), jnp.asarray(Z)), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(diagonal, kernel.diag(jnp.asarray(X)), rtol=1e-12)


@pytest.mark.parametrize("d", [1, 8, 14])
def test_the_gradient_is_that_of_autodiff(name, d, x64):
    kernel, X = ALL[name](d), points(25, d) + 100
    G = points(25, 25, seed=2)
    G = G + G.T
    expected = jax.grad(lambda k: jnp.sum(jnp.asarray(G) * k(jnp.asarray(X), jnp.asarray(X))))(kernel)
    found = on_host(kernel).gradient(X, G)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.xla
def test_nothing_is_compiled(name):
    X, G = points(7, 3), np.ones((7, 7))
    kernel = on_host(ALL[name](3))
    with counted_compilations() as compiled:
        kernel(X, X), kernel.diag(X), kernel.gradient(X, G)
    assert not compiled


@pytest.mark.xla
def test_compilations_are_counted():
    with counted_compilations() as compiled:
        jax.jit(lambda x: x + 1)(jnp.ones(7))
    assert compiled


class Mine(K.Stationary):
    def correlation(self, r2):
        return jnp.exp(-r2)

    def unit_spectrum(self, key, num, dim):
        raise AssertionError


class Changed(K.RBF):
    def correlation(self, r2):
        return jnp.exp(-3 * r2)


@pytest.mark.parametrize("kernel", [Mine(), Changed(), Mine() + K.RBF(), K.RBF() * Changed(), K.Tanimoto()])
def test_a_kernel_of_ones_own_runs_by_jax(kernel):
    assert not kernel.runs_on_host
    assert (K.RBF() + K.Matern12() * K.Matern52()).runs_on_host
