"""A fitted model with the names of its columns, as the commands use it and store it in one file."""

import copy
import dataclasses
import pathlib
import sys
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from pathgp import storage
from pathgp.cli.common import print_message
from pathgp.cli.options import Job, Options
from pathgp.cli.tables.encoding import Column, Encoding, Rows
from pathgp.cli.tables.files import ARROW, NUMBER, TEXT, counted
from pathgp.cli.tables.infer import Scan
from pathgp.estimator.regressor import PathGPRegressor
from pathgp.kernels import Stationary
from pathgp.runs.atomic import atomic_path
from pathgp.runs.checkpoint import Checkpoint
from pathgp.solvers.inducing.points import RandomPoints
from pathgp.storage import validation
from pathgp.storage.model_file import reraise_with_path

FACTS = {"rows": int, "ranges": list[list[float]], "missing": dict[str, int], "skipped": int}
"""Facts about the table that `pathgp fit` stores, with their types."""

FILLED = "{} replaced as in the fit; the intervals do not account for this."


@dataclasses.dataclass(frozen=True)
class Fitted:
    """An estimator, the encoding of tables as its inputs, and facts about the table that it was fitted to."""

    model: PathGPRegressor
    encoding: Encoding
    facts: dict[str, Any]

    @classmethod
    def fit(
        cls,
        rows: Rows,
        scan: Scan,
        options: Options,
        job: Job,
        checkpoint: Checkpoint | None,
        max_seconds: float | None,
    ) -> "Fitted":
        """Fit the hyperparameters and solve, with the options of `pathgp fit` and the time that is left."""
        model = PathGPRegressor(
            kernel=options.kernel,
            noise=options.noise,
            solver=RandomPoints(options.points) if options.solver == "inducing" else options.solver,
            num_samples=options.num_samples,
            max_seconds=max_seconds,
            devices=job.devices,
            random_state=options.seed,
            verbose=job.speaks and sys.stderr.isatty(),
            checkpoint=checkpoint,
        ).fit(rows.X, rows.y)
        ranges = np.column_stack([rows.X.min(axis=0), rows.X.max(axis=0)]) + rows.origin[:, None]
        facts = {"rows": len(rows.y), "ranges": ranges.tolist(), "missing": scan.missing, "skipped": scan.skipped}
        return cls(_as_asked(model, rows.origin, options.max_seconds), scan.encoding, facts)

    @property
    def target(self) -> str:
        """The name of the target."""
        return self.encoding.target or "the target"

    @property
    def num_samples(self) -> int:
        """The number of samples of the model."""
        return self.model.posterior_.num_samples

    def predict(self, X: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """Return the mean and the standard deviation of new observations."""
        mean, sd = self.model.predict(X, return_std=True)
        return np.asarray(mean, float), np.asarray(sd, float)

    def samples(self, X: Float[np.ndarray, "n d"], num: int) -> Float[np.ndarray, "n s"]:
        """Return samples of the model, without noise; every chunk of rows gets the same functions."""
        if not 1 <= num <= self.num_samples:
            raise ValueError(
                f"--num-samples must be from 1 to {self.num_samples}, the number in the model, but it is {num}: for "
                "more, fit with a larger --num-samples."
            )
        return np.asarray(self.model.sample_y(X, num, random_state=0), float)

    @property
    def loss(self) -> list[float]:
        """Negative log-likelihood per row after each step of hyperparameter fitting."""
        return [loss for trace in self.model.trace_ for loss in trace.loss]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended hyperparameter fitting."""
        return any(trace.interrupted for trace in self.model.trace_)

    @property
    def ranges(self) -> list[tuple[float, float]]:
        """Smallest and largest value of each input; raises `ValueError` if the model does not know them."""
        if "ranges" not in self.facts:
            raise ValueError("the model has no ranges of its inputs: to plot it, fit it with `pathgp fit`.")
        return [(low, high) for low, high in self.facts["ranges"]]

    @property
    def constant(self) -> dict[str, float]:
        """Inputs known to have one value in all rows, and that value."""
        ranges = zip(self.encoding.inputs, self.facts.get("ranges", ()), strict=False)
        return {name: low for name, (low, high) in ranges if low == high}

    def summary(self) -> dict[str, Any]:
        """Return a JSON-serialisable description of the model."""
        model, info = self.model, self.model.info_
        residuals = np.asarray(info.relative_residual)
        kernel, unit2 = model.kernel_, float(model.target_scaling_.scale[0]) ** 2
        stationary = isinstance(kernel, Stationary)
        scales = np.broadcast_to(kernel.lengthscale, len(self.encoding.inputs)).tolist() if stationary else []
        return {
            "target": self.encoding.target,
            "rows": self.facts.get("rows"),
            "inputs": list(self.encoding.inputs),
            "constant": list(self.constant),
            "missing": self.facts.get("missing", {}),
            "skipped": self.facts.get("skipped", 0),
            "kernel": type(kernel).__name__,
            "variance": float(kernel.variance) * unit2 if stationary else None,
            "lengthscales": dict(zip(self.encoding.inputs, scales, strict=stationary)),
            "noise_variance": float(np.mean(model.noise_variance_)),
            "num_samples": self.num_samples,
            "solver": info.solver,
            "reason": info.reason,
            "passes": float(info.passes),
            "solve_seconds": float(info.seconds),
            "tolerance": float(info.tolerance),
            "relative_residual": {"mean": float(residuals[0]), "largest": float(residuals.max())},
            "converged": bool(np.all(info.converged)),
            "learning_steps": len(self.loss),
            **self.facts.get("versions", {}),
        }

    def lines(self) -> dict[str, str]:
        """Return a description of the model in words."""
        s = self.summary()
        rows = "an unknown number of" if s["rows"] is None else f"{s['rows']:,}"
        residual = s["relative_residual"]
        missing, skipped = sum(s["missing"].values()), s["skipped"]
        lacking = f"{missing:,} values imputed" if missing else f"{skipped:,} rows left out" if skipped else ""
        return {
            "target": f"{self.target}, fitted to {rows} rows with {len(s['inputs'])} inputs",
            **({"missing": lacking} if lacking else {}),
            "kernel": f"{s['kernel']}" + ("" if s["variance"] is None else f", variance {s['variance']:.4g}"),
            "noise": f"variance {s['noise_variance']:.4g}, sd {s['noise_variance'] ** 0.5:.4g}",
            "samples": f"{s['num_samples']} functions",
            "solver": s["solver"] + (f": {s['reason']}" if s["reason"] else ""),
            "residual": f"{residual['mean']:.1e} for the mean, at most {residual['largest']:.1e}, "
            f"after {s['passes']:.1f} passes over the data: "
            + ("converged" if s["converged"] else "not converged, allow more time"),
        }


def _as_asked(model: PathGPRegressor, origin: Float[np.ndarray, "d"], max_seconds: float | None) -> PathGPRegressor:
    """Return a copy that takes inputs in their own units, not counted from `origin`, and has the time limit given."""
    copied = copy.copy(model).set_params(max_seconds=max_seconds)
    copied.input_scaling_ = model.input_scaling_.shifted(origin)
    return copied


def save(fitted: Fitted, path: pathlib.Path, force: bool = False) -> None:
    """Write the model with its encoding and facts to one file.

    In Python the model then knows the names of its inputs. Unless `force`, a file that another process has written in
    the meantime is kept (see `replacing`).
    """
    model = copy.copy(fitted.model)
    if not all(name.isdecimal() for name in fitted.encoding.inputs):  # columns of a matrix have no names in Python
        model.feature_names_in_ = np.array(fitted.encoding.inputs, dtype=object)
    writes = jax.process_index() == 0  # all processes of a job take part in gathering; the first one writes
    with atomic_path(path, force) if writes else nullcontext(path) as temporary:
        model.save(temporary, metadata={"encoding": fitted.encoding.as_json(), **fitted.facts})


def load(path: pathlib.Path) -> Fitted:
    """Load a model that `save`, or `PathGPRegressor.save`, wrote."""
    stored = storage.metadata(path)
    model = PathGPRegressor.load(path)
    if model.posterior_.num_targets > 1:
        raise ValueError(
            f"{path} has {model.posterior_.num_targets} targets, but the command line supports only one: fit a model "
            "per target, or use this one in Python."
        )
    model.single_target_ = True  # y may have been a matrix with one column
    names = vars(model).pop("feature_names_in_", None)  # the encoding passes matrices without names
    versions = {name: stored.pop(name) for name in ("pathgp_version", "format_version")}
    if "encoding" in stored:
        with reraise_with_path(path):
            encoding = Encoding.from_json(stored.pop("encoding"))
            _check(encoding, stored, model.n_features_in_)
    else:
        stored = {}  # metadata of the user's own, not facts of `pathgp fit`
        if names is None:
            raise ValueError(f"{path} has no column names: fit it with `pathgp fit`, or to a data frame.")
        encoding = Encoding(None, tuple(Column(str(name), NUMBER) for name in names))
    return Fitted(model, encoding, {**stored, "versions": versions})


def _check(encoding: Encoding, facts: dict[str, Any], inputs: int) -> None:
    """Raise an error unless the columns and facts in a file are valid for a model with this number of inputs."""
    validation.check(encoding)
    for column in encoding.columns:
        validation.check(column)
        if column.kind not in ARROW:
            raise ValueError(
                f"column {column.name!r} is of kind {column.kind!r}, but must be one of {', '.join(ARROW)}."
            )
        if column.fill is not None and isinstance(column.fill, str) != (column.kind == TEXT):
            raise ValueError(f"missing values of column {column.name!r} cannot be replaced by {column.fill!r}.")
    known = {name: facts[name] for name in FACTS if name in facts}
    validation.check_types(known, FACTS, "facts")
    if len(encoding.inputs) != inputs or ("ranges" in facts and np.shape(facts["ranges"]) != (inputs, 2)):
        raise ValueError(f"the columns must have {inputs} inputs, as the model has, and a range per input.")


def predict_known(
    fitted: Fitted, path: pathlib.Path, allow_unknown: bool = False
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Return true targets, predicted means and standard deviations at the rows of a table."""
    parts, missing = [], 0
    for block in fitted.encoding.blocks(path, with_target=True, allow_unknown=allow_unknown):
        parts.append((block.y, *fitted.predict(block.X)))
        missing += block.missing
    if missing:
        print_message(FILLED.format(counted(missing, "missing value")))
    y, mean, sd = (np.concatenate(column) for column in zip(*parts, strict=True))
    return y, mean, sd
