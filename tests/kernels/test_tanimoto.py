import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, condition
from pathgp.kernels import RBF, Tanimoto
from pathgp.likelihood import fit_hyperparameters


def fingerprints(n, high, seed=0, d=40):
    rng = np.random.default_rng(seed)
    X = rng.integers(1, high + 1, size=(n, d)) * (rng.random((n, d)) < 0.4)
    X[0] = 0
    return jnp.asarray(X, dtype=float)


def by_hand(X, Z):
    K = np.ones((len(X), len(Z)))
    for i, x in enumerate(np.asarray(X)):
        for j, z in enumerate(np.asarray(Z)):
            if x.any() or z.any():
                K[i, j] = np.minimum(x, z).sum() / np.maximum(x, z).sum()
    return K


def test_what_is_no_count_is_refused_before_the_work(key):
    X = fingerprints(10, 3)
    for kernel in (Tanimoto(), RBF() + Tanimoto(), RBF() * Tanimoto()):
        with pytest.raises(ValueError, match=r"X .*-1.*standardize=False"):
            condition(GP(kernel, 0.1), X.at[3, 4].set(-1), jnp.arange(10.0), key=key)
    posterior = condition(GP(Tanimoto(), 0.1), X, jnp.arange(10.0), key=key, num_samples=1)
    with pytest.raises(ValueError, match=r"X .*-2"):
        posterior.update(-2 * X[3:4] / X.max(), jnp.ones(1), key=key)
    with pytest.raises(ValueError, match=r"\bX\b"):
        fit_hyperparameters(GP(Tanimoto(), 0.1), -X, jnp.arange(10.0), key=key)


@pytest.mark.parametrize(("high", "max_count"), [(1, None), (1, 1), (5, None), (5, 5)])
def test_the_definition(high, max_count):
    X, Z = fingerprints(9, high), fingerprints(7, high, seed=1)
    np.testing.assert_allclose(Tanimoto(1.5, max_count)(X, Z), 1.5 * by_hand(X, Z), rtol=1e-5)


@pytest.mark.parametrize("high", [1, 5])
def test_random_features_are_unbiased_at_the_monte_carlo_rate(high, key):
    X = fingerprints(9, high)
    K = 1.5 * by_hand(X, X)

    def error(num):
        phi = Tanimoto(1.5).features(key, num, X.shape[1])(X)
        return np.sqrt(np.mean((np.asarray(phi @ phi.T) - K) ** 2))

    for num in (500, 8000):
        assert error(num) < 1.5 * 1.3 * num**-0.5


def test_the_matrix_is_positive_definite_and_differentiable_in_its_variance():
    X = fingerprints(30, 3)
    assert np.linalg.eigvalsh(np.asarray(Tanimoto()(X, X), dtype=float)).min() > -1e-5
    gradient = jax.grad(lambda v: jnp.sum(Tanimoto(v)(X, X)))(1.0)
    np.testing.assert_allclose(gradient, np.sum(by_hand(X, X)), rtol=1e-5)


def test_bad_settings():
    with pytest.raises(ValueError, match="variance"):
        Tanimoto(-1.0)
    with pytest.raises(ValueError, match="max_count"):
        Tanimoto(max_count=0)
