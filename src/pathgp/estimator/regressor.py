"""The scikit-learn face of the library: the one mutable thing."""

import dataclasses
import time
from typing import Any, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Float64, PRNGKeyArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from pathgp import _checks as checks
from pathgp import solvers, storage
from pathgp._checks import check_not_forked
from pathgp.estimator.hyperparameters import learned_process, limited, row_noise, starting_process
from pathgp.estimator.registry import SOLVERS, named
from pathgp.estimator.standardize import Scaling, identity, standardizing, standardizing_targets
from pathgp.kernels import Kernel
from pathgp.likelihood import Exact, NearestNeighbour, Trace
from pathgp.linalg.precision import cast
from pathgp.parallel import jobs
from pathgp.parallel.sharding import gathered
from pathgp.posterior.condition import condition
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.posterior.predict import Predictive, in_whole_tiles
from pathgp.runs.checkpoint import Checkpoint
from pathgp.solvers.inducing.points import RandomPoints
from pathgp.storage import validation
from pathgp.storage.model_file import Classes

EXACT_ROWS = 1000
"""Up to so many rows, hyperparameters are learned by the exact likelihood."""


class PathGPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression for up to millions of rows, with calibrated predictions and function samples.

    Learns the hyperparameters, chooses a solver by the size of the data (`info_.solver` and `info_.reason` say which
    and why), and keeps the posterior as functions. Predictions are those of exact kernels.

    Parameters
    ----------
    kernel : "matern32", "matern12", "matern52", "rbf", "rational_quadratic", or a kernel of `pathgp.kernels`
        A name has a length scale for each input. Learning starts from the parameters of an object.
    noise : float or None
        The variance of the noise of an observation, in standardised units where `standardize` is True: where learning
        starts, or as it is if the hyperparameters are fixed. None is a tenth of the variance of y.
    hyperparameters : "learn" or "fixed"
        Learned by the marginal likelihood: the exact one up to 1000 rows, that of nearest neighbours above. Fixed,
        `kernel` and `noise` are taken as they are and the prior mean is zero: **in standardised units** where
        `standardize` is True (inputs and target of mean zero and variance one), else in those of the data.
    solver : "auto", "cholesky", "cg", "sap", "sdd", "sgd", "subset", "inducing", or a solver of `pathgp.solvers`
        With inducing points, `pathgp.solvers.inducing.points.RandomPoints(num)` says how many.
    num_samples : int
        The posterior functions, from which uncertainty is estimated: with 64 of them, standard deviations are right to
        a few per cent, and to 9 % with a solver other than "auto". At least 1.
    tolerance : float or None
        The relative residual at which an iterative solver may stop; None leaves that to the solver.
    max_seconds : float or None
        Learning stops after half of this time and an iterative solver at the end of it, with what they have; compiling
        and the exact solve of a small problem are not cut short.
    standardize : bool
        Whether inputs and target are brought to mean zero and variance one inside; results are in the units of y.
    devices : int or None
        Over how many devices rows are split. None is one, or all in a job of several processes (`distributed`).
    random_state : int, RandomState or None
        The same number gives the same model, samples included.
    verbose : bool or int
        Whether progress is shown.
    checkpoint : `pathgp.Checkpoint`, a directory, or None
        Where `fit` and `partial_fit` keep what they have come to: the same call goes on from there, to the same model,
        if it was stopped.
        `random_state` must be a number then. What was kept stays there until `Checkpoint(directory).clear()`.

    Attributes
    ----------
    posterior_ : `pathgp.Posterior` in standardised units; a `Predictor` after loading a slim model
    kernel_ : the kernel in standardised units
    noise_ : the variance of the noise of an observation of weight one, in squared units of y; one for each of several
        targets
    solver_, info_ : the solver and what it reached: residuals, passes over the data, seconds, reason of choice
    trace_ : how learning went, a `Trace` for each target that varies; empty where nothing was learned
    input_scaling_, target_scaling_ : centre and scale of each column
    n_features_in_, feature_names_in_, n_samples_seen_ : as everywhere in scikit-learn

    Several targets (y with columns) share kernel, noise level (in units of their spread) and one linear solve; their
    hyperparameters are the geometric mean over the targets.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = PathGPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> print(mean.round(2), std.shape)
    [0.14] (1,)
    """

    posterior_: Predictive
    kernel_: Kernel
    noise_: float | Float64[np.ndarray, "t"]
    solver_: solvers.Solver
    info_: solvers.Info
    trace_: list[Trace]
    input_scaling_: Scaling
    target_scaling_: Scaling
    single_target_: bool
    n_features_in_: int
    n_samples_seen_: int
    feature_names_in_: np.ndarray
    _file: str = "the model"
    """What errors call it: the file, if it was loaded from one."""

    def __init__(
        self,
        kernel: Any = "matern32",
        *,
        noise: Any = None,
        hyperparameters: Any = "learn",
        solver: Any = "auto",
        num_samples: Any = 64,
        tolerance: Any = None,
        max_seconds: Any = None,
        standardize: Any = True,
        devices: Any = None,
        random_state: Any = None,
        verbose: Any = False,
        checkpoint: Any = None,
    ) -> None:
        # Any: scikit-learn's rule is that whatever is wrong with a parameter is said by `fit`.
        self.kernel = kernel
        self.noise = noise
        self.hyperparameters = hyperparameters
        self.solver = solver
        self.num_samples = num_samples
        self.tolerance = tolerance
        self.max_seconds = max_seconds
        self.standardize = standardize
        self.devices = devices
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "PathGPRegressor":
        """Learns from the rows of X. A row of weight w has the noise variance noise/w, one of weight 0 is left out.

        Given the hyperparameters, a row of weight 2 counts as two rows with the same values. Learning takes it for one
        row that is known more precisely, for two equal rows would say that there is no noise.
        """
        clock = time.perf_counter()
        vars(self).pop("posterior_", None)  # whatever interrupts this leaves no model half of which is new
        self._check_settings()
        solver, mesh, checkpoint = self._solver(), self._mesh(), self._checkpoint()
        X, Y, weights = self._data(X, y, sample_weight, first=True)
        counts = np.ones(len(X)) if weights is None else weights
        self.input_scaling_ = standardizing(X, counts) if self.standardize else identity(X.shape[1])
        self.target_scaling_ = standardizing_targets(Y, counts) if self.standardize else identity(Y.shape[1])
        inputs, targets = self.input_scaling_.apply(X), self.target_scaling_.apply(Y)
        hyper_key, solve_key = jax.random.split(self._key())
        if isinstance(solver, RandomPoints):
            solver = solver.solver(inputs, key=jax.random.fold_in(solve_key, 1))  # a draw of its own
        base, self.trace_ = self._process(inputs, targets, weights, hyper_key, mesh)
        learning = sum(max(trace.seconds, default=0.0) for trace in self.trace_)  # in earlier runs too
        left = max(self._seconds() - max(time.perf_counter() - clock, learning), 1e-3)
        posterior = condition(
            GP(base.kernel, row_noise(base.noise, weights), base.mean),
            inputs,
            targets,
            solver=solver if self.max_seconds is None else limited(solver, max_seconds=left),
            num_samples=self.num_samples,
            key=solve_key,
            mesh=mesh,
            progress=bool(self.verbose),
            checkpoint=checkpoint,
        )
        if self.max_seconds is not None:  # what is added later has as long again, not what was left
            later = limited(posterior.solver, max_seconds=self._seconds())
            posterior = dataclasses.replace(posterior, solver=later)
        self._keep(posterior, float(base.noise))
        self.n_samples_seen_ = len(X)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "PathGPRegressor":
        """Adds rows to those that the model has, solving from the present weights; the first call is `fit`.

        The units and the hyperparameters stay as they are.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, sample_weight)
        posterior = self._whole("partial_fit")
        X, Y, weights = self._data(X, y, sample_weight, first=False)
        noise = self._standard_noise
        if weights is not None and posterior.gp.noise.ndim == 0:
            posterior = posterior.with_noise_of_rows()
        elif weights is None and posterior.gp.noise.ndim == 1:
            weights = np.ones(len(X))
        # Rows that are added later draw other noise.
        key = jax.random.fold_in(self._key(), self.n_samples_seen_)
        checkpoint = self._checkpoint()
        updated = posterior.update(
            self.input_scaling_.apply(X),
            self.target_scaling_.apply(Y),
            key=key,
            noise=None if weights is None else row_noise(jnp.asarray(noise), weights),
            progress=bool(self.verbose),
            checkpoint=None if checkpoint is None else checkpoint.named(f"after{self.n_samples_seen_}"),
        )
        self._keep(updated, noise)
        self.n_samples_seen_ += len(X)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean of y at the rows of X, and the standard deviation or the covariance matrix of new observations.

        **The noise is included**: about 95 % of new observations are within two standard deviations of the mean. That
        of the function alone is √(std² − noise_). Both are estimated from the samples; the covariance of the function
        has the rank of their number.
        """
        check_is_fitted(self, "posterior_")
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be True: ask for one of them.")
        inputs = self._inputs(X)
        T = self.posterior_.num_targets
        if not (return_std or return_cov):
            mean = in_whole_tiles(self.posterior_.mean, inputs).reshape(-1, T)
            return self._outputs(self.target_scaling_.undo(mean))
        scale2 = self.target_scaling_.scale**2
        values = in_whole_tiles(lambda x: jnp.column_stack(self.posterior_.predict(x)), inputs)
        mean, variance = self.target_scaling_.undo(values[:, :T]), values[:, T:]
        if return_cov:
            deviations = in_whole_tiles(self.posterior_.deviations, inputs)
            deviations = deviations * np.sqrt(variance / np.sum(deviations**2, axis=1, keepdims=True))
            spread = (deviations @ deviations.T + self._standard_noise * np.eye(len(inputs)))[:, :, None] * scale2
        else:
            spread = np.sqrt((variance + self._standard_noise) * scale2)
        return self._outputs(mean), self._outputs(spread)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Float64[np.ndarray, "n *t s"]:
        """Posterior functions, **without noise**, at the rows of X: (n, n_samples), or (n, targets, n_samples).

        They are functions that the model has, chosen by `random_state`: the same number chooses the same functions, at
        whatever rows they are evaluated. More than it has are drawn for this call, each one column more to solve.
        """
        check_is_fitted(self, "posterior_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, but it is {n_samples}.")
        inputs = self._inputs(X)
        rng = check_random_state(random_state)
        posterior, T = self.posterior_, self.posterior_.num_targets
        more = n_samples - posterior.num_samples
        if more > 0:
            key = jax.random.key(rng.randint(2**31 - 1))
            posterior = self._whole(f"sample_y with more than {posterior.num_samples} samples")
            posterior = posterior.with_samples(more, key=key, progress=bool(self.verbose))
        # Targets are independent given the data: each has functions of its own.
        chosen = [rng.permutation(posterior.num_samples)[:n_samples] for _ in range(T)]
        joint = posterior.joint
        needed = np.concatenate([np.arange(T), T + np.concatenate(chosen)])
        values = in_whole_tiles(joint[needed], inputs)
        deviations = values[:, T:].reshape(len(inputs), T, n_samples)
        draws = values[:, :T, None] + float(posterior.level) - deviations
        scale, centre = self.target_scaling_.scale[:, None], self.target_scaling_.centre[:, None]
        return self._outputs(draws * scale + centre, axis=1)

    def save(
        self, path: storage.Path, *, slim: bool = False, metadata: storage.Metadata | None = None, classes: Classes = ()
    ) -> None:
        """Writes the fitted model to one safetensors file, see `pathgp.storage`.

        A slim file has what prediction needs, half to three quarters of the size; it cannot be updated or given more
        samples. `metadata` is kept beside the model and read by `pathgp.storage.metadata(path)`. A class of one's own,
        for instance a kernel, is named in `classes`, here and in `load`. All processes of a job save, the first writes.
        """
        check_is_fitted(self, "posterior_")
        settings = self.get_params(deep=False) | {"checkpoint": None}
        if isinstance(self.random_state, np.random.RandomState):
            settings["random_state"] = None
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_")}
        posterior = self.posterior_.gathered() if isinstance(self.posterior_, Posterior) else self.posterior_
        fitted["posterior_"] = posterior.predictor if slim else posterior
        names = fitted.pop("feature_names_in_", None)
        columns = None if names is None else [str(name) for name in names]
        about = {"kind": "PathGPRegressor", "columns": columns, "inputs": self.n_features_in_, "slim": slim}
        value = {"settings": settings, "fitted": fitted, "columns": columns}
        if jax.process_index() == 0:
            storage.save(path, value, metadata={**(metadata or {}), **about}, classes=(*classes, Scaling, RandomPoints))

    @classmethod
    def load(cls, path: storage.Path, *, classes: Classes = ()) -> "PathGPRegressor":
        """The model that `save` wrote; it predicts the same bits.

        Raises `ValueError` if the file is damaged, or if its arrays and settings do not fit each other.
        """
        if (kind := storage.metadata(path).get("kind")) != "PathGPRegressor":
            other = "read it with `pathgp.storage.load`" if kind is None else f"it is a file of `{kind}`"
            raise ValueError(f"{path} does not hold a PathGPRegressor: {other}.")
        value = storage.load(path, classes=(*classes, Scaling, RandomPoints))
        with storage.refusing(path):
            match value:
                case {"settings": dict(settings), "fitted": dict(fitted), "columns": None | list() as columns}:
                    model = cls(**settings)
                    vars(model).update(fitted)
                    model._check_loaded(fitted, columns)
                case _:
                    raise ValueError("a PathGPRegressor has settings, fitted values and columns.")
        if columns is not None:
            model.feature_names_in_ = np.array(columns, dtype=object)
        model._file = str(path)
        return model

    def _check_loaded(self, fitted: dict[str, Any], columns: list[Any] | None) -> None:
        """Raises an error unless the settings and the attributes that a file holds are those of a fitted model."""
        self._check_settings()
        self._solver()
        check_random_state(self.random_state)
        if foreign := [name for name in fitted if name.startswith("_") or not name.endswith("_")]:
            raise ValueError(f"{foreign[0]!r} is no name of a fitted attribute.")
        hints = {name: hint for name, hint in get_type_hints(PathGPRegressor).items() if name.endswith("_")}
        del hints["feature_names_in_"]  # which are stored as `columns`
        validation.check_types({name: fitted.get(name) for name in hints}, hints, "PathGPRegressor")
        validation.check_positive(self.noise_, "noise_")
        for scaling in (self.input_scaling_, self.target_scaling_):
            validation.check_positive(scaling.scale, "Scaling.scale")
        if self.single_target_ != (np.ndim(self.noise_) == 0):
            raise ValueError("noise_ must be one number if single_target_ is True, and an array otherwise.")
        checks.at_least(self.posterior_.num_samples, 1, "the number of samples")
        if columns is not None and not all(isinstance(name, str) for name in columns):
            raise ValueError("the names of the columns must be text.")
        inputs, targets = self.posterior_.update_at_points.features.inputs, self.posterior_.num_targets
        sizes = {
            "n_features_in_": (self.n_features_in_, inputs),
            "input_scaling_": (len(self.input_scaling_.scale), inputs),
            "columns": (inputs if columns is None else len(columns), inputs),
            "target_scaling_": (len(self.target_scaling_.scale), targets),
            "noise_": (np.size(self.noise_), targets),
            "info_": (len(self.info_.relative_residual) - self.posterior_.num_samples, targets),
        }
        for name, (size, expected) in sizes.items():
            if size != expected:
                raise ValueError(f"{name} is for {size} inputs or targets, but the posterior has {expected}.")

    def _check_settings(self) -> None:
        checks.whole(self.num_samples, 1, "num_samples")
        checks.instance(self.standardize, bool | np.bool_, "standardize", "True or False")
        for name in ("tolerance", "max_seconds"):
            if (value := getattr(self, name)) is not None:
                checks.instance(value, float | int | np.number, name, "a number, or None")
                if not value > 0:
                    raise ValueError(f"{name} must be positive, but it is {value}.")

    def _seconds(self) -> float:
        return float("inf") if self.max_seconds is None else float(self.max_seconds)

    def _key(self) -> PRNGKeyArray:
        return jax.random.key(check_random_state(self.random_state).randint(2**31 - 1))

    @property
    def _standard_noise(self) -> float:
        """The noise variance in standardised units, the same for all targets."""
        return float(np.ravel(self.noise_)[0] / self.target_scaling_.scale[0] ** 2)

    def _mesh(self) -> Mesh | None:
        return None if self.devices in (None, 1) and jax.process_count() == 1 else jobs.mesh(self.devices)

    def _checkpoint(self) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        if not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                f"checkpoint needs a number for random_state to go on from, but it is {self.random_state}."
            )
        return self.checkpoint if isinstance(self.checkpoint, Checkpoint) else Checkpoint(self.checkpoint)

    def _process(self, X: Any, Y: Any, weights: Any, key: PRNGKeyArray, mesh: Mesh | None) -> tuple[GP, list[Trace]]:
        """The process in standardised units, its noise that of a row of weight one, and how it was found."""
        if self.hyperparameters not in ("learn", "fixed"):
            raise ValueError(f'hyperparameters must be "learn" or "fixed", but it is {self.hyperparameters!r}.')
        learns = self.hyperparameters == "learn"
        start = starting_process(self.kernel, self.noise, learns, X, Y, weights)
        if not learns or len(X) == 1:  # one row says nothing about variation
            return start, []
        seconds = self._seconds() / 2 / Y.shape[1]
        nearest = NearestNeighbour(max_seconds=seconds, mesh=mesh)
        return learned_process(
            start,
            X,
            Y,
            weights,
            method=Exact(max_seconds=seconds) if len(X) <= EXACT_ROWS else nearest,
            key=key,
            mesh=mesh,
            progress=bool(self.verbose),
            checkpoint=self._checkpoint(),
        )

    def _solver(self) -> Any:
        solver = self.solver
        if isinstance(solver, str):
            solver = named(SOLVERS, solver, "solver")()
        kind = solvers.Solver | RandomPoints
        checks.instance(solver, kind, "solver", f"one of {', '.join(SOLVERS)}, or an object such as solvers.CG()")
        return solver if self.tolerance is None else limited(solver, tolerance=self.tolerance)

    def _data(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> tuple[Any, Any, Any]:
        """X, the targets as columns, and the weights (None where all are one), without the rows of weight zero."""
        check_not_forked()
        checks.no_dates(X)
        X, y = validate_data(self, X, y, reset=first, dtype="numeric", multi_output=True)
        Y = np.asarray(y, np.float64).reshape(len(X), -1)
        if first:
            self.single_target_ = np.ndim(y) == 1
        elif Y.shape[1] != self.posterior_.num_targets:
            raise ValueError(f"y has {Y.shape[1]} targets, but the model was fitted to {self.posterior_.num_targets}.")
        if sample_weight is None:
            return X, Y, None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counted = weights > 0
        if not counted.any():  # which scikit-learn refuses itself from 1.7 on
            raise ValueError("sample_weight must have at least one non-zero number, but all are zero.")
        if not counted.all():
            X, Y, weights = X[counted], Y[counted], weights[counted]
        return X, Y, None if np.all(weights == 1) else weights

    def _inputs(self, X: Any) -> Float[np.ndarray, "n d"]:
        check_not_forked()
        inputs = self.input_scaling_.apply(validate_data(self, X, reset=False, dtype="numeric"))
        largest = np.finfo(inputs.dtype).max
        return np.clip(inputs, -largest, largest, out=inputs)  # which is far from all rows, as what it stands for is

    def _outputs(self, values: np.ndarray, axis: int = -1) -> np.ndarray:
        if not np.isfinite(values).all():
            raise ValueError(
                f"{self._file} predicts values that are not finite, because its numbers are too large or too small: "
                "fit it again, in other units of X and y."
            )
        return np.squeeze(values, axis) if self.single_target_ else values

    def _whole(self, what: str) -> Posterior:
        if not isinstance(self.posterior_, Posterior):
            raise ValueError(
                f"{what} needs the whole model, but this one was loaded from a slim file: save it with slim=False."
            )
        return self.posterior_

    def _keep(self, posterior: Posterior, noise: float) -> None:
        variances = noise * self.target_scaling_.scale**2
        vars(self).pop("_file", None)  # whose model this is no longer
        self.posterior_ = posterior
        self.kernel_ = cast(posterior.gp.kernel, jnp.result_type(float))
        self.noise_ = float(variances[0]) if self.single_target_ else variances
        self.solver_ = posterior.chosen_solver
        self.info_ = gathered(posterior.info)
