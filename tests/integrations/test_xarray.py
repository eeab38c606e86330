import jax
import numpy as np
import pandas as pd
import pytest

from pathgp import GP, PathGPRegressor, condition, kernels
from pathgp.integrations.xarray import estimator_dataset, posterior_dataset

X = np.random.default_rng(0).uniform(size=(30, 2))
Y = 10 + np.sin(5 * X[:, 0]) + X[:, 1]
POINTS = np.random.default_rng(1).uniform(size=(8, 2))
GP_OF_BOTH = GP(kernels.Matern32(0.5), noise=0.01, mean=10.0)


@pytest.fixture(scope="module")
def posterior():
    return condition(GP_OF_BOTH, X, Y, num_samples=6, num_features=64, key=jax.random.key(0))


def test_samples_mean_and_spread_of_a_posterior(posterior):
    dataset = posterior_dataset(posterior, POINTS, names=["heat", "flow"])
    assert dict(dataset.sizes) == {"chain": 1, "draw": 6, "point": 8}
    assert dataset["f"].dims == ("chain", "draw", "point")
    np.testing.assert_allclose(dataset["f"][0, 3], posterior.sample(3)(POINTS), rtol=1e-5)
    np.testing.assert_allclose(dataset["mean"], posterior.mean(POINTS), rtol=1e-5)
    np.testing.assert_allclose(dataset["std"] ** 2, posterior.variance(POINTS), rtol=1e-5)
    np.testing.assert_array_equal(dataset["flow"], POINTS[:, 1])
    assert dataset["heat"].dims == ("point",)


def test_several_targets_have_a_dimension(posterior):
    both = condition(GP_OF_BOTH, X, np.stack([Y, -Y], axis=1), num_samples=6, num_features=64, key=jax.random.key(0))
    dataset = posterior_dataset(both, POINTS)
    assert dataset["f"].dims == ("chain", "draw", "point", "target")
    np.testing.assert_allclose(dataset["f"].sel(target=0), posterior_dataset(posterior, POINTS)["f"], rtol=1e-4)
    assert dataset["std"].dims == ("point", "target")
    assert "x1" in dataset.coords


def test_an_estimator_in_the_units_of_y_with_the_names_of_its_columns():
    frame = pd.DataFrame(X, columns=["heat", "flow"])
    points = pd.DataFrame(POINTS, columns=["heat", "flow"])
    fixed = PathGPRegressor(kernels.Matern32(), noise=0.1, hyperparameters="fixed", num_samples=256, random_state=0)
    model = fixed.fit(frame, 1e3 * Y)
    dataset = estimator_dataset(model, points)
    np.testing.assert_allclose(dataset["mean"], model.predict(points), rtol=1e-6)
    assert "heat" in dataset.coords
    spread = dataset["f"].std(("chain", "draw"))
    np.testing.assert_allclose(dataset["std"], spread, rtol=4 / np.sqrt(2 * 256))  # four deviations of such an estimate
    np.testing.assert_allclose(
        dataset["f"].mean(("chain", "draw")), dataset["mean"], atol=4 * float(spread.max()) / 256**0.5
    )


@pytest.mark.parametrize("names", [["heat"], ["heat", "heat"], ["heat", "mean"]])
def test_names_that_cannot_be_are_refused(posterior, names):
    with pytest.raises(ValueError, match="names"):
        posterior_dataset(posterior, POINTS, names=names)


def test_arviz_reads_it(posterior):
    arviz_base = pytest.importorskip("arviz_base", reason="ArviZ is not among the oldest versions")
    arviz_stats = pytest.importorskip("arviz_stats")
    dataset = posterior_dataset(posterior, POINTS)
    summary = arviz_stats.summary(arviz_base.convert_to_datatree(dataset), round_to="none")
    assert len(summary) == 8
    np.testing.assert_allclose(summary["mean"], np.asarray(posterior.samples(POINTS)).mean(axis=1), rtol=1e-4)
