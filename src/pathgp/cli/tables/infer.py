"""First scan of a table: the columns that are inputs, and their categories, medians and missing values."""

import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from jaxtyping import Float

from pathgp.cli.tables.encoding import Column, Encoding, complete, is_missing, numbers, refuse_infinite
from pathgp.cli.tables.files import (
    BOOLEAN,
    DATES,
    NUMBER,
    TEXT,
    column_kinds,
    counted,
    excerpt,
    listed,
    option,
    read_batches,
)

MOST_CATEGORIES = 100
"""Largest number of categories of a column, each of which becomes an input."""
MOST_VALUES = 200_000
"""Largest number of values of a column from which its median is computed."""

PANDAS_INDEX = r"__index_level_\d+__"
"""Names of index columns that pandas writes to Parquet files."""

USABLE = (NUMBER, BOOLEAN, TEXT, *DATES)
"""Kinds of columns that can be inputs."""


class Scan(NamedTuple):
    """The encoding of a table, the number of rows to learn from, and the missing values."""

    encoding: Encoding
    rows: int
    missing: dict[str, int]
    """Number of missing values that are replaced, per column."""
    skipped: int
    """Number of rows that are left out because of a missing value."""

    @property
    def notes(self) -> list[str]:
        """Messages about missing values for the user."""
        found = []
        if self.skipped:
            found.append(f"left out {counted(self.skipped, 'row')} with a missing value.")
        if self.missing:
            places = ", ".join(f"{name!r} ({count:,})" for name, count in self.missing.items())
            found.append(
                f"replaced {counted(sum(self.missing.values()), 'missing value')} by the median (numbers) or no "
                f"category (text), and added an indicator column for each of {places}."
            )
        return found


def infer_encoding(
    path: pathlib.Path,
    target: str,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    one_hot: Sequence[str] | None = None,
    impute: bool = False,
    skip_missing: bool = False,
) -> Scan:
    """Return how the columns of a table become inputs: `columns`, or all but the target and `drop`.

    Columns of text raise `ValueError` unless `one_hot` names them; an empty `one_hot` means all of them, and None means
    none. Missing values raise `ValueError` unless `impute` or `skip_missing`. The rows are read once.
    """
    present = column_kinds(path)
    for name, names in (("--target", [target]), ("--columns", columns or []), ("--drop", drop)):
        _refuse_unknown(path, name, names, present)
        if target in names and name != "--target":
            raise ValueError(f"{name} names {target!r}, but that is the target, which cannot be an input.")
    usual = [name for name in present if name not in (target, *drop) and not re.fullmatch(PANDAS_INDEX, name)]
    chosen = list(columns) if columns else usual
    if not chosen:
        raise ValueError(f"{path} has no column left for an input: its columns are {listed(list(present))}.")
    if repeated := [name for name, count in Counter(chosen).items() if count > 1]:
        raise ValueError(f"--columns names {listed(repeated)} more than once: name each column once.")
    text = [name for name in chosen if present[name] == TEXT]
    as_text = [] if one_hot is None else (list(one_hot) or text)
    _refuse_unknown(path, "--one-hot", as_text, present)
    if others := [name for name in as_text if name not in chosen]:
        raise ValueError(f"--one-hot names {listed(others)}, which is not among the inputs {listed(chosen)}.")
    _refuse_kinds(path, target, {name: present[name] for name in chosen if name not in as_text}, present[target])
    kinds = {name: TEXT if name in as_text else present[name] for name in chosen}
    return _scan(path, kinds, target, impute, skip_missing)


def _scan(path: pathlib.Path, kinds: Mapping[str, str], target: str, impute: bool, skip_missing: bool) -> Scan:
    """Return the encoding with the categories and, for `impute`, the replacement of missing values in each column."""
    categories: dict[str, Counter[str]] = {name: Counter() for name, kind in kinds.items() if kind == TEXT}
    values = {name: _ValueSample() for name, kind in kinds.items() if kind != TEXT}
    missing, infinite, rows, skipped = Counter[str](), Counter[str](), 0, 0
    for batch in read_batches(path, {**kinds, target: NUMBER}):
        if skip_missing:
            whole = complete({**kinds, target: NUMBER}, batch)
            skipped, batch = skipped + int((~whole).sum()), batch.filter(pa.array(whole))
        rows += batch.num_rows
        for name, kind in (*kinds.items(), (target, NUMBER)):
            missing[name] += int(is_missing(kind, batch[name]).sum())
            if kind == TEXT:
                for count in batch[name].drop_null().value_counts().to_pylist():
                    categories[name][count["values"]] += count["counts"]
                _refuse_many(path, name, len(categories[name]))
            else:
                x = numbers(kind, batch[name])
                infinite[name] += int(np.isinf(x).sum())
                # The median needs the values in memory, the other statistics do not.
                if impute and name != target:
                    values[name].add(x)
    if not rows + skipped:
        raise ValueError(f"{path} has no rows below its header.")
    if not rows:
        name, count = _emptiest(path, {**kinds, target: NUMBER})
        remedy = "choose another --target" if name == target else "--drop it, or use --impute"
        raise ValueError(
            f"every row of {path} has a missing value. Column {name!r} has the most ({count:,} of {skipped:,}): "
            f"{remedy}."
        )
    for name in (*kinds, target):
        if missing[name] == rows:
            raise ValueError(f"{path}: column {name!r} is empty: leave it out with {option('--drop', [name])}.")
        refuse_infinite(path, name, infinite[name])
    absent = {name: count for name, count in missing.items() if count}
    _refuse_missing(path, target, absent, rows, impute)
    found = []
    for name, kind in kinds.items():
        known, fill = tuple(sorted(categories[name])) if kind == TEXT else (), None
        if impute:
            fill = categories[name].most_common(1)[0][0] if kind == TEXT else values[name].median
        found.append(Column(name, kind, known, fill, impute and name in absent))
    encoding = Encoding(target, tuple(found))
    twice = [name for name, count in Counter(encoding.inputs).items() if count > 1]
    if twice:
        raise ValueError(f"{path} would have two inputs named {listed(twice)}: rename a column.")
    return Scan(encoding, rows, absent, skipped)


def _emptiest(path: pathlib.Path, kinds: Mapping[str, str]) -> tuple[str, int]:
    missing = Counter[str]()
    for batch in read_batches(path, kinds):
        missing.update({name: int(is_missing(kind, batch[name]).sum()) for name, kind in kinds.items()})
    return missing.most_common(1)[0]


def _refuse_missing(path: pathlib.Path, target: str, absent: Mapping[str, int], rows: int, impute: bool) -> None:
    if target in absent:
        raise ValueError(
            f"{path}: the target {target!r} is missing in {absent[target]} of {rows} rows: remove them, or add "
            "--skip-missing to leave out all rows with a missing value."
        )
    if absent and not impute:
        raise ValueError(
            f"{path}: values are missing in {', '.join(f'{n!r} ({c} of {rows})' for n, c in absent.items())}: remove "
            "those rows or columns, add --skip-missing to leave out the rows, or add --impute to replace the values by "
            "the median (numbers) or no category (text)."
        )


class _ValueSample:
    """A sample of the values of a column in bounded memory: all, or above `MOST_VALUES` a random half, quarter, … of
    them.
    """

    def __init__(self) -> None:
        self.kept: list[np.ndarray] = []
        self.share = 1.0
        self.rng = np.random.default_rng(0)

    def add(self, x: Float[np.ndarray, "n"]) -> None:
        """Add values, except missing ones."""
        x = x[~np.isnan(x)]
        self.kept.append(x if self.share == 1 else x[self.rng.random(len(x)) < self.share])
        # Values of all batches stay equally likely: each halving also halves the share of later ones.
        while sum(map(len, self.kept)) > MOST_VALUES:
            half = np.concatenate(self.kept)
            self.kept, self.share = [half[self.rng.random(len(half)) < 0.5]], self.share / 2

    @property
    def median(self) -> float:
        """The median of the sampled values."""
        return float(np.median(np.concatenate(self.kept)))


def _refuse_unknown(path: pathlib.Path, name: str, names: Sequence[str], present: Mapping[str, str]) -> None:
    unknown = [column for column in names if column not in present]
    if unknown:
        raise ValueError(f"{name} names {listed(unknown)}, but the columns of {path} are {listed(list(present))}.")


def _refuse_kinds(path: pathlib.Path, target: str, inputs: Mapping[str, str], of_target: str) -> None:
    """Raise one `ValueError` for all columns that cannot be used as they are."""
    complaints = []
    if of_target != NUMBER:
        complaints.append(
            f"the target {target!r} holds {of_target}, where numbers are needed{_first_non_number(path, target)}"
        )
    text = [name for name, kind in inputs.items() if kind == TEXT]
    typed = {name: _first_non_number(path, name) for name in text}
    complaints += [f"{name!r} holds mostly numbers{where}" for name, where in typed.items() if where]
    words = [name for name, where in typed.items() if not where]
    if words:
        complaints.append(
            f"{listed(words)} {'holds' if len(words) == 1 else 'hold'} text: encode with {option('--one-hot', words)}, "
            f"or leave out with {option('--drop', words)}"
        )
    for name, kind in inputs.items():
        if kind not in USABLE:
            complaints.append(f"{name!r} holds {kind}: convert it to numbers first, or {option('--drop', [name])}")
    if complaints:
        raise ValueError(f"{path}: {'; '.join(complaints)}.")


def _first_non_number(path: pathlib.Path, name: str) -> str:
    """Return where the first value that is not a number stands, in a column of text that holds mostly numbers."""
    if column_kinds(path)[name] != TEXT:
        return ""
    batch = next(read_batches(path, {name: TEXT}), None)
    if batch is None:
        return ""
    rows = np.flatnonzero(~is_missing(TEXT, batch[name]))
    values = [batch[name][int(row)].as_py() for row in rows]
    strange = [i for i, value in enumerate(values) if not _is_number(value)]
    if not strange or 2 * len(strange) > len(values):
        return ""
    row, value = rows[strange[0]] + 1, excerpt(values[strange[0]])
    if _is_number(value.replace(",", ".")):
        return f", but {value!r} in row {row:,}: is it a decimal comma? Write all numbers with a point"
    return f", but {value!r} in row {row:,}: correct it, or leave it empty if it is missing"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_many(path: pathlib.Path, name: str, count: int) -> None:
    if count > MOST_CATEGORIES:
        raise ValueError(
            f"{path}: column {name!r} has more than {MOST_CATEGORIES} categories, too many to one-hot encode: group "
            f"them, or {option('--drop', [name])}."
        )
