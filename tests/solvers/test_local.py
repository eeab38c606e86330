"""The local projection against NumPy, and the posterior that it finishes against the exact one.

Predictions are linear in the targets, F(x) = A(x) b. With the unit vectors for targets the whole of A is known, and so
is the covariance of the samples, without any drawing: Cov = k(x,x) − A k(X,x) − k(x,X) Aᵀ + A (K + Σ) Aᵀ.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, Local, condition
from pathgp.functions import Canonical, Function
from pathgp.kernels import RBF, Matern32, Tanimoto
from pathgp.posterior import posterior as gp
from pathgp.solvers import SAP, Auto, Cholesky, SubsetOfData
from pathgp.solvers.local import ComputedResidual, StoredResidual
from pathgp.system.system import System, Targets
from tests.support.problems import matern32, problem

ONE_PASS = SAP(passes=1, block_size=128, averaging_exponent=None)


def hat_matrix(system, x, solver, local):
    """A, a row for each query."""
    unit = Targets(jnp.eye(system.size), jnp.zeros((system.size, system.size)))
    solution = solver.solve(system, unit, key=jax.random.key(3))
    A = Canonical(system.kernel, system.X)(x) @ solution.weights
    if local is not None:
        A = A + Function(local.projection(system), solution.residual)(x)
    return np.asarray(A, dtype=np.float64)


def errors(system, x, A):
    """The RMS and the worst error of the correlations of samples, against the exact posterior."""
    K, k_x, K_x = matern32(system.X, system.X), matern32(x, system.X), matern32(x, x)
    H = K + float(system.noise) * np.eye(system.size)
    truth = K_x - k_x @ np.linalg.solve(H, k_x.T)
    got = K_x - A @ k_x.T - k_x @ A.T + A @ H @ A.T
    scale = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    return np.sqrt(np.mean(((got - truth) / scale) ** 2)), np.abs((got - truth) / scale).max()


@pytest.fixture(scope="module")
def setting():
    system, _ = problem(N=1000, noise=0.05, lengthscale=1.0)
    x = np.random.default_rng(5).uniform(-2, 2, size=(40, 3))
    x = np.concatenate([x, x[:10] + 0.05])  # near pairs and far pairs
    return system, jnp.asarray(x, dtype=float)


def test_coefficients_are_those_of_kriging_from_the_nearest_rows(setting):
    system, x = setting
    a, c = Local(neighbours=30, taper=0).projection(system).coefficients(x)
    for i in range(0, len(x), 7):
        distance = np.linalg.norm(np.asarray(system.X) - np.asarray(x[i]), axis=1)
        near = np.argsort(distance)[:30]
        assert set(near) == set(np.asarray(c[i]).tolist())
        X_c = system.X[c[i]]
        expected = np.linalg.solve(matern32(X_c, X_c) + 0.05 * np.eye(30), matern32(X_c, x[i : i + 1])[:, 0])
        np.testing.assert_allclose(a[i], expected, atol=2e-4)


def test_fading_is_kriging_with_the_noise_of_the_last_neighbours_raised(setting):
    system, x = setting
    a, c = Local(neighbours=30, taper=0.5).projection(system).coefficients(x[:3])
    for i in range(3):
        X_c = np.asarray(system.X[c[i]], dtype=np.float64)
        r2 = np.sum((X_c - np.asarray(x[i])) ** 2, axis=1)
        t = np.clip((r2[-1] - r2) / (r2[-1] - r2[14] + 1e-3 * r2[-1]), 0, 1)
        u = 3 * t**2 - 2 * t**3
        kept = u > 0
        raised = 0.05 + 1 / u[kept] ** 2 - 1
        expected = np.linalg.solve(matern32(X_c[kept], X_c[kept]) + np.diag(raised), matern32(X_c[kept], x[i : i + 1]))
        np.testing.assert_allclose(a[i][kept], expected[:, 0], atol=2e-4)
        assert np.all(np.asarray(a[i])[~kept] == 0)
        assert not kept[-1]
        assert kept[14]


def test_one_pass_and_local_is_far_nearer_to_the_exact_joint_posterior_than_either(setting):
    system, x = setting
    local = Local(neighbours=100)
    alone = errors(system, x, hat_matrix(system, x, ONE_PASS, None))
    both = errors(system, x, hat_matrix(system, x, ONE_PASS, local))
    without_solve = errors(system, x, np.asarray(local.projection(system)(x), dtype=np.float64))
    assert both[0] < 0.02
    assert both[1] < 0.15
    assert both[0] < alone[0] / 5
    assert both[0] < without_solve[0] / 2


def test_a_converged_solve_leaves_nothing_to_finish(setting):
    system, x = setting
    exact = hat_matrix(system, x, Cholesky(), None)
    np.testing.assert_allclose(hat_matrix(system, x, Cholesky(), Local(64)), exact, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 7])
def test_fewer_rows_than_neighbours_is_the_exact_posterior(rows):
    rng = np.random.default_rng(3)
    X, y, x = rng.normal(size=(rows, 2)), rng.normal(size=rows), jnp.asarray(rng.normal(size=(5, 2)), dtype=float)
    process = GP(Matern32(1.0), noise=0.1)
    key = jax.random.key(0)
    none = condition(
        process, X, y, solver=SAP(passes=1, block_size=1, averaging_exponent=None), local=Local(128), key=key
    )
    exact = condition(process, X, y, solver=Cholesky(), key=key)
    np.testing.assert_allclose(none.samples(x), exact.samples(x), atol=1e-4)


def test_a_kernel_without_coordinates_is_refused_before_the_work():
    X = np.eye(6)
    with pytest.raises(TypeError, match="Tanimoto"):
        condition(GP(Tanimoto(), 0.1), X, X[:, 0], local=Local(), key=jax.random.key(0))


@pytest.mark.parametrize(("arguments", "named"), [((0,), "neighbours"), ((5, 1.0), "taper")])
def test_settings_that_make_no_sense_are_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        Local(*arguments)


def test_a_residual_on_demand_is_the_residual_at_once(monkeypatch):
    rng = np.random.default_rng(6)
    X = rng.uniform(-2, 2, size=(500, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=500)
    x = jnp.asarray(rng.uniform(-2, 2, size=(30, 2)), dtype=float)

    def samples():
        return condition(
            GP(Matern32(0.7), noise=np.linspace(0.02, 0.1, 500)),
            X,
            y,
            solver=SubsetOfData(rows=60),
            local=Local(40),
            num_samples=3,
            key=jax.random.key(0),
        )

    at_once = samples()
    monkeypatch.setattr(gp, "ENTRIES_AT_ONCE", 0)
    on_demand = samples()
    assert isinstance(at_once.local_residual, StoredResidual)
    assert isinstance(on_demand.local_residual, ComputedResidual)
    np.testing.assert_array_equal(on_demand.local_residual.points, on_demand.solution.points)
    np.testing.assert_allclose(on_demand.samples(x), at_once.samples(x), atol=1e-3)
    more = on_demand.with_samples(2, key=jax.random.key(1))
    np.testing.assert_allclose(more.samples(x)[:, :3], on_demand.samples(x), atol=1e-3)
    assert isinstance(more.local_residual, ComputedResidual)
    for one, other in zip(on_demand.predict(x), at_once.predict(x), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
    finish = on_demand.local_residual.function(on_demand.predictor.correction.projection)
    np.testing.assert_allclose(finish.features(x) @ finish.weights, finish(x), atol=1e-3)


def test_the_residual_of_a_subset_vanishes_on_the_subset():
    system, targets = problem(N=300)
    solution = SubsetOfData(rows=80).solve(system, targets, key=jax.random.key(0))
    residual = gp._residual(system, targets, solution).values
    assert float(jnp.max(jnp.abs(residual[solution.rows]))) < 1e-3
    assert float(jnp.max(jnp.abs(residual))) > 0.1


def test_auto_counts_on_it_above_the_exact_sizes():
    auto = Auto(exact_rows=300, exact_rows_float64=300)
    rng = np.random.default_rng(7)
    X = rng.uniform(-2, 2, size=(600, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=600)
    x = jnp.asarray(rng.uniform(-2, 2, size=(30, 2)), dtype=float)
    process, key = GP(Matern32(0.7), noise=0.04), jax.random.key(0)
    posterior = condition(process, X, y, num_samples=4, key=key, solver=auto)
    assert posterior.info.solver == "SAP"
    assert posterior.local is not None
    exact = condition(process, X, y, num_samples=4, key=key, solver=Cholesky())
    assert float(jnp.max(jnp.abs(posterior.samples(x) - exact.samples(x)))) < 0.03
    without = condition(process, X, y, num_samples=1, key=key, solver=dataclasses.replace(auto, local=None))
    assert without.predictor.correction is None
    auto = dataclasses.replace(auto, projected_rows=500, subset_rows=200)
    largest = condition(process, X, y, num_samples=4, key=key, solver=auto)
    assert largest.solution.points.shape == (200, 2)
    assert "200" in largest.info.reason
    assert float(jnp.max(jnp.abs(largest.mean(x) - exact.mean(x)))) < 0.1


def test_kernels_of_several_scales_find_neighbours_by_the_shortest():
    kernel = RBF(5.0) + Matern32(0.1) * RBF(3.0)
    near, far = kernel.coordinates(jnp.array([[0.0], [0.2]]))
    assert 2.0 < float(jnp.linalg.norm(near - far)) < 2.01


def test_a_system_with_one_noise_for_each_row(setting):
    system, x = setting
    uneven = System(system.kernel, system.X, jnp.linspace(0.01, 1.0, 1000))
    a, c = Local(neighbours=20, taper=0).projection(uneven).coefficients(x[:1])
    X_c, noise = system.X[c[0]], np.linspace(0.01, 1.0, 1000)[np.asarray(c[0])]
    expected = np.linalg.solve(matern32(X_c, X_c) + np.diag(noise), matern32(X_c, x[:1])[:, 0])
    np.testing.assert_allclose(a[0], expected, atol=2e-4)


def test_an_update_across_the_exact_sizes_is_finished_too():
    auto = Auto(exact_rows=300, exact_rows_float64=300)
    rng = np.random.default_rng(7)
    X = rng.uniform(-2, 2, size=(500, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=500)
    x = jnp.asarray(rng.uniform(-2, 2, size=(30, 2)), dtype=float)
    process, key = GP(Matern32(0.7), noise=0.04), jax.random.key(0)
    before = condition(process, X[:300], y[:300], num_samples=2, key=key, solver=auto)
    updated = before.update(X[300:], y[300:], key=key)
    assert updated.local is not None
    left = float(jnp.max(updated.info.relative_residual))
    assert (updated.local_residual is not None) == (left > gp.NOTHING_LEFT)
    assert left > gp.NOTHING_LEFT or jnp.finfo(float).bits == 64
    exact = condition(process, X, y, num_samples=2, key=key, solver=Cholesky())
    assert float(jnp.max(jnp.abs(updated.mean(x) - exact.mean(x)))) < 0.03


def test_new_samples_on_a_subset_belong_to_the_same_rows():
    rng = np.random.default_rng(6)
    X = rng.uniform(-2, 2, size=(400, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=400)
    x = jnp.asarray(rng.uniform(-2, 2, size=(50, 2)), dtype=float)
    process, key = GP(Matern32(0.7), noise=0.04), jax.random.key(0)
    some = condition(process, X, y, solver=SubsetOfData(rows=80), local=Local(), num_samples=1, key=key)
    more = some.with_samples(400, key=jax.random.key(5))
    exact = condition(process, X, y, solver=Cholesky(), num_samples=1, key=key)
    exact_more = exact.with_samples(400, key=jax.random.key(5))
    np.testing.assert_allclose(more.deviations(x)[:, 1:], exact_more.deviations(x)[:, 1:], atol=0.15)


def test_a_single_neighbour_is_kriging_from_it(setting):
    system, x = setting
    a, c = Local(neighbours=1).projection(system).coefficients(x[:5])
    expected = [matern32(system.X[c[i]], x[i : i + 1])[0, 0] / 1.05 for i in range(5)]
    np.testing.assert_allclose(a[:, 0], expected, rtol=1e-4)
