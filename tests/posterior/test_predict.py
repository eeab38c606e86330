"""The functions of a posterior are built once, and share their arrays with the solve."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP, Local, condition, storage
from pathgp.kernels import Matern32
from pathgp.solvers import SAP, Cholesky

N, S = 200, 5
X = np.random.default_rng(0).normal(size=(N, 2))
Y = np.sin(X[:, 0])


def posterior_of(solver, local=None, y=Y):
    gp = GP(Matern32(0.7), noise=0.1, mean=0.5)
    options = {"num_samples": S, "num_features": 20, "key": jax.random.key(0)}
    return condition(gp, X, y, solver=solver, local=local, **options)


@pytest.fixture(scope="module", params=["Cholesky", "SAP with Local"])
def posterior(request):
    if request.param == "Cholesky":
        return posterior_of(Cholesky())
    return posterior_of(SAP(passes=1, block_size=32), Local(16))


def test_no_access_to_a_function_computes_anything(posterior):
    assert posterior.samples is posterior.samples
    assert posterior.mean is posterior.mean
    arrays, rest = eqx.partition(posterior, eqx.is_array)

    def access(arrays):
        p = eqx.combine(arrays, rest)
        return eqx.filter((p.mean, p.samples, p.prior, p.problem, p.predictor, p.info), eqx.is_array)

    assert jax.make_jaxpr(access)(arrays).eqns == []


def columns(tree):
    """The distinct arrays of the tree that have a column for each sample of each row."""
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf) and leaf.ndim == 2}
    return [leaf.shape for leaf in leaves.values() if leaf.shape[0] >= N and S <= leaf.shape[1] < N]


def test_prediction_shares_the_columns_of_the_solve(posterior, tmp_path):
    storage.save(tmp_path / "model", posterior)
    loaded = storage.load(tmp_path / "model")
    more = posterior.with_samples(2, key=jax.random.key(1))
    for p, s in ((posterior, S), (loaded, S), (more, S + 2)):
        solve = [p.targets.signal, p.targets.noise, p.solution.weights]
        solve += [] if p.solution.residual is None else [p.solution.residual]
        features = p.samples.features.num
        # The samples are f + k(·, X)(v − α): the only other columns.
        assert sorted(columns(p)) == sorted([(N, s + 1)] * len(solve) + [(features, s)])


def test_deviations_do_not_depend_on_the_targets():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(7, 2)), dtype=float)
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1]])
    several, one = (posterior_of(SAP(passes=1, block_size=32), Local(16), y) for y in (y, y[:, 0]))
    samples = several.mean(x)[:, 0, None] + several.deviations(x)
    np.testing.assert_allclose(samples, one.samples(x), atol=1e-4)
    with pytest.raises(ValueError, match="2 targets"):
        several.samples  # noqa: B018


def test_some_columns_are_the_means_and_the_negated_deviations(posterior):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(7, 2)), dtype=float)
    values = posterior.predictor.columns(np.array([0, 3]))(x)
    np.testing.assert_allclose(values[:, 0] + 0.5, posterior.mean(x), atol=1e-5)
    np.testing.assert_allclose(values[:, 1], posterior.mean(x) - posterior.sample(2)(x), atol=1e-4)
