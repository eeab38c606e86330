"""Data of every scale and kind: predictions are those of the exact process of the same numbers, in float64."""

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from pathgp import GP, PathGPRegressor, condition, kernels, solvers
from pathgp import _checks as checks

N, M, NOISE = 12, 8, 0.05
RNG = np.random.default_rng(0)
BASE, QUERIES = RNG.normal(size=(N, 200)), RNG.normal(size=(M, 200))
TARGET = np.sin(2 * BASE[:, 0]) + BASE[:, 1] ** 2 + 0.1 * RNG.normal(size=N)

read_only = lambda A: np.frombuffer(A.tobytes(), A.dtype).reshape(A.shape)
KINDS = {
    "float64": np.asarray,
    "float32": lambda A: A.astype(np.float32),
    "int64": lambda A: np.round(10 * A).astype(np.int64),
    "list": lambda A: A.tolist(),
    "read-only": read_only,
    "Fortran": np.asfortranarray,
    "big-endian": lambda A: A.astype(">f8"),
}
INPUTS = [(1.0, 0.0), (1e-6, 0.0), (1e6, 0.0), (1.0, 1e6), (1e-6, 1.0), (1e-6, 1e6), (1e6, -1e6)]
TARGETS = [(1.0, 0.0), (1e-8, 0.0), (1e8, 0.0), (1.0, 1e6), (1e8, -1e6), (1e-8, 1e-2)]
often = lambda times: settings(max_examples=times, deadline=None, derandomize=True)


def matern32(A, B, lengthscale):
    r = np.sqrt(3) * cdist(A, B) / lengthscale
    return (1 + r) * np.exp(-r)


def exact(X, y, x, lengthscale=1.0, noise=NOISE):
    """The mean, and the variance of f, of a process of variance one."""
    k = matern32(x, X, lengthscale)
    gain = np.linalg.solve(matern32(X, X, lengthscale) + noise * np.eye(len(X)), k.T).T
    return gain @ y, 1 - np.sum(gain * k, axis=1)


def exact_in_own_units(X, y, x, lengthscale):
    """The mean and the standard deviation of a new observation, each column measured by its own spread."""
    X, y, x = (np.asarray(A, np.float64) for A in (X, y, x))
    X, x = X - X[0], x - X[0]  # before it is divided: a millionth beside a million
    spread = np.where(np.ptp(X, axis=0) > 0, X.std(axis=0), 1)
    mean, variance = exact(X / spread, (y - y.mean()) / y.std(), x / spread, lengthscale)
    return y.mean() + y.std() * mean, y.std() * np.sqrt(variance + NOISE)


def fixed(lengthscale=1.0):
    kernel = kernels.Matern32(lengthscale)
    return PathGPRegressor(kernel, noise=NOISE, hyperparameters="fixed", num_samples=4, random_state=0)


def compare(X, y, x, lengthscale=1.0):
    mean, std = fixed(lengthscale).fit(X, y).predict(x, return_std=True)
    expected_mean, expected_std = exact_in_own_units(X, y, x, lengthscale)
    # Single precision of inputs and weights, times a condition number of N/NOISE = 240.
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-14, atol=3e-4 * np.std(y))
    np.testing.assert_allclose(std, expected_std, rtol=2e-3)


@often(40)
@given(
    st.sampled_from([*KINDS]), st.sampled_from(INPUTS), st.sampled_from(TARGETS), st.booleans(), st.booleans(),
    st.permutations(range(N)),
)  # fmt: skip
@example("float64", (1.0, 1e6), (1e-8, 0.0), True, True, range(N))
@example("int64", (1.0, 0.0), (1.0, 0.0), True, True, range(N))
def test_the_estimator_is_exact_in_every_unit(kind, input_unit, target_unit, repeated, constant, order):
    (a, b), (c, d) = input_unit, target_unit
    X, x = BASE[:, :2].copy(), QUERIES[:, :2].copy()
    if repeated:
        X[N // 2 :] = X[: N // 2]
    if constant:
        X[:, 1] = x[:, 1] = 0.1
    X, x = ((KINDS[kind](a * A + b)) for A in (X[[*order]], x))
    compare(X, c * TARGET[[*order]] + d, x)


@often(3)
@given(st.sampled_from(INPUTS))
def test_the_estimator_is_exact_with_200_inputs(input_unit):
    a, b = input_unit
    compare(a * BASE + b, TARGET, a * QUERIES + b, lengthscale=15.0)


@often(20)
@given(st.sampled_from([0.0, 1e-8, -1e-8, 3.0, 1e8, -1e8]), st.sampled_from(INPUTS))
def test_one_row_is_known_and_far_from_it_nothing_is(value, input_unit):
    """Of one row the unit is its size; its input keeps the unit that it has."""
    a, b = input_unit
    X = a * BASE[:1, :2] + b
    mean, std = fixed().fit(X, [value]).predict(np.r_[X, X + 1e4], return_std=True)
    unit = abs(value) or 1
    np.testing.assert_allclose(mean, value, rtol=1e-6)
    np.testing.assert_allclose(std[0], unit * np.sqrt(1 - 1 / (1 + NOISE) + NOISE), rtol=1e-3)
    np.testing.assert_allclose(std[1], unit * np.sqrt(1 + NOISE), rtol=1e-3)


@often(40)
@given(
    st.sampled_from([kind for kind in KINDS if kind != "list"]),
    st.sampled_from([1e-6, 1.0, 1e6]),
    st.sampled_from([1e-8, 1.0, 1e8]),
)
def test_conditioning_is_exact_in_every_unit(kind, a, c):
    """The same process in other units: length scale a, variance c²."""
    X, x = (np.asarray(KINDS[kind](a * A[:, :2]), np.float64) for A in (BASE, QUERIES))
    gp = GP(kernels.Matern32(a, c**2), noise=NOISE * c**2, mean=3 * c)
    posterior = condition(gp, KINDS[kind](a * BASE[:, :2]), c * TARGET, num_samples=4, key=jax.random.key(0))
    mean, variance = posterior.predict(KINDS[kind](a * QUERIES[:, :2]))
    expected_mean, expected_variance = exact(X, TARGET - 3, x, a)
    np.testing.assert_allclose(np.asarray(mean) / c, 3 + expected_mean, atol=1e-3)
    np.testing.assert_allclose(np.asarray(variance) / c**2, expected_variance, rtol=5e-3, atol=1e-5)


SOLVERS = [
    solvers.Cholesky(),
    solvers.CG(rank=5, tolerance=1e-5),
    solvers.SAP(passes=200, block_size=7, tolerance=1e-5),
    solvers.InducingCholesky,  # with the rows for its points
]


@often(15)
@given(
    st.integers(1, 40), st.integers(1, 14), st.sampled_from([(), (1,), (3,)]), st.integers(1, 20),
    st.sampled_from(SOLVERS), st.booleans(),
)  # fmt: skip
@example(1, 1, (), 1, SOLVERS[1], False)
@example(29, 11, (3,), 17, SOLVERS[2], True)
def test_conditioning_is_exact_of_every_shape(rows, inputs, targets, queries, solver, uneven):
    rng = np.random.default_rng(rows)
    X, x = rng.normal(size=(rows, inputs)), rng.normal(size=(queries, inputs))
    Y = rng.normal(size=(rows, *targets))
    noise = NOISE * (1 + np.arange(rows) % 3 if uneven else np.ones(rows))
    gp = GP(kernels.Matern32(np.sqrt(inputs)), noise=noise if uneven else NOISE)
    solver = solver(X) if isinstance(solver, type) else solver
    posterior = condition(gp, X, Y, solver=solver, num_samples=2, num_features=16, key=jax.random.key(0))
    k = matern32(x, X, np.sqrt(inputs))
    expected = k @ np.linalg.solve(matern32(X, X, np.sqrt(inputs)) + np.diag(noise), Y)
    assert posterior.deviations(x).shape == (queries, 2)
    np.testing.assert_allclose(posterior.mean(x), expected[:, 0] if targets == (1,) else expected, atol=2e-3)


@pytest.fixture(scope="module")
def learned():
    X = np.random.default_rng(1).uniform(-2, 2, (30, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    return X, y, PathGPRegressor(num_samples=16, random_state=0).fit(X, y).predict(X, return_std=True)


def test_a_noiseless_target_is_met_at_its_rows(learned):
    _, y, (mean, std) = learned
    np.testing.assert_allclose(mean, y, atol=0.03 * y.std())
    assert np.all((std > 0) & (std < 0.1 * y.std()))


@often(4)
@given(st.sampled_from(INPUTS[1:]), st.sampled_from(TARGETS[1:]))
def test_what_is_learned_does_not_depend_on_the_units(learned, input_unit, target_unit):
    (a, b), (c, d) = input_unit, target_unit
    X, y, (mean, std) = learned
    model = PathGPRegressor(num_samples=16, random_state=0).fit(a * X + b, c * y + d)
    found_mean, found_std = model.predict(a * X + b, return_std=True)
    np.testing.assert_allclose((found_mean - d) / c, mean, atol=0.01 * y.std())
    np.testing.assert_allclose(found_std / c, std, rtol=0.1)


def test_200_inputs_are_learned_from():
    """Two hundred rows tell which two of two hundred inputs matter; a regression on all of them would fit anything."""
    rng = np.random.default_rng(3)
    X, x = rng.normal(size=(200, 200)), rng.normal(size=(300, 200))
    signal = lambda A: A[:, 0] + np.sin(A[:, 1])
    model = PathGPRegressor(num_samples=1, random_state=0).fit(X, signal(X) + 0.1 * rng.normal(size=200))
    assert model.score(x, signal(x)) > 0.9
    scales = np.asarray(model.kernel_.lengthscale)
    assert set(np.argsort(scales)[:2]) == {0, 1}


@often(20)
@given(st.integers(2, 70_000), st.integers(1, 8), st.floats(-1e6, 1e6).filter(lambda v: v == 0 or abs(v) > 1e-6))
@example(1000, 3, 0.1)
@example(65_536, 1, 1e6 + 0.1)
def test_a_constant_column_keeps_its_unit_however_long_it_is(rows, columns, value):
    """The mean of equal numbers is another number, by rounding: the spread must not be the difference."""
    from pathgp.estimator.standardize import fit_scaling

    centre, scale = fit_scaling(np.full((rows, columns), value), np.ones(rows))
    np.testing.assert_array_equal(scale, 1)
    np.testing.assert_array_equal(centre, value)


FAR = np.array([[1e6, 1.0], [1e6 + 0.5, 2.0], [1e6 + 1, 0.0]])
NEAR = FAR - [1e6, 0]


@pytest.mark.skipif(jax.config.read("jax_enable_x64"), reason="float64 resolves it")
@pytest.mark.parametrize(("X", "y", "said"), [(FAR, [1.0, 2, 3], "X .*1e"), (NEAR, FAR[:, 0], "y ")])
def test_what_single_precision_does_not_resolve_is_said(X, y, said):
    with pytest.warns(UserWarning, match=f"{said}.*column 0.*float32 is 0.1"):
        checks.as_targets(np.asarray(y), len(checks.as_inputs(X)))


def test_what_single_precision_resolves_is_not_warned_of():
    """A warning is an error here."""
    for A in (
        1e-3 * FAR + 1e6 * np.eye(3, 2),
        FAR.astype(np.float32),
        np.full((3, 2), 1e6),
        NEAR,
        np.arange(6).reshape(3, 2),
    ):
        checks.as_targets(A[:, 0], len(checks.as_inputs(A)))
