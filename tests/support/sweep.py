"""Random regression problems, each with its exact posterior from dense float64 linear algebra in NumPy and SciPy.

A case is a kernel, a noise level, a layout of inputs, a number of rows and a solver, all drawn from one seed. `judge`
runs `condition` on it and compares mean and variance with the oracle in posterior standard deviations.

    python tests/sweep.py FIRST LAST [SOLVER]      judges the cases FIRST … LAST − 1 and prints one line each
"""

import dataclasses
import sys
import time
import warnings

import jax
import numpy as np
from scipy import linalg
from scipy.spatial.distance import cdist

from pathgp import GP, condition, kernels, solvers

KERNELS = {
    "RBF": lambda r: np.exp(-(r**2) / 2),
    "Matern12": lambda r: np.exp(-r),
    "Matern32": lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    "Matern52": lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
    "RationalQuadratic": lambda r: 1 / (1 + r**2 / 2),
}
SOLVERS = {
    "Auto": lambda: solvers.Auto(),
    "Cholesky": lambda: solvers.Cholesky(),
    "SAP": lambda: solvers.SAP(),
    "CG": lambda: solvers.CG(),
    "SDD": lambda: solvers.SDD(steps=2000),
    "SGD": lambda: solvers.SGD(steps=1000),
}
LAYOUTS = (
    *("uniform1", "uniform2", "uniform8", "uniform20", "uniform60"),
    *("clusters", "grid", "near_duplicates", "outlier", "heavy_tails", "mixed_scales", "one_hot"),
)
QUERIES = 200


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem: what is solved, and by what."""

    seed: int
    kernel: str
    noise: float
    layout: str
    rows: int
    solver: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Errors of the mean in posterior standard deviations, of the log variance, and what the library said of them."""

    rms: float
    worst: float
    log_variance: float
    mean_error: float
    variance_error: float
    warned: bool
    seconds: float
    solver: str
    failure: str = ""

    @property
    def is_good(self) -> bool:
        """Within 0.1 standard deviations rms and 0.5 at worst."""
        return self.rms < 0.1 and self.worst < 0.5


def draw_case(seed: int, solver: str | None = None, most_rows: int = 12_000) -> Case:
    """The case of a seed. Iterative solvers of the paper get fewer rows, for they take long."""
    rng = np.random.default_rng([seed, 23])
    name = solver or str(rng.choice(["Auto"] * 4 + list(SOLVERS)))
    most = min(most_rows, 4000) if name in ("SGD", "SDD", "CG") else most_rows
    rows = int(np.exp(rng.uniform(np.log(500), np.log(most))))
    return Case(seed, str(rng.choice(list(KERNELS))), 10 ** rng.uniform(-7, -1), str(rng.choice(LAYOUTS)), rows, name)


def inputs(layout: str, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a layout and the length scale of each input."""
    if layout.startswith("uniform"):
        d = int(layout[7:])
        X = rng.uniform(-1, 1, (rows, d))
    elif layout == "grid":
        side = int(np.sqrt(rows))
        X = np.stack(np.meshgrid(*[np.linspace(-1, 1, side)] * 2), axis=-1).reshape(-1, 2)
    elif layout == "clusters":
        centres = rng.uniform(-1, 1, (20, 4))
        X = centres[rng.integers(20, size=rows)] + 0.02 * rng.normal(size=(rows, 4))
    elif layout == "near_duplicates":
        X = rng.uniform(-1, 1, (rows, 3))
        X[: rows // 3] = X[rows // 3 : 2 * (rows // 3)] + 1e-5 * rng.normal(size=(rows // 3, 3))
    elif layout == "outlier":
        X = rng.uniform(-1, 1, (rows, 3))
        X[0] = 1000
    elif layout == "heavy_tails":
        X = rng.standard_t(1.5, (rows, 5))
    elif layout == "mixed_scales":
        X = rng.uniform(-1, 1, (rows, 12)) * 10 ** rng.uniform(-3, 3, 12)
    else:
        codes = rng.integers(6, size=(rows, 4))
        X = np.concatenate([np.eye(6)[code] for code in codes.T] + [rng.normal(size=(rows, 2))], axis=1)
    d = X.shape[1]
    spread = np.quantile(X, 0.9, axis=0) - np.quantile(X, 0.1, axis=0)
    spread = np.where(spread > 0, spread, 1)
    lengthscale = spread * np.sqrt(d) * np.exp(rng.uniform(np.log(0.15), np.log(1.5))) * np.exp(rng.normal(size=d) / 2)
    return X, lengthscale


def problem(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, queries and length scales: a smooth function of random directions, and noise of the case's variance."""
    rng = np.random.default_rng([case.seed, 24])
    X, lengthscale = inputs(case.layout, case.rows, rng)
    X = X.astype(np.float32).astype(np.float64)
    Z = X / lengthscale
    W = rng.normal(size=(Z.shape[1], 5))
    f = np.sin(Z @ W / np.sqrt(Z.shape[1]) + rng.uniform(0, 6, 5)) @ rng.normal(size=5) / 2
    y = (f + np.sqrt(case.noise) * rng.normal(size=len(X))).astype(np.float32).astype(np.float64)
    near = X[rng.integers(len(X), size=QUERIES)]
    far = X[rng.integers(len(X), size=QUERIES)]
    share = rng.uniform(size=(QUERIES, 1)) * (rng.uniform(size=(QUERIES, 1)) < 0.7)
    queries = (near + share * (far - near) + 0.05 * lengthscale * rng.normal(size=near.shape)).astype(np.float32)
    return X, y, queries.astype(np.float64), lengthscale.astype(np.float32).astype(np.float64)


def oracle(case: Case, X: np.ndarray, y: np.ndarray, x: np.ndarray, lengthscale: np.ndarray) -> tuple:
    """The exact mean and variance of f(x), kernel variance one and mean zero."""
    k = KERNELS[case.kernel]
    H = k(cdist(X / lengthscale, X / lengthscale))
    H[np.diag_indices_from(H)] += np.float64(np.float32(case.noise))
    cross = k(cdist(X / lengthscale, x / lengthscale))
    L = linalg.cholesky(H, lower=True, overwrite_a=True, check_finite=False)
    half = linalg.solve_triangular(L, cross, lower=True, check_finite=False)
    white = linalg.solve_triangular(L, y, lower=True, check_finite=False)
    return half.T @ white, 1 - np.sum(half**2, axis=0)


def judge(case: Case, **options) -> Verdict:
    """What `condition` makes of a case."""
    X, y, x, lengthscale = problem(case)
    mean, variance = oracle(case, X, y, x, lengthscale)
    gp = GP(getattr(kernels, case.kernel)(lengthscale, 1.0), noise=case.noise)
    clock = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            posterior = condition(gp, X, y, solver=SOLVERS[case.solver](), key=jax.random.key(case.seed), **options)
            got, got_variance = (np.asarray(a, np.float64) for a in posterior.predict(x))
        except (FloatingPointError, ValueError) as error:
            return Verdict(np.inf, np.inf, np.inf, np.nan, np.nan, True, 0.0, case.solver, repr(error)[:200])
    seconds = time.perf_counter() - clock
    sd = np.sqrt(np.maximum(variance, 1e-12))
    errors = np.abs(got - mean) / sd
    log_ratio = np.abs(np.log(np.maximum(got_variance, 1e-300) / sd**2))
    info = posterior.info
    return Verdict(
        rms=float(np.sqrt(np.mean(errors**2))),
        worst=float(np.max(errors)),
        log_variance=float(np.median(log_ratio)),
        mean_error=float(getattr(info, "mean_error", np.nan)),
        variance_error=float(getattr(info, "variance_error", np.nan)),
        warned=bool(caught),
        seconds=seconds,
        solver=info.solver,
    )


def main() -> None:
    """Judges the cases of the command line."""
    first, last = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, last):
        case = draw_case(seed, *sys.argv[3:4])
        v = judge(case)
        state = "good" if v.is_good else "warned" if v.warned else "SILENT"
        print(
            f"{seed:4d} {case.kernel:17s} {case.noise:.0e} {case.layout:15s} {case.rows:6d} {case.solver:8s} "
            f"rms {v.rms:9.2e} worst {v.worst:9.2e} logvar {v.log_variance:.2f} | said {v.mean_error:8.1e} "
            f"{v.variance_error:8.1e} {state:6s} {v.seconds:5.1f} s {v.solver} {v.failure}",
            flush=True,
        )


if __name__ == "__main__":
    main()
