# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
"""Searches for 128 nearest neighbours, compared with other libraries in the same run:

    python -m pathgp_paper.bench.neighbours [--rows 2000000] [--out FILE]

The points have 3 and 11 dimensions, with equal length scales and with unequal ones, as after hyperparameter fitting.
SciPy is a dependency of pathgp; faiss is measured if it is installed. Recall is the share of true neighbours found.
"""

import argparse
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import cKDTree

from pathgp.cli.bench import store
from pathgp.linalg.neighbours import Exhaustive, build_index, build_tree

NEIGHBOURS, QUERIES, BATCH = 128, 1024, 64


def main() -> None:
    parser = argparse.ArgumentParser(description="neighbours")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    rows, results = a.rows, []
    print(f"{'points':<24} {'search':<18} {'build s':>8} {'queries/s':>10} {'recall':>8}")
    for d in (3, 11):
        for kind in ("uniform", "uneven"):
            rng = np.random.default_rng(0)
            scales = np.ones(d) if kind == "uniform" else np.geomspace(1, 0.05, d)
            points, queries = (rng.uniform(size=(n, d)) * scales for n in (rows, QUERIES))
            results += measure(f"{rows} x {d} {kind}", points.astype(np.float32), queries.astype(np.float32))
    store(a.out, {"benchmark": "neighbours", "rows": rows, "results": results})


def measure(name: str, points: np.ndarray, queries: np.ndarray) -> list[dict]:
    radius, results = None, []

    def report(label: str, build, find) -> None:
        nonlocal radius
        start = time.perf_counter()
        index = build()
        built = time.perf_counter() - start
        find(index, queries)  # compiles
        start = time.perf_counter()
        found = find(index, queries)
        seconds = time.perf_counter() - start
        r = np.linalg.norm(points[found].astype(np.float64) - queries[:, None], axis=2)
        radius = r.max(axis=1, keepdims=True) if radius is None else radius  # the first search is exact
        recall = np.mean(r <= radius * (1 + 1e-5))
        print(f"{name:<24} {label:<18} {built:8.1f} {len(queries) / seconds:10.0f} {recall:8.4f}", flush=True)
        speed = {"build_seconds": built, "queries_per_second": len(queries) / seconds}
        results.append({"points": name, "search": label, **speed, "recall": float(recall)})

    report("scipy cKDTree", lambda: cKDTree(points), lambda t, q: t.query(q, NEIGHBOURS, workers=2)[1])
    report("pathgp tree", lambda: build_tree(jnp.asarray(points)), in_batches)
    report("pathgp exhaustive", lambda: Exhaustive(jnp.asarray(points)), in_batches)
    report("pathgp search", lambda: build_index(jnp.asarray(points)), in_batches)
    try:
        import faiss
    except ModuleNotFoundError:
        print(f"{name:<24} faiss is not installed")
        return results

    def build():
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(points.shape[1]), points.shape[1], 4096)
        index.train(points[:: max(1, len(points) // 262_144)])
        index.add(points)
        return index

    for probes in (8, 32):

        def find(index, q, probes=probes):
            index.nprobe = probes
            return index.search(q, NEIGHBOURS)[1]

        report(f"faiss IVF, {probes} probes", build, find)
    return results


@jax.jit
def _nearest(index, Q):
    batches = Q.reshape(-1, BATCH, Q.shape[1])
    return jax.lax.map(lambda q: index.nearest(q, NEIGHBOURS), batches).reshape(-1, NEIGHBOURS)


def in_batches(index, queries: np.ndarray) -> np.ndarray:
    return np.asarray(_nearest(index, jnp.asarray(queries)))


if __name__ == "__main__":
    main()
