"""The paper's objective: its gradient, its two losses, and their variances."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pathgp.solvers import SGD
from pathgp.solvers.sgd import clip_columns
from tests.support.problems import exact, problem

LOSSES = [SGD(num_features=4000), SGD(num_features=4000, low_variance=False)]


def full_gradient(sgd, system, targets, alpha):
    """The gradient over all rows, its random features averaged over many draws."""
    keys = jax.random.split(jax.random.key(5), 64)
    rows = jnp.arange(system.size)
    return jnp.mean(jax.lax.map(lambda k: sgd.gradient(system, targets, alpha, rows, k), keys), axis=0)


def objective(system, targets, alpha, low_variance):
    """The objective of the paper in float64, by NumPy: Σ (t − Kα)²/Σᵢᵢ + ‖α − Σ⁻¹ε‖²_K."""
    K, _ = exact(system, targets)
    noise = np.broadcast_to(np.asarray(system.noise, dtype=np.float64), len(K))[:, None]
    signal, added = (np.asarray(x, dtype=np.float64) for x in (targets.signal, targets.noise))
    t = signal if low_variance else signal + added
    shifted = alpha - added / noise if low_variance else alpha
    return np.sum((t - K @ alpha) ** 2 / noise, axis=0) + np.sum(shifted * (K @ shifted), axis=0)


@pytest.mark.parametrize("sgd", LOSSES, ids=["loss 2", "loss 1"])
@pytest.mark.parametrize("uneven", [False, True])
def test_the_gradient_is_that_of_the_objective(sgd, uneven):
    system, targets = problem(N=60, noise=0.3, uneven=uneven)
    rng = np.random.default_rng(0)
    alpha, direction = rng.normal(size=(2, 60, 4))
    h = 1e-4
    numeric = (
        objective(system, targets, alpha + h * direction, sgd.low_variance)
        - objective(system, targets, alpha - h * direction, sgd.low_variance)
    ) / (2 * h)
    scale = float(system.mean_noise) / (2 * system.size)
    g = np.asarray(full_gradient(sgd, system, targets, jnp.asarray(alpha, dtype=float)), dtype=np.float64)
    np.testing.assert_allclose(np.sum(g * direction, axis=0), scale * numeric, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("uneven", [False, True])
def test_both_losses_have_the_same_minimiser(uneven):
    system, targets = problem(N=60, noise=0.3, uneven=uneven)
    _, W = exact(system, targets)
    at_zero = full_gradient(LOSSES[0], system, targets, jnp.zeros((60, 4)))
    for sgd in LOSSES:
        g = full_gradient(sgd, system, targets, jnp.asarray(W, dtype=float))
        assert float(jnp.linalg.norm(g)) < 0.03 * float(jnp.linalg.norm(at_zero))


def test_loss_2_has_the_smaller_variance_at_initialisation():
    """Single-row gradients at α = 0: the covariances differ by N K Σ K (appendix D of the paper)."""
    system, targets = problem(N=300, noise=0.5, columns=9)
    K, _ = exact(system, targets)
    alpha = jnp.zeros((300, 9))

    def total_variance(sgd):
        rows = jnp.arange(300)[:, None]
        gradients = jax.lax.map(lambda row: sgd.data_gradient(system, targets, alpha, row), rows)
        return np.sum(np.var(np.asarray(gradients, dtype=np.float64), axis=0), axis=0)[1:]  # the samples

    loss_2, loss_1 = (total_variance(sgd) for sgd in LOSSES)
    assert np.mean(loss_1) > np.mean(loss_2)
    expected = 0.5 * np.sum(K**2) / 300  # the trace of K Σ K, for the mean over rows
    np.testing.assert_allclose(np.mean(loss_1 - loss_2), expected, rtol=0.25)


def test_minibatch_gradients_are_unbiased(key):
    system, targets = problem(N=64, noise=0.3)
    alpha = jax.random.normal(key, (64, 4))
    batches = jax.random.permutation(key, 64).reshape(8, 8)
    mean = jnp.mean(jax.lax.map(lambda b: LOSSES[0].data_gradient(system, targets, alpha, b), batches), axis=0)
    np.testing.assert_allclose(mean, LOSSES[0].data_gradient(system, targets, alpha, jnp.arange(64)), atol=1e-4)


def test_an_optimizer_of_ones_own(key):
    system, targets = problem(N=300, noise=0.3)
    default = SGD(steps=200, batch_size=64).solve(system, targets, key=key)
    adam = SGD(steps=200, batch_size=64, optimizer=optax.adam(1e-2)).solve(system, targets, key=key)
    assert float(jnp.max(adam.info.relative_residual)) < 0.8
    assert bool(jnp.any(adam.weights != default.weights))


def test_clipping_is_by_column():
    g = jnp.array([[3.0, 0.03, 0.0], [4.0, 0.04, 0.0]])
    np.testing.assert_allclose(clip_columns(g, 0.1), [[0.06, 0.03, 0.0], [0.08, 0.04, 0.0]], rtol=1e-6)
