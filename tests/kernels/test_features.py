"""Random features against the kernel they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import kernels
from pathgp.kernels.features import Fourier

STATIONARY = [kernels.RBF, kernels.Matern12, kernels.Matern32, kernels.Matern52, kernels.RationalQuadratic]
REPEATS = 40


def gram_errors(kernel, draw, d, num, key):
    """RMS error of single Gram matrices, and of their mean over many draws, relative to the variance."""
    X = jax.random.normal(jax.random.fold_in(key, 1), (12, d))
    K = kernel(X, X)

    def gram(key):
        phi = draw(key, num, d)(X)
        return phi @ phi.T

    errors = jax.vmap(gram)(jax.random.split(key, REPEATS)) - K
    scale = float(jnp.max(kernel.diag(X)))
    return float(jnp.sqrt(jnp.mean(errors**2))) / scale, float(jnp.sqrt(jnp.mean(jnp.mean(errors, 0) ** 2))) / scale


def rate(num):
    """The Monte-Carlo error of a mean of num/2 cosines with variance at most 1/2."""
    return (num / 2) ** -0.5 * 0.5**0.5


def ard(kernel, d):
    return kernel(jnp.linspace(0.7, 1.6, d) * d**0.5, 1.7)


@pytest.mark.parametrize("d", [1, 3, 8])
@pytest.mark.parametrize("kernel", STATIONARY)
def test_gram_matrix_approaches_the_kernel_at_the_monte_carlo_rate(kernel, d, key):
    k = ard(kernel, d)
    few, _ = gram_errors(k, k.features, d, 256, key)
    many, bias = gram_errors(k, k.features, d, 4096, key)
    assert few < 1.2 * rate(256)
    assert many < 1.2 * rate(4096)
    assert (
        few / many > 2.8
    )  # a sixteenth of the variance, so a quarter of the error; stratified, in one dimension, less
    assert d == 1 or few / many < 5.7
    assert bias < 4 * many * REPEATS**-0.5


@pytest.mark.parametrize("d", [3, 8])
@pytest.mark.parametrize("kernel", [kernels.Matern12, kernels.Matern32, kernels.Matern52])
def test_a_chi_square_for_each_coordinate_would_be_seen(kernel, d, key):
    """The mistake of drawing a Student t for each coordinate gives another kernel: this test sees it."""
    k = ard(kernel, d)

    def per_coordinate(key, num, dim):
        frequencies = jax.random.t(key, k.degrees, (num // 2, dim)) / k.lengthscale
        return Fourier(frequencies, jnp.full(num // 2, k.variance / (num // 2)))

    many, bias = gram_errors(k, per_coordinate, d, 4096, key)
    assert bias > 4 * many * REPEATS**-0.5


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("kernel", [kernels.Matern12, kernels.Matern32, kernels.Matern52])
def test_what_data_leave_of_a_draw_has_the_right_variance(kernel, d, key):
    """Given many data, that of f(x) − k(x,X)(K+Σ)⁻¹(f(X)+ε) depends on rare high frequencies, and is small."""
    rng = np.random.default_rng(0)
    X, x = rng.normal(size=(400, d)), rng.normal(size=(30, d))
    k = kernel(1.0)
    with jax.enable_x64(True):
        K, k_x = (np.asarray(kernel(1.0)(jnp.asarray(X), jnp.asarray(Z))) for Z in (X, x))
    A = np.linalg.solve(K + 0.001 * np.eye(400), k_x)
    exact = 1 - np.sum(k_x * A, axis=0)

    def log_error(key):
        phi = k.features(key, 2000, d)
        wave = np.exp(1j * x @ np.asarray(phi.frequencies).T) - A.T @ np.exp(1j * X @ np.asarray(phi.frequencies).T)
        return np.log((np.abs(wave) ** 2 @ np.asarray(phi.power) + 0.001 * np.sum(A**2, axis=0)) / exact)

    errors = np.array([log_error(k) for k in jax.random.split(key, 8)])
    assert np.sqrt(np.mean(errors**2)) < 0.15  # with independent draws, 0.2 to 0.6 for Matérn-3/2 and 5/2


COMPOSITE = {
    "sum": kernels.RBF(0.5, 0.6) + kernels.Matern32(2.0, 1.4),
    "product": kernels.RBF(1.5, 0.6) * kernels.Matern32(2.0, 1.4),
    "product of sums": (kernels.RBF(0.4) + kernels.RBF(4.0)) * (kernels.RBF(0.5) + kernels.Matern32(6.0, 0.3)),
}


@pytest.mark.parametrize("name", COMPOSITE)
def test_sums_and_products(name, key):
    k = COMPOSITE[name]
    assert k.features(key, 1000, 3).num == 1000
    many, bias = gram_errors(k, k.features, 3, 4096, key)
    assert many < 2 * rate(4096)
    assert bias < 4 * many * REPEATS**-0.5


def test_a_product_without_features_says_so(key):
    with pytest.raises(TypeError, match="Tanimoto"):
        (kernels.RBF() * kernels.Tanimoto()).features(key, 100, 3)


def test_features_come_in_pairs(key):
    with pytest.raises(ValueError, match="num_features"):
        kernels.RBF().features(key, 101, 3)
    with pytest.raises(ValueError, match="num_features"):
        kernels.RBF().features(key, 0, 3)
    for k in (kernels.RBF() + kernels.Matern32(), (kernels.RBF() + kernels.Matern32()) * kernels.RBF()):
        with pytest.raises(ValueError, match=r"num_features.*2"):
            k.features(key, 2, 3)


def test_the_value_at_zero_distance_is_exact(key):
    k = kernels.Matern32(0.3, 2.5)
    phi = k.features(key, 10, 4)(jax.random.normal(key, (7, 4)))
    np.testing.assert_allclose(jnp.sum(phi**2, axis=1), 2.5, rtol=1e-5)
