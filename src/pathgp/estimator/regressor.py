"""`PathGPRegressor`, the scikit-learn interface: a mutable estimator around an immutable posterior."""

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
from pathgp.estimator.hyperparameters import fit_gp, initial_gp, row_noise, with_limits
from pathgp.estimator.registry import SOLVERS, look_up
from pathgp.estimator.standardize import Scaling, fit_scaling, fit_target_scaling, identity
from pathgp.kernels import Kernel
from pathgp.likelihood import Auto, Exact, NearestNeighbour, Trace
from pathgp.linalg.namespace import on_device
from pathgp.linalg.precision import cast, from_pickle, to_pickle, working_in
from pathgp.parallel import jobs
from pathgp.parallel.sharding import gathered
from pathgp.posterior.condition import condition, dtype_for
from pathgp.posterior.exact import exact_predictor
from pathgp.posterior.gp import GP
from pathgp.posterior.posterior import Posterior
from pathgp.posterior.predict import Predictor, evaluate_whole_tiles
from pathgp.runs.checkpoint import Checkpoint
from pathgp.solvers.inducing.points import RandomPoints
from pathgp.storage import validation
from pathgp.storage.model_file import Classes, Metadata, reraise_with_path
from pathgp.storage.model_file import Path as ModelPath
from pathgp.system.system import System


class PathGPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process regression for up to millions of rows, with calibrated predictions and function samples.

    `fit` fits the hyperparameters, chooses a solver by the size of the data (`info_.solver` and `info_.reason` state
    which and why), and keeps the posterior as functions. Predictions use the exact kernel, not an approximation of it.

    Several targets (y with columns) share the kernel, the noise level in units of their spread, and one linear solve.
    Their hyperparameters are the geometric mean over the targets.

    Parameters
    ----------
    kernel : {"matern32", "matern12", "matern52", "rbf", "rational_quadratic"} or Kernel, default="matern32"
        A name stands for a kernel with one length scale per input. The parameters of a kernel object from
        `pathgp.kernels` are the start of hyperparameter fitting.
    noise : float or None, default=None
        Variance of the observation noise, in standardised units if `standardize` is True. Hyperparameter fitting starts
        from it; with fixed hyperparameters it is used as it is. None is a tenth of the variance of y.
    hyperparameters : {"learn", "fixed"}, default="learn"
        With "learn" they maximise the marginal likelihood: the exact one up to 1000 rows, above that the
        nearest-neighbour approximation. If the noise is negligible, the standard deviations are then scaled so that
        90 % intervals of leave-one-out predictions cover 90 % of the rows (100 to 8000 rows without weights). With
        "fixed", `kernel` and `noise` are used as they are and the prior mean is zero: **in standardised units** if
        `standardize` is True (inputs and target of mean zero and variance one), otherwise in those of the data.
    solver : {"auto", "cholesky", "cg", "sap", "sdd", "sgd", "subset", "inducing"} or Solver, default="auto"
        A name, or a solver of `pathgp.solvers`. To set the number of inducing points, pass
        `pathgp.solvers.inducing.points.RandomPoints(num)`.
    num_samples : int, default=64
        Number of posterior function samples, at least 1. Where the solve is exact, by default up to 4000 rows, they are
        drawn when they are first used, and standard deviations do not depend on them. Otherwise these are estimated
        from the samples: with 64 of them, they have an error of a few per cent, and of 9 % with a solver other than
        "auto".
    tolerance : float or None, default=None
        Relative residual at which an iterative solver may stop. None uses the solver's default.
    max_seconds : float or None, default=None
        Hyperparameter fitting stops after half of this time and an iterative solver at its end, with the result so far.
        Compilation and the exact solve of a small problem are not interrupted. None means no limit.
    standardize : bool, default=True
        Whether to scale inputs and target to mean zero and variance one internally. Results are in the units of y.
    devices : int or None, default=None
        Number of devices over which rows are sharded. None is one device, or all of them in a job of several processes
        (docs/distributed.md).
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results, samples included.
    verbose : bool or int, default=False
        Whether to show progress bars.
    checkpoint : Checkpoint, str, path or None, default=None
        Directory in which `fit` and `partial_fit` save their progress. After an interruption the same call resumes from
        it and gives the same model. This requires an integer `random_state`. The files stay until
        `Checkpoint(directory).clear()`.

    Attributes
    ----------
    posterior_ : Posterior or Predictor
        The posterior in standardised units, with samples. A `Predictor` after loading a slim model file.
    kernel_ : Kernel
        The kernel in standardised units.
    noise_ : float
        Noise variance of an observation of weight one, in standardised units as `kernel_`, which all targets share.
    noise_variance_ : float or ndarray of shape (n_targets,)
        The same in squared units of y, per target.
    solver_ : Solver
        The solver that was used.
    info_ : Info
        Result of the solve: residuals, passes over the data, seconds, and the reason for the choice of the solver.
    trace_ : list of Trace
        Course of hyperparameter fitting, per target that varies; empty if nothing was fitted.
    input_scaling_ : Scaling
        Centre and scale of each input.
    target_scaling_ : Scaling
        Centre and scale of each target.
    n_features_in_ : int
        Number of inputs seen during `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the inputs, if X has column names that are all strings.
    n_samples_seen_ : int
        Number of rows seen by `fit` and `partial_fit`, without those of weight zero.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = PathGPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> mean, std = model.predict([[0.5]], return_std=True)
    >>> print(mean.round(2), std.shape)
    [0.14] (1,)
    """

    _posterior: Posterior | Predictor
    _predictor: Predictor
    _deferred: dict[str, Any]
    """The arguments of `condition`, while the samples of an exact solve have not been drawn."""
    kernel_: Kernel
    noise_: float
    noise_variance_: float | Float64[np.ndarray, "t"]
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
    """Name of the model in error messages: the file, if it was loaded from one."""

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
        # Any: by scikit-learn's convention `fit` validates parameters, not the constructor.
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

    def __getstate__(self) -> Any:
        return to_pickle(super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(from_pickle(state))

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "PathGPRegressor":
        """Fit the hyperparameters, unless they are fixed, and solve for the posterior.

        A row of weight w has the noise variance noise/w, and rows of weight 0 are dropped. Given the hyperparameters, a
        row of weight 2 is equivalent to two rows with the same values. Hyperparameter fitting treats it as one more
        precise row, because two equal rows would be evidence that there is no noise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Training targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Non-negative weights of the rows. None means weight one for all.

        Returns
        -------
        self : PathGPRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter of the estimator or the data are invalid.
        """
        clock = time.perf_counter()
        for name in ("_posterior", "_deferred", "info_"):  # an interrupted fit must not leave old weights
            vars(self).pop(name, None)
        self._check_settings()
        solver, mesh, checkpoint = self._solver(), self._mesh(), self._checkpoint()
        X, Y, weights = self._data(X, y, sample_weight, first=True)
        counts = np.ones(len(X)) if weights is None else weights
        self.input_scaling_ = fit_scaling(X, counts) if self.standardize else identity(X.shape[1])
        self.target_scaling_ = fit_target_scaling(Y, counts) if self.standardize else identity(Y.shape[1])
        inputs, targets = self.input_scaling_.apply(X), self.target_scaling_.apply(Y)
        hyper_key, solve_key = jax.random.split(self._key())
        if isinstance(solver, RandomPoints):
            solver = solver.solver(inputs, key=jax.random.fold_in(solve_key, 1))  # independent of the solve
        base, self.trace_ = self._fit_gp(inputs, targets, weights, hyper_key, mesh)
        learning = sum(max(trace.seconds, default=0.0) for trace in self.trace_)  # with runs before a resume
        # The error estimates after the solve are compiled and computed about as long as the first step of the fit.
        after = max((trace.seconds[0] for trace in self.trace_ if trace.seconds), default=0.0)
        left = max(self._seconds() - max(time.perf_counter() - clock, learning) - after, 1e-3)
        gp = GP(base.kernel, row_noise(base.noise, weights), base.mean)
        self._keep_noise(float(base.noise))
        self.n_samples_seen_ = len(X)
        reason = _reason_to_factorise(solver, gp, inputs)
        if reason is not None and mesh is None:
            # Samples take longer than all the rest, and most models are only asked for means and variances.
            self._predictor, info = exact_predictor(gp, inputs, targets)
            self.kernel_, self.solver_ = gp.kernel, solvers.Cholesky()
            self.info_ = dataclasses.replace(info, reason=reason)
            self._deferred = {"gp": gp, "X": inputs, "y": targets, "solver": solver, "key": solve_key}
            self._deferred["num_samples"] = self.num_samples
            return self
        posterior = condition(
            gp,
            inputs,
            targets,
            solver=solver if self.max_seconds is None else with_limits(solver, max_seconds=left),
            num_samples=self.num_samples,
            key=solve_key,
            mesh=mesh,
            progress=bool(self.verbose),
            checkpoint=checkpoint,
        )
        if self.max_seconds is not None:  # `partial_fit` gets the full time, not the rest of this one
            later = with_limits(posterior.solver, max_seconds=self._seconds())
            posterior = dataclasses.replace(posterior, solver=later)
        self.posterior_ = posterior
        return self

    @property
    def posterior_(self) -> Posterior | Predictor:
        """The posterior in standardised units; if it was solved exactly, its samples are drawn when this is first used.

        It is a `Predictor` after loading a slim model file.
        """
        if "_deferred" in vars(self):
            self.posterior_ = condition(**self._deferred)
        if "_posterior" not in vars(self):
            raise AttributeError("this PathGPRegressor has no posterior_, because it is not fitted: call `fit` first.")
        return self._posterior

    @posterior_.setter
    def posterior_(self, posterior: Posterior | Predictor) -> None:
        for name in ("_file", "_deferred"):  # this is no longer the model of that file
            vars(self).pop(name, None)
        self._posterior = posterior
        if isinstance(posterior, Predictor):
            self._predictor = posterior
            return
        self._predictor = posterior.predictor
        self.kernel_ = cast(posterior.gp.kernel, jnp.result_type(float))
        self.solver_, self.info_ = posterior.chosen_solver, gathered(posterior.info)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "PathGPRegressor":
        """Add rows to the model and solve again with a warm start from the present weights; the first call is `fit`.

        Scalings and hyperparameters stay as they are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs of the new rows.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets of the new rows.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Non-negative weights of the new rows. None means weight one for all.

        Returns
        -------
        self : PathGPRegressor
            The updated estimator.

        Raises
        ------
        ValueError
            If the data are invalid, or if the model was loaded from a slim file.
        """
        if not hasattr(self, "info_"):
            return self.fit(X, y, sample_weight)
        posterior = self._require_full_posterior("partial_fit")
        X, Y, weights = self._data(X, y, sample_weight, first=False)
        noise = self.noise_
        if weights is not None and posterior.gp.noise.ndim == 0:
            posterior = posterior.with_noise_of_rows()
        elif weights is None and posterior.gp.noise.ndim == 1:
            weights = np.ones(len(X))
        # Each batch of new rows needs noise draws that are independent of the earlier ones.
        key = jax.random.fold_in(self._key(), self.n_samples_seen_)
        checkpoint = self._checkpoint()
        updated = posterior.update(
            self.input_scaling_.apply(X),
            self.target_scaling_.apply(Y),
            key=key,
            noise=None if weights is None else row_noise(jnp.asarray(noise), weights),
            progress=bool(self.verbose),
            checkpoint=None if checkpoint is None else checkpoint.with_part(f"after{self.n_samples_seen_}"),
        )
        self.posterior_ = updated
        self.n_samples_seen_ += len(X)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Predict the mean of y, and optionally the standard deviation or covariance of new observations.

        **The noise is included**: about 95 % of new observations lie within two standard deviations of the mean. The
        standard deviation of the function itself is √(std² − noise_variance_).

        Variances are exact where the solver has kept a Cholesky factor of K + Σ, and are estimated from the samples
        otherwise. The covariance of the function is estimated from the samples, so its rank is at most their number.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points.
        return_std : bool, default=False
            Whether to return the standard deviation of new observations.
        return_cov : bool, default=False
            Whether to return the covariance of new observations. At most one of the two may be True.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Mean at the query points.
        y_std : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Standard deviation at the query points. Only if `return_std` is True.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_targets)
            Covariance of the query points. Only if `return_cov` is True.

        Raises
        ------
        ValueError
            If both `return_std` and `return_cov` are True, or if X is invalid.
        """
        check_is_fitted(self, "info_")
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be True: set one of them to False.")
        inputs = self._inputs(X)
        predictor, T = self._predictor, self._predictor.num_targets
        if not (return_std or return_cov) and predictor.exact is None:
            mean = evaluate_whole_tiles(predictor.mean, inputs).reshape(-1, T)
            return self._outputs(self.target_scaling_.inverse(mean))
        scale2 = self.target_scaling_.scale**2
        values = evaluate_whole_tiles(lambda x: np.column_stack(predictor.predict(x)), inputs)
        mean, variance = self.target_scaling_.inverse(values[:, :T]), values[:, T:]
        if not (return_std or return_cov):
            return self._outputs(mean)
        if return_cov:
            deviations = evaluate_whole_tiles(self._sampled.deviations, inputs)
            # The diagonal is that of `return_std`, which is more precise than the variance of the samples.
            deviations = deviations * np.sqrt(variance / np.sum(deviations**2, axis=1, keepdims=True))
            spread = (deviations @ deviations.T + self.noise_ * np.eye(len(inputs)))[:, :, None] * scale2
        else:
            spread = np.sqrt((variance + self.noise_) * scale2)
        return self._outputs(mean), self._outputs(spread)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Float64[np.ndarray, "n *t s"]:
        """Evaluate posterior function samples, **without noise**, at the rows of X.

        The samples are chosen by `random_state` among those of the model: the same number chooses the same functions
        for every X. If there are too few, the missing ones are drawn for this call, at the cost of one more column of
        the solve each.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Query points.
        n_samples : int, default=1
            Number of function samples.
        random_state : int, RandomState instance or None, default=0
            Choice of the samples.

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_targets, n_samples)
            Values of the function samples at the query points.

        Raises
        ------
        ValueError
            If `n_samples` is below 1, or exceeds the samples of a model that was loaded from a slim file.
        """
        check_is_fitted(self, "info_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, but it is {n_samples}.")
        inputs = self._inputs(X)
        rng = check_random_state(random_state)
        predictor, T = self._sampled, self._predictor.num_targets
        more = n_samples - predictor.num_samples
        if more > 0:
            key = jax.random.key(rng.randint(2**31 - 1))
            posterior = self._require_full_posterior(f"sample_y with more than {predictor.num_samples} samples")
            predictor = posterior.with_samples(more, key=key, progress=bool(self.verbose)).predictor
        # Targets are independent given the data, so each gets a selection of its own.
        chosen = [rng.permutation(predictor.num_samples)[:n_samples] for _ in range(T)]
        needed = np.concatenate([np.arange(T), T + np.concatenate(chosen)])
        values = evaluate_whole_tiles(predictor.columns(needed), inputs)
        deviations = values[:, T:].reshape(len(inputs), T, n_samples)
        draws = values[:, :T, None] + float(predictor.constant) - deviations
        scale, centre = self.target_scaling_.scale[:, None], self.target_scaling_.centre[:, None]
        return self._outputs(draws * scale + centre, axis=1)

    def save(
        self, path: ModelPath, *, slim: bool = False, metadata: Metadata | None = None, classes: Classes = ()
    ) -> None:
        """Write the fitted model to one safetensors file (see `pathgp.storage`).

        In a job of several processes all of them must call `save`; the first one writes.

        Parameters
        ----------
        path : str or path
            File to write. An existing file is replaced atomically.
        slim : bool, default=False
            Whether to store only the data that prediction needs, in half to three quarters of the size. A slim model
            cannot be updated or given more samples.
        metadata : mapping or None, default=None
            JSON-serialisable values to store with the model, for `pathgp.storage.metadata(path)`.
        classes : tuple of type, default=()
            Classes of your own in the model, for instance a kernel. Name them in `load` too.

        Raises
        ------
        ValueError
            If the model contains an object that a file cannot hold.
        """
        check_is_fitted(self, "info_")
        settings = self.get_params(deep=False) | {"checkpoint": None}
        if isinstance(self.random_state, np.random.RandomState):
            settings["random_state"] = None
        posterior = self.posterior_  # before the other attributes, because drawing its samples changes `info_`
        if isinstance(posterior, Posterior):
            posterior = posterior.gathered().predictor if slim else posterior.gathered()
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_")}
        fitted["posterior_"] = posterior
        names = fitted.pop("feature_names_in_", None)
        columns = None if names is None else [str(name) for name in names]
        about = {"kind": "PathGPRegressor", "columns": columns, "inputs": self.n_features_in_, "slim": slim}
        value = {"settings": settings, "fitted": fitted, "columns": columns}
        if jax.process_index() == 0:
            storage.save(path, value, metadata={**(metadata or {}), **about}, classes=(*classes, Scaling, RandomPoints))

    @classmethod
    def load(cls, path: ModelPath, *, classes: Classes = ()) -> "PathGPRegressor":
        """Load a model that `save` wrote. Its predictions are bit-identical.

        Parameters
        ----------
        path : str or path
            File that `save` wrote.
        classes : tuple of type, default=()
            The classes that were given to `save`.

        Returns
        -------
        model : PathGPRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the file is damaged, holds something else, or if its arrays and settings do not fit each other.
        """
        if (kind := storage.metadata(path).get("kind")) != "PathGPRegressor":
            other = "read it with `pathgp.storage.load`" if kind is None else f"it was written by `{kind}`"
            raise ValueError(f"{path} does not hold a PathGPRegressor: {other}.")
        value = storage.load(path, classes=(*classes, Scaling, RandomPoints))
        with reraise_with_path(path):
            match value:
                case {"settings": dict(settings), "fitted": dict(fitted), "columns": None | list() as columns}:
                    model = cls(**settings)
                    vars(model).update({name: part for name, part in fitted.items() if name != "posterior_"})
                    model._check_loaded(fitted, columns)
                case _:
                    raise ValueError("a PathGPRegressor has settings, fitted values and columns.")
        if columns is not None:
            model.feature_names_in_ = np.array(columns, dtype=object)
        model._file = str(path)
        return model

    def _check_loaded(self, fitted: dict[str, Any], columns: list[Any] | None) -> None:
        """Raise an error unless the settings and attributes read from a file are those of a fitted model."""
        self._check_settings()
        self._solver()
        check_random_state(self.random_state)
        if foreign := [name for name in fitted if name.startswith("_") or not name.endswith("_")]:
            raise ValueError(f"{foreign[0]!r} is not the name of a fitted attribute.")
        hints = {name: hint for name, hint in get_type_hints(PathGPRegressor).items() if name.endswith("_")}
        hints["posterior_"] = Posterior | Predictor
        del hints["feature_names_in_"]  # stored as `columns`
        validation.check_types({name: fitted.get(name) for name in hints}, hints, "PathGPRegressor")
        self.posterior_ = fitted["posterior_"]
        validation.check_positive(self.noise_, "noise_")
        for scaling in (self.input_scaling_, self.target_scaling_):
            validation.check_positive(scaling.scale, "Scaling.scale")
        validation.check_positive(self.noise_variance_, "noise_variance_")
        if self.single_target_ != (np.ndim(self.noise_variance_) == 0):
            raise ValueError("noise_variance_ must be one number if single_target_ is True, and an array otherwise.")
        checks.require_at_least(self.posterior_.num_samples, 1, "the number of samples")
        if columns is not None and not all(isinstance(name, str) for name in columns):
            raise ValueError("the column names must be text.")
        inputs, targets = self._predictor.update.features.inputs, self.posterior_.num_targets
        sizes = {
            "n_features_in_": (self.n_features_in_, inputs),
            "input_scaling_": (len(self.input_scaling_.scale), inputs),
            "columns": (inputs if columns is None else len(columns), inputs),
            "target_scaling_": (len(self.target_scaling_.scale), targets),
            "noise_variance_": (np.size(self.noise_variance_), targets),
            "info_": (len(self.info_.relative_residual) - self.posterior_.num_samples, targets),
        }
        for name, (size, expected) in sizes.items():
            if size != expected:
                raise ValueError(f"{name} is for {size} inputs or targets, but the posterior has {expected}.")

    def _check_settings(self) -> None:
        checks.require_int(self.num_samples, 1, "num_samples")
        checks.require_instance(self.standardize, bool | np.bool_, "standardize", "True or False")
        for name in ("tolerance", "max_seconds"):
            if (value := getattr(self, name)) is not None:
                checks.require_instance(value, float | int | np.number, name, "a number, or None")
                if not value > 0:
                    raise ValueError(f"{name} must be positive, but it is {value}.")

    def _seconds(self) -> float:
        return float("inf") if self.max_seconds is None else float(self.max_seconds)

    def _key(self) -> PRNGKeyArray:
        return jax.random.key(check_random_state(self.random_state).randint(2**31 - 1))

    @property
    def _sampled(self) -> Predictor:
        """The predictor with samples."""
        posterior = self.posterior_
        return posterior.predictor if isinstance(posterior, Posterior) else posterior

    def _mesh(self) -> Mesh | None:
        return None if self.devices in (None, 1) and jax.process_count() == 1 else jobs.mesh(self.devices)

    def _checkpoint(self) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        if not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                f"checkpoint requires an integer random_state to resume, but random_state is {self.random_state}."
            )
        return self.checkpoint if isinstance(self.checkpoint, Checkpoint) else Checkpoint(self.checkpoint)

    def _fit_gp(self, X: Any, Y: Any, weights: Any, key: PRNGKeyArray, mesh: Mesh | None) -> tuple[GP, list[Trace]]:
        """Return the GP in standardised units, with the noise of a row of weight one, and the traces of its fit."""
        if self.hyperparameters not in ("learn", "fixed"):
            raise ValueError(f'hyperparameters must be "learn" or "fixed", but it is {self.hyperparameters!r}.')
        learns = self.hyperparameters == "learn"
        start = initial_gp(self.kernel, self.noise, learns, X, Y, weights)
        if not learns or len(X) == 1:  # one row determines no hyperparameter
            return start, []
        seconds = self._seconds() / 2 / Y.shape[1]  # the other half is for the solve
        return fit_gp(
            start,
            X,
            Y,
            weights,
            method=Auto(Exact(max_seconds=seconds), NearestNeighbour(max_seconds=seconds, mesh=mesh)),
            key=key,
            mesh=mesh,
            progress=bool(self.verbose),
            checkpoint=self._checkpoint(),
        )

    def _solver(self) -> Any:
        solver = self.solver
        if isinstance(solver, str):
            solver = look_up(SOLVERS, solver, "solver")()
        kind = solvers.Solver | RandomPoints
        checks.require_instance(
            solver, kind, "solver", f"one of {', '.join(SOLVERS)}, or an object such as solvers.CG()"
        )
        return solver if self.tolerance is None else with_limits(solver, tolerance=self.tolerance)

    def _data(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> tuple[Any, Any, Any]:
        """Return X, the targets as columns and the weights (None if all are one), without the rows of weight zero."""
        check_not_forked()
        checks.reject_dates(X)
        X, y = validate_data(self, X, y, reset=first, dtype="numeric", multi_output=True)
        Y = np.asarray(y, np.float64).reshape(len(X), -1)
        if first:
            self.single_target_ = np.ndim(y) == 1
        elif Y.shape[1] != self._predictor.num_targets:
            raise ValueError(f"y has {Y.shape[1]} targets, but the model was fitted to {self._predictor.num_targets}.")
        if sample_weight is None:
            return X, Y, None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counted = weights > 0
        if not counted.any():  # scikit-learn raises this error itself from 1.7 on
            raise ValueError("sample_weight must have at least one non-zero number, but all are zero.")
        if not counted.all():
            X, Y, weights = X[counted], Y[counted], weights[counted]
        return X, Y, None if np.all(weights == 1) else weights

    def _inputs(self, X: Any) -> Float[np.ndarray, "n d"]:
        check_not_forked()
        inputs = self.input_scaling_.apply(validate_data(self, X, reset=False, dtype="numeric"))
        largest = np.finfo(inputs.dtype).max
        return np.clip(inputs, -largest, largest, out=inputs)  # overflowing inputs stay finite, and far from all rows

    def _outputs(self, values: np.ndarray, axis: int = -1) -> np.ndarray:
        # The numbers of a forged or damaged model file can be finite but so large that predictions overflow.
        if not np.isfinite(values).all():
            raise ValueError(
                f"{self._file} predicts values that are not finite, because its numbers are too large or too small: "
                "rescale X and y, and fit again."
            )
        return np.squeeze(values, axis) if self.single_target_ else values

    def _require_full_posterior(self, what: str) -> Posterior:
        if not isinstance(self.posterior_, Posterior):
            raise ValueError(
                f"{what} needs the full model, but this one was loaded from a slim file: save it with slim=False."
            )
        return self.posterior_

    def _keep_noise(self, noise: float) -> None:
        self.noise_ = noise
        variances = noise * self.target_scaling_.scale**2
        self.noise_variance_ = float(variances[0]) if self.single_target_ else variances


def _reason_to_factorise(solver: Any, gp: GP, X: Float[np.ndarray, "N d"]) -> str | None:
    """Return why the solve is direct, or None if it is not."""
    if isinstance(solver, solvers.Cholesky):
        return ""
    if not isinstance(solver, solvers.Auto):
        return None
    dtype = dtype_for(gp, X)
    with working_in(dtype):
        choice = solver.choose(System(gp.kernel, *on_device((X, np.asarray(gp.noise)), dtype)))
    return choice.reason if isinstance(choice.solver, solvers.Cholesky) else None
