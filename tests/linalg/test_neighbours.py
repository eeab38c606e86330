import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.linalg import neighbours
from pathgp.linalg.neighbours import Exhaustive, Tree, build_index, build_tree, neighbourhood_order


def brute_force(points, queries, num):
    """Sorted distances in float64: rows may be listed in another order where distances tie."""
    differences = queries[:, None].astype(np.float64) - points[None].astype(np.float64)
    return np.sort(np.linalg.norm(differences, axis=2), axis=1)[:, :num]


def distances(points, queries, rows):
    return np.linalg.norm(queries[:, None].astype(np.float64) - points[rows].astype(np.float64), axis=2)


def cloud(kind, rng):
    if kind == "clustered":
        centres = rng.normal(size=(20, 3)) * 10
        return (centres[rng.integers(20, size=1237)] + 0.01 * rng.normal(size=(1237, 3))).astype(np.float32)
    if kind == "repeated":
        return rng.integers(3, size=(1237, 3)).astype(np.float32)
    if kind == "on a line":
        return np.column_stack([np.arange(1237), np.zeros(1237), np.zeros(1237)]).astype(np.float32)
    return rng.uniform(size=(1237, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", ["uniform", "clustered", "repeated", "on a line"])
@pytest.mark.parametrize("make", [Exhaustive, lambda points: build_tree(points, leaf=16)])
def test_the_nearest_are_found_in_order_and_each_row_once(kind, make):
    rng = np.random.default_rng(0)
    points = cloud(kind, rng)
    queries = np.concatenate([points[:20] + 0.01, rng.uniform(-1, 2, size=(20, 3)), np.full((1, 3), 1e3)])
    queries = queries.astype(np.float32)
    rows = np.asarray(make(jnp.asarray(points)).nearest(jnp.asarray(queries), 70))
    assert all(len(set(row)) == 70 for row in rows)
    found, truth = distances(points, queries, rows), brute_force(points, queries, 70)
    np.testing.assert_allclose(np.sort(found, axis=1), truth, rtol=1e-4)
    assert np.all(np.diff(found, axis=1) > -1e-4 * truth[:, 1:])


@pytest.mark.parametrize("num", [1, 33])
def test_all_of_them_can_be_asked_for(num):
    points = jnp.asarray(np.random.default_rng(1).normal(size=(num, 2)))
    for index in (Exhaustive(points), build_tree(points, leaf=4)):
        rows = np.asarray(index.nearest(jnp.zeros((2, 2)), num))
        assert np.array_equal(np.sort(rows, axis=1), np.broadcast_to(np.arange(num), (2, num)))


@pytest.mark.parametrize("d", [1, 12])
def test_points_far_away_do_not_hide_the_near_ones(d):
    rng = np.random.default_rng(4)
    points = rng.uniform(size=(2000, d)) / 0.05
    points[1900:] += 2e6
    points, queries = points.astype(np.float32), points[:50].astype(np.float32)
    rows = np.asarray(Exhaustive(jnp.asarray(points)).nearest(jnp.asarray(queries), 128))
    true = np.argsort(np.linalg.norm(points[None].astype(float) - queries[:, None], axis=-1), axis=1)[:, :128]
    shared = np.mean([len(np.intersect1d(*pair)) for pair in zip(rows, true, strict=True)])
    assert shared > 127.5  # of which the last may be equally far


def test_points_in_several_tiles(monkeypatch):
    monkeypatch.setattr(neighbours, "TILE", 100)
    rng = np.random.default_rng(2)
    points, queries = rng.normal(size=(1037, 4)), rng.normal(size=(9, 4))
    rows = np.asarray(Exhaustive(jnp.asarray(points)).nearest(jnp.asarray(queries), 128))
    np.testing.assert_allclose(distances(points, queries, rows), brute_force(points, queries, 128), rtol=1e-3)


def test_a_tree_is_taken_for_many_points_unless_it_would_look_at_most_of_them(monkeypatch):
    monkeypatch.setattr(neighbours, "EXHAUSTIVE_ROWS", 1000)
    rng = np.random.default_rng(3)
    assert isinstance(build_index(jnp.asarray(rng.normal(size=(1000, 2)))), Exhaustive)
    assert isinstance(build_index(jnp.asarray(rng.normal(size=(60_000, 2)))), Tree)
    assert isinstance(build_index(jnp.asarray(rng.normal(size=(60_000, 40)))), Exhaustive)


@pytest.mark.parametrize("N", [1, 7, 1000])
def test_rows_in_neighbourhoods_are_all_rows_and_near_each_other(N):
    points = np.random.default_rng(0).normal(size=(N, 2)) * [1, 3]
    order = np.asarray(neighbourhood_order(jnp.asarray(points), leaf=20))
    np.testing.assert_array_equal(np.sort(order), np.arange(N))
    if N == 1000:  # 50 parts of 20: were they squares, each would have a fiftieth of the variance
        within = np.mean([points[part].var(axis=0).sum() for part in order.reshape(50, 20)])
        assert within < 0.1 * points.var(axis=0).sum()
