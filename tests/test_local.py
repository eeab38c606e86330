"""The local projection against NumPy, and the posterior that it finishes against the exact one.

Predictions are linear in the targets, F(x) = A(x) b. With the unit vectors for targets the whole of A is known, and so
is the covariance of the samples, without any drawing: Cov = k(x,x) − A k(X,x) − k(x,X) Aᵀ + A (K + Σ) Aᵀ.
"""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import problem

from pathgp import GP, Local, condition, gp, neighbours
from pathgp.functions import Canonical, Function
from pathgp.kernels import RBF, Matern32, Tanimoto
from pathgp.solvers import SAP, Auto, Cholesky, InducingCholesky, SubsetOfData
from pathgp.solvers import auto as auto_module
from pathgp.system import System, Targets

ONE_PASS = SAP(passes=1, block_size=128, averaging=None)


def matern32(A, B, lengthscale=1.0):
    A, B = (np.asarray(x, dtype=np.float64) / lengthscale for x in (A, B))
    r = np.sqrt(3 * np.sum((A[:, None] - B[None]) ** 2, axis=-1))
    return (1 + r) * np.exp(-r)


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


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(900, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=900)
    return condition(
        GP(Matern32(0.7), noise=0.04, mean=0.5),
        X,
        y,
        solver=ONE_PASS,
        local=Local(neighbours=50),
        num_samples=8,
        key=jax.random.key(0),
    )


def test_far_from_the_data_a_sample_is_its_prior_draw(posterior):
    x = jnp.array([[60.0, 10.0], [-80.0, 5.0]])
    np.testing.assert_allclose(posterior.samples(x), posterior.prior(x) + 0.5, atol=1e-5)


def test_predictions_do_not_depend_on_which_others_are_asked_for(posterior):
    x = jax.random.uniform(jax.random.key(4), (300, 2), minval=-2, maxval=2)
    together = posterior.samples(x)
    np.testing.assert_allclose(posterior.samples(x[37:41]), together[37:41], atol=2e-4)
    np.testing.assert_allclose(
        jnp.concatenate([posterior.samples(x[i : i + 70]) for i in range(0, 300, 70)]), together, atol=2e-4
    )


def test_mean_variance_and_both_at_once_agree(posterior):
    x = jax.random.uniform(jax.random.key(4), (20, 2), minval=-2, maxval=2)
    mean, variance = posterior.predict(x)
    np.testing.assert_allclose(mean, posterior.mean(x), atol=2e-4)
    np.testing.assert_allclose(variance, posterior.variance(x), atol=2e-4)
    np.testing.assert_allclose(posterior.samples(x) - mean[:, None], posterior.deviations(x), atol=5e-4)


def exact_variance(p, x):
    """k(x, x) − k(x, X)(K + Σ)⁻¹k(X, x) of a process with Matérn 3/2 and length scale 0.7."""
    k_x = matern32(x, p.system.X, 0.7)
    H = matern32(p.system.X, p.system.X, 0.7) + 0.04 * np.eye(p.system.size)
    return 1 - np.sum(k_x * np.linalg.solve(H, k_x.T).T, axis=1)


def test_variances_are_more_precise_than_samples_alone(posterior):
    x = jax.random.uniform(jax.random.key(4), (200, 2), minval=-2, maxval=2)
    truth = exact_variance(posterior, x)
    error = lambda v: np.sqrt(np.mean(np.log(np.asarray(v) / truth) ** 2))
    sampled = np.mean(np.asarray(posterior.deviations(x)) ** 2, axis=1)
    assert error(posterior.variance(x)) < 0.15
    assert error(posterior.variance(x)) < error(sampled) / 3  # eight samples: about 0.5


def test_the_variance_is_exact_where_all_rows_are_neighbours(posterior):
    X, y = posterior.system.X[:120], posterior.targets.signal[:120, 0]
    few = condition(GP(Matern32(0.7), noise=0.04), X, y, num_samples=2, key=jax.random.key(1))
    x = jnp.concatenate([X[:5], jnp.array([[0.1, 0.2], [60.0, 10.0]])])
    np.testing.assert_allclose(few.variance(x), exact_variance(few, x), rtol=1e-3)
    assert few.unfinished is None  # an exact solve leaves nothing, so samples do not pay for a projection


def test_a_variance_lost_in_rounding_is_left_to_the_samples():
    X = jnp.linspace(0, 1, 60)[:, None]
    tiny = condition(GP(RBF(0.5), noise=1e-9), X, jnp.sin(X[:, 0]), num_samples=8, key=jax.random.key(0))
    deviations = np.asarray(tiny.deviations(X))
    np.testing.assert_allclose(tiny.variance(X), np.mean(deviations**2, axis=1), rtol=0.1, atol=1e-9)


def largest_jump(function, steps):
    x = jnp.column_stack([jnp.linspace(-1, 1, steps), jnp.full(steps, 0.3)])
    return float(jnp.max(jnp.abs(jnp.diff(function(x)))))


def test_samples_are_continuous_where_neighbours_change(x64):
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.5, 1.5, size=(400, 2))
    y = np.sin(5 * X[:, 0]) + 0.3 * rng.normal(size=400)
    make = lambda taper: condition(
        GP(Matern32(0.5), noise=0.09),
        X,
        y,
        solver=SAP(passes=1, block_size=50, averaging=None),
        local=Local(12, taper),
        num_samples=1,
        key=jax.random.key(0),
    ).sample(0)
    faded, cut = make(0.5), make(0.0)
    jumps = [largest_jump(faded, n) for n in (4001, 8001, 16001)]
    assert 0.4 < jumps[1] / jumps[0] < 0.6
    assert 0.4 < jumps[2] / jumps[1] < 0.6
    assert largest_jump(cut, 16001) > 10 * jumps[2]  # what the fading is for


def test_the_gradient_agrees_with_finite_differences(x64):
    rng = np.random.default_rng(2)
    X = rng.uniform(-1.5, 1.5, size=(200, 2))
    y = np.sin(5 * X[:, 0]) + 0.3 * rng.normal(size=200)
    f = condition(
        GP(Matern32(0.5), noise=0.09),
        X,
        y,
        solver=SAP(passes=1, block_size=50, averaging=None),
        local=Local(20),
        num_samples=2,
        key=jax.random.key(0),
    ).sample(1)
    value = lambda x: f(x[None])[0]
    for x in rng.uniform(-1, 1, size=(5, 2)):
        steps = 1e-6 * np.eye(2)
        finite = [(value(x + h) - value(x - h)) / 2e-6 for h in steps]
        np.testing.assert_allclose(jax.grad(value)(jnp.asarray(x)), finite, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7])
def test_fewer_rows_than_neighbours_is_the_exact_posterior(rows):
    rng = np.random.default_rng(3)
    X, y, x = rng.normal(size=(rows, 2)), rng.normal(size=rows), jnp.asarray(rng.normal(size=(5, 2)), dtype=float)
    process = GP(Matern32(1.0), noise=0.1)
    key = jax.random.key(0)
    none = condition(process, X, y, solver=SAP(passes=1, block_size=1, averaging=None), local=Local(128), key=key)
    exact = condition(process, X, y, solver=Cholesky(), key=key)
    np.testing.assert_allclose(none.samples(x), exact.samples(x), atol=1e-4)


@pytest.mark.parametrize(("kernel", "noise"), [(RBF(2.0), 1e-6), (Matern32(1.0), 1e-6)])
def test_rows_that_all_but_repeat_others_and_hardly_any_noise_are_no_trouble(kernel, noise):
    rng = np.random.default_rng(4)
    X = np.repeat(rng.normal(size=(20, 2)), 50, axis=0) + 1e-6 * rng.normal(size=(1000, 2))
    y = np.sin(X[:, 0])
    posterior = condition(
        GP(kernel, noise), X, y, solver=ONE_PASS, local=Local(64), num_samples=4, key=jax.random.key(0)
    )
    x = jnp.asarray(np.concatenate([X[::50], rng.normal(size=(10, 2))]), dtype=float)
    np.testing.assert_allclose(posterior.samples(x[:20]), np.broadcast_to(np.sin(x[:20, :1]), (20, 4)), atol=0.01)
    assert bool(jnp.all(jnp.isfinite(posterior.samples(x))))
    gradient = jax.grad(lambda q: jnp.sum(posterior.samples(q)))(x)
    assert bool(jnp.all(jnp.isfinite(gradient)))


def test_a_kernel_without_coordinates_is_refused_before_the_work():
    X = np.eye(6)
    with pytest.raises(TypeError, match="Tanimoto has no coordinates"):
        condition(GP(Tanimoto(), 0.1), X, X[:, 0], local=Local(), key=jax.random.key(0))


@pytest.mark.parametrize(
    ("arguments", "sentence"), [((0,), "neighbours must be at least 1"), ((5, 1.0), "taper must be")]
)
def test_settings_that_make_no_sense_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Local(*arguments)


def test_it_is_pickled_whole(posterior):
    x = jnp.array([[0.1, 0.2], [1.0, -1.0]])
    again = pickle.loads(pickle.dumps(posterior.samples))
    assert np.array_equal(again(x), posterior.samples(x))


def test_more_samples_and_more_data_are_finished_too(posterior):
    x = jnp.array([[0.1, 0.2], [1.0, -1.0]])
    more = posterior.with_samples(3, key=jax.random.key(8))
    np.testing.assert_allclose(more.samples(x)[:, :8], posterior.samples(x), atol=1e-4)
    assert more.samples(x).shape == (2, 11)
    X_new = np.array([[0.1, 0.2]] * 30)
    updated = posterior.update(X_new, np.full(30, 3.0), key=jax.random.key(9))
    assert updated.mean(x)[0] > posterior.mean(x)[0] + 1
    assert updated.finish is not None
    assert updated.finish.weights.shape[0] == 901  # the 30 new rows are one place


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
    assert on_demand.finish is not None
    assert on_demand.finish.weights.shape[0] == 560
    np.testing.assert_allclose(on_demand.samples(x), at_once.samples(x), atol=1e-3)
    more = on_demand.with_samples(2, key=jax.random.key(1))
    np.testing.assert_allclose(more.samples(x)[:, :3], on_demand.samples(x), atol=1e-3)
    features = on_demand.finish.features
    np.testing.assert_allclose(features(x) @ on_demand.finish.weights, on_demand.finish(x), atol=1e-3)


def test_the_residual_of_a_subset_vanishes_on_the_subset():
    system, targets = problem(N=300)
    solution = SubsetOfData(rows=80).solve(system, targets, key=jax.random.key(0))
    residual = gp._unfinished(system, targets, solution)
    assert float(jnp.max(jnp.abs(residual[solution.rows]))) < 1e-3
    assert float(jnp.max(jnp.abs(residual))) > 0.1


def test_auto_counts_on_it_above_the_exact_sizes(monkeypatch):
    monkeypatch.setattr(auto_module, "EXACT_ROWS", 300)
    rng = np.random.default_rng(7)
    X = rng.uniform(-2, 2, size=(600, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=600)
    x = jnp.asarray(rng.uniform(-2, 2, size=(30, 2)), dtype=float)
    process, key = GP(Matern32(0.7), noise=0.04), jax.random.key(0)
    posterior = condition(process, X, y, num_samples=4, key=key)
    assert posterior.info.solver == "SAP"
    assert "a local projection finishes" in posterior.info.reason
    exact = condition(process, X, y, num_samples=4, key=key, solver=Cholesky())
    assert float(jnp.max(jnp.abs(posterior.samples(x) - exact.samples(x)))) < 0.03
    assert condition(process, X, y, num_samples=1, key=key, solver=Auto(local=None)).finish is None
    monkeypatch.setattr(auto_module, "PROJECTED_ROWS", 500)
    monkeypatch.setattr(auto_module, "SUBSET_ROWS", 200)
    largest = condition(process, X, y, num_samples=4, key=key)
    assert largest.solution.points.shape == (200, 2)
    assert "200 of them give what is global" in largest.info.reason
    assert float(jnp.max(jnp.abs(largest.mean(x) - exact.mean(x)))) < 0.1


def test_a_tree_of_neighbours_gives_the_same_functions(monkeypatch, posterior):
    monkeypatch.setattr(neighbours, "EXHAUSTIVE_ROWS", 100)
    monkeypatch.setattr(neighbours, "LEAF", 32)
    monkeypatch.setattr(neighbours, "MOST", 2.0)
    projection = Local(50).projection(posterior.system)
    assert isinstance(projection.index, neighbours.Tree)
    x = jax.random.uniform(jax.random.key(4), (30, 2), minval=-2, maxval=2)
    finish = eqx.tree_at(lambda f: f.features, posterior.finish, projection)
    np.testing.assert_allclose(finish(x), posterior.finish(x), atol=1e-4)


def test_kernels_of_several_scales_find_neighbours_by_the_shortest():
    kernel = RBF(5.0) + Matern32(0.1) * RBF(3.0)
    near, far = kernel.coordinates(jnp.array([[0.0], [0.2]]))
    assert 2.0 < float(jnp.linalg.norm(near - far)) < 2.01


def test_it_works_through_jit_and_vmap(posterior):
    x = jax.random.uniform(jax.random.key(4), (6, 2), minval=-2, maxval=2)
    one = jax.jit(jax.vmap(lambda q: posterior.samples(q[None])[0]))(x)
    np.testing.assert_allclose(one, posterior.samples(x), atol=2e-4)


def test_a_system_with_one_noise_for_each_row(setting):
    system, x = setting
    uneven = System(system.kernel, system.X, jnp.linspace(0.01, 1.0, 1000))
    a, c = Local(neighbours=20, taper=0).projection(uneven).coefficients(x[:1])
    X_c, noise = system.X[c[0]], np.linspace(0.01, 1.0, 1000)[np.asarray(c[0])]
    expected = np.linalg.solve(matern32(X_c, X_c) + np.diag(noise), matern32(X_c, x[:1])[:, 0])
    np.testing.assert_allclose(a[0], expected, atol=2e-4)


def test_an_update_across_the_exact_sizes_is_finished_too(monkeypatch):
    monkeypatch.setattr(auto_module, "EXACT_ROWS", 300)
    rng = np.random.default_rng(7)
    X = rng.uniform(-2, 2, size=(500, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=500)
    x = jnp.asarray(rng.uniform(-2, 2, size=(30, 2)), dtype=float)
    process, key = GP(Matern32(0.7), noise=0.04), jax.random.key(0)
    updated = condition(process, X[:300], y[:300], num_samples=2, key=key).update(X[300:], y[300:], key=key)
    assert updated.local is not None
    assert updated.finish is not None
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


def test_a_solver_that_settles_by_it_gets_it(posterior):
    solver = SAP(passes=1, block_size=128, averaging=None, local=Local(30))
    made = condition(
        posterior.gp,
        posterior.system.X,
        posterior.targets.signal[:, 0],
        solver=solver,
        num_samples=1,
        key=jax.random.key(0),
    )
    assert made.local == Local(30)
    assert made.finish is not None
    assert Auto().counting_on(Local(30)).local == Local(30)


def test_inducing_points_refuse_it(posterior):
    X = posterior.system.X
    with pytest.raises(ValueError, match="local cannot finish what InducingCholesky leaves"):
        condition(posterior.gp, X, X[:, 0], solver=InducingCholesky(X[:20]), local=Local(), key=jax.random.key(0))


def test_a_single_neighbour_is_kriging_from_it(setting):
    system, x = setting
    a, c = Local(neighbours=1).projection(system).coefficients(x[:5])
    expected = [matern32(system.X[c[i]], x[i : i + 1])[0, 0] / 1.05 for i in range(5)]
    np.testing.assert_allclose(a[:, 0], expected, rtol=1e-4)
