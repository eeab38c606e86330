# pyright: reportArgumentType=false
"""Other solvers for the exact posterior on the same problem: the remaining error after each pass over the data.

    PATHGP_DATA=... python -m pathgp_paper.bench.rivals [--dataset elevators] [--n N] [--out FILE]

The error is that of the mean and 64 samples at the test rows, compared with a float64 Cholesky factorisation. It is a
root mean square in units of the posterior standard deviation. K is stored in float32 for all solvers, so that a pass is
one matrix product. `setup` is the time before the first pass. The last lines time products in other precisions, and
with every tile of K used twice, as the symmetry of K allows.
"""

import argparse
import pathlib
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from pathgp import Local, condition
from pathgp.cli.bench import store
from pathgp.linalg.neighbours import neighbourhood_order
from pathgp.linalg.tiles import tiled_product
from pathgp.runs.run import Run
from pathgp.solvers import CG, SAP, Auto, Cholesky, Observer
from pathgp_paper.bench import contest

PASSES = (1, 2, 3, 5, 10, 20, 50)
NEIGHBOURS, COARSE = 100, 1000


class Neighbourhoods(SAP):
    """SAP with blocks of neighbouring rows, with or without a local correction."""

    def partition(self, system, key):
        return neighbourhood_order(system.kernel.coordinates(system.X))


class Scattered(SAP):
    """SAP with random blocks, with or without a local correction."""

    def partition(self, system, key):
        return jax.random.permutation(key, system.size)


def vecchia(system, m=NEIGHBOURS):
    """Return U with UUᵀ ≈ H⁻¹. Column i is the scaled last column of H_ss⁻¹; s is i and its m nearest earlier rows."""
    N, X = system.size, system.X / system.kernel.lengthscale
    order = np.random.default_rng(0).permutation(N)
    X = np.asarray(X)[order]
    data, rows = np.zeros((N, m + 1)), np.zeros((N, m + 1), int)
    columns = jax.jit(jax.vmap(lambda H: jnp.linalg.solve(H, jnp.zeros(H.shape[0]).at[-1].set(1.0))))
    for start in range(0, N, 256):
        stop = min(start + 256, N)
        squares = np.sum(X[:stop] ** 2, axis=1) - 2 * X[start:stop] @ X[:stop].T
        squares[np.arange(stop)[None] >= np.arange(start, stop)[:, None]] = np.inf
        few = min(m, stop - 1)
        near = np.argpartition(squares, few, axis=1)[:, :few] if few else np.zeros((stop - start, 0), int)
        earlier = near < np.arange(start, stop)[:, None]
        index = np.column_stack([near, np.arange(start, stop)])
        H = np.asarray(jax.vmap(lambda x: system.kernel(x, x))(system.X[order[index]]), np.float64)
        used = np.column_stack([earlier, np.ones(len(earlier), bool)])
        H = np.where(used[:, :, None] & used[:, None, :], H, 0.0)
        H[:, np.arange(few + 1), np.arange(few + 1)] += np.where(used, float(system.mean_noise), 1.0)
        with jax.enable_x64(True):
            u = np.asarray(columns(jnp.asarray(H)))
        u = np.where(used, u, 0.0) / np.sqrt(u[:, -1:])
        data[start:stop, : few + 1], rows[start:stop, : few + 1] = u, order[index]
    U = sparse.csc_array((data.ravel(), rows.ravel(), np.arange(0, N * (m + 1) + 1, m + 1)), shape=(N, N))
    return U.tocsr().astype(np.float32), U.T.tocsr().astype(np.float32)


def conjugate_gradients(system, B, precondition, look):
    """Run CG on all columns of B, and call `look(pass, weights)` after each product with H."""
    w, r = np.zeros_like(B), B.copy()
    p = z = precondition(r)
    rz = np.sum(r * z, axis=0)
    for done in range(1, max(PASSES) + 1):
        Hp = np.asarray(system @ p)
        a = rz / np.sum(p * Hp, axis=0)
        w, r = w + a * p, r - a * Hp
        z = precondition(r)
        rz, before = np.sum(r * z, axis=0), rz
        p = z + rz / before * p
        look(done, w)


def coarse_start(system, B, M=COARSE):
    """Return U(Λ + σ²)⁻¹UᵀB with at most M leading eigenvectors of a Nyström approximation of K from M random rows."""
    rows = np.random.default_rng(0).choice(system.size, min(M, system.size), replace=False)
    L = np.linalg.cholesky(np.asarray(system.K[rows][:, rows], np.float64) + 1e-6 * np.eye(len(rows)))
    A = np.linalg.solve(L, np.asarray(system.K[rows], np.float64)).astype(np.float32)
    values, V = np.linalg.eigh(A @ A.T)
    kept = values > 1e-4 * values[-1]
    U = A.T @ (V[:, kept] / np.sqrt(values[kept]))
    return jnp.asarray(U @ ((U.T @ B) / (values[kept] + float(system.mean_noise))[:, None]))


def symmetric_product(kernel, X, V, size=2048):
    """Return KV from the tiles on and above the diagonal, each used twice."""
    N, n = X.shape[0], X.shape[0] // size
    pairs = jnp.array([(i, j) for i in range(n) for j in range(i, n)]) * size

    def add(KV, pair):
        i, j = pair
        part = lambda array, start: jax.lax.dynamic_slice_in_dim(array, start, size)
        K = kernel(part(X, i), part(X, j))
        KV = jax.lax.dynamic_update_slice_in_dim(KV, part(KV, i) + K @ part(V, j), i, 0)
        below = jnp.where(i == j, 0.0, 1.0) * (K.T @ part(V, i))
        return jax.lax.dynamic_update_slice_in_dim(KV, part(KV, j) + below, j, 0), None

    return jax.lax.scan(add, jnp.zeros_like(V), pairs)[0][:N]


def seconds(function, *arguments):
    """Return the minimum time of three calls, after one call that compiles."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


def products(kernel, d, N=16_384, columns=65):
    """Return the seconds of one pass for each kind of product."""
    X = jax.random.normal(jax.random.key(0), (N, d))
    V = jax.random.normal(jax.random.key(1), (N, columns))
    K = kernel(X, X)
    naive = {
        f"kept in {name}": seconds(jax.jit(jnp.matmul), K.astype(dtype), V.astype(dtype))
        for name, dtype in (("float32", jnp.float32), ("bfloat16", jnp.bfloat16))
    }
    tiled = seconds(jax.jit(lambda X, V: tiled_product(kernel, X, X, V)), X, V)
    symmetric = seconds(jax.jit(lambda X, V: symmetric_product(kernel, X, V)), X, V)
    return naive | {"in tiles": tiled, "in tiles, each used twice": symmetric}


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dataset", default="synthetic")
    parser.add_argument("--n", type=int)
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    warnings.simplefilter("ignore")
    data, gp = contest.problem(a.dataset, a.n, 0)
    key = jax.random.key(0)
    common = {"num_samples": 64, "key": key, "keep_bytes": 2**33}
    truth = condition(gp, data.X, data.y, solver=Cholesky(), local=None, **common)
    system, B, x = truth.system, np.asarray(truth.targets.total), jnp.asarray(data.X_test[:1000])
    right = np.asarray(gp.kernel(x, system.X))
    exact_weights = np.asarray(truth.solution.weights)
    columns = lambda posterior: np.column_stack([posterior.mean(x), posterior.deviations(x)])
    exact, sd = columns(truth), np.sqrt(np.asarray(truth.variance(x)))[:, None]
    error = lambda difference: float(np.sqrt(np.mean((difference / sd) ** 2)))
    lines = {}

    def contest_of(name, setup, run):
        start, found, looking = time.perf_counter(), {}, [0.0]

        def look(done, weights):
            before = time.perf_counter()
            if round(done, 3) in PASSES:
                found[round(done)] = (before - start - looking[0], error(right @ (np.asarray(weights) - exact_weights)))
            looking[0] += time.perf_counter() - before

        prepared = setup()
        ready = time.perf_counter() - start
        run(prepared, look)
        lines[name] = {"setup": ready, "passes": {str(k): v for k, v in found.items()}}
        print(
            f"{name:<34} setup {ready:5.1f} s  " + "  ".join(f"{k}: {v[1]:.3f}" for k, v in found.items()), flush=True
        )

    blocks = -(-system.size // SAP().block_size)
    every = lambda look: Observer(blocks, lambda s: look(s.step / blocks, s.weights))

    def sap(init, look, kind=SAP):
        solver = kind(passes=20, tolerance=0.0)
        solver.solve(system, truth.targets, key=key, init=init, run=Run(every(look)))

    def library_cg(_, look):
        solver = CG(steps=max(PASSES), tolerance=0.0)
        solver.solve(system, truth.targets, key=key, run=Run(Observer(1, lambda s: look(s.step, s.weights))))

    print("RMS error in posterior sd after so many passes")
    contest_of("SAP", lambda: None, sap)
    contest_of("SAP, blocks of neighbours", lambda: None, lambda init, look: sap(init, look, Neighbourhoods))
    contest_of("SAP from a Nyström start (+1 pass)", lambda: coarse_start(system, B), sap)
    contest_of("CG, pivoted Cholesky 100", lambda: None, library_cg)
    U = lambda: vecchia(system)
    contest_of("CG, Vecchia 100", U, lambda u, look: conjugate_gradients(system, B, lambda r: u[0] @ (u[1] @ r), look))
    one = {"passes": 1, "block_size": 1024, "tolerance": 0.0, "local": Local()}
    three = one | {"passes": 3}
    for solver in (Scattered(**one), SAP(**one), Scattered(**three), SAP(**three), Auto()):
        posterior = condition(gp, data.X, data.y, solver=solver, local=Local(), num_samples=64, key=key)
        kind = "Auto" if isinstance(solver, Auto) else posterior.info.solver
        name = f"{kind}, {posterior.info.passes:.0f} passes, and local"
        lines[name] = {"error": error(columns(posterior) - exact)}
        print(f"{name:<34} {lines[name]['error']:.3f}", flush=True)
    timed = products(gp.kernel, data.X.shape[1])
    for name, took in timed.items():
        print(f"{name:<28} {took:.3f} s a pass of 16384 rows, 65 columns")
    figures = {"dataset": a.dataset, "rows": system.size, "lines": lines, "products": timed}
    store(a.out, {"benchmark": "rivals", **figures})


if __name__ == "__main__":
    main()
