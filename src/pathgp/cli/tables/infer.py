"""First scan of a table: the columns that are inputs, and their categories, medians and missing values."""

import pathlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
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
    all_kinds = {**kinds, target: NUMBER}
    inputs = [(_Text if kind == TEXT else _Numbers)(path, name, kind, impute) for name, kind in kinds.items()]
    statistics = [*inputs, _Numbers(path, target, NUMBER, impute=False)]
    rows = skipped = 0
    for batch in read_batches(path, all_kinds):
        if skip_missing:
            whole = complete(all_kinds, batch)
            skipped, batch = skipped + int((~whole).sum()), batch.filter(pa.array(whole))
        rows += batch.num_rows
        for column in statistics:
            column.add(batch[column.name])
    if not rows:
        _refuse_no_rows(path, all_kinds, target, skipped)
    found = [column.finish(rows) for column in statistics][:-1]
    missing = {column.name: column.missing for column in statistics if column.missing}
    _refuse_missing(path, target, missing, rows, impute)
    encoding = Encoding(target, tuple(found))
    if twice := [name for name, count in Counter(encoding.inputs).items() if count > 1]:
        raise ValueError(f"{path} would have two inputs named {listed(twice)}: rename a column.")
    return Scan(encoding, rows, missing, skipped)


class _Statistics(ABC):
    """What a column is encoded by, from its values in batches: `add` each of them, then `finish`."""

    def __init__(self, path: pathlib.Path, name: str, kind: str, impute: bool) -> None:
        self.path, self.name, self.kind, self.impute = path, name, kind, impute
        self.missing = 0

    @abstractmethod
    def add(self, values: pa.Array) -> None:
        """Add the values of some rows."""

    def finish(self, rows: int) -> Column:
        """Return the encoding; raise `ValueError` if the column is empty or has infinite values."""
        if self.missing == rows:
            without = option("--drop", [self.name])
            raise ValueError(f"{self.path}: column {self.name!r} is empty: leave it out with {without}.")
        return self.encoding()

    @abstractmethod
    def encoding(self) -> Column:
        """Return the encoding of a column that is not empty."""


class _Numbers(_Statistics):
    """A column of numbers, booleans or dates; missing values are replaced by the median."""

    def __init__(self, path: pathlib.Path, name: str, kind: str, impute: bool) -> None:
        super().__init__(path, name, kind, impute)
        self.infinite, self.sample = 0, _ValueSample()

    def add(self, values: pa.Array) -> None:
        x = numbers(self.kind, values)
        self.missing += int(np.isnan(x).sum())
        self.infinite += int(np.isinf(x).sum())
        # The median needs the values in memory, the other statistics do not.
        if self.impute:
            self.sample.add(x)

    def encoding(self) -> Column:
        refuse_infinite(self.path, self.name, self.infinite)
        fill = self.sample.median if self.impute else None
        return Column(self.name, self.kind, fill=fill, indicator=self.impute and self.missing > 0)


class _Text(_Statistics):
    """A column of categories; missing values get the most frequent one, or none if they have an indicator."""

    def __init__(self, path: pathlib.Path, name: str, kind: str, impute: bool) -> None:
        super().__init__(path, name, kind, impute)
        self.counts = Counter[str]()

    def add(self, values: pa.Array) -> None:
        self.missing += values.null_count
        for count in values.drop_null().value_counts().to_pylist():
            self.counts[count["values"]] += count["counts"]
        if len(self.counts) > MOST_CATEGORIES:
            raise ValueError(
                f"{self.path}: column {self.name!r} has more than {MOST_CATEGORIES} categories, too many to one-hot "
                f"encode: group them, or {option('--drop', [self.name])}."
            )

    def encoding(self) -> Column:
        fill = self.counts.most_common(1)[0][0] if self.impute else None
        return Column(self.name, self.kind, tuple(sorted(self.counts)), fill, self.impute and self.missing > 0)


def _refuse_no_rows(path: pathlib.Path, kinds: Mapping[str, str], target: str, skipped: int) -> None:
    if not skipped:
        raise ValueError(f"{path} has no rows below its header.")
    name, count = _emptiest(path, kinds)
    remedy = "choose another --target" if name == target else "--drop it, or use --impute"
    raise ValueError(
        f"every row of {path} has a missing value. Column {name!r} has the most ({count:,} of {skipped:,}): {remedy}."
    )


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
