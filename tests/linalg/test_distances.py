import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from pathgp.linalg.distances import FEW_INPUTS, squared_distance

INPUTS = [1, 3, FEW_INPUTS, FEW_INPUTS + 1, 24, 60]


def by_differences(X, Z):
    """In NumPy's extended precision, of the numbers as they are in the arrays."""
    X, Z = (np.asarray(A).astype(np.longdouble) for A in (X, Z))
    return np.sum((X[:, None] - Z[None]) ** 2, axis=-1).astype(np.float64)


def layout(kind, d, rng):
    X = rng.normal(size=(60, d))
    if kind == "offset":
        return X + 1000
    if kind == "mixed_scales":
        return X * 10 ** rng.uniform(-3, 3, d)
    if kind == "wide":
        return X * 200
    if kind == "one_hot":
        return np.eye(d)[rng.integers(d, size=60)] * 100
    return X


@pytest.mark.parametrize("d", INPUTS)
@pytest.mark.parametrize("kind", ["normal", "offset", "mixed_scales", "wide", "one_hot"])
def test_the_error_is_a_few_ulps_of_the_distance_itself(kind, d):
    rng = np.random.default_rng(0)
    X = jnp.asarray(layout(kind, d, rng))
    Z = jnp.concatenate([X[:30], X[30:] * (1 + 1e-3)])  # equal rows, near rows and far rows
    expected = by_differences(X, Z)
    eps = float(jnp.finfo(X.dtype).eps)
    # What float64 leaves of a product, ε₆₄(‖x‖² + ‖z‖²) summed over d inputs, is far below what float32 resolves.
    left = 0 if X.dtype == jnp.float64 and d <= FEW_INPUTS else 4e-16 * d * np.max(np.sum(np.asarray(X) ** 2.0, 1))
    np.testing.assert_allclose(squared_distance(X, Z), expected, rtol=(d + 3) * eps, atol=left)


@pytest.mark.parametrize("d", INPUTS)
def test_equal_points_have_distance_zero(d):
    X = jnp.asarray(np.random.default_rng(1).normal(size=(50, d)) * 300 + 1000)
    np.testing.assert_array_equal(jnp.diag(squared_distance(X, X)), 0)


@pytest.mark.parametrize("d", [FEW_INPUTS, FEW_INPUTS + 3])
def test_derivatives_agree_with_finite_differences_in_float64(d, x64):
    rng = np.random.default_rng(2)
    X, Z = jnp.asarray(rng.normal(size=(4, d))), jnp.asarray(rng.normal(size=(5, d)))
    f = lambda X, Z: jnp.sin(squared_distance(jnp.asarray(X), jnp.asarray(Z))).sum()
    check_grads(f, (X, Z), order=2)


def test_derivatives_in_float32_are_those_of_float64():
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(6, 20)), rng.normal(size=(7, 20))
    slope = jax.grad(lambda X, Z: jnp.exp(-squared_distance(X, Z) / 40).sum(), argnums=(0, 1))
    found = slope(jnp.asarray(X, jnp.float32), jnp.asarray(Z, jnp.float32))
    with jax.enable_x64(True):
        expected = [np.asarray(g) for g in slope(jnp.asarray(X), jnp.asarray(Z))]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
