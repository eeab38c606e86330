import pickle
import subprocess
import sys
from importlib.metadata import version

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from pathgp import PathGPRegressor, kernels, solvers, storage
from pathgp.estimator import regressor as estimator
from pathgp.estimator.standardize import ROWS, fit_scaling
from pathgp.solvers import SAP, SubsetOfData

N, D = 80, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) * [1.0, 20.0] + [0.0, 300.0]
Y = 7 + 3 * np.sin(2 * X[:, 0]) + 0.05 * X[:, 1] + 0.2 * RNG.normal(size=N)
QUERIES = RNG.normal(size=(8, D)) * [1.0, 20.0] + [0.0, 300.0]
KERNEL = kernels.Matern32([0.8, 1.5], 1.4)
FIXED = {"kernel": KERNEL, "noise": 0.02, "hyperparameters": "fixed", "random_state": 0}


@pytest.fixture(scope="module")
def fixed():
    """A model with known hyperparameters, and many samples for its uncertainty."""
    return PathGPRegressor(num_samples=512, **FIXED).fit(X, Y)


@pytest.fixture(scope="module")
def learned():
    return PathGPRegressor(random_state=0, num_samples=16).fit(X, Y)


# The checks demand that rows predict the same alone, in any order and when their copies are weights, to 1e-7: float64.
@parametrize_with_checks([PathGPRegressor(hyperparameters="fixed", num_samples=2, random_state=0)])
def test_scikit_learn_accepts_the_estimator(estimator, check, x64):
    check(estimator)


def standardized(A):
    return (A - A.mean(axis=0)) / A.std(axis=0)


def test_predictions_are_those_of_scikit_learns_exact_process(fixed):
    """The same kernel there, with the same units made by hand."""
    kernel = ConstantKernel(1.4) * Matern([0.8, 1.5], nu=1.5)
    exact = GaussianProcessRegressor(kernel, alpha=0.02, optimizer=None).fit(standardized(X), standardized(Y))
    x = (QUERIES - X.mean(axis=0)) / X.std(axis=0)
    expected, covariance = exact.predict(x, return_cov=True)
    mean, std = fixed.predict(QUERIES, return_std=True)
    np.testing.assert_allclose(mean, Y.mean() + Y.std() * expected, rtol=2e-5)
    np.testing.assert_allclose(fixed.predict(QUERIES), mean, rtol=1e-6)
    total = Y.var() * (np.diag(covariance) + 0.02)
    np.testing.assert_allclose(std**2, total, rtol=1e-4)  # all rows are neighbours, and the projection exact
    _, found = fixed.predict(QUERIES, return_cov=True)
    np.testing.assert_allclose(np.diag(found), std**2, rtol=1e-5)
    np.testing.assert_allclose(found, Y.var() * (covariance + 0.02 * np.eye(8)), atol=4 * total.max() * 512**-0.5)
    assert fixed.noise_variance_ == pytest.approx(0.02 * Y.var(), rel=1e-6)


def test_samples_are_functions_with_the_mean_and_spread_of_the_prediction(fixed):
    draws = fixed.sample_y(QUERIES, 512, random_state=1)
    mean, std = fixed.predict(QUERIES, return_std=True)
    function_std = np.sqrt(std**2 - fixed.noise_variance_)
    assert draws.shape == (8, 512)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=4 * function_std.max() / 512**0.5)
    sampled = np.sqrt(np.mean((draws - mean[:, None]) ** 2, axis=1))
    np.testing.assert_allclose(sampled, function_std, rtol=4 * (1 / 2 / 512) ** 0.5)
    few = fixed.sample_y(QUERIES, 3, random_state=1)
    np.testing.assert_allclose(few, draws[:, :3], rtol=1e-5)
    np.testing.assert_allclose(fixed.sample_y(QUERIES[2:3], 3, random_state=1), few[2:3], rtol=1e-5)
    assert not np.allclose(few, fixed.sample_y(QUERIES, 3, random_state=2))


def test_more_samples_than_the_model_has_are_drawn(learned):
    before = learned.posterior_
    draws = learned.sample_y(QUERIES, 20, random_state=3)
    assert len(np.unique(draws[0])) == 20
    np.testing.assert_array_equal(draws, learned.sample_y(QUERIES, 20, random_state=3))
    assert learned.posterior_ is before


def test_learning_finds_the_noise_and_says_how(learned):
    # The noise has a standard deviation of 0.2; of a variance from 80 rows the relative error is at least √(2/80).
    assert learned.noise_variance_ == pytest.approx(0.04, rel=0.6)
    assert learned.trace_[0].loss[-1] < learned.trace_[0].loss[0]
    assert learned.kernel_.lengthscale[1] > learned.kernel_.lengthscale[0]  # the second input is a straight line
    assert learned.info_.solver == "Cholesky"
    assert learned.solver_ == solvers.Cholesky()
    assert "few enough" in learned.info_.reason
    assert float(np.max(learned.info_.relative_residual)) < 1e-3  # what rounding to float32 leaves
    assert learned.score(X, Y) > 0.97


def test_predictions_follow_the_units_of_the_target(learned):
    other = PathGPRegressor(random_state=0, num_samples=16).fit(X, 1e6 * Y - 3e8)
    for found, expected in zip(
        other.predict(QUERIES, return_std=True),
        (lambda mean, std: (1e6 * mean - 3e8, 1e6 * std))(*learned.predict(QUERIES, return_std=True)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_raw_units_are_kept_where_nothing_is_standardised():
    raw = PathGPRegressor(kernels.Matern32([1.0, 30.0], 9.0), noise=0.04, hyperparameters="fixed", standardize=False)
    mean = raw.set_params(num_samples=2, random_state=0).fit(X, Y).predict(QUERIES)
    kernel = ConstantKernel(9.0) * Matern([1.0, 30.0], nu=1.5)
    exact = GaussianProcessRegressor(kernel, alpha=0.04, optimizer=None).fit(X, Y)
    np.testing.assert_allclose(mean, exact.predict(QUERIES), rtol=2e-4)
    assert raw.noise_variance_ == pytest.approx(0.04)


def test_a_row_of_weight_two_counts_as_two_rows():
    weights = np.where(np.arange(N) < 30, 2.0, 1.0)
    weights[70:] = 0
    model = PathGPRegressor(num_samples=256, **FIXED)
    twice = np.r_[np.arange(70), np.arange(30)]
    expected = clone(model).fit(X[twice], Y[twice]).predict(QUERIES, return_std=True)
    weighted = model.fit(X, Y, sample_weight=weights)
    found = weighted.predict(QUERIES, return_std=True)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3)
    assert weighted.posterior_.system.size == 70
    with pytest.raises(ValueError, match=r"(?i)sample.weight"):
        weighted.fit(X, Y, sample_weight=np.zeros(N))


def test_several_targets_are_as_if_fitted_alone(fixed):
    second = np.cos(X[:, 0]) * 1e-3
    both = PathGPRegressor(num_samples=512, **FIXED).fit(X, np.stack([Y, second], axis=1))
    alone = PathGPRegressor(num_samples=2, **FIXED).fit(X, second)
    mean, std = both.predict(QUERIES, return_std=True)
    assert mean.shape == std.shape == (8, 2)
    np.testing.assert_allclose(mean[:, 0], fixed.predict(QUERIES), rtol=2e-5)
    np.testing.assert_allclose(mean[:, 1], alone.predict(QUERIES), rtol=2e-5, atol=1e-8)
    # The uncertainty of a target is the same function, in its units.
    np.testing.assert_allclose(std[:, 1] / second.std(), std[:, 0] / Y.std(), rtol=1e-6)
    np.testing.assert_allclose(std[:, 0], fixed.predict(QUERIES, return_std=True)[1], rtol=1e-4)
    np.testing.assert_allclose(both.noise_variance_, 0.02 * np.array([Y.var(), second.var()]), rtol=1e-5)
    draws = both.sample_y(QUERIES, 512)
    assert draws.shape == (8, 2, 512)
    correlation = np.corrcoef(draws[0])[0, 1]
    assert abs(correlation) < 4 / 512**0.5  # targets are independent given the data
    assert both.predict(QUERIES, return_cov=True)[1].shape == (8, 8, 2)


def test_data_that_come_later_count_as_much():
    """The units are those of the first rows: so they are given, to compare with a fit to everything."""
    model = PathGPRegressor(num_samples=4, **FIXED)
    first = clone(model).fit(X[:70], Y[:70])
    u, v = first.input_scaling_.apply(X), first.target_scaling_.apply(Y[:, None])[:, 0]
    whole = clone(model).set_params(standardize=False).fit(u, v)
    mean = first.partial_fit(X[70:], Y[70:]).predict(QUERIES)
    expected = whole.predict(first.input_scaling_.apply(QUERIES))
    np.testing.assert_allclose(mean, Y[:70].mean() + Y[:70].std() * expected, rtol=2e-5)
    assert first.posterior_.system.size == N
    # With a weight, rows that had one noise get one for each row.
    weighted = clone(model).fit(X[:70], Y[:70]).partial_fit(X[70:], Y[70:], sample_weight=np.full(10, 4.0))
    noise = np.asarray(weighted.posterior_.gp.noise)
    np.testing.assert_allclose(noise, np.r_[np.full(70, 0.02), np.full(10, 0.005)], rtol=1e-5)


@pytest.mark.parametrize(("solver", "solve"), [("auto", "exact_predictor"), ("sap", "condition")])
def test_a_fit_that_fails_leaves_no_model_half_of_which_is_new(monkeypatch, solver, solve):
    model = PathGPRegressor(num_samples=2, solver=solver, **FIXED).fit(X, Y)
    monkeypatch.setattr(estimator, solve, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(1000 * X, Y)
    with pytest.raises(NotFittedError):
        model.predict(QUERIES)


def interrupted(*given, **options):
    raise KeyboardInterrupt


def test_what_is_added_later_has_as_much_time_again():
    model = PathGPRegressor(num_samples=2, solver="sap", max_seconds=5, **FIXED).fit(X, Y)
    assert model.posterior_.solver.max_seconds == 5
    subset = PathGPRegressor(num_samples=2, solver=SubsetOfData(40, SAP()), max_seconds=5, tolerance=0.5, **FIXED)
    inner = subset.fit(X, Y).posterior_.solver.solver
    assert (inner.max_seconds, inner.tolerance) == (5, 0.5)


def test_one_noise_for_each_row_is_refused_before_the_work():
    with pytest.raises(ValueError, match=r"noise.*\(80,\).*sample_weight"):
        PathGPRegressor(**FIXED).set_params(noise=np.full(N, 0.1)).fit(X, Y)


def test_repeated_rows_that_come_later_draw_other_noise_each_time():
    model = PathGPRegressor(num_samples=4, **FIXED).fit(X[:70], Y[:70])
    averages = [np.asarray(model.posterior_.targets.noise[:5, 1:])]
    for _ in range(2):
        model.partial_fit(X[:5], Y[:5])
        averages.append(np.asarray(model.posterior_.targets.noise[:5, 1:]))
    assert model.n_samples_seen_ == 80
    sums = np.array([averages[i] * (i + 1) for i in range(3)])
    draws = np.diff(sums, axis=0)
    assert np.abs(draws[0] - draws[1]).min() > 1e-5  # of 20 differences of normal numbers
    np.testing.assert_allclose(np.std(draws), 0.02**0.5, rtol=0.6)  # of 40 numbers


FRAMES = {
    "pandas": lambda A: pd.DataFrame(A, columns=["a", "b"]),
    "polars": lambda A: pl.DataFrame(A, schema=["a", "b"]),
}


def test_a_target_that_does_not_vary_leaves_the_others_as_they_are():
    alone = PathGPRegressor(num_samples=2, random_state=0).fit(X, Y)
    beside = PathGPRegressor(num_samples=2, random_state=0).fit(X, np.column_stack([Y, np.full(N, 3.0)]))
    np.testing.assert_allclose(beside.predict(QUERIES)[:, 0], alone.predict(QUERIES), rtol=1e-2)
    np.testing.assert_allclose(beside.noise_variance_[0], alone.noise_variance_, rtol=0.05)
    np.testing.assert_allclose(beside.predict(QUERIES)[:, 1], 3.0, atol=0.01)  # the prior mean is shared


def test_a_query_too_far_for_the_precision_gets_what_the_process_knows_without_data(fixed):
    far = QUERIES[:4].copy()
    far[:, 0] = [1e15, 1e30, -1e100, 1e300]
    mean, std = fixed.predict(far, return_std=True)
    np.testing.assert_allclose(mean, fixed.target_scaling_.centre[0], rtol=1e-6)
    np.testing.assert_allclose(
        std, fixed.target_scaling_.scale[0] * np.sqrt(KERNEL.variance + FIXED["noise"]), rtol=1e-5
    )
    assert np.all(np.isfinite(fixed.sample_y(far)))


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_keep_their_column_names_in_files_too(kind, fixed, tmp_path):
    frame = FRAMES[kind]
    model = PathGPRegressor(num_samples=2, **FIXED).fit(frame(X), Y)
    assert list(model.feature_names_in_) == ["a", "b"]
    np.testing.assert_allclose(model.predict(frame(QUERIES)), fixed.predict(QUERIES), rtol=2e-5)
    model.save(tmp_path / "model")
    loaded = PathGPRegressor.load(tmp_path / "model")
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame(QUERIES).select(["b", "a"]) if kind == "polars" else frame(QUERIES)[["b", "a"]])


@pytest.mark.parametrize("kind", ["pandas", "polars", "numpy"])
def test_dates_are_refused_in_words_about_dates(kind):
    days = np.arange(N, dtype="timedelta64[D]") + np.datetime64("2024-01-01", "ms")
    frames = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "numpy": lambda columns: columns["day"][:, None]}
    with pytest.raises(ValueError, match=r"\bX\b"):
        PathGPRegressor(**FIXED).fit(frames[kind]({"day": days, "a": X[:, 0]}), Y)


def test_arrays_of_every_layout_give_the_same_model(fixed, tmp_path):
    expected = fixed.predict(QUERIES)
    mapped = np.memmap(tmp_path / "X", np.float64, "w+", shape=X.shape)
    mapped[:] = X
    frozen = X.copy()
    frozen.flags.writeable = False
    layouts = (mapped, frozen, np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2], X.astype(np.float32))
    for layout in layouts:
        model = PathGPRegressor(num_samples=2, **FIXED).fit(layout, Y)
        np.testing.assert_allclose(model.predict(QUERIES), expected, rtol=1e-4)


def test_a_mapped_matrix_is_scaled_in_chunks(tmp_path):
    """More rows than a chunk: the same mean and spread as from all rows at once, weights counted."""
    rng = np.random.default_rng(1)
    A = rng.normal([1e4, 0], size=(ROWS + 100, 2))
    w = rng.integers(1, 4, size=len(A)).astype(float)
    scaling = fit_scaling(A, w)
    copies = np.repeat(A, w.astype(int), axis=0)
    np.testing.assert_allclose(scaling.centre, copies.mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scaling.scale, copies.std(axis=0), rtol=1e-9)
    scaled = scaling.apply(A)
    assert scaled.dtype == jax.numpy.result_type(float)
    np.testing.assert_allclose(scaled, (A - scaling.centre) / scaling.scale, atol=1e-6)


def test_what_does_not_vary_is_predicted_as_it_is():
    constant = np.full(N, 5e6)
    mean, std = PathGPRegressor(num_samples=4, random_state=0).fit(X, constant).predict(QUERIES, return_std=True)
    np.testing.assert_allclose(mean, constant[:8], rtol=1e-3)
    assert np.all(std < 0.05 * 5e6)
    one = PathGPRegressor(num_samples=64, random_state=0).fit(X[:1], [3.0])
    mean, std = one.predict(np.r_[X[:1], X[:1] + 1e3], return_std=True)
    assert mean[0] == pytest.approx(3.0, rel=0.1)
    assert std[1] > std[0]  # far from the only row there is more doubt
    flat = np.c_[X, np.full(N, 9.0)]
    model = PathGPRegressor("rbf", hyperparameters="fixed", num_samples=2, random_state=0).fit(flat, Y)
    assert model.input_scaling_.scale[2] == 1
    assert np.all(np.isfinite(model.predict(flat)))


def test_pickles_pipelines_and_grids(fixed):
    again = pickle.loads(pickle.dumps(fixed))
    np.testing.assert_array_equal(again.predict(QUERIES), fixed.predict(QUERIES))
    model = make_pipeline(PolynomialFeatures(1, include_bias=False), PathGPRegressor(num_samples=2, **FIXED))
    grid = GridSearchCV(model, {"pathgpregressor__noise": [0.02, 100.0]}, cv=2, error_score="raise").fit(X, Y)
    assert grid.best_params_ == {"pathgpregressor__noise": 0.02}
    np.testing.assert_allclose(grid.predict(QUERIES), fixed.predict(QUERIES), rtol=2e-5)


def test_a_prediction_does_not_depend_on_how_many_are_asked_for(learned):
    rows = np.random.default_rng(7).normal(size=(300, X.shape[1])) + X.mean(axis=0)
    together = learned.predict(rows, return_std=True)
    for chosen in (slice(1), slice(64), slice(64, 65), slice(128, 265)):
        for part, whole in zip(learned.predict(rows[chosen], return_std=True), together, strict=True):
            np.testing.assert_array_equal(part, whole[chosen])


@pytest.mark.xla
def test_a_number_of_rows_compiles_nothing_anew(fixed, caplog):
    fixed.predict(QUERIES)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for n in (1, 5, 13, 64, 75, 199, 300):
            fixed.predict(np.repeat(QUERIES[:1], n, axis=0))
    assert "Finished XLA compilation" not in caplog.text


READER = """
import sys, numpy as np
from pathgp import PathGPRegressor
model = PathGPRegressor.load(sys.argv[1])
print(*(part.tobytes().hex() for part in model.predict(np.load(sys.argv[2]), return_std=True)))
"""


def test_a_slim_file_predicts_the_same_bits_in_another_process(learned, tmp_path):
    learned.save(tmp_path / "whole")
    learned.save(tmp_path / "slim", slim=True, metadata={"target": "price"})
    assert storage.metadata(tmp_path / "slim")["target"] == "price"
    np.save(tmp_path / "queries.npy", QUERIES)
    expected = " ".join(part.tobytes().hex() for part in learned.predict(QUERIES, return_std=True))
    command = [sys.executable, "-c", READER, tmp_path / "slim", tmp_path / "queries.npy"]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == expected
    whole, slim = (PathGPRegressor.load(tmp_path / name) for name in ("whole", "slim"))
    assert whole.get_params() == learned.get_params()
    np.testing.assert_array_equal(whole.sample_y(QUERIES, 20), learned.sample_y(QUERIES, 20))
    np.testing.assert_array_equal(slim.sample_y(QUERIES, 16), learned.sample_y(QUERIES, 16))
    for call in (lambda: slim.partial_fit(X, Y), lambda: slim.sample_y(QUERIES, 17)):
        with pytest.raises(ValueError, match="slim=False"):
            call()


class OfMyOwn(type(KERNEL)):
    pass


def test_a_kernel_of_ones_own_is_saved_and_loaded_if_it_is_named(tmp_path):
    mine = OfMyOwn(KERNEL.lengthscale, KERNEL.variance)
    model = PathGPRegressor(num_samples=2, **{**FIXED, "kernel": mine, "solver": "cholesky"}).fit(X, Y)
    model.save(tmp_path / "mine", classes=(OfMyOwn,))
    with pytest.raises(ValueError, match=r"mine.*OfMyOwn"):
        PathGPRegressor.load(tmp_path / "mine")
    loaded = PathGPRegressor.load(tmp_path / "mine", classes=(OfMyOwn,))
    assert type(loaded.kernel_) is type(loaded.kernel) is OfMyOwn
    np.testing.assert_array_equal(loaded.predict(QUERIES), model.predict(QUERIES))


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"kernel": "matern"}, "kernel.*'matern'"),
        ({"solver": "newton"}, "solver.*'newton'"),
        ({"hyperparameters": "guess"}, "hyperparameters.*'guess'"),
        ({"noise": -1.0}, "noise"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": 2.5}, "num_samples.*2.5"),
        ({"tolerance": "small"}, "tolerance.*'small'"),
        ({"tolerance": -1.0}, "tolerance.*-1.0"),
        ({"max_seconds": 0}, "max_seconds.*0"),
        ({"standardize": "no"}, "standardize.*'no'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting, named):
    with pytest.raises(ValueError, match=named):
        PathGPRegressor(**{**FIXED, **setting}).fit(X, Y)


def test_the_solver_is_the_one_that_was_asked_for():
    model = PathGPRegressor(num_samples=2, solver="cg", tolerance=1e-5, max_seconds=1e4, **FIXED).fit(X, Y)
    assert model.info_.solver == "CG"
    assert model.info_.tolerance == 1e-5
    assert model.solver_.max_seconds <= 1e4
    assert float(np.max(model.info_.relative_residual)) <= 1e-5


def test_modules_are_there_after_importing_the_library():
    code = "import pathgp; print(pathgp.__version__, pathgp.parallel.jobs.mesh(1).size, pathgp.storage.load.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [version("pathgp"), "1", "load"]


def test_the_library_imports_without_scikit_learn_until_it_is_needed():
    code = "import sys, pathgp; print('sklearn' in sys.modules, pathgp.PathGPRegressor and 'sklearn' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


def test_what_is_too_small_to_be_squared_is_refused():
    with pytest.raises(ValueError, match=r"y .*1e-150"):
        PathGPRegressor().fit(X, 1e-170 * Y)
    model = PathGPRegressor(num_samples=2, **FIXED).fit(X, 1e-140 * Y)
    np.testing.assert_allclose(1e140 * model.predict(X), Y, atol=0.5)


@pytest.mark.parametrize("name", ["X", "y"])
def test_what_is_too_large_to_be_squared_is_refused(name):
    X, y = np.arange(6.0)[:, None], np.arange(6.0)
    X, y = (1e300 * X, y) if name == "X" else (X, 1e300 * y)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        PathGPRegressor().fit(X, y)
