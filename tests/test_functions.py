import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.functions import Canonical, Function
from pathgp.kernels import Matern32
from pathgp.kernels.features import Constant, Stacked


@pytest.fixture
def f(key):
    points = jax.random.normal(key, (5000, 6))
    return Function(Canonical(Matern32(0.8), points), jax.random.normal(jax.random.key(1), (5000, 3)))


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(2), (1300, 6))


def dense(f, x):
    """By NumPy in float64, without tiles."""
    X, Z, W = (np.asarray(a, dtype=np.float64) for a in (x, f.features.points, f.weights))
    r = np.sqrt(3) * np.linalg.norm(X[:, None] - Z[None], axis=-1) / float(f.features.kernel.lengthscale)
    return (1 + r) * np.exp(-r) @ W


def test_there_are_as_many_functions_as_there_are(f, x):
    assert len(f) == len(list(f)) == 3
    np.testing.assert_array_equal(f[-1](x[:5]), f[2](x[:5]))
    for index in (3, -4, np.array([0, 3])):
        with pytest.raises(IndexError, match="index"):
            f[index]
    with pytest.raises(TypeError, match="single function, which has no length"):
        len(f[0])


def test_tiles_change_nothing(f, x):
    np.testing.assert_allclose(f(x[:700]), dense(f, x[:700]), atol=2e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 511, 513, 1300])
def test_any_number_of_points_in_any_chunks(f, x, n):
    np.testing.assert_allclose(f(x)[:n], f(x[:n]), atol=1e-4)


def test_rows_keep_their_order_and_the_precision_of_the_caller(f, x):
    with jax.enable_x64(True):
        wide = Function(Canonical(Matern32(0.8), f.features.points.astype(float)), f.weights.astype(float))
        values = wide(np.asarray(x, dtype=float))
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, dense(wide, x), atol=1e-9)


def test_a_gradient_by_the_weights_goes_through_many_points(f, x):
    """The points are at hand, the weights are not: d Σf / dw = Σ_x k(x, z)."""
    gradient = jax.grad(lambda w: jnp.sum(Function(f.features, w)(x)))(f.weights)
    expected = dense(Function(f.features, jnp.eye(5000)[:, :2]), x).sum(axis=0)
    np.testing.assert_allclose(gradient[:2, 0], expected, rtol=1e-3)


def test_sums_multiples_and_samples(f, x, key):
    phi = Matern32(0.8).features(key, 20, 6)
    g = Function(phi, jax.random.normal(key, (20, 3)))
    one = Function(Constant(), jnp.array([2.5]))
    x = x[:50]
    np.testing.assert_allclose((f + g)(x), f(x) + g(x), atol=1e-4)
    np.testing.assert_allclose((f - 2 * g)(x), f(x) - 2 * g(x), atol=1e-4)
    np.testing.assert_allclose((f + one)(x), f(x) + 2.5, atol=1e-4)
    np.testing.assert_allclose((one + f[1])(x), f(x)[:, 1] + 2.5, atol=1e-4)
    np.testing.assert_allclose(f[1:](x), f(x)[:, 1:], atol=1e-4)
    assert f[1](x).shape == (50,)
    assert f(x[:0]).shape == (0, 3)


def test_stacked_features_are_the_parts_side_by_side(f, x, key):
    phi = Stacked((f.features, Constant(), Matern32(0.8).features(key, 20, 6)))
    values = phi(x[:7])
    assert values.shape == (7, phi.num)
    weights = jax.random.normal(key, (phi.num, 2))
    np.testing.assert_allclose(phi.apply(x[:7], weights), values @ weights, atol=2e-3)


def test_gradient_through_tiles_agrees_with_finite_differences(x64, key):
    f = Function(Canonical(Matern32(0.8), jax.random.normal(key, (4100, 3))), jax.random.normal(key, (4100, 2)))
    x = jax.random.normal(jax.random.key(3), (3,))
    gradient = jax.grad(lambda x: f(x[None])[0, 1])(x)
    step = 1e-5 * np.eye(3)
    numeric = [(f((x + e)[None]) - f((x - e)[None]))[0, 1] / 2e-5 for e in step]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-6)


def test_jit_and_vmap(f, x):
    batch = x[:12].reshape(3, 4, 6)
    np.testing.assert_allclose(jax.vmap(f)(batch), f(x[:12]).reshape(3, 4, 3), atol=1e-4)
    np.testing.assert_allclose(jax.jit(lambda f, x: f(x))(f, x[:12]), f(x[:12]), atol=1e-4)


def test_one_point_must_be_a_row(f):
    with pytest.raises(ValueError, match=r"\bx\b"):
        f(jnp.zeros(6))
