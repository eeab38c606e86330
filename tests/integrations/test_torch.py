"""Run with torch in the environment: it is no dependency, not even of development."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pathgp import GP, condition, kernels
from pathgp.integrations.torch import as_torch


@pytest.fixture(scope="module")
def posterior():
    X = np.random.default_rng(0).uniform(size=(40, 2))
    y = np.sin(5 * X[:, 0]) + X[:, 1]
    gp = GP(kernels.Matern52([0.4, 0.6]), noise=0.01)
    return condition(gp, X, y, num_samples=3, num_features=200, key=jax.random.key(0))


FUNCTIONS = {"mean": lambda p: p.mean, "samples": lambda p: p.samples, "one sample": lambda p: p.sample(1)}
X = np.random.default_rng(1).uniform(size=(5, 2))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_those_of_jax_in_the_precision_of_the_tensor(posterior, name, dtype):
    f = FUNCTIONS[name](posterior)
    values = as_torch(f)(torch.tensor(X, dtype=dtype))
    assert values.dtype == dtype
    np.testing.assert_allclose(values.numpy(), np.asarray(f(X)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_finite_differences(posterior, name):
    f = FUNCTIONS[name](posterior)
    points = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    values = as_torch(f)(points)
    weights = np.random.default_rng(2).normal(size=values.shape)
    values.backward(torch.tensor(weights))
    h = 0.002  # an error of h² f‴/6 from the roughness of a sample, and of about 1e-6/h from single precision
    for j in range(2):
        step = h * np.eye(2)[j]
        difference = (np.asarray(f(X + step)) - np.asarray(f(X - step))) / (2 * h)
        expected = np.sum((weights * difference).reshape(5, -1), axis=1)
        np.testing.assert_allclose(points.grad[:, j].numpy(), expected, atol=0.05)


def test_dimensions_before_the_last_are_kept(posterior):
    batch = torch.tensor(X[:4]).reshape(2, 2, 2)
    one, all_of_them = as_torch(posterior.sample(0)), as_torch(posterior.samples)
    assert one(batch).shape == (2, 2)
    assert all_of_them(batch).shape == (2, 2, 3)
    assert one(batch[0, 0]).shape == ()
    np.testing.assert_allclose(all_of_them(batch)[1, 0, 0], one(batch[1, 0]), rtol=1e-5)


def test_a_tensor_that_is_changed_in_place_does_not_change_what_was_computed(posterior):
    f = as_torch(posterior.mean)
    points = torch.tensor(X, dtype=torch.float32)
    values = f(points)
    before = values.clone()
    points.mul_(0)
    values.add_(1)
    np.testing.assert_array_equal(values - 1, before + 1 - 1)
    np.testing.assert_allclose(f(torch.tensor(X, dtype=torch.float32)), before, rtol=1e-6)


def test_lbfgs_finds_the_maximum_of_a_sample(posterior):
    """As high as the best point of a fine grid."""
    sample = posterior.sample(2)
    side = np.linspace(0, 1, 101)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    on_grid = np.asarray(sample(grid))
    f = as_torch(sample)
    start = torch.tensor(np.clip(grid[on_grid.argmax()], 0.05, 0.95), dtype=torch.float64)
    z = torch.logit(start).requires_grad_()
    optimizer = torch.optim.LBFGS([z], max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -f(torch.sigmoid(z))
        value.backward()
        return value

    optimizer.step(loss)
    assert f(torch.sigmoid(z.detach())).item() > on_grid.max() - 1e-2


def test_botorch_optimises_a_sample(posterior):
    optim = pytest.importorskip("botorch.optim")
    sample = posterior.sample(0)
    f = as_torch(sample)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    acquisition = lambda X: f(X).squeeze(-1)
    point, value = optim.optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64)
    side = np.linspace(0, 1, 101)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    assert float(value) > float(np.max(np.asarray(sample(grid)))) - 1e-2
    np.testing.assert_allclose(float(value), np.asarray(sample(point.numpy()))[0], rtol=1e-4)
