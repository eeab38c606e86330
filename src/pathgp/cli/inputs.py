"""The inputs of `pathgp suggest`: their bounds, and their values in tables."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pathgp.cli.tables.files import BOOLEAN, NUMBER, TEXT, column_kinds, listed, read_batches
from pathgp.thompson.space import Categorical, Codes, Dimension, Integer, Real

FORMS = '[low, high], {"real": [low, high]}, {"integer": [low, high]} or {"choices": [...]}'
ROUNDING = 1e-9
"""Distance outside the unit box up to which a code counts as within its bounds."""


def read_bounds(path: pathlib.Path) -> dict[str, Dimension]:
    """Return the inputs by name, as described by the JSON file."""
    if not path.is_file():
        raise FileNotFoundError(f"--bounds {path} does not exist: check the path.")
    try:
        described = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"--bounds {path} is not valid JSON: {error}.") from None
    if not isinstance(described, dict) or not described:
        raise ValueError(f'--bounds {path} must be an object with an entry for each input, such as {{"x": [0, 1]}}.')
    return {name: dimension(f"--bounds {path}: {name!r}", entry) for name, entry in described.items()}


def dimension(where: str, entry: Any) -> Dimension:
    """Return an input from its description; raise `ValueError` if the description is invalid.

    >>> dimension("x", [0, 1]).width, dimension("colour", {"choices": ["red", "blue"]}).width
    (1, 2)
    """
    match entry:
        case [int() | float() as low, int() | float() as high]:
            return _range(where, Real, low, high, {})
        case {"real": [int() | float() as low, int() | float() as high], **options}:
            return _range(where, Real, low, high, options)
        case {"integer": [int() as low, int() as high], **options}:
            return _range(where, Integer, low, high, options)
        case {"choices": [*choices], **options} if not options:
            return _choices(where, choices)
    raise ValueError(f"{where} is {json.dumps(entry)}, but it must be {FORMS}.")


def read(path: pathlib.Path, bounds: Mapping[str, Dimension], target: str | None = None) -> dict[str, list[Any]]:
    """Return the values of the inputs, and of the target if it is named; missing values are None."""
    present = column_kinds(path)
    missing = [name for name in bounds if name not in present]
    if missing:
        raise ValueError(
            f"{path} lacks {listed(missing)}, which the bounds name: its columns are {listed(list(present))}."
        )
    kinds = {name: _kind(dimension) for name, dimension in bounds.items()}
    for name, kind in kinds.items():
        if kind != TEXT and present[name] not in (kind, NUMBER):
            raise ValueError(f"{path}: column {name!r} holds {present[name]}, but the bounds require {kind}s.")
    if target is not None:
        kinds[target] = NUMBER
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    for batch in read_batches(path, kinds):
        for name, column in columns.items():
            column.extend(batch[name].to_pylist())
    return columns


def encode(path: pathlib.Path, bounds: Mapping[str, Dimension], columns: Mapping[str, Sequence[Any]]) -> Codes:
    """Return the codes of the inputs; raise `ValueError` if a value is missing or out of bounds."""
    parts = []
    for name, dimension in bounds.items():
        values = columns[name]
        absent = [row for row, value in enumerate(values, 1) if value is None]
        if absent:
            raise ValueError(
                f"{path}: column {name!r} has a missing value in row {absent[0]}: only the target may have one."
            )
        codes = dimension.encode(values, f"{path}: column {name!r}") if values else np.zeros((0, dimension.width))
        outside = np.flatnonzero(np.any((codes < -ROUNDING) | (codes > 1 + ROUNDING), axis=1))
        if outside.size:
            row = int(outside[0])
            raise ValueError(
                f"{path}: column {name!r} holds {values[row]} in row {row + 1}, which is outside its bounds: widen "
                "them, or remove the row."
            )
        parts.append(codes)
    return np.concatenate(parts, axis=1)


def _range(
    where: str, kind: type[Real] | type[Integer], low: float, high: float, options: Mapping[str, Any]
) -> Dimension:
    log = options.get("log", False)
    if set(options) - {"log"} or not isinstance(log, bool):
        raise ValueError(f'{where} has {json.dumps(options)}, but besides the range only "log": true is allowed.')
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{where} is from {low} to {high}: low must be below high, and both must be finite.")
    if log and low <= 0:
        raise ValueError(f"{where} has a logarithmic scale, so low must be positive, but it is {low}.")
    return kind(low, high, log)


def _choices(where: str, choices: list[Any]) -> Categorical:
    kinds = {float if type(choice) is int else type(choice) for choice in choices}
    if len(kinds) != 1 or not kinds <= {str, bool, float}:
        raise ValueError(f"{where} has choices {choices}: they must be all text, all numbers or all booleans.")
    if len(set(choices)) < max(2, len(choices)):
        raise ValueError(f"{where} has choices {choices}: give at least two, all different.")
    return Categorical(tuple(choices))


def _kind(dimension: Dimension) -> str:
    """Return the kind of values that a column must hold."""
    first = dimension.choices[0] if isinstance(dimension, Categorical) else 0.0
    return {str: TEXT, bool: BOOLEAN}.get(type(first), NUMBER)
