import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

from pathgp import GP, condition
from pathgp.analysis import metrics, spectral
from pathgp.kernels import RBF, Matern32
from pathgp.solvers import Cholesky
from tests.support.padding import with_padding

N, NOISE, ELL, VARIANCE = 60, 0.05, 0.5, 1.25


def k(A, B):
    """The Matérn-3/2 kernel of one input in float64."""
    r = np.sqrt(3) * np.abs(np.asarray(A, np.float64) - np.asarray(B, np.float64).T) / np.float64(np.float32(ELL))
    return np.float64(np.float32(VARIANCE)) * (1 + r) * np.exp(-r)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 1)).astype(np.float32)
    return X, np.sin(3 * X[:, 0]) + np.sqrt(NOISE) * rng.normal(size=N)


@pytest.fixture(scope="module")
def posterior(data):
    gp = GP(Matern32(ELL, VARIANCE), NOISE)
    return condition(gp, *data, solver=Cholesky(), num_samples=0, num_features=2, key=jax.random.key(0))


@pytest.fixture(scope="module")
def basis(posterior):
    return spectral.spectral_basis(posterior.gp.kernel, posterior.system.X)


def test_the_functions_are_orthonormal_in_the_rkhs_and_diagonalise_the_data(data, basis):
    """⟨u_i, u_j⟩ = c_iᵀ K c_j; their values at the data have the Gram matrix Λ, whose trace is that of K."""
    K = k(data[0], data[0])
    assert basis.eigenvalues.shape == (N,)
    np.testing.assert_allclose(basis.coefficients.T @ K @ basis.coefficients, np.eye(N), atol=1e-8)
    values = basis.values(data[0])
    np.testing.assert_allclose(values.T @ values, np.diag(basis.eigenvalues), atol=1e-9)
    rounding = 4 * np.finfo(float).eps * basis.eigenvalues[0]  # what a stable algorithm leaves, of any eigenvalue
    np.testing.assert_allclose(basis.eigenvalues, linalg.svdvals(K), rtol=1e-8, atol=rounding)
    np.testing.assert_allclose(basis.eigenvectors @ np.diag(basis.eigenvalues) @ basis.eigenvectors.T, K, atol=1e-10)


def test_u_is_a_function(data, basis):
    x = np.linspace(-3, 3, 7)[:, None]
    expected = k(x.astype(np.float32), data[0]) @ basis.eigenvectors[:, 2] / np.sqrt(basis.eigenvalues[2])
    np.testing.assert_allclose(basis.values(x)[:, 2], expected, atol=1e-10)
    np.testing.assert_allclose(basis[2](x), expected, atol=1e-5)  # float32
    assert basis[:3](x).shape == (7, 3)
    with pytest.raises(ValueError, match=r"x .*2.*1"):
        basis.values(np.zeros((3, 2)))


def test_courant_fischer(data, basis):
    """No unit function that is orthogonal to the earlier ones is larger at the data, also outside of their span."""
    X, rng = data[0], np.random.default_rng(1)
    points = np.concatenate([X, np.linspace(-4, 4, 25, dtype=np.float32)[:, None]])
    K = k(points, points)
    earlier = np.concatenate([basis.coefficients, np.zeros((25, N))])
    for i in (0, 1, 5, 20):
        near = earlier[:, i, None] + 0.1 * earlier @ rng.normal(size=(N, 100)) / np.sqrt(N)
        competitors = np.concatenate([near, rng.normal(size=(len(points), 100))], axis=1)
        competitors -= earlier[:, :i] @ (earlier[:, :i].T @ K @ competitors)
        competitors /= np.sqrt(np.sum(competitors * (K @ competitors), axis=0))
        at_data = np.sum((K @ competitors)[:N] ** 2, axis=0)
        assert at_data.max() < basis.eigenvalues[i]
        assert at_data.max() > 0.5 * basis.eigenvalues[i]  # the competition was close
        np.testing.assert_allclose(np.sum(basis.values(X)[:, i] ** 2), basis.eigenvalues[i], rtol=1e-9)


def test_change_of_basis_projections_and_seminorm(data, basis):
    X, rng = data[0], np.random.default_rng(2)
    K, theta = k(X, X), rng.normal(size=(N, 3))
    w, values = basis.coordinates(theta), K @ theta
    x = rng.normal(size=(5, 1)).astype(np.float32)
    np.testing.assert_allclose(basis.values(x) @ w, k(x, X) @ theta, atol=1e-10)  # the same functions
    np.testing.assert_allclose(basis.weights(w), theta, atol=1e-8)
    np.testing.assert_allclose(basis.projections(values), w, atol=1e-7)
    np.testing.assert_allclose(basis.seminorm(theta) ** 2, np.einsum("is,is->s", theta, values), rtol=1e-10)
    # The norm of a projection is the distance to the best approximation of the rest: least squares in the RKHS.
    R = linalg.cholesky(K + 1e-13 * np.eye(N))
    rest = linalg.lstsq(R @ basis.coefficients[:, 4:], R @ theta)[0]
    left = R @ (theta - basis.coefficients[:, 4:] @ rest)
    np.testing.assert_allclose(basis.seminorm(theta, slice(0, 4)), np.linalg.norm(left, axis=0), rtol=1e-6)


def test_projections_of_a_function_beyond_the_representer_weights(data, basis):
    """k(·, z) with z away from the data: ⟨k(·, z), u_i⟩ = u_i(z)."""
    z = np.array([[2.75]], np.float32)
    np.testing.assert_allclose(basis.projections(k(data[0], z))[:, 0], basis.values(z)[0], atol=1e-9)


def test_errors_of_a_solve(data, posterior):
    """The RKHS norm of a difference of functions, from its coordinates in Cholesky's basis."""
    X, rng = posterior.system.X, np.random.default_rng(3)
    v, exact = (jnp.asarray(rng.normal(size=(N, 2))) for _ in range(2))
    difference = np.asarray(v, np.float64) - np.asarray(exact, np.float64)
    expected = np.linalg.norm(linalg.cholesky(k(X, X)) @ difference, axis=0)
    kernel = posterior.gp.kernel
    np.testing.assert_allclose(metrics.rkhs_error(kernel, X, v, exact), expected, rtol=1e-6)
    np.testing.assert_allclose(metrics.rkhs_error(kernel, X, v[:, 0], exact[:, 0]), expected[0], rtol=1e-6)
    np.testing.assert_allclose(metrics.weight_error(v, exact) ** 2, np.sum(difference**2, axis=0), rtol=1e-6)


def averaged_sgd(K, y, noise, rate, steps, gradient_noise, rng, runs):
    """α ← α − η(K((K + σ²I)α − y)/σ² + ζ) from zero with ζ ~ N(0, G²I), and the mean of the iterates."""
    alpha, total = np.zeros((len(y), runs)), np.zeros((len(y), runs))
    for _ in range(steps):
        gradient = K @ (K @ alpha + noise * alpha - y[:, None]) / noise
        alpha = alpha - rate * (gradient + gradient_noise * rng.normal(size=alpha.shape))
        total += alpha
    return total / steps


@pytest.mark.parametrize("steps", [30, 1000])
def test_descent_stays_within_the_bounds(data, basis, steps):
    X, y = data
    K, G, delta, runs = k(X, X), 3.0, 0.05, 40
    rate = 0.9 * spectral.largest_learning_rate(basis, NOISE)
    np.testing.assert_allclose(rate, 0.9 * NOISE / linalg.norm(K @ K + NOISE * K, 2), rtol=1e-9)
    bound = spectral.DescentBound(basis, NOISE, float(np.linalg.norm(y)), rate, G, steps, delta)
    alpha = averaged_sgd(K, y, NOISE, rate, steps, G, np.random.default_rng(4), runs)
    error = alpha - np.linalg.solve(K + NOISE * np.eye(N), y)[:, None]
    inside = np.abs(basis.eigenvectors.T @ error) <= bound.eigenvectors[:, None]
    assert inside.all(axis=0).mean() >= 1 - delta  # all directions at once, in a share 1 − δ of the runs
    projected = np.abs(basis.projections(K @ error))
    assert (projected <= bound.projections[:, None]).all(axis=0).mean() >= 1 - delta
    for index in (slice(0, 5), slice(5, 20), slice(None)):
        assert np.mean(basis.seminorm(error, index) <= bound.seminorm(index)) >= 1 - delta
    x = np.linspace(-4, 4, 50, dtype=np.float32)[:, None]
    assert (np.abs(k(x, X) @ error) <= bound.pointwise(x)[:, None]).all(axis=0).mean() >= 1 - delta


@pytest.fixture(scope="module")
def attained():
    """Five points and a kernel that is small beside the noise: there the bounds of the paper are nearly attained."""
    X = np.array([[-1.0], [-0.4], [0.1], [0.7], [1.2]], np.float32)
    basis = spectral.spectral_basis(Matern32(ELL, 0.02), X)
    return basis, k(X, X) * 0.02 / VARIANCE, spectral.largest_learning_rate(basis, 2.0)


def test_the_bias_of_the_bounds_is_attained(attained):
    """Without gradient noise and with y along an eigenvector, the error is the bound up to a factor (1 + λ/σ²)^-2."""
    basis, K, largest = attained
    rate, steps, i = 0.05 * largest, 2000, 3
    y = 7.0 * basis.eigenvectors[:, i]
    error = averaged_sgd(K, y, 2.0, rate, steps, 0.0, np.random.default_rng(0), 1)[:, 0]
    error = error - np.linalg.solve(K + 2.0 * np.eye(5), y)
    bound = spectral.DescentBound(basis, 2.0, 7.0, rate, 0.0, steps)
    assert 0.95 < np.abs(basis.eigenvectors[:, i] @ error) / bound.eigenvectors[i] < 1
    assert 0.95 < np.abs(basis.projections(K @ error)[i]) / bound.projections[i] < 1
    assert 0.95 < basis.seminorm(error, slice(i, i + 1)) / bound.seminorm(slice(i, i + 1)) < 1
    only = spectral.SpectralBasis(basis.kernel, basis.points, basis.eigenvalues[i:4], basis.coefficients[:, i:4])
    alone = spectral.DescentBound(only, 2.0, 7.0, rate * 0.99, 0.0, steps)
    x = np.array([[0.3], [1.5]], np.float32)
    ratio = np.abs(k(x, basis.points) * 0.02 / VARIANCE @ error) / alone.pointwise(x)
    np.testing.assert_array_less(ratio, 1)
    np.testing.assert_array_less(0.93, ratio)


@pytest.mark.parametrize("delta", [0.2, 0.6])
def test_the_noise_of_the_bounds_is_attained(attained, delta):
    """With y = 0, the error along an eigenvector is normal with a deviation of nearly G/λ√t: it is outside as often
    as |N(0, 1)| > √(2 log 1/δ), which is at most δ."""
    basis, K, largest = attained
    rate, steps, G, runs = 0.9 * largest, 400, 2.0, 4000
    alpha = averaged_sgd(K, np.zeros(5), 2.0, rate, steps, G, np.random.default_rng(1), runs)
    bound = spectral.DescentBound(basis, 2.0, 0.0, rate, G, steps, delta)
    outside = np.mean(basis.seminorm(alpha, slice(0, 1)) > bound.seminorm(slice(0, 1)))
    expected = 2 * stats.norm.sf(np.sqrt(2 * np.log(1 / delta)))
    assert outside < delta
    # 4000 runs, and a deviation that is a few per cent below its limit.
    np.testing.assert_allclose(outside, expected, atol=4 * np.sqrt(expected / runs) + 0.04)


BAD = {
    "rate": ({"learning_rate": 1.0}, "learning_rate"),
    "steps": ({"steps": 0}, "steps"),
    "noise": ({"gradient_noise": -1.0}, "gradient_noise"),
    "delta": ({"delta": 1.0}, "delta"),
}


@pytest.mark.parametrize("case", BAD)
def test_bounds_that_do_not_hold_are_refused(case, basis):
    changed, named = BAD[case]
    settings = {"learning_rate": 1e-7, "gradient_noise": 1.0, "steps": 10, "delta": 0.1} | changed
    with pytest.raises(ValueError, match=named):
        spectral.DescentBound(basis, NOISE, 1.0, **settings)


def test_the_three_regions_follow_each_other():
    """From dense data on [-1, 1] outwards: interpolation, then extrapolation, then the prior."""
    X, x = np.linspace(-1, 1, N)[:, None], np.linspace(0, 6, 121)[:, None]
    gp = GP(RBF(0.5), 0.5)
    posterior = condition(gp, X, X[:, 0], solver=Cholesky(), num_samples=0, num_features=2, key=jax.random.key(0))
    scores = spectral.regions(posterior, x)
    np.testing.assert_allclose(np.sum(scores, axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(scores.prior[x[:, 0] > 5], 1, atol=1e-9)
    assert scores.interpolation[x[:, 0] < 0.9].min() > 0.99
    assert scores.extrapolation.max() > 0.5
    assert 1 < x[np.argmax(scores.extrapolation), 0] < 2.5
    largest = np.argmax(np.array(scores), axis=0)
    assert np.all(np.diff(largest) >= 0)
    assert set(largest) == {0, 1, 2}


def test_regions_are_shares_of_variance(data, posterior):
    """Prior: the variance given f(X), by a solve. Without a least eigenvalue, all the rest is interpolation."""
    x = np.linspace(-4, 4, 41, dtype=np.float32)[:, None]
    K, k_x = k(data[0], data[0]), k(data[0], x)
    explained = np.sum(k_x * linalg.solve(K, k_x, assume_a="pos"), axis=0) / np.float64(np.float32(VARIANCE))
    everything = spectral.regions(posterior, x, smallest=0.0)
    np.testing.assert_allclose(everything.prior, 1 - explained, atol=1e-8)
    np.testing.assert_allclose(everything.interpolation, explained, atol=1e-8)
    # P = f(K) with the projector f = [λ ≥ σ²]/λ, from the sign function of K − σ²I, which needs no eigenvectors.
    projector = (np.eye(N) + linalg.signm(K - NOISE * np.eye(N))) / 2
    expected = np.sum(k_x * (projector @ linalg.solve(K, k_x)), axis=0) / np.float64(np.float32(VARIANCE))
    np.testing.assert_allclose(spectral.regions(posterior, x).interpolation, expected, atol=1e-6)


def test_rows_of_great_noise_do_not_interpolate(data):
    """They weigh nothing in the values at the data, as if they were absent; but k(x, ·) is still in their span."""
    X, y = data
    noise = np.where(X[:, 0] > 0.5, 1e6, NOISE)
    settings = {"solver": Cholesky(), "num_samples": 0, "num_features": 2, "key": jax.random.key(0)}
    mixed = condition(GP(Matern32(ELL, VARIANCE), noise), X, y, **settings)
    less = condition(GP(Matern32(ELL, VARIANCE), NOISE), X[X[:, 0] <= 0.5], y[X[:, 0] <= 0.5], **settings)
    x = np.linspace(-3, 3, 31)[:, None]
    ours, expected = spectral.regions(mixed, x), spectral.regions(less, x)
    np.testing.assert_allclose(ours.interpolation, expected.interpolation, atol=1e-3)
    assert ours.prior[25] < 0.2 * expected.prior[25]


def test_a_subspace_of_all_rows_is_exact(data, posterior, basis):
    x = np.linspace(-4, 4, 41)[:, None]
    whole = spectral.nystrom_basis(posterior.system, posterior.system.X)
    np.testing.assert_allclose(whole.eigenvalues, basis.eigenvalues, rtol=1e-7)
    for ours, exact in zip(spectral.regions(posterior, x, basis=whole), spectral.regions(posterior, x), strict=True):
        np.testing.assert_allclose(ours, exact, atol=1e-7)


def subspace_errors(rows, sizes, queries=200):
    """Root mean square errors of the scores, three inputs, for Nyström subspaces of several sizes."""
    rng = np.random.default_rng(5)
    X, x = rng.normal(size=(rows, 3)), 1.5 * rng.normal(size=(queries, 3))
    gp = GP(Matern32(1.5), 0.1)
    settings = {"num_samples": 0, "num_features": 2, "key": jax.random.key(0)}
    posterior = condition(gp, X, rng.normal(size=rows), solver=Cholesky(), **settings)
    exact = spectral.regions(posterior, x, basis=spectral.spectral_basis(gp.kernel, X))
    errors = []
    for size in sizes:
        basis = spectral.basis_of(posterior, size)
        assert isinstance(basis, spectral.NystromBasis)
        scores = spectral.regions(posterior, x, basis=basis)
        assert np.all(scores.prior > exact.prior - 1e-6)  # a subspace explains less
        errors.append(np.sqrt(np.mean((np.array(scores) - np.array(exact)) ** 2, axis=1)))
    return np.array(errors)


@pytest.mark.slow
def test_the_estimate_approaches_the_exact_regions():
    errors = subspace_errors(600, (60, 250))
    assert errors[1].max() < 0.25 * errors[0].max()
    assert errors[1].max() < 0.03


@pytest.mark.slow
def test_the_estimate_approaches_the_exact_regions_of_two_thousand_rows():
    errors = subspace_errors(2000, (125, 500, 1000))
    assert np.all(np.diff(errors[:, [0, 2]], axis=0) < 0)
    assert errors[-1].max() < 0.01


def test_the_pictures_show_the_scores_and_the_functions(posterior, basis):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from pathgp.plots import regions_panel, spectral_panel

    x = np.linspace(-4, 4, 41)[:, None]
    figure, (top, bottom) = plt.subplots(2)
    regions_panel(top, posterior, jnp.asarray(x), basis)
    scores = spectral.regions(posterior, x)
    for band, lower, share in zip(top.collections, np.cumsum([np.zeros(41), *scores[:2]], axis=0), scores, strict=True):
        vertices = band.get_paths()[0].vertices
        heights = [np.ptp(vertices[np.isclose(vertices[:, 0], at, atol=1e-6), 1]) for at in x[:, 0]]
        np.testing.assert_allclose(heights[1:-1], share[1:-1], atol=1e-6)
        np.testing.assert_allclose(vertices[:, 1].min(), lower.min(), atol=1e-6)
    error = jnp.abs(jnp.asarray(x[:, 0]))
    spectral_panel(bottom, basis, jnp.asarray(x), index=(0, 3, 1000), error=error)
    assert len(bottom.lines) == 2  # there is no u of index 1000
    np.testing.assert_allclose(bottom.lines[1].get_ydata(), basis.values(x)[:, 3])
    assert bottom.lines[1].get_label().startswith("$u^{(4)}$")
    behind = figure.axes[2].collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(behind.max(), 4, rtol=1e-6)
    plt.close(figure)


@pytest.mark.parametrize("num_points", [2000, 30])
@pytest.mark.parametrize("uneven", [False, True])
def test_rows_of_padding_are_no_data(data, posterior, num_points, uneven):
    if uneven:
        posterior = posterior.with_noise_of_rows()
    padded, x = with_padding(posterior, 3), np.linspace(-3, 3, 7)[:, None]
    whole, found = (spectral.basis_of(p, num_points) for p in (posterior, padded))
    np.testing.assert_array_equal(found.points, whole.points)
    np.testing.assert_allclose(found.eigenvalues, whole.eigenvalues, rtol=1e-10)
    for ours, expected in zip(spectral.regions(padded, x), spectral.regions(posterior, x), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-10)
    points = data[0][:30]
    bases = [spectral.nystrom_basis(p.system, points).eigenvalues for p in (padded, posterior)]
    np.testing.assert_allclose(*bases, rtol=1e-10)
