import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from pathgp import GP, kernels
from pathgp.likelihood import Exact, fit_hyperparameters
from pathgp.likelihood.marginal import loss_and_gradient
from pathgp.likelihood.parameters import to_parameters
from tests.support.compilations import counted_compilations


class ByJax(kernels.Matern32):
    """A kernel of one's own, which has no gradient on the host."""


def data(N, noise, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + noise**0.5 * rng.normal(size=N)


@pytest.mark.parametrize("noise", [0.1, 1e-5, 1e-9])
@pytest.mark.parametrize("floor", [0.0, 1e-4])
def test_the_host_and_jax_agree(noise, floor, x64):
    X, y = data(80, noise)
    host, by_jax = (
        loss_and_gradient(to_parameters(GP(kernel([0.8, 1.0, 3.0], 1.3), noise, 0.1), floor), X, y)
        for kernel in (kernels.Matern32, ByJax)
    )
    assert host[0] == pytest.approx(by_jax[0], rel=1e-9)
    scale = np.abs(ravel_pytree(by_jax[1])[0]).max()
    np.testing.assert_allclose(ravel_pytree(host[1])[0], ravel_pytree(by_jax[1])[0], atol=1e-7 * scale)


def test_a_matrix_that_is_not_positive_definite_is_not_a_number(x64):
    X, y = np.zeros((5, 1)), np.ones(5)
    p = to_parameters(GP(kernels.RBF(), 1e-300), floor=0.0)
    loss, gradient = loss_and_gradient(p, X, y)
    assert np.isnan(loss)
    assert np.isnan(ravel_pytree(gradient)[0]).all()


@pytest.mark.xla
def test_an_exact_fit_compiles_nothing():
    X, y = data(70, 0.1)
    key = jax.random.key(3)
    with counted_compilations() as compiled:
        fit_hyperparameters(GP(kernels.Matern32(np.ones(3)), 0.1), X, y, key=key, method=Exact(steps=5))
    assert not compiled
