"""Mutation testing: breaks the code in many places, one at a time, and reports the first test that fails:

    python -m pathgp_paper.bench.mutations --out docs/results/mutations.json [--only local.py ...]

Each break is made in a copy of `src`. The tests that should detect it run on the copy until the first failure.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from pathgp.cli.bench import store

ROOT = pathlib.Path(__file__).parents[3]


class Break(NamedTuple):
    what: str
    file: str
    old: str
    new: str
    tests: str


BREAKS = [
    Break(
        "features with their power, not its root",
        "kernels/features.py",
        "jnp.tile(jnp.sqrt(self.power), 2)",
        "jnp.tile(self.power, 2)",
        "tests/kernels/test_features.py",
    ),
    Break(
        "frequencies of a heavier tail all count alike",
        "kernels/student.py",
        "weights = 1 / ((num - rest) / num + rest / num * ratio)",
        "weights = jnp.ones_like(ratio)",
        "tests/kernels",
    ),
    Break(
        "padding repeats the last row of V",
        "linalg/tiles.py",
        'V_tiles = pad_rows(V, columns, mode="constant")',
        "V_tiles = pad_rows(V, columns)",
        "tests/system/test_system.py",
    ),
    Break(
        "rows put together keep the noise of one",
        "system/duplicates.py",
        "1 / total[:, 0], system.tile",
        "system.noise_diagonal[first], system.tile",
        "tests/system/test_duplicates.py",
    ),
    Break(
        "a block projection forgets the noise",
        "solvers/sap.py",
        "return d, add_rows(system.mesh, Hd, noise_B[:, None] * d, start)",
        "return d, Hd",
        "tests/solvers/test_solvers.py",
    ),
    Break(
        "the step of SDD has one bound, not two",
        "solvers/sdd.py",
        "(coasting * top + jnp.max(jnp.diag(block)))",
        "(coasting * top)",
        "tests/solvers/test_sdd.py tests/solvers/test_solvers.py",
    ),
    Break(
        "the noise of samples is not divided by its variance",
        "solvers/sgd.py",
        "delta = precision * targets.noise if",
        "delta = targets.noise if",
        "tests/solvers/test_sgd.py tests/solvers/test_solvers.py",
    ),
    Break(
        "inducing CG never computes its residual anew",
        "solvers/inducing/cg.py",
        "anew = steps % REFRESH == 0",
        "anew = steps < 0",
        "tests/solvers/inducing/test_inducing_solvers.py",
    ),
    Break(
        "the ELBO without the divergence",
        "solvers/inducing/svgp.py",
        "return system.size * jnp.mean(fit) - divergence",
        "return system.size * jnp.mean(fit) - 0 * divergence",
        "tests/solvers/test_variational.py",
    ),
    Break(
        "elimination at twice the radius",
        "solvers/inducing/points.py",
        "tree.query_ball_point(points[some], radius, workers=-1)",
        "tree.query_ball_point(points[some], 2 * radius, workers=-1)",
        "tests/solvers/inducing/test_points.py",
    ),
    Break(
        "a projection fades once instead of twice",
        "solvers/local.py",
        "a = u * definite_solve(H, u * k)",
        "a = definite_solve(H, u * k)",
        "tests/solvers/test_local.py",
    ),
    Break(
        "neighbours are not faded out",
        "solvers/local.py",
        "return t**2 * (3 - 2 * t)",
        "return jnp.ones_like(t)",
        "tests/solvers/test_local.py tests/posterior/test_local_functions.py",
    ),
    Break(
        "variances are those of the samples alone",
        "posterior/variance.py",
        "known = (v > 0) & (u > 0)",
        "known = (v < 0) & (u > 0)",
        "tests/posterior/test_local_functions.py tests/posterior/test_condition.py",
    ),
    Break(
        "the residual of a subset forgets the noise",
        "posterior/posterior.py",
        "known = targets.total.at[solution.rows].add(-system.noise_diagonal[solution.rows, None] * w)",
        "known = targets.total",
        "tests/solvers/test_local.py tests/posterior/test_local_functions.py tests/posterior/test_condition.py",
    ),
    Break(
        "a tree stops when it has enough neighbours",
        "linalg/neighbours.py",
        "return jnp.any(jnp.min(bounds, axis=1) < r2[:, -1])",
        "return jnp.any(jnp.isinf(r2[:, -1]))",
        "tests/linalg/test_neighbours.py",
    ),
    Break(
        "a row is among the rows before it",
        "likelihood/nearest.py",
        "jnp.arange(points.shape[0]) < rows[:, None]",
        "jnp.arange(points.shape[0]) <= rows[:, None]",
        "tests/likelihood/test_nearest.py",
    ),
    Break(
        "the trace has the wrong sign",
        "likelihood/pathwise.py",
        "jnp.full(probes, 0.5 / probes)",
        "jnp.full(probes, -0.5 / probes)",
        "tests/likelihood/test_pathwise.py",
    ),
    Break(
        "data are weighted by y + min y",
        "thompson/maximise.py",
        "weight = y - jnp.min(y)",
        "weight = y + jnp.min(y)",
        "tests/thompson/test_maximise.py",
    ),
    Break(
        "hyperparameters are never learned again",
        "thompson/loop.py",
        "GROWTH * model.rows > N",
        "model.rows > 0",
        "tests/thompson/test_sampler.py",
    ),
    Break(
        "turned samples keep what was left undone",
        "posterior/posterior.py",
        "self.local_residual.map_columns(both)",
        "self.local_residual",
        "tests/thompson/test_sampler.py",
    ),
    Break(
        "a checkpoint of another run is taken",
        "runs/checkpoint.py",
        "if before.get(name) != value]",
        "if False]",
        "tests/runs/test_checkpoint.py",
    ),
    Break(
        "files are written in their place",
        "runs/atomic.py",
        "temporary = path.with_name(",
        "temporary = path if True else path.with_name(",
        "tests/runs/test_atomic.py tests/storage/test_model_file.py",
    ),
    Break(
        "learning rates up to σ²/λ₁",
        "analysis/spectral.py",
        "return noise / (largest * (largest + noise))",
        "return noise / largest",
        "tests/analysis/test_spectral.py",
    ),
    Break(
        "standard deviations without the noise",
        "estimator/regressor.py",
        "spread = np.sqrt((variance + self.noise_) * scale2)",
        "spread = np.sqrt(variance * scale2)",
        "tests/estimator/test_regressor.py",
    ),
    Break(
        "a table is not moved back to its origin",
        "estimator/standardize.py",
        "return Scaling(self.centre + origin, self.scale)",
        "return self",
        "tests/cli/test_commands.py",
    ),
    Break(
        "rounding makes a constant column vary",
        "cli/tables/encoding.py",
        "np.where(np.abs(away) <= rounding, 0, away)",
        "away",
        "tests/cli/tables/test_files.py",
    ),
    Break(
        "residuals without the noise of the right-hand side",
        "system/system.py",
        "return signal + noise - (KW + variance[:, None] * W)",
        "return signal - (KW + variance[:, None] * W)",
        "tests/system/test_system.py tests/parallel/test_sharding.py",
    ),
    Break(
        "every device thinks that its rows are the first",
        "parallel/sharding.py",
        "place = index - jax.lax.axis_index(mesh.axis_names[0]) * n",
        "place = index",
        "tests/parallel/test_sharding.py",
    ),
    Break(
        "a job does not wait for its coordinator",
        "parallel/jobs.py",
        "        _await_coordinator(address, timeout)\n",
        "        pass\n",
        "tests/parallel/test_jobs.py",
    ),
    Break(
        "a matrix file that was cut short is read",
        "cli/tables/npy.py",
        "if present < size:",
        "if False:",
        "tests/cli/tables/test_files.py",
    ),
    Break(
        "the headers of written tables are not quoted",
        "cli/tables/files.py",
        'csv.writer(header, lineterminator="\\n").writerow(columns)',
        'header.write(",".join(columns) + "\\n")',
        "tests/cli/tables/test_files.py tests/cli",
    ),
    Break(
        "a factorisation takes no memory for its matrix",
        "cli/budget.py",
        "DOUBLE * (N**2 + N * min(N, BLOCK))",
        "DOUBLE * N * min(N, BLOCK)",
        "tests/cli/test_budget.py",
    ),
    Break(
        "length scales are averaged as they are",
        "likelihood/exact.py",
        'map_named(gp.kernel, "lengthscale", jnp.reciprocal, lambda leaf: leaf)',
        'map_named(gp.kernel, "lengthscale", lambda leaf: leaf, lambda leaf: leaf)',
        "tests/likelihood/test_exact.py",
    ),
    Break(
        "a point that failed is suggested again",
        "thompson/loop.py",
        "return np.concatenate([self.X, self.pending, self.failed])",
        "return np.concatenate([self.X, self.pending])",
        "tests/thompson/test_loop.py",
    ),
    Break(
        "a split that diverged is left out of the mean",
        "../pathgp_paper/experiments/table1_regression.py",
        'ours = float("nan") if failed else mean_of(done, score)',
        "ours = mean_of(done, score)",
        "tests/paper/test_paper.py",
    ),
    Break(
        "the preconditioner has S, not its square",
        "solvers/cg.py",
        "1 / (1 + S**2)",
        "1 / (1 + S)",
        "tests/solvers/test_cg.py",
    ),
    Break(
        "a column that has converged moves on",
        "solvers/loop.py",
        "return jnp.where(frozen, old_leaf, new_leaf) if is_columns else new_leaf",
        "return new_leaf",
        "tests/solvers/test_solvers.py",
    ),
    Break(
        "a solve out of time tells the residual of before",
        "solvers/loop.py",
        "if at.steps % check and at.steps < last:",
        "if False:",
        "tests/solvers/test_solvers.py",
    ),
    Break(
        "SAP does not ask the samples how far it is",
        "solvers/sap.py",
        "rms = lambda unit: share * jnp",
        "rms = lambda unit: 0.1 * share * jnp",
        "tests/solvers/test_solvers.py",
    ),
    Break(
        "of many inputs, rounding turns a derivative round",
        "linalg/distances.py",
        "return _by_product(X, Z), 2 * (own - product(A, dZ) - product(dX, B))",
        "return _by_product(X, Z), 2 * (own - product(A, dZ) + product(dX, B))",
        "tests/linalg/test_distances.py",
    ),
    Break(
        "the checksum does not know shapes",
        "storage/model_file.py",
        ":{tensors[name].dtype.str}:{tensors[name].shape};",
        ":{tensors[name].dtype.str};",
        "tests/storage/test_model_file.py",
    ),
    Break(
        "rounding passes a bound of the search",
        "thompson/space.py",
        "np.clip(_value(codes[:, 0], self.low, self.high, self.log), self.low, self.high).tolist()",
        "_value(codes[:, 0], self.low, self.high, self.log).tolist()",
        "tests/thompson/test_space.py",
    ),
    Break(
        "Optuna's trials that run are suggested again",
        "integrations/optuna.py",
        "return np.concatenate([*here, self.codes(others)])",
        "return self.codes(others)",
        "tests/integrations/test_optuna.py",
    ),
    Break(
        "points that repeat others are suggested first",
        "thompson/loop.py",
        "points = _new_first(points, state.taken)",
        "points = points[::-1]",
        "tests/integrations/test_optuna.py",
    ),
    Break(
        "a gap is filled and nothing says so",
        "cli/tables/infer.py",
        "fill=fill, indicator=self.impute and self.missing > 0)",
        "fill=fill)",
        "tests/cli/tables/test_infer.py",
    ),
    Break(
        "few rows are learned from with all threads",
        "likelihood/exact.py",
        "few = X.shape[0] < THREADED_ROWS",
        "few = False",
        "tests/likelihood/test_exact.py",
    ),
    Break(
        "the residual of CG is that of its recursion",
        "solvers/cg.py",
        "converged=self.has_converged(look, solve.targets)",
        "converged=at.converged",
        "tests/solvers/test_cg.py",
    ),
    Break(
        "CG goes on when precision is used up",
        "solvers/cg.py",
        "return at.left[1] > HALVED * at.left[0]",
        "return False",
        "tests/solvers/test_cg.py",
    ),
    Break(
        "a few points far away move the centre of a search",
        "linalg/neighbours.py",
        "jnp.median(Q, axis=0)",
        "jnp.mean(self.points, axis=0)",
        "tests/linalg/test_neighbours.py",
    ),
    Break(
        "rounding of a distance is taken for one",
        "linalg/distances.py",
        "jnp.where(r2 > rounding, r2, 0)",
        "jnp.abs(r2)",
        "tests/kernels/test_stationary.py",
    ),
    Break(
        "coordinates that cannot be squared are squared",
        "kernels/features.py",
        "return jnp.clip(X, -far, far)",
        "return X",
        "tests/kernels/test_stationary.py",
    ),
    Break(
        "the precision does not follow the noise",
        "linalg/precision.py",
        "np.float64 if rounding > ROUNDING else",
        "np.float64 if rounding > 1e6 * ROUNDING else",
        "tests/posterior/test_condition.py",
    ),
    Break(
        "a constant target is learned from",
        "estimator/hyperparameters.py",
        "np.flatnonzero(varies) if varies.any() else",
        "np.flatnonzero(~varies) if False else",
        "tests/estimator/test_regressor.py",
    ),
    Break(
        "negative numbers are counts",
        "kernels/tanimoto.py",
        "(least := float(np.min(np.asarray(X)))) < 0",
        "(least := float(np.min(np.asarray(X)))) < -1e9",
        "tests/kernels/test_tanimoto.py",
    ),
    Break(
        "a stored model is updated in its own precision",
        "posterior/posterior.py",
        "dtype = np.promote_types(dtype_of(self), jnp.result_type(float))",
        "dtype = dtype_of(self)",
        "tests/posterior/test_condition.py",
    ),
    Break(
        "distances of many inputs are a product in float32",
        "linalg/distances.py",
        "X, Z = X.astype(jnp.float64), Z.astype(jnp.float64)",
        "X, Z = X.astype(jnp.float32), Z.astype(jnp.float32)",
        "tests/linalg/test_distances.py",
    ),
    Break(
        "the error of a posterior is a tenth of what it is",
        "posterior/accuracy.py",
        "missing = share * probes.corrections[:, :t]",
        "missing = 0.1 * share * probes.corrections[:, :t]",
        "tests/posterior/test_accuracy.py",
    ),
    Break(
        "a derivative in float64 is taken outside its context",
        "linalg/precision.py",
        "and not is_concrete(X)",
        "and False",
        "tests/posterior/test_precision.py",
    ),
]

CONTROL = Break(
    "nothing",
    "runs/atomic.py",
    "os.replace(temporary, path)",
    "os.replace(temporary, path)",
    "tests/runs/test_atomic.py",
)
"""Control without a break: its tests must pass, otherwise the results are meaningless."""


def noticed(b: Break) -> str | None:
    """Return the first test that fails with the broken code, or None."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", pathlib.Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        path = pathlib.Path(folder) / "src" / "pathgp" / b.file
        path.write_text(path.read_text().replace(b.old, b.new))
        command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider", *b.tests.split()]
        environment = {**os.environ, "PYTHONPATH": str(path.parents[len(pathlib.Path(b.file).parents)])}
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, flags=re.MULTILINE)
    if run.returncode > 1 or (run.returncode == 1 and not found):
        raise SystemExit(f"the tests did not run with {b.what!r}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return found[0] if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description="which test notices that the code is broken")
    parser.add_argument("--only", nargs="+", default=[], help="the breaks of these files")
    parser.add_argument("--out", type=pathlib.Path)
    a = parser.parse_args()
    stale = [b for b in BREAKS if (ROOT / "src" / "pathgp" / b.file).read_text().count(b.old) != 1]
    if stale:
        raise SystemExit("mend the list of breaks: " + ", ".join(f"{b.file} has not one {b.old!r}" for b in stale))
    if noticed(CONTROL) is not None:
        raise SystemExit("the tests fail without any break.")
    results = []
    for b in BREAKS:
        if a.only and b.file not in a.only:
            continue
        results.append({"what": b.what, "file": b.file, "noticed": noticed(b)})
        print(f"{b.what:<52} {b.file:<26} {results[-1]['noticed'] or 'NOT NOTICED'}", flush=True)
        store(a.out, {"benchmark": "mutations", "results": results})
    raise SystemExit(sum(r["noticed"] is None for r in results))


if __name__ == "__main__":
    main()
