"""Float64 inside a program that is set to float32."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, PathGPRegressor, condition, storage
from pathgp.kernels import RBF, Matern52
from pathgp.linalg.precision import cast, dtype_of, evaluate_rows, required_dtype
from pathgp.thompson.maximise import maximise


@pytest.fixture(autouse=True)
def float32():
    with jax.enable_x64(False):
        yield


@pytest.fixture
def posterior():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 2))
    gp = GP(Matern52(0.7), noise=1e-7)
    return condition(gp, X, np.sin(4 * X[:, 0]) + X[:, 1] ** 2, num_samples=4, key=jax.random.key(0))


@pytest.mark.parametrize("copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy])
def test_a_copy_predicts_the_same_bits(posterior, copied):
    x = np.random.default_rng(1).uniform(-1, 1, (20, 2))
    model = PathGPRegressor(num_samples=2, random_state=0, hyperparameters="fixed", noise=1e-8).fit(x, x[:, 0])
    assert model.info_.precision == "float64"
    for f in (posterior.mean, posterior.samples, posterior.predictor.mean, posterior.variance, model.predict):
        owner = getattr(f, "__self__", None)  # a method is copied with its object
        again = copied(f) if owner is None else getattr(copied(owner), f.__name__)
        np.testing.assert_array_equal(again(x), f(x))
    assert copied(posterior).solution.weights.dtype == np.float64


def test_little_noise_and_many_rows_ask_for_float64():
    assert required_dtype(1.0, 0.1, 10_000) == np.float32
    assert required_dtype(1.0, 1e-7, 100) == np.float64
    assert required_dtype(100.0, 1e-4, 10_000) == required_dtype(1.0, 1e-6, 10_000) == np.float64
    with jax.enable_x64(True):
        assert required_dtype(1.0, 0.1, 10) == np.float64


def test_arrays_inside_are_float64_and_values_outside_float32(posterior):
    x = jnp.zeros((3, 2))
    assert dtype_of(posterior) == posterior.solution.weights.dtype == np.float64
    assert posterior.info.precision == "float64"
    values = posterior.mean(x), posterior.samples(x), posterior.variance(x), (2 * posterior.samples[1])(x)
    assert {value.dtype for value in values} == {np.dtype("float32")}


def test_a_nearly_noiseless_function_is_interpolated(posterior):
    x = np.random.default_rng(1).uniform(-0.9, 0.9, (50, 2))
    expected = np.sin(4 * x[:, 0]) + x[:, 1] ** 2
    mean, variance = posterior.predict(x)
    np.testing.assert_allclose(mean, expected, atol=0.01)
    assert np.max(np.abs(mean - expected) / np.sqrt(variance)) < 5


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(f))])
def test_it_passes_through_transformations(posterior, transform):
    x = jnp.linspace(-0.5, 0.5, 6).reshape(3, 2)
    batched = transform(lambda x: posterior.mean(jnp.atleast_2d(x))[0] if x.ndim == 1 else posterior.mean(x))(x)
    np.testing.assert_allclose(batched, posterior.mean(x), rtol=1e-5)


def test_derivatives_of_every_order_are_those_of_a_program_in_float64(posterior):
    f = lambda x: posterior.sample(2)(x[None])[0]
    spread = lambda x: posterior.predict(x[None])[1][0]
    x = np.array([0.1, -0.2], np.float32)
    derivatives = {
        "gradient": jax.grad(f),
        "forward": jax.jacfwd(f),
        "hessian": jax.hessian(f),
        "reverse over reverse": jax.jacrev(jax.grad(f)),
        "of a variance": jax.jit(jax.grad(spread)),
    }
    for name, derivative in derivatives.items():
        found = derivative(jnp.asarray(x))
        with jax.enable_x64(True):  # where JAX differentiates float64 by itself
            expected = np.asarray(derivative(jnp.asarray(x, jnp.float64)))
        assert found.dtype == np.float32, name
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(), err_msg=name)


def test_rows_are_evaluated_in_the_precision_that_is_asked_for():
    f = lambda X: jnp.sum((jnp.asarray(X, float) + 1e8) - 1e8, axis=1)  # which float32 rounds to zero
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(evaluate_rows(f, np.float64, x), 3)
    np.testing.assert_array_equal(jax.jit(lambda x: evaluate_rows(f, np.float64, x))(x), 3)
    assert evaluate_rows(f, np.float64, x).dtype == np.float32


def test_updates_samples_files_and_maxima_keep_it(posterior, tmp_path):
    key = jax.random.key(1)
    more = posterior.update(np.array([[0.5, 0.5]]), np.array([np.sin(2.0) + 0.25]), key=key).with_samples(2, key=key)
    assert dtype_of(more) == np.float64
    assert more.num_samples == 6
    storage.save(tmp_path / "posterior.safetensors", more)
    again = storage.load(tmp_path / "posterior.safetensors")
    assert dtype_of(again) == np.float64
    x = np.random.default_rng(2).uniform(-1, 1, (20, 2))
    np.testing.assert_array_equal(again.samples(x), more.samples(x))
    points, values = maximise(more.samples, [(-1, 1), (-1, 1)], key=key)
    assert points.dtype == values.dtype == np.float32
    np.testing.assert_allclose(np.diag(more.samples(points)), values, rtol=1e-4)


def test_the_estimator_emulates_a_function_without_noise_and_its_intervals_are_honest():
    rng = np.random.default_rng(0)
    X, x = rng.uniform(size=(300, 3)), rng.uniform(size=(200, 3))
    f = lambda X: np.exp(X[:, 0]) * np.sin(9 * X[:, 1]) + np.abs(X[:, 2] - 0.4) ** 3
    model = PathGPRegressor("matern52", random_state=0).fit(X, f(X))
    mean, std = model.predict(x, return_std=True)
    assert model.info_.precision == "float64"
    assert np.sqrt(np.mean((mean - f(x)) ** 2)) < 0.03
    assert 0.3 < np.mean(np.abs(mean - f(x)) < 0.674 * std) < 0.9


def test_casting_changes_floating_point_arrays_only():
    tree = {"a": jnp.ones(2), "b": jnp.arange(3), "c": "text"}
    wide = cast(tree, np.float64)
    assert (wide["a"].dtype, wide["b"].dtype, wide["c"]) == (np.float64, tree["b"].dtype, "text")
    assert dtype_of({"k": RBF(1.0)}) == np.float32
