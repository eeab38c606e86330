"""Validation of values that were read from a file, and so were not checked by their constructors.

The field annotations of a class are its specification. `check` compares each field with its annotation, dimension names
included, and applies the checks of the constructor. `RULES` adds conditions that annotations cannot express.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped, jaxtyped

from pathgp import _checks as checks
from pathgp.functions import Canonical, Function
from pathgp.kernels.features import Fourier
from pathgp.kernels.tanimoto import MinHash, Tanimoto
from pathgp.linalg.precision import dtype_of, working_in
from pathgp.posterior.posterior import Posterior
from pathgp.posterior.predict import Predictor
from pathgp.posterior.variance import ExactVariance
from pathgp.solvers.local import ComputedResidual, Local, Projection, StoredResidual
from pathgp.system.system import System

MOST_COUNTS = 1000
"""Largest `Tanimoto.max_count`. Each count is a matrix product in the compiled kernel: with more of them, compilation
would take minutes.
"""


def check(value: Any) -> None:
    """Raise an error unless the constructor of its class could have produced the value."""
    cls = type(value)
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    names = [field.name for field in fields] if fields else getattr(value, "_fields", ())  # of a named tuple
    values = {name: getattr(value, name) for name in names}
    check_types(values, typing.get_type_hints(cls), cls.__name__)
    with jax.enable_x64(True):  # converters run for their checks only, and must not round float64 fields to float32
        for field in fields:
            if (converter := field.metadata.get("converter")) is not None:
                converter(_on_host(values[field.name]))
    with working_in(dtype_of(value)):
        # A subclass does not repeat the checks of its bases.
        for base in cls.__mro__:
            if "__check_init__" in vars(base):
                vars(base)["__check_init__"](value)
            if base in RULES:
                RULES[base](value)


def check_types(values: Mapping[str, Any], hints: Mapping[str, Any], owner: str) -> None:
    """Raise `ValueError` unless each value conforms to its type hint and all floating-point arrays are finite."""
    with jaxtyped("context"):  # within it each dimension name has one size
        for name, value in values.items():
            if not _conforms(value, hints[name]):
                expected = hints[name].__name__ if isinstance(hints[name], type) else hints[name]
                raise ValueError(f"{owner}.{name} must be of type {expected}, but it is {_described(value)}.")
            if _is_array(value) and jnp.issubdtype(value.dtype, jnp.floating) and not np.isfinite(value).all():
                raise ValueError(f"{owner}.{name} has NaN or infinite entries.")


def check_shapes(arrays: Iterable[tuple[str, Any, str]]) -> None:
    """Raise `ValueError` unless arrays, given as (name, array or None, dimensions), agree on all dimensions."""
    with jaxtyped("context"):
        for name, array, dimensions in arrays:
            if array is not None and not _conforms(array, Shaped[Any, dimensions]):
                raise ValueError(f"the shape {np.shape(array)} of {name} does not fit the other arrays.")


def check_positive(values: Any, name: str) -> None:
    """Raise `ValueError` unless all entries are positive, in whichever dtype."""
    if not np.all(np.asarray(values) > 0):
        raise ValueError(f"{name} must be positive, but its smallest entry is {np.min(values)}.")


@typing.no_type_check  # run-time type checking would open a new scope of dimension names
def _conforms(value: Any, hint: Any) -> bool:
    """Return whether a value has a type. NumPy and JAX scalars count as numbers, and integers as floats."""
    origin, items = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_conforms(value, item) for item in items)
    if origin in (int, float):
        number = np.asarray(value)
        kinds = "iu" if origin is int else "iuf"
        return number.ndim == 0 and number.dtype.kind in kinds and not np.isnan(number)
    if origin is bool:
        return isinstance(value, bool | np.bool_)
    if origin is dict:
        return isinstance(value, dict) and all(_conforms(item, items[1]) for item in value.values())
    if origin in (list, tuple):
        if not isinstance(value, origin):
            return False
        of_each = items[:1] * len(value) if origin is list or items[-1] is ... else items
        return len(value) == len(of_each) and all(map(_conforms, value, of_each))
    return isinstance(value, origin)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic)


def _on_host(value: Any) -> Any:
    return np.asarray(value) if _is_array(value) else value


def _described(value: Any) -> str:
    if _is_array(value):
        return f"an array of type {value.dtype} and shape {value.shape}"
    shown = repr(value) if isinstance(value, int | float | str | None) else ""
    return shown if 0 < len(shown) < 80 else f"of type {type(value).__name__}"


def _point(inputs: int | None) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of one point, with which a function is traced without computing anything."""
    return jax.ShapeDtypeStruct((1, 1 if inputs is None else inputs), jnp.result_type(float))


def _check_function(f: Function) -> None:
    """Check that there is one weight per feature."""
    features = jax.eval_shape(f.features, _point(f.features.inputs))
    if not _is_array(f.weights) or features.shape != (1, f.weights.shape[0]):
        raise ValueError(f"Function.weights is {_described(f.weights)}, but there are {f.features.num} features.")


def _check_projection(projection: Projection) -> None:
    Local(projection.neighbours, projection.taper)
    check_positive(projection.noise, "Projection.noise")
    if projection.neighbours > projection.X.shape[0]:
        raise ValueError(f"Projection.neighbours is {projection.neighbours}, which exceeds the number of rows.")


def _check_system(system: System) -> None:
    check_positive(system.noise, "System.noise")
    check_positive(system.tile, "System.tile")
    checks.require_noise_shape(system.noise, system.X.shape[0], "System.noise")
    point = _point(system.X.shape[1])
    jax.eval_shape(system.kernel, point, point)


def _check_predictor(p: Predictor) -> None:
    """Check that rows, inputs and columns agree everywhere, and that predictions can be traced."""
    if not isinstance(p.update.features, Canonical):
        raise ValueError(f"the update must have canonical features, but they are {_described(p.update.features)}.")
    points, weights = p.update.features.points, p.update.weights
    columns, inputs = weights.shape[1], points.shape[1]
    arrays = [("the points", points, "M d"), ("the weights", weights, "M s")]
    if p.correction is not None:
        arrays += [("Projection.X", p.correction.projection.X, "N d")]
        arrays += [("the observations", part, "N s") for part in p.correction.observed]
        match p.correction.residual:
            case StoredResidual(values):
                arrays += [("unfinished", values, "N s")]
            case ComputedResidual(known, points):
                arrays += [("ComputedResidual.known", known, "N s"), ("ComputedResidual.points", points, "M d")]
    if p.exact is not None:
        arrays += [("ExactVariance.X", p.exact.X, "N d")]
    check_shapes(arrays)
    if p.num_samples >= columns or p.prior.features.inputs != inputs:
        raise ValueError(f"the prior draws do not match {columns} columns of functions of {inputs} inputs.")
    point = _point(inputs)
    jax.eval_shape(p.mean, point)
    if p.num_samples:
        jax.eval_shape(p.predict, point)


def _check_posterior(p: Posterior) -> None:
    solution, noise, draws = p.solution, p.gp.noise, p.targets.draws
    check_shapes(
        [
            ("System.X", p.system.X, "N d"),
            ("GP.noise", noise if noise.ndim else None, "N"),
            ("Targets.signal", p.targets.signal, "N s"),
            ("Solution.points", solution.points, "M d"),
            ("Solution.weights", solution.weights, "M s"),
            ("Solution.residual", solution.residual, "N s"),
            ("Info.relative_residual", p.info.relative_residual, "s"),
            ("the points of the solver", p.solver.support(p.system), "_ d"),
            ("ExactVariance.X", None if p.predictor.exact is None else p.predictor.exact.X, "N d"),
            ("the prior draws", p.prior.weights, "_ samples"),
            ("Targets.draws", None if draws is None else draws.weights, "_ samples"),
        ]
    )
    rows = np.zeros(0) if solution.rows is None else np.asarray(solution.rows)
    if np.any((rows < 0) | (rows >= p.system.X.shape[0])):
        raise ValueError("Solution.rows has row indices that are out of range.")
    _check_predictor(p.predictor)


def _check_fourier(features: Fourier) -> None:
    if np.any(np.asarray(features.power) < 0):
        raise ValueError("Fourier.power has negative entries.")


def _check_tanimoto(kernel: Tanimoto) -> None:
    if kernel.max_count is not None and kernel.max_count > MOST_COUNTS:
        raise ValueError(f"Tanimoto.max_count must be at most {MOST_COUNTS}, but it is {kernel.max_count}.")


def _check_hashes(features: MinHash) -> None:
    for name in ("r", "c", "variance"):
        check_positive(getattr(features, name), f"MinHash.{name}")


RULES: dict[type, Callable[[Any], None]] = {
    Fourier: _check_fourier,
    MinHash: _check_hashes,
    Tanimoto: _check_tanimoto,
    Function: _check_function,
    Projection: _check_projection,
    System: _check_system,
    Predictor: _check_predictor,
    Posterior: _check_posterior,
    ExactVariance: lambda exact: check_positive(exact.noise, "ExactVariance.noise"),
}
"""Conditions that a value of each class must meet in addition to its annotations."""
