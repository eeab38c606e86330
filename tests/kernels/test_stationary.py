import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy import special

from pathgp import kernels
from pathgp.linalg.distances import FEW_INPUTS

ALL = [kernels.RBF, kernels.Matern12, kernels.Matern32, kernels.Matern52, kernels.RationalQuadratic]
EITHER_WAY = [8, FEW_INPUTS + 2]
"""Inputs whose differences are formed, and so many that distances are one product."""
MATERN = [(kernels.Matern12, 0.5), (kernels.Matern32, 1.5), (kernels.Matern52, 2.5)]


def points(n, d, seed=0, dtype=None):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)), dtype=dtype or float)


def rounding(X, lengthscale):
    """Of a squared distance in float32: nothing of a difference, a few roundings of ‖x/ℓ‖² where that cancels."""
    squares = np.sum((np.asarray(X) / lengthscale) ** 2, axis=1)
    return 0.0 if X.shape[1] <= FEW_INPUTS else 4 * np.finfo(np.float32).eps * squares.max()


@pytest.mark.parametrize(("kernel", "nu"), MATERN)
@pytest.mark.parametrize("d", [1, 3, *EITHER_WAY])
def test_matern_is_the_bessel_function_form(kernel, nu, d):
    X, Z = points(20, d), points(15, d, seed=1)
    ell = np.linspace(0.5, 2.0, d)
    r = np.linalg.norm((np.asarray(X)[:, None] - np.asarray(Z)[None]) / ell, axis=-1)
    z = np.sqrt(2 * nu) * r
    expected = 1.7 * 2 ** (1 - nu) / special.gamma(nu) * z**nu * special.kv(nu, z)
    np.testing.assert_allclose(kernel(ell, 1.7)(X, Z), expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("d", [FEW_INPUTS, FEW_INPUTS + 1, 30])
def test_equal_points_are_perfectly_correlated_whatever_rounding_leaves_of_their_distance(d):
    X, k = points(500, d), kernels.Matern12(0.3)
    np.testing.assert_array_equal(jnp.diag(k(X, X)), 1)
    assert np.all(np.isfinite(jax.grad(lambda X: k(X, points(500, d)).sum())(X)))


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("d", EITHER_WAY)
def test_points_too_far_apart_to_be_squared_have_nothing_in_common(kernel, d):
    k = kernel(0.5 * jnp.ones(d))
    largest = float(jnp.finfo(jnp.result_type(float)).max)
    Z, far = points(5, d), jnp.array([[largest] * d, [-largest] * d, [0.0] * (d - 1) + [1e-3 * largest]])
    np.testing.assert_allclose(k(far, Z), 0, atol=1e-10)
    np.testing.assert_array_equal(jax.grad(lambda x: k(x, Z).sum())(far), 0)
    phi = k.features(jax.random.key(0), 16, d)(far)
    np.testing.assert_allclose(jnp.sum(phi**2, axis=1), 1, rtol=1e-5)


def test_rbf_and_rational_quadratic_agree_with_scikit_learn_forms():
    X, Z = points(20, 5), points(15, 5, seed=1)
    r2 = np.sum((np.asarray(X)[:, None] - np.asarray(Z)[None]) ** 2, axis=-1) / 0.7**2
    np.testing.assert_allclose(kernels.RBF(0.7)(X, Z), np.exp(-r2 / 2), rtol=2e-5, atol=1e-7)
    expected = (1 + r2 / 5.0) ** -2.5
    np.testing.assert_allclose(kernels.RationalQuadratic(0.7, 1.0, 2.5)(X, Z), expected, rtol=2e-5)
    np.testing.assert_allclose(kernels.RationalQuadratic(0.7, 1.0, 1e4)(X, Z), kernels.RBF(0.7)(X, Z), atol=1e-3)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("d", [1, *EITHER_WAY])
def test_gradients_are_finite_and_zero_at_coinciding_points(kernel, d):
    X = points(6, d)
    k = kernel(jnp.full(d, 0.8))
    gradient = jax.grad(lambda X: jnp.sum(k(X, X)[2]))(X)
    assert bool(jnp.all(jnp.isfinite(gradient)))
    own = jax.grad(lambda x: k(x[None], X[:1])[0, 0])(X[0])
    np.testing.assert_allclose(own, 0, atol=1e-5)
    parameters = jax.grad(lambda k: jnp.sum(k(X, X)))(k)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(parameters))


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("d", EITHER_WAY)
def test_gradients_agree_with_finite_differences(kernel, d, x64):
    X, Z = points(4, d, dtype=jnp.float64), points(5, d, seed=1, dtype=jnp.float64)
    k = kernel(jnp.linspace(0.5, 1.5, d), 1.3)
    check_grads(jax.jit(lambda k, X, Z: k(X, Z)), (k, X, Z), order=1, modes=["fwd", "rev"])


@pytest.mark.parametrize(("kernel", "curvature"), [(kernels.Matern52, -5 / 3), (kernels.RBF, -1.0)])
@pytest.mark.parametrize("d", EITHER_WAY)
def test_second_derivative_at_a_coinciding_point(kernel, curvature, d, x64):
    hessian = jax.hessian(lambda x: kernel(2.0, 3.0)(x[None], jnp.zeros((1, d)))[0, 0])(jnp.zeros(d))
    np.testing.assert_allclose(hessian, 3.0 * curvature / 2.0**2 * np.eye(d), atol=1e-9)


@pytest.mark.parametrize("d", EITHER_WAY)
def test_an_offset_costs_no_precision(d):
    X, Z = points(50, d), points(40, d, seed=1)
    k = kernels.Matern32(0.5)
    shifted = k(X + 64.0, Z + 64.0)  # a power of two: the inputs lose 6 bits, the differences nothing more
    np.testing.assert_allclose(shifted, k(X, Z), atol=3e-4)


@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("d", EITHER_WAY)
def test_the_diagonal(kernel, d):
    X = points(30, d)
    k = kernel(0.5, 1.3)
    r2 = rounding(X, 0.5)
    np.testing.assert_allclose(
        k.diag(X), jnp.diag(k(X, X)), atol=1.3 * (r2**0.5 if kernel is kernels.Matern12 else 2 * r2)
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, [1.0, 0.0]])
def test_bad_length_scales_and_variances_are_refused(bad):
    with pytest.raises(ValueError, match="lengthscale"):
        kernels.RBF(lengthscale=bad)
    if np.ndim(bad) == 0:
        with pytest.raises(ValueError, match="variance"):
            kernels.RBF(variance=bad)


def test_a_length_scale_for_each_input_or_one():
    with pytest.raises(ValueError, match=r"3 .*2 "):
        kernels.RBF([1.0, 1.0, 1.0])(jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    with pytest.raises(ValueError, match="lengthscale"):
        kernels.RBF(np.ones((2, 2)))


@pytest.mark.parametrize("d", EITHER_WAY)
def test_both_precisions(d, x64):
    X = points(5, d, dtype=jnp.float64)
    wide = kernels.Matern32(0.5)(X, X)
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), kernels.Matern32(0.5))(*2 * [X.astype(jnp.float32)])
    assert wide.dtype == jnp.float64
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(narrow, wide, atol=1e-5 + 1.5 * rounding(X, 0.5))
