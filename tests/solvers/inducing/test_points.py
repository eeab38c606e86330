import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.kernels import Matern32
from pathgp.solvers.inducing import points as inducing

KERNEL = Matern32([0.5, 2.0])


@pytest.fixture
def X():
    return np.random.default_rng(0).uniform(size=(2000, 2)) * [3.0, 4.0]


def scaled(X):
    return np.asarray(X) / [0.5, 2.0]


@pytest.mark.parametrize("ratio", [0.2, 0.6])
def test_elimination_covers_every_row_and_keeps_its_distance(X, key, ratio):
    z = scaled(inducing.eliminate(KERNEL, X, key=key, ratio=ratio))
    to_kept = np.linalg.norm(scaled(X)[:, None] - z[None], axis=2).min(axis=1)
    assert to_kept.max() <= ratio * (1 + 1e-5)
    between = np.linalg.norm(z[:, None] - z[None], axis=2) + 1e9 * np.eye(len(z))
    assert between.min() >= ratio * (1 - 1e-5)


def test_elimination_to_a_number_of_points(X, key):
    assert len(inducing.eliminate(KERNEL, X, key=key, num=200)) == pytest.approx(200, rel=0.05)


def test_elimination_is_the_same_for_a_key(X, key):
    one, again = (inducing.eliminate(KERNEL, X, key=key, ratio=0.3) for _ in range(2))
    other = inducing.eliminate(KERNEL, X, key=jax.random.key(9), ratio=0.3)
    assert np.array_equal(one, again)
    assert not (one.shape == other.shape and np.array_equal(one, other))


def test_elimination_holds_few_neighbours_at_a_time_where_points_crowd(key, monkeypatch):
    """Far apart first, so that many rows are looked up together, then a crowd in which each is near all others."""
    rng = np.random.default_rng(0)
    apart, crowd = np.arange(512.0)[:, None] * 10, 1e6 + 3 * rng.uniform(size=(512, 1))
    points = np.concatenate([apart, crowd])
    held = []

    class Watched(inducing.KDTree):
        def query_ball_point(self, *arguments, **options):
            found = super().query_ball_point(*arguments, **options)
            held.append(0 if options.get("return_length") else sum(map(len, found)))
            return found

    whole = inducing._eliminate(inducing.KDTree(points), points, np.arange(1024), 1.0)[0]
    monkeypatch.setattr(inducing, "FOUND", 600)
    found, complete = inducing._eliminate(Watched(points), points, np.arange(1024), 1.0)
    assert complete
    np.testing.assert_array_equal(found, whole)
    assert 512 < len(found) <= 512 + 4  # of the crowd, at most one in each of its three units and one more
    assert max(held) <= 600


def test_a_ratio_that_keeps_everything_or_one(X, key):
    assert len(inducing.eliminate(KERNEL, X, key=key, ratio=1e-6)) == 2000
    assert len(inducing.eliminate(KERNEL, X, key=key, ratio=1e6)) == 1
    assert len(inducing.eliminate(KERNEL, np.repeat(X[:5], 10, axis=0), key=key, ratio=1e-6)) == 5


def test_a_random_subset_has_different_rows(X, key):
    z = np.asarray(inducing.random_subset(X, 300, key=key))
    assert len({tuple(row) for row in z}) == 300
    assert {tuple(row) for row in z} <= {tuple(row) for row in np.asarray(X, z.dtype)}


def test_k_means_represents_the_rows_better_than_a_random_subset(X, key):
    means, random = inducing.k_means(KERNEL, X, 50, key=key), inducing.random_subset(X, 50, key=key)
    spread = lambda z: np.mean(np.linalg.norm(scaled(X)[:, None] - scaled(z)[None], axis=2).min(axis=1) ** 2)
    assert means.shape == (50, 2)
    assert spread(means) < 0.8 * spread(random)


def test_greedy_points_leave_less_variance_than_random_ones(X, key):
    def left(z):
        K_zz, K_xz = np.asarray(KERNEL(z, z), dtype=np.float64), np.asarray(KERNEL(jnp.asarray(X[:300], float), z))
        return np.max(1 - np.sum(K_xz * np.linalg.solve(K_zz + 1e-6 * np.eye(len(z)), K_xz.T).T, axis=1))

    chosen = inducing.greedy(KERNEL, X, 60, key=key)
    assert len({tuple(row) for row in np.asarray(chosen)}) == 60
    assert {tuple(row) for row in np.asarray(chosen)} <= {tuple(row) for row in np.asarray(X, chosen.dtype)}
    assert left(chosen) < 0.8 * left(inducing.random_subset(X, 60, key=key))


@pytest.mark.parametrize("num", [0, 2001])
def test_impossible_numbers_are_refused(X, key, num):
    for choose in (
        lambda: inducing.random_subset(X, num, key=key),
        lambda: inducing.k_means(KERNEL, X, num, key=key),
        lambda: inducing.greedy(KERNEL, X, num, key=key),
        lambda: inducing.eliminate(KERNEL, X, key=key, num=num),
    ):
        with pytest.raises(ValueError, match=r"num.*2000"):
            choose()


def test_elimination_wants_one_of_ratio_and_number(X, key):
    for arguments in ({}, {"ratio": 0.1, "num": 10}):
        with pytest.raises(ValueError, match=r"ratio.*num"):
            inducing.eliminate(KERNEL, X, key=key, **arguments)
    with pytest.raises(ValueError, match="ratio"):
        inducing.eliminate(KERNEL, X, key=key, ratio=-1.0)
    with pytest.raises(ValueError, match="NaN"):
        inducing.eliminate(KERNEL, np.full((3, 2), np.nan), key=key, ratio=1.0)
