"""Model files: arrays are tensors of one safetensors file, everything else is JSON in its header.

A file holds values, never code. Reading it constructs only classes of a fixed list, to which the file refers by name. A
checksum of the whole content detects damage. It is not a signature, so values are validated as well.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float
from safetensors import SafetensorError, safe_open

from pathgp import functions, kernels, likelihood, solvers
from pathgp._checks import check_not_forked
from pathgp.kernels import features
from pathgp.kernels.tanimoto import MinHash
from pathgp.linalg.neighbours import Exhaustive, Tree, tree_from_leaves
from pathgp.linalg.precision import dtype_of, working_in
from pathgp.posterior import GP, Posterior, Predictor
from pathgp.posterior.predict import Correction
from pathgp.posterior.problem import Problem
from pathgp.posterior.variance import ExactVariance, VarianceRatio
from pathgp.runs.atomic import write_tensors
from pathgp.solvers.local import ComputedResidual, Local, Projection, Residual, StoredResidual
from pathgp.solvers.variational import Variational
from pathgp.storage import validation
from pathgp.system import System, Targets
from pathgp.system.dense import cholesky_factor

FORMAT = 1
"""Version of the file format. Files of a later version raise `ValueError`; files of earlier versions stay readable."""

OWN_READERS = ("PathGPRegressor", "ThompsonSampler")
"""Kinds of file, as named in their metadata, that the `load` method of a class reads."""

Metadata = Mapping[str, Any]
Path = str | os.PathLike[str]
Classes = tuple[type, ...]

CLASSES: tuple[type, ...] = (
    *(features.Fourier, features.Constant, features.Stacked, functions.Canonical, functions.Function, MinHash),
    *(kernels.RBF, kernels.Matern12, kernels.Matern32, kernels.Matern52, kernels.RationalQuadratic),
    *(kernels.Tanimoto, kernels.Sum, kernels.Product),
    *(solvers.Auto, solvers.CG, solvers.Cholesky, solvers.InducingCG, solvers.InducingCholesky, solvers.InducingSGD),
    *(solvers.SAP, solvers.SDD, solvers.SGD, solvers.SGPR, solvers.SVGP, solvers.SubsetOfData),
    *(solvers.Info, solvers.Solution, Variational),
    *(System, Targets, Local, Projection, ComputedResidual, GP, Posterior, Predictor, VarianceRatio, ExactVariance),
    *(likelihood.Trace, likelihood.Exact, likelihood.NearestNeighbour, likelihood.Neighbourhoods),
    *(likelihood.Pathwise, likelihood.Prior, likelihood.LogNormal, likelihood.Bounds),
)
"""Classes that a file may refer to without being named in `classes`."""


def save(
    path: Path,
    value: Any,
    *,
    metadata: Metadata | None = None,
    classes: Classes = (),
) -> None:
    """Write a posterior, a predictor, or any other value made of the library's classes to one file.

    The value may contain tuples, lists, dictionaries with string keys, arrays of JAX and NumPy, random keys, numbers,
    strings and None at any depth. An array that occurs several times is written once.

    Derived data are left out: the neighbour search is rebuilt on loading, and a kernel matrix that was kept is computed
    in tiles from then on.

    Parameters
    ----------
    path
        File to write. An existing file is replaced atomically.
    value
        The value to store.
    metadata
        JSON-serialisable mapping to store with the value, for `metadata(path)`.
    classes
        Classes of your own in the value, for instance a kernel. Name them in `load` too.

    Raises
    ------
    ValueError
        If the value contains something that a file cannot hold, or rows that are sharded over devices.
    """
    encoder = Encoder(_by_name(classes))
    structure = json.dumps(encoder.encode(value, "value"), allow_nan=False)
    header = {
        "format": "pathgp",
        "format_version": str(FORMAT),
        "pathgp_version": version("pathgp"),
        "metadata": json.dumps(dict(metadata or {}), allow_nan=False),
        "structure": structure,
    }
    header["checksum"] = _checksum(header, encoder.tensors)
    write_tensors(pathlib.Path(path), encoder.tensors, header)


def load(path: Path, *, classes: Classes = ()) -> Any:
    """Load the value that `save` wrote; its arrays are bit-identical. Nothing in the file is executed.

    Parameters
    ----------
    path
        File that `save` wrote.
    classes
        The classes that were given to `save`.

    Raises
    ------
    ValueError
        If the file is damaged, or if its arrays and settings do not fit each other.
    FileNotFoundError
        If `path` is not a file.
    """
    check_not_forked()
    header, tensors = _read(path)
    decoder = Decoder(_by_name(classes), tensors, path)
    try:
        with reraise_with_path(path):
            return decoder.decode(json.loads(header["structure"]))
    except ModelFileError:
        kind = metadata(path).get("kind")
        if kind in OWN_READERS and not classes:
            raise ModelFileError(f"{path} holds a {kind}: read it with `{kind}.load`.") from None
        raise


def metadata(path: Path) -> dict[str, Any]:
    """Return the metadata given to `save` and the versions that wrote the file, without reading the tensors.

    Parameters
    ----------
    path
        File that `save` wrote.

    Raises
    ------
    ValueError
        If the file is not a model file, or its header is damaged.
    FileNotFoundError
        If `path` is not a file.
    """
    with _opened(path) as file:
        header = _header(file, path)
    try:
        said = dict(json.loads(header["metadata"]))
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path) from error
    return {"pathgp_version": header["pathgp_version"], "format_version": int(header["format_version"]), **said}


class ModelFileError(ValueError):
    """A model file that cannot be read. The message names the file."""


@contextmanager
def reraise_with_path(path: Path) -> Iterator[None]:
    """Re-raise errors that the content of a file causes as `Refused`, which names the file."""
    try:
        yield
    except (ModelFileError, MemoryError):
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise ModelFileError(f"{path} does not hold a valid model: {kind}{reason}. Save the model again.") from error


class Codec(NamedTuple):
    """How to write and rebuild a class of which some fields are derived and not stored."""

    fields: Callable[[Any], dict[str, Any]]
    """Returns the fields to store."""
    build: Callable[..., Any]
    """Builds the value from the stored fields."""


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _projection_fields(projection: Projection) -> dict[str, Any]:
    """Return the fields, with the leaf of each row instead of a neighbour search: the rest of it follows from X."""
    index = projection.index
    rows = index.leaves if isinstance(index, Tree) else None
    kept = index if not isinstance(index, Tree | Exhaustive) else None
    return _fields(projection) | {"index": kept, "leaves": rows}


def _projection(*, leaves: Any, index: Any, rows: None = None, **fields: Any) -> Projection:
    if index is None:  # it was left out
        with working_in(fields["X"].dtype):
            points = fields["kernel"].coordinates(fields["X"])
            if leaves is not None and not np.array_equal(np.sort(leaves[leaves >= 0]), np.arange(len(points))):
                raise ValueError("the leaves of the search tree must contain each row once.")
            index = Exhaustive(points) if leaves is None else tree_from_leaves(points, leaves)
    return Projection(index=index, **fields)


def _exact_variance(**fields: Any) -> ExactVariance:
    """Compute the Cholesky factor again: it is larger than all other fields together."""
    with working_in(fields["X"].dtype):
        return ExactVariance(**fields, factor=cholesky_factor(System(fields["kernel"], fields["X"], fields["noise"])))


def _prediction_fields(predictor: Predictor) -> dict[str, Any]:
    """Return what a posterior and a predictor both store: the mean and the samples follow from it."""
    fields = {"prior": predictor.prior, "ratio": predictor.ratio, "exact": predictor.exact}
    if predictor.correction is None:
        return fields | {"projection": None, "unfinished": None}
    projection, residual = predictor.correction.projection, predictor.correction.residual
    stored = residual.values if isinstance(residual, StoredResidual) else residual
    return fields | {"projection": projection, "unfinished": stored}


def _residual(unfinished: Any) -> Residual | None:
    if not isinstance(unfinished, jax.Array):
        return unfinished
    residual = StoredResidual(unfinished)
    validation.check(residual)
    return residual


def _predictor_fields(predictor: Predictor) -> dict[str, Any]:
    observations, correction = None, predictor.correction
    if correction is not None:
        with working_in(dtype_of(predictor)):
            observations = functools.reduce(jnp.add, correction.observed)
    update = {"canonical": predictor.update, "constant": predictor.constant, "observations": observations}
    return _prediction_fields(predictor) | update


def _predictor(
    *, prior: Any, canonical: Any, constant: Any, projection: Any, unfinished: Any, observations: Any, ratio: Any,
    exact: Any,
) -> Predictor:  # fmt: skip
    correction = None
    if projection is not None:
        validation.check_types({"observations": observations}, {"observations": Float[Array, "N s"]}, "Predictor")
        correction = Correction(projection, _residual(unfinished), (observations,))
    return Predictor.of(prior, canonical, constant, correction, ratio, exact)


def _posterior_fields(posterior: Posterior) -> dict[str, Any]:
    fields = {name: value for name, value in _fields(posterior).items() if name != "predictor"}
    return fields | _prediction_fields(posterior.predictor)


def _posterior(*, projection: Any, unfinished: Any, ratio: Any, exact: Any, **fields: Any) -> Posterior:
    hints = get_type_hints(Posterior)
    validation.check_types({name: fields[name] for name in hints.keys() & fields.keys()}, hints, "Posterior")
    problem = Problem(**{field.name: fields[field.name] for field in dataclasses.fields(Problem)})
    solved = fields["solution"], fields["solver"], fields["local"]
    return Posterior.of(problem, *solved, projection, _residual(unfinished), ratio, exact)


CODECS = {
    ExactVariance: Codec(lambda e: {name: v for name, v in _fields(e).items() if name != "factor"}, _exact_variance),
    Projection: Codec(_projection_fields, _projection),
    Predictor: Codec(_predictor_fields, _predictor),
    Posterior: Codec(_posterior_fields, _posterior),
    System: Codec(lambda s: _fields(s) | {"K": None}, System),
}
"""Classes with derived fields. A kept kernel matrix (`System.K`) is stored as None."""


class Encoder:
    """Convert a value to JSON, and collect its arrays as tensors."""

    def __init__(self, classes: dict[str, type]) -> None:
        self.classes = classes
        self.tensors: dict[str, np.ndarray] = {}
        self.names: dict[int, str] = {}
        self.alive: list[Any] = []

    def tensor(self, array: Any) -> str:
        """Return the name of an array's tensor; an array that occurs again keeps its name."""
        if id(array) not in self.names:
            self.alive.append(array)  # ids are unique only among objects that are alive
            self.names[id(array)] = name = str(len(self.names))
            self.tensors[name] = np.ascontiguousarray(array).reshape(np.shape(array))
        return self.names[id(array)]

    def encode(self, value: Any, where: str) -> Any:
        """Return the JSON of a value; `where` is its place in error messages."""
        match value:
            case None | bool() | str():
                return value
            case float() if not math.isfinite(value):
                return {"float": str(value)}
            case int() | float() if not isinstance(value, np.generic):
                return value
            case jax.Array() if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                return {"key": str(jax.random.key_impl(value)), "data": self.tensor(jax.random.key_data(value))}
            case jax.Array():
                return {"jax": self.tensor(value)}
            case np.ndarray() | np.generic() if value.dtype.kind in "biuf":
                return {"numpy": self.tensor(value)}
            case Mesh():
                raise ValueError(
                    f"{where} is a mesh, so the rows are sharded over devices: save `posterior.gathered()`."
                )
            case list():
                return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
            case dict() if all(isinstance(key, str) for key in value):
                return {"dict": {key: self.encode(item, f"{where}[{key!r}]") for key, item in value.items()}}
        name = type(value).__name__
        if self.classes.get(name) is type(value):
            codec = CODECS.get(type(value))
            fields = codec.fields(value) if codec else _fields(value)
            return {"class": name, "fields": {key: self.encode(v, f"{where}.{key}") for key, v in fields.items()}}
        if type(value) is tuple:
            return {"tuple": [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
        what = "a function" if callable(value) and not isinstance(value, eqx.Module) else f"of class {name}"
        raise ValueError(
            f"{where} is {what}, which cannot be saved: a file holds arrays, numbers, text and the classes of pathgp. "
            "Replace it, or name a class of your own in `classes`."
        )


class Decoder:
    """Rebuild a value from JSON and tensors."""

    def __init__(self, classes: dict[str, type], tensors: dict[str, np.ndarray], path: Path) -> None:
        self.classes, self.tensors, self.path = classes, tensors, path
        self.arrays: dict[str, jax.Array] = {}

    def array(self, name: str) -> jax.Array:
        """Return the JAX array of a tensor; the same name gives the same array."""
        if name not in self.arrays:
            tensor = self.tensors[name]
            with jax.enable_x64(tensor.dtype.itemsize == 8):  # a model keeps its dtype, whatever JAX's default is
                self.arrays[name] = jnp.asarray(tensor)
        return self.arrays[name]

    def decode(self, node: Any) -> Any:
        """Return the value of a JSON node."""
        match node:
            case list():
                return [self.decode(item) for item in node]
            case {"float": text}:
                return float(text)
            case {"jax": name}:
                return self.array(name)
            case {"numpy": name}:
                return self.tensors[name][()]
            case {"key": impl, "data": name}:
                return jax.random.wrap_key_data(self.array(name), impl=impl)
            case {"tuple": items}:
                return tuple(self.decode(item) for item in items)
            case {"dict": items}:
                return {key: self.decode(item) for key, item in items.items()}
            case {"class": name, "fields": fields}:
                return self.build(name, {key: self.decode(item) for key, item in fields.items()})
        return node

    def build(self, name: str, fields: dict[str, Any]) -> Any:
        """Build and validate an instance of one of the known classes; raise `Refused` if the class is unknown."""
        cls = self.classes.get(name)
        if cls is None:
            raise ModelFileError(
                f"{self.path} holds the class {name}, which this version of pathgp does not have: if it is your own, "
                "name it in `classes`; otherwise update pathgp."
            )
        codec = CODECS.get(cls)
        value = codec.build(**fields) if codec else _built(cls, fields)
        if cls.__module__.startswith("pathgp."):  # annotations of user classes may be wrong
            validation.check(value)
        return value


def _built(cls: type, fields: dict[str, Any]) -> Any:
    """Return an instance with the fields as they are: a constructor would convert them to another dtype."""
    if issubclass(cls, tuple):
        return cls(**fields)
    value = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name not in fields and field.default is dataclasses.MISSING:
            raise KeyError(f"{cls.__name__}.{field.name}")
        object.__setattr__(value, field.name, fields.get(field.name, field.default))
    return value


def _by_name(classes: Classes) -> dict[str, type]:
    return {cls.__name__: cls for cls in (*classes, *CLASSES)}


def _checksum(header: dict[str, str], tensors: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of the header without this entry, and of the name, dtype, shape and bytes of each tensor."""
    digest = hashlib.sha256()
    for name in sorted(header.keys() - {"checksum"}):
        digest.update(f"{name}={len(header[name].encode())}:{header[name]};".encode())
    for name in sorted(tensors):
        digest.update(f"{name}:{tensors[name].dtype.str}:{tensors[name].shape};".encode())
        digest.update(tensors[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _opened(path: Path) -> Any:
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"{path} is not a file: give the path of a saved model.")
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}): it is truncated, damaged or of another format. "
            "Copy or save it again."
        ) from error


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged: its checksum does not match its content. Copy or save it again.")


def _header(file: Any, path: Path) -> dict[str, str]:
    header = file.metadata() or {}
    if header.get("format") != "pathgp" or not re.fullmatch("[0-9]{1,9}", header.get("format_version", "")):
        raise ValueError(f"{path} is a safetensors file that pathgp did not write, or its header is damaged.")
    if int(header["format_version"]) > FORMAT:
        raise ValueError(
            f"{path} has format {header['format_version']}, written by pathgp {header.get('pathgp_version')}, but this "
            f"version ({version('pathgp')}) reads formats up to {FORMAT}: update pathgp."
        )
    if not {"checksum", "structure", "metadata", "pathgp_version"} <= header.keys():
        raise _damaged(path)
    return header


def _read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    with _opened(path) as file:
        header = _header(file, path)
        try:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dictionary
        except (SafetensorError, TypeError) as error:
            raise _damaged(path) from error
    if _checksum(header, tensors) != header["checksum"]:
        raise _damaged(path)
    return header, tensors
