"""From the named columns of a table to a matrix of numbers, in the same way when fitting and when predicting."""

import dataclasses
import itertools
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from jaxtyping import Float, Int

from pathgp.tables import BOOLEAN, NUMBER, ROWS_AT_ONCE, TEXT, column_kinds, listed, read_batches, row_count

MOST_CATEGORIES = 100
MOST_VALUES = 200_000
"""Of a column, from which its median is taken."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: one input where it holds numbers, one for each category where it holds text.

    `fill` is what stands for a missing value: a median, the most frequent category, or None to refuse it.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs.

        >>> Column("colour", "text", ("blue", "red")).inputs
        ('colour=blue', 'colour=red')
        """
        return tuple(f"{self.name}={c}" for c in self.categories) if self.kind == TEXT else (self.name,)

    def encode(self, path: pathlib.Path, values: pa.Array) -> Float[np.ndarray, "n k"]:
        """Its inputs in some rows."""
        if self.kind != TEXT:
            x = _floats(values)
            self._refuse_missing(path, int(np.isnan(x).sum()))
            _refuse_infinite(path, self.name, int(np.isinf(x).sum()))
            return (x if self.fill is None else np.where(np.isnan(x), self.fill, x))[:, None]
        self._refuse_missing(path, values.null_count)
        filled = values.fill_null(self.fill) if values.null_count else values
        index = pyarrow.compute.index_in(filled, value_set=pa.array(self.categories, pa.string()))  # pyright: ignore[reportAttributeAccessIssue]
        if index.null_count:
            unknown = filled.filter(index.is_null()).unique().to_pylist()
            raise ValueError(
                f"{path}: column {self.name!r} holds {listed(unknown, 3)}, which the model was not fitted with: it "
                f"knows {listed(self.categories)}."
            )
        return np.eye(len(self.categories))[index.to_numpy()]

    def _refuse_missing(self, path: pathlib.Path, count: int) -> None:
        if count and self.fill is None:
            raise ValueError(
                f"{path}: {count} values are missing in column {self.name!r}: remove those rows, or fit with --impute, "
                "which puts the median or the most frequent category there."
            )


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Which columns are the inputs, how each becomes numbers, and which is the target. It is stored with the model."""

    target: str | None
    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of the matrix."""
        return tuple(name for column in self.columns for name in column.inputs)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Encoding":
        """What `as_json` stored."""
        columns = tuple(Column(**{**c, "categories": tuple(c["categories"])}) for c in stored["columns"])
        return cls(stored["target"], columns)

    def blocks(
        self, path: pathlib.Path, with_target: bool = False, rows: int = ROWS_AT_ONCE
    ) -> Iterator[tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n"]]]:
        """Inputs and target, `rows` rows at a time and fewer at the end; the target is empty if it is not asked for."""
        kinds = {column.name: column.kind for column in self.columns}
        if with_target:
            if self.target is None:
                raise ValueError("the model does not know the name of its target: fit it with `pathgp fit`.")
            kinds[self.target] = NUMBER
        present = column_kinds(path)
        missing = [name for name in kinds if name not in present]
        if missing:
            raise ValueError(f"{path} lacks {listed(missing)}, which the model needs: its columns are {_all(present)}.")
        held: list[tuple[np.ndarray, np.ndarray]] = []
        count = total = 0
        for batch in read_batches(path, kinds):
            X = np.concatenate([column.encode(path, batch[column.name]) for column in self.columns], axis=1)
            y = _target(path, self.target, batch) if with_target else np.empty(len(X))
            total += len(X)
            while len(X):
                taken = min(rows - count, len(X))
                held.append((X[:taken], y[:taken]))
                X, y, count = X[taken:], y[taken:], count + taken
                if count == rows:
                    yield _stacked(held)
                    held, count = [], 0
        if not total:
            raise ValueError(f"{path} has no rows below its header.")
        if held:
            yield _stacked(held)

    def read(self, path: pathlib.Path, dtype: Any = np.float32, count: int | None = None) -> "Rows":
        """Inputs and target of all rows: once in memory if it is known how many there are, else twice for a while."""
        count, blocks = row_count(path) if count is None else count, self.blocks(path, with_target=True)
        first, y_first = next(blocks)
        origin = np.sort(first, axis=0)[len(first) // 2]
        rounding = 10 * np.finfo(np.float64).eps * np.abs(origin)  # what a column that does not vary varies by

        def from_origin(block: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
            away = block - origin
            with np.errstate(over="ignore"):
                rounded = np.where(np.abs(away) <= rounding, 0, away).astype(dtype)
            large = [self.inputs[j] for j in np.flatnonzero(np.isinf(rounded).any(axis=0))]
            if large:
                kind = np.dtype(dtype).name
                raise ValueError(
                    f"{path}: {listed(large)} has values too large for {kind}: measure it in a larger unit."
                )
            return rounded

        stream = ((from_origin(X), y) for X, y in itertools.chain([(first, y_first)], blocks))
        if count is None:
            return Rows(*_stacked(list(stream)), origin)
        X, y, done = np.empty((count, len(origin)), dtype), np.empty(count), 0
        for X_block, y_block in stream:
            here = slice(done, done := done + len(y_block))
            if done > count:
                break
            X[here], y[here] = X_block, y_block
        if done != count:
            raise ValueError(
                f"{path} had {count:,} rows when it was looked at first, and has others now: fit it again."
            )
        return Rows(X, y, origin)


class Rows(NamedTuple):
    """The rows of a table, their inputs counted from a value in their midst: so float32 resolves what they vary by."""

    X: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n"]
    origin: Float[np.ndarray, "d"]

    @property
    def inputs(self) -> Float[np.ndarray, "n d"]:
        """The inputs in their own units."""
        return self.X + self.origin

    def some(self, index: Int[np.ndarray, "k"]) -> "Rows":
        """A copy of some of the rows."""
        return Rows(self.X[index], self.y[index], self.origin)


def learn_encoding(
    path: pathlib.Path,
    target: str,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    one_hot: Sequence[str] | None = None,
    impute: bool = False,
) -> tuple[Encoding, int]:
    """How the columns of a table become inputs, `columns` or all but the target and `drop`; and how many rows it has.

    Columns of text are refused unless `one_hot` names them, or is empty, which means all of them; None means none.
    Missing values are refused unless `impute`. The file is read once.
    """
    present = column_kinds(path)
    for option, names in (("--target", [target]), ("--columns", columns or []), ("--drop", drop)):
        _refuse_unknown(path, option, names, present)
        if target in names and option != "--target":
            raise ValueError(f"{option} names {target!r}, but that is the target, which cannot be an input.")
    chosen = list(columns) if columns else [name for name in present if name != target and name not in drop]
    if not chosen:
        raise ValueError(f"{path} has no column left for an input: its columns are {_all(present)}.")
    if len(set(chosen)) < len(chosen):
        raise ValueError("--columns names a column twice.")
    text = [name for name in chosen if present[name] == TEXT]
    as_text = [] if one_hot is None else (list(one_hot) or text)
    _refuse_unknown(path, "--one-hot", as_text, dict.fromkeys(chosen, ""))
    refused = [name for name in text if name not in as_text]
    if refused:
        raise ValueError(
            f"{path}: {listed(refused)} holds text: add --one-hot {' '.join(refused)} to make an input of each value, "
            f"or --drop {' '.join(refused)}."
        )
    for name in (*chosen, target):
        if present[name] not in ((NUMBER,) if name == target else (NUMBER, BOOLEAN, TEXT)):
            raise ValueError(f"{path}: column {name!r} holds {present[name]}: turn it into numbers first.")
    kinds = {name: TEXT if name in as_text else present[name] for name in chosen}
    scanned, rows = _scan(path, kinds, target, impute)
    return Encoding(target, scanned), rows


def _scan(path: pathlib.Path, kinds: Mapping[str, str], target: str, impute: bool) -> tuple[tuple[Column, ...], int]:
    """Each column with its categories and, if asked for, what to put where a value is missing; and the rows."""
    categories: dict[str, Counter[str]] = {name: Counter() for name, kind in kinds.items() if kind == TEXT}
    values = {name: _Some() for name, kind in kinds.items() if kind != TEXT}
    missing, infinite, rows = Counter[str](), Counter[str](), 0
    for batch in read_batches(path, {**kinds, target: NUMBER}):
        rows += batch.num_rows
        _target(path, target, batch)
        for name, kind in kinds.items():
            if kind == TEXT:
                for count in batch[name].drop_null().value_counts().to_pylist():
                    categories[name][count["values"]] += count["counts"]
                missing[name] += batch[name].null_count
                _refuse_many(path, name, len(categories[name]))
            else:
                x = _floats(batch[name])
                missing[name] += int(np.isnan(x).sum())
                infinite[name] += int(np.isinf(x).sum())
                if impute:
                    values[name].add(x)
    if not rows:
        raise ValueError(f"{path} has no rows below its header.")
    for name in kinds:
        if missing[name] == rows:
            raise ValueError(f"{path}: column {name!r} is empty: leave it out with --drop {name}.")
        _refuse_infinite(path, name, infinite[name])
    absent = {name: count for name, count in missing.items() if count}
    if absent and not impute:
        raise ValueError(
            f"{path}: values are missing in {', '.join(f'{n!r} ({c} of {rows})' for n, c in absent.items())}: remove "
            "those rows or columns, or add --impute to put the median or the most frequent category there."
        )
    columns = []
    for name, kind in kinds.items():
        if kind == TEXT:
            fill = categories[name].most_common(1)[0][0] if impute else None
            columns.append(Column(name, kind, tuple(sorted(categories[name])), fill))
        else:
            columns.append(Column(name, kind, (), values[name].median if impute else None))
    return tuple(columns), rows


class _Some:
    """Values of a column: all, or above `MOST_VALUES` a random half, quarter, … of them, so that memory is bounded."""

    def __init__(self) -> None:
        self.kept: list[np.ndarray] = []
        self.share = 1.0
        self.rng = np.random.default_rng(0)

    def add(self, x: Float[np.ndarray, "n"]) -> None:
        """Looks at more of them, as far as they are not missing."""
        x = x[~np.isnan(x)]
        self.kept.append(x if self.share == 1 else x[self.rng.random(len(x)) < self.share])
        while sum(map(len, self.kept)) > MOST_VALUES:
            half = np.concatenate(self.kept)
            self.kept, self.share = [half[self.rng.random(len(half)) < 0.5]], self.share / 2

    @property
    def median(self) -> float:
        """Of those that were looked at."""
        return float(np.median(np.concatenate(self.kept)))


def _floats(values: pa.Array) -> Float[np.ndarray, "n"]:
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _target(path: pathlib.Path, name: str | None, batch: pa.RecordBatch) -> Float[np.ndarray, "n"]:
    y = _floats(batch[name])
    if np.isnan(y).any():
        raise ValueError(f"{path}: the target {name!r} is missing in {int(np.isnan(y).sum())} rows: remove them.")
    _refuse_infinite(path, str(name), int(np.isinf(y).sum()))
    return y


def _stacked(blocks: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    X, y = zip(*blocks, strict=True)
    return np.concatenate(X), np.concatenate(y)


def _all(names: Mapping[str, str]) -> str:
    return listed(list(names))


def _refuse_unknown(path: pathlib.Path, option: str, names: Sequence[str], present: Mapping[str, str]) -> None:
    unknown = [name for name in names if name not in present]
    if unknown:
        raise ValueError(f"{option} names {listed(unknown)}, but the columns of {path} are {_all(present)}.")


def _refuse_infinite(path: pathlib.Path, name: str, count: int) -> None:
    if count:
        raise ValueError(f"{path}: column {name!r} has {count} infinite values: remove or correct them.")


def _refuse_many(path: pathlib.Path, name: str, count: int) -> None:
    if count > MOST_CATEGORIES:
        raise ValueError(
            f"{path}: column {name!r} has more than {MOST_CATEGORIES} different values, too many for an input each: "
            f"group them, or --drop {name}."
        )
