# pyright: reportArgumentType=false
"""Accuracy of the defaults: each case in a separate process, compared with a dense posterior in float64.

    PATHGP_DATA=... python -m pathgp_paper.bench.accuracy BENCH [--only NAME=VALUE ...] [--out FILE]

BENCH is one of

    estimator   `PathGPRegressor` with each kernel on nearly noiseless data: the exact posterior with the same
                hyperparameters, and the coverage of its intervals on test rows
    emulators   the same on four deterministic functions, 8000 Latin-hypercube rows
    solver      `condition` on 15,000 rows with fitted hyperparameters, compared with SciPy's Cholesky in seconds,
                compilation included
    restarts    `PathGPRegressor` compared with scikit-learn's `GaussianProcessRegressor(n_restarts_optimizer=3)`

Cases whose result is already in `--out` are not computed again.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import time
import warnings

import numpy as np
from scipy import linalg, stats
from scipy.spatial.distance import cdist

KERNELS = {
    "matern12": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    "matern52": lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
    "rbf": lambda r: np.exp(-(r**2) / 2),
    "rational_quadratic": lambda r, alpha: (1 + r**2 / (2 * alpha)) ** -alpha,
}


def borehole(u):
    low = [0.05, 100, 63070, 990, 63.1, 700, 1120, 9855]
    high = [0.15, 50000, 115600, 1110, 116, 820, 1680, 12045]
    rw, r, Tu, Hu, Tl, Hl, L, Kw = (np.array(low) + u * (np.array(high) - low)).T
    log = np.log(r / rw)
    return 2 * np.pi * Tu * (Hu - Hl) / (log * (1 + 2 * L * Tu / (log * rw**2 * Kw) + Tu / Tl))


def wing_weight(u):
    low = [150, 220, 6, -10, 16, 0.5, 0.08, 2.5, 1700, 0.025]
    high = [200, 300, 10, 10, 45, 1, 0.18, 6, 2500, 0.08]
    Sw, Wfw, A, sweep, q, taper, tc, Nz, Wdg, Wp = (np.array(low) + u * (np.array(high) - low)).T
    cosine = np.cos(np.deg2rad(sweep))
    return (
        0.036 * Sw**0.758 * Wfw**0.0035 * (A / cosine**2) ** 0.6 * q**0.006 * taper**0.04
        * (100 * tc / cosine) ** -0.3 * (Nz * Wdg) ** 0.49 + Sw * Wp
    )  # fmt: skip


def otl_circuit(u):
    low, high = [50, 25, 0.5, 1.2, 0.25, 50], [150, 70, 3, 2.5, 1.2, 300]
    Rb1, Rb2, Rf, Rc1, Rc2, beta = (np.array(low) + u * (np.array(high) - low)).T
    Vb1, gain = 12 * Rb2 / (Rb1 + Rb2), beta * (Rc2 + 9)
    return (Vb1 + 0.74) * gain / (gain + Rf) + 11.35 * Rf / (gain + Rf) + 0.74 * Rf * gain / ((gain + Rf) * Rc1)


def piston(u):
    low = [30, 0.005, 0.002, 1000, 90000, 290, 340]
    high = [60, 0.020, 0.010, 5000, 110000, 296, 360]
    M, S, V0, k, P0, Ta, T0 = (np.array(low) + u * (np.array(high) - low)).T
    A = P0 * S + 19.62 * M - k * V0 / S
    V = S / (2 * k) * (np.sqrt(A**2 + 4 * k * P0 * V0 / T0 * Ta) - A)
    return 2 * np.pi * np.sqrt(M / (k + S**2 * P0 * V0 / T0 * Ta / V**2))


EMULATED = {
    "borehole": (borehole, 8),
    "wing_weight": (wing_weight, 10),
    "otl_circuit": (otl_circuit, 6),
    "piston": (piston, 7),
}

CASES = {
    "estimator": {"dataset": ["parkinsons"], "kernel": list(KERNELS), "split": [0, 1, 2]},
    "emulators": {"function": list(EMULATED), "kernel": ["rbf", "matern52"], "seed": list(range(10)), "rows": [8000]},
    "solver": {
        "dataset": ["kin40k", "elevators", "pol", "bike", "protein", "keggdirected"],
        "kernel": list(KERNELS),
        "rows": [15_000],
    },
    "restarts": {"table": ["periodic", "one_hot"], "seed": list(range(20))},
}


class Exact:
    """The exact posterior of a GP with NumPy parameters, by SciPy's Cholesky in float64."""

    def __init__(self, kernel, gp, X, y):
        self.k, self.gp = KERNELS[kernel], gp
        self.X = np.asarray(X, np.float64) / self.gp["lengthscale"]
        H = self.covariance(self.X, self.X)
        H[np.diag_indices_from(H)] += self.gp["noise"]
        self.factor = linalg.cholesky(H, lower=True, overwrite_a=True, check_finite=False)
        self.white = linalg.solve_triangular(self.factor, np.asarray(y) - gp["mean"], lower=True, check_finite=False)

    def covariance(self, A, B):
        shape = [self.gp["alpha"]] if "alpha" in self.gp else []
        return self.gp["variance"] * self.k(cdist(A, B), *shape)

    def predict(self, x):
        """Return the mean and variance of f at x."""
        cross = self.covariance(self.X, np.asarray(x, np.float64) / self.gp["lengthscale"])
        half = linalg.solve_triangular(self.factor, cross, lower=True, check_finite=False)
        return half.T @ self.white + self.gp["mean"], self.gp["variance"] - np.sum(half**2, axis=0)


def parameters(gp):
    """Return the hyperparameters of a `pathgp.GP` as numbers."""
    names = [name for name in ("lengthscale", "variance", "alpha") if hasattr(gp.kernel, name)]
    values = {name: np.asarray(getattr(gp.kernel, name), np.float64) for name in names}
    return values | {"noise": float(np.mean(np.asarray(gp.noise))), "mean": float(gp.mean)}


def scores(mean, std, y):
    z = np.abs(y - mean) / std
    within = lambda level: float(np.mean(z <= stats.norm.ppf(0.5 + level / 2)))
    nll = np.mean(np.log(2 * np.pi * std**2) / 2 + z**2 / 2)
    return {
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "nll": float(nll),
        "within50": within(0.5),
        "within95": within(0.95),
    }


def judged(model, kernel, X, y, X_test, y_test):
    """Compare a fitted estimator with the exact posterior for its hyperparameters, in standardised units."""
    mean, std = model.predict(X_test, return_std=True)
    centre, scale = model.target_scaling_.centre[0], model.target_scaling_.scale[0]
    mean, std, y_test = (mean - centre) / scale, std / scale, (y_test - centre) / scale
    gp = parameters(model.posterior_.gp)
    exact = Exact(kernel, gp, model.input_scaling_.apply(X), (y - centre) / scale)
    m, v = exact.predict(model.input_scaling_.apply(X_test))
    off = (mean - m) / np.sqrt(np.maximum(v, 1e-300))
    return {
        **scores(mean, std, y_test),
        "exact": scores(m, np.sqrt(np.maximum(v, 0) + gp["noise"]), y_test),
        "error_rms": float(np.sqrt(np.mean(off**2))),
        "error_max": float(np.max(np.abs(off))),
        "log_variance": float(np.median(np.abs(np.log(std**2 / (np.maximum(v, 0) + gp["noise"]))))),
        "mean_error": model.info_.mean_error,
        "solver": model.info_.solver,
        "precision": model.info_.precision,
        "left_out": sum(trace.left_out for trace in model.trace_),
        "noise_share": gp["noise"] / float(gp["variance"]),
        "variance": float(gp["variance"]),
    }


def fitted(kernel, X, y, X_test, y_test):
    from pathgp import PathGPRegressor

    clock = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = PathGPRegressor(kernel, random_state=0).fit(X, y)
        seconds = time.perf_counter() - clock
        found = judged(model, kernel, X, y, X_test, y_test)
    return {"seconds": seconds, **found, "warnings": [str(w.message)[:300] for w in caught]}


def estimator(dataset, kernel, split):
    from pathgp_paper import datasets

    d = datasets.load(dataset, split)
    return fitted(kernel, d.X, d.y, d.X_test, d.y_test)


def emulators(function, kernel, seed, rows):
    f, d = EMULATED[function]
    X = stats.qmc.LatinHypercube(d, rng=np.random.default_rng([seed, 1])).random(rows)
    x = np.random.default_rng([seed, 2]).uniform(size=(2000, d))
    return fitted(kernel, X, f(X), x, f(x))


def solver(dataset, kernel, rows):
    """Fit hyperparameters in a separate process, then time a first solve, compilation included, and SciPy's."""
    cell = json.dumps({"dataset": dataset, "kernel": kernel, "rows": rows})
    learned = _run("hyperparameters", cell)
    return {"fit_seconds": learned["seconds"], **_run("solve", json.dumps({**json.loads(cell), "gp": learned["gp"]}))}


def hyperparameters(dataset, kernel, rows):
    import jax

    from pathgp.estimator.registry import KERNELS as CLASSES
    from pathgp.likelihood import fit_hyperparameters
    from pathgp.likelihood.base import default_lengthscale_factor
    from pathgp.posterior.gp import GP
    from pathgp_paper import datasets

    d = datasets.load(dataset)
    start = GP(CLASSES[kernel](np.full(d.X.shape[1], default_lengthscale_factor(d.X.shape[1])), 1.0), 0.1)
    clock = time.perf_counter()
    gp, trace = fit_hyperparameters(start, d.X[:rows], d.y[:rows], key=jax.random.key(0))
    seconds = time.perf_counter() - clock
    values = {name: np.asarray(value).tolist() for name, value in parameters(gp).items()}
    return {"seconds": seconds, "left_out": trace.left_out, "gp": values}


def solve(dataset, kernel, rows, gp):
    from pathgp_paper import datasets

    d = datasets.load(dataset)
    X, y, x, y_test = d.X[:rows], d.y[:rows], d.X_test[:2000], np.asarray(d.y_test[:2000], np.float64)
    gp = {name: np.asarray(value) for name, value in gp.items()}
    clock = time.perf_counter()
    exact = Exact(kernel, gp, X, y)
    m, v = exact.predict(x)
    scipy_seconds = time.perf_counter() - clock
    del exact
    clock = time.perf_counter()
    import jax

    from pathgp import GP, condition
    from pathgp.estimator.registry import KERNELS as CLASSES

    shape = [gp["alpha"]] if "alpha" in gp else []
    prior = GP(CLASSES[kernel](gp["lengthscale"], gp["variance"], *shape), gp["noise"], gp["mean"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = condition(prior, X, y, key=jax.random.key(0))
        solved = time.perf_counter() - clock
        mean, variance = (np.asarray(a, np.float64) for a in posterior.predict(x))
    seconds = time.perf_counter() - clock
    off = (mean - m) / np.sqrt(np.maximum(v, 1e-300))
    info = posterior.info
    again = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = condition(prior, X, y, key=jax.random.key(0))
        warm = time.perf_counter() - again
        posterior.predict(x)
    return {
        **scores(mean, np.sqrt(variance + gp["noise"]), y_test),
        "exact": scores(m, np.sqrt(np.maximum(v, 0) + gp["noise"]), y_test),
        "error_rms": float(np.sqrt(np.mean(off**2))),
        "log_variance": float(np.median(np.abs(np.log((variance + gp["noise"]) / (np.maximum(v, 0) + gp["noise"]))))),
        "mean_error": info.mean_error,
        "variance_error": info.variance_error,
        "solver": info.solver,
        "passes": info.passes,
        "precision": info.precision,
        "noise_share": float(gp["noise"] / gp["variance"]),
        "seconds": seconds,
        "solve_seconds": solved,
        "warm_seconds": time.perf_counter() - again,
        "warm_solve_seconds": warm,
        "scipy_seconds": scipy_seconds,
        "warnings": [str(w.message)[:300] for w in caught],
    }  # fmt: skip


def restarts(table, seed):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    from pathgp import PathGPRegressor

    rng = np.random.default_rng([seed, 3])
    if table == "periodic":
        X, x = rng.uniform(0, 10, (200, 1)), rng.uniform(0, 10, (500, 1))
        f = lambda X: np.sin(2 * np.pi * X[:, 0])
    else:
        codes = lambda n: np.concatenate([np.eye(6)[rng.integers(6, size=n)] for _ in range(4)], axis=1)
        effects = rng.normal(size=24)
        X, x = codes(300), codes(500)
        f = lambda X: X @ effects
    y, y_test = f(X) + 0.1 * rng.normal(size=len(X)), f(x) + 0.1 * rng.normal(size=len(x))
    clock = time.perf_counter()
    mean, std = PathGPRegressor(random_state=seed).fit(X, y).predict(x, return_std=True)
    seconds = time.perf_counter() - clock
    inner = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    kernel = ConstantKernel() * Matern(np.ones(X.shape[1]), (1e-3, 1e4), nu=1.5) + WhiteKernel(0.1, (1e-8, 1e1))
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = GaussianProcessRegressor(kernel, n_restarts_optimizer=3, random_state=seed).fit(*inner)
    m, s = peer.predict((x - X.mean(axis=0)) / X.std(axis=0), return_std=True)
    peer_seconds = time.perf_counter() - clock
    m, s = m * y.std() + y.mean(), s * y.std()
    return {
        **scores(mean, std, y_test),
        "seconds": seconds,
        "sklearn": {**scores(m, s, y_test), "seconds": peer_seconds},
    }


def _run(name, cell):
    command = [sys.executable, __file__, "case", "--name", name, "--cell", cell]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} {cell} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def _short(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("bench", choices=[*CASES, "case"])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME=VALUE[,VALUE]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("accuracy.json"))
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.bench == "case":
        functions = {f.__name__: f for f in (estimator, emulators, solver, hyperparameters, solve, restarts)}
        print(json.dumps(functions[a.name](**json.loads(a.cell))))
        return
    only = dict(pair.split("=") for pair in a.only)
    choices = CASES[a.bench]
    for name, values in only.items():
        kind = type(choices[name][0])
        choices = {**choices, name: [kind(value) for value in values.split(",")]}
    results = json.loads(a.out.read_text()) if a.out.exists() else []
    for values in itertools.product(*choices.values()):
        cell = {"bench": a.bench, **dict(zip(choices, values, strict=True))}
        if any(cell == result["cell"] for result in results):
            continue
        try:
            found = _run(a.bench, json.dumps({k: v for k, v in cell.items() if k != "bench"}))
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            continue
        results = [*results, {"cell": cell, **found}]
        a.out.write_text(json.dumps(results, indent=1))
        print(
            *values,
            {k: _short(v) for k, v in found.items() if not isinstance(v, dict)},
            found.get("exact", found.get("sklearn")),
            flush=True,
        )


if __name__ == "__main__":
    main()
