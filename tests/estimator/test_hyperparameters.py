"""What the estimator begins with and learns, by NumPy from rows that are repeated as often as their weights say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp import GP
from pathgp.estimator.hyperparameters import fit_gp, initial_gp, row_noise, with_limits
from pathgp.kernels import RBF, Matern32
from pathgp.likelihood import FittingMethod, Trace
from pathgp.solvers import CG, SAP, Cholesky, InducingCholesky, SubsetOfData

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(3, 2, 40), RNG.uniform(0, 50, 40), np.full(40, 7.0)])
Y = np.column_stack([10 + 3 * RNG.normal(size=40), RNG.normal(size=40) - 1])
WEIGHTS = RNG.integers(1, 5, 40).astype(float)
REPEATED = np.repeat(np.arange(40), WEIGHTS.astype(int))


def test_what_is_left_open_starts_from_the_spread_of_the_repeated_rows():
    gp = initial_gp("matern32", None, True, X, Y, WEIGHTS)
    assert type(gp.kernel) is Matern32
    std, var = X[REPEATED].std(axis=0), Y[REPEATED].var(axis=0)
    np.testing.assert_allclose(gp.kernel.lengthscale, [std[0], std[1], 1.0], rtol=1e-5)  # the third input is constant
    assert float(gp.kernel.variance) == pytest.approx((var[0] + var[1]) / 2, rel=1e-5)
    assert float(gp.noise) == pytest.approx((var[0] + var[1]) / 20, rel=1e-5)
    assert float(gp.mean) == pytest.approx(Y[REPEATED].mean(), rel=1e-5)


def test_what_is_given_is_kept_and_a_process_that_learns_nothing_has_mean_zero():
    kernel = RBF([1.0, 2.0, 3.0], 0.5)
    gp = initial_gp(kernel, 0.3, False, X, Y, None)
    assert gp.kernel is kernel
    assert (float(gp.noise), float(gp.mean)) == (pytest.approx(0.3), 0.0)


def test_many_inputs_start_from_longer_scales_and_constant_targets_from_one():
    wide = RNG.normal(size=(30, 100))
    gp = initial_gp("rbf", None, True, wide, np.full((30, 1), 5.0), None)
    np.testing.assert_allclose(gp.kernel.lengthscale, 2 * wide.std(axis=0), rtol=1e-5)  # √(100/25)
    assert (float(gp.kernel.variance), float(gp.noise), float(gp.mean)) == (1.0, pytest.approx(0.1), 5.0)


def test_noise_is_shared_out_by_weight():
    noise = jnp.asarray(0.6)
    np.testing.assert_allclose(row_noise(noise, np.array([1.0, 2.0, 6.0])), [0.6, 0.3, 0.1], rtol=1e-6)
    assert row_noise(noise, None) is noise


class Stretch(FittingMethod):
    """Learns that the length scales of a target which rises from row to row are four times as long, and a mean of 2."""

    seen: list

    def fit(self, gp, X, y, key, progress, prior, saved=None):
        self.seen.append(np.asarray(gp.noise))
        by = 4.0 if y[-1] > y[0] else 1.0
        kernel = eqx.tree_at(lambda k: k.lengthscale, gp.kernel, by * gp.kernel.lengthscale)
        return GP(kernel, gp.noise, 2.0), Trace([by], [0.0], [0.0])


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_of_two_targets_the_geometric_mean_is_learned_and_the_noise_of_a_row_of_weight_one(weights):
    rising = np.sort(Y[:, 0])
    both = np.column_stack([rising, 5 * rising[::-1]])
    start = GP(Matern32([1.0, 2.0, 3.0], 1.5), noise=0.2, mean=1.0)
    method = Stretch([])
    gp, traces = fit_gp(
        start, X, both, weights, method=method, key=jax.random.key(0), mesh=None, progress=False, checkpoint=None
    )
    np.testing.assert_allclose(gp.kernel.lengthscale, [2.0, 4.0, 6.0], rtol=1e-5)
    assert float(gp.kernel.variance) == pytest.approx(1.5, rel=1e-5)
    assert float(gp.noise) == pytest.approx(0.2, rel=1e-5)
    in_their_units = [both[:, i].mean() + 2 * both[:, i].std() for i in range(2)]
    assert float(gp.mean) == pytest.approx(np.mean(in_their_units), rel=1e-5)
    assert [trace.loss[0] - np.log(both[:, i].std()) for i, trace in enumerate(traces)] == pytest.approx(
        [4.0, 1.0], rel=1e-5
    )
    counts = 1.0 if weights is None else weights
    for noise, y in zip(method.seen, both.T, strict=True):
        np.testing.assert_allclose(noise * np.var(y), 0.2 / counts, rtol=1e-4)


def test_a_solver_gets_the_limits_that_it_knows():
    assert with_limits(SAP(), max_seconds=2.0, tolerance=0.5) == SAP(max_seconds=2.0, tolerance=0.5)
    assert with_limits(Cholesky(), max_seconds=2.0) == Cholesky()
    points = InducingCholesky(X[:2])
    assert with_limits(points, max_seconds=2.0) is points
    subset = with_limits(SubsetOfData(10, CG(rank=3)), tolerance=0.5)
    assert (subset.rows, subset.solver.rank, subset.solver.tolerance) == (10, 3, 0.5)
