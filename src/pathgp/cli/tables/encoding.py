"""Encoding of the named columns of a table as a matrix of numbers, the same for fitting and prediction."""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from jaxtyping import Bool, Float, Int

from pathgp.cli.tables.files import (
    ARROW,
    AS_IT_IS,
    DATES,
    NUMBER,
    ROWS_AT_ONCE,
    TEXT,
    cast,
    column_kinds,
    counted,
    listed,
    read_batches,
)
from pathgp.cli.tables.files import row_count as rows_of_file

DAY = 86_400_000_000
"""Microseconds per day."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: one input if it holds numbers or dates, one input per category if it holds text.

    A date is encoded as the number of days since 1970.

    Attributes
    ----------
    name
        Name of the column.
    kind
        One of the kinds of `files.ARROW`.
    categories
        Categories of a column of text.
    fill
        Replacement of missing values: a median or the most frequent category. None if missing values raise
        `ValueError`.
    indicator
        Whether there is one more input, 1 where the value is missing and 0 elsewhere. A column has it if values were
        missing in the fit. A missing value of text is then in no category.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    indicator: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs.

        >>> Column("colour", "text", ("blue", "red")).inputs
        ('colour=blue', 'colour=red')
        >>> Column("size", "number", fill=3.5, indicator=True).inputs
        ('size', 'size is missing')
        """
        own = tuple(f"{self.name}={c}" for c in self.categories) if self.kind == TEXT else (self.name,)
        return (*own, f"{self.name} is missing") if self.indicator else own

    def encode(self, path: pathlib.Path, values: pa.Array, allow_unknown: bool = False) -> Float[np.ndarray, "n k"]:
        """Return the inputs for some rows; raise `ValueError` for missing values without `fill`, and for unseen
        categories.

        With `allow_unknown` an unseen category counts as no category.
        """
        missing = is_missing(self.kind, values)
        if missing.any() and self.fill is None:
            gaps = counted(int(missing.sum()), "missing value")
            raise ValueError(f"{path}: column {self.name!r} has {gaps}: remove those rows, or fit with --impute.")
        own = self._categories(path, values, allow_unknown) if self.kind == TEXT else self._numbers(path, values)
        return np.column_stack([own, missing]) if self.indicator else own

    def _numbers(self, path: pathlib.Path, values: pa.Array) -> Float[np.ndarray, "n 1"]:
        x = numbers(self.kind, values)
        refuse_infinite(path, self.name, int(np.isinf(x).sum()))
        return (x if self.fill is None else np.where(np.isnan(x), self.fill, x))[:, None]

    def _categories(self, path: pathlib.Path, values: pa.Array, allow_unknown: bool) -> Float[np.ndarray, "n c"]:
        filled = values.fill_null(self.fill) if values.null_count and not self.indicator else values
        index = pyarrow.compute.index_in(filled, value_set=pa.array(self.categories, pa.string()))  # pyright: ignore[reportAttributeAccessIssue]
        unknown = filled.filter(index.is_null()).drop_null().unique().to_pylist()
        if unknown and not allow_unknown:
            noun = "category" if len(unknown) == 1 else "categories"
            raise ValueError(
                f"{path}: column {self.name!r} has the unseen {noun} {listed(unknown, 3)}, but the model knows "
                f"{listed(self.categories)}: correct the table, or encode unseen categories as no category with "
                "--allow-unknown in predict, sample and evaluate (allow_unknown=True in Python)."
            )
        none = len(self.categories)  # a column of its own for rows in no category, which is dropped
        return np.eye(none + 1)[index.fill_null(none).to_numpy(), :none]


class Block(NamedTuple):
    """Some rows of a table: inputs, target (empty if not requested), and columns to copy."""

    X: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n"]
    kept: dict[str, pa.Array]
    missing: int
    """Number of missing values that were replaced."""


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The columns that are inputs, the encoding of each, and the target. It is stored with the model."""

    target: str | None
    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of the matrix."""
        return tuple(name for column in self.columns for name in column.inputs)

    def as_json(self) -> dict[str, Any]:
        """Return the encoding as JSON for `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Encoding":
        """Return the encoding that `as_json` stored."""
        columns = tuple(Column(**{**c, "categories": tuple(c["categories"])}) for c in stored["columns"])
        return cls(stored["target"], columns)

    def matrix(self, frame: Any, allow_unknown: bool = False) -> Float[np.ndarray, "n d"]:
        """Return the inputs of a data frame of pandas or polars, or of an Arrow table."""
        try:
            table = pa.table(frame)
        except (TypeError, pa.ArrowException) as error:
            raise ValueError(f"frame must be a pandas or polars data frame, or an Arrow table: {error}") from None
        missing = [column.name for column in self.columns if column.name not in table.column_names]
        if missing:
            raise ValueError(f"the frame lacks {listed(missing)}, which the model needs.")
        path = pathlib.Path("the frame")
        whole = lambda c: cast(path, c.name, table[c.name].combine_chunks(), ARROW[c.kind])
        return np.concatenate([column.encode(path, whole(column), allow_unknown) for column in self.columns], axis=1)

    def blocks(
        self,
        path: pathlib.Path,
        with_target: bool = False,
        rows: int = ROWS_AT_ONCE,
        *,
        skip_missing: bool = False,
        allow_unknown: bool = False,
        keep: Sequence[str] = (),
    ) -> Iterator[Block]:
        """Yield the table in blocks of `rows` rows, the last one smaller; `skip_missing` leaves out incomplete rows."""
        kinds = {column.name: column.kind for column in self.columns}
        if with_target:
            if self.target is None:
                raise ValueError("the model does not store the name of its target: fit it with `pathgp fit`.")
            kinds[self.target] = NUMBER
        present = column_kinds(path)
        for names, why in ((kinds, "which the model needs"), (keep, "which --keep names")):
            missing = [name for name in names if name not in present]
            if missing:
                raise ValueError(f"{path} lacks {listed(missing)}, {why}: its columns are {listed(list(present))}.")
        held, total = _Rebatcher(rows), 0
        # Copied columns have a reader of their own, because one may be an input too. Both yield the same batches.
        copies = read_batches(path, dict.fromkeys(keep, AS_IT_IS)) if keep else itertools.repeat({})
        for batch, copied in zip(read_batches(path, kinds), copies, strict=bool(keep)):
            total += batch.num_rows
            kept = {name: copied[name] for name in keep}
            if skip_missing:
                whole = pa.array(complete(kinds, batch))
                batch, kept = batch.filter(whole), {name: column.filter(whole) for name, column in kept.items()}
            yield from held.add(self._block(path, batch, with_target, allow_unknown, kept))
        if not total:
            raise ValueError(f"{path} has no rows below its header.")
        yield from held.rest()

    def _block(
        self,
        path: pathlib.Path,
        batch: pa.RecordBatch,
        with_target: bool,
        allow_unknown: bool,
        kept: dict[str, pa.Array],
    ) -> Block:
        X = np.concatenate([c.encode(path, batch[c.name], allow_unknown) for c in self.columns], axis=1)
        y = read_target(path, self.target, batch) if with_target else np.empty(len(X))
        missing = sum(int(is_missing(c.kind, batch[c.name]).sum()) for c in self.columns)
        return Block(X, y, kept, missing)

    def read(
        self, path: pathlib.Path, dtype: Any = np.float32, count: int | None = None, *, skip_missing: bool = False
    ) -> "Rows":
        """Return inputs and target of all rows.

        If the number of rows is known, they are in memory once, otherwise twice for a while.
        """
        count = rows_of_file(path) if count is None and not skip_missing else count
        blocks = self.blocks(path, with_target=True, skip_missing=skip_missing)
        first = next(blocks, None)
        if first is None:
            raise ValueError(f"every row of {path} has a missing value: use --impute.")
        # A median of the first rows: counted from it, float32 resolves the spread of columns that are far from zero.
        origin = np.sort(first.X, axis=0)[len(first.X) // 2]
        rounding = 10 * np.finfo(np.float64).eps * np.abs(origin)  # variation of a constant column

        def from_origin(block: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
            away = block - origin
            with np.errstate(over="ignore"):
                rounded = np.where(np.abs(away) <= rounding, 0, away).astype(dtype)
            large = [self.inputs[j] for j in np.flatnonzero(np.isinf(rounded).any(axis=0))]
            if large:
                kind = np.dtype(dtype).name
                raise ValueError(f"{path}: {listed(large)} has values too large for {kind}: use a larger unit.")
            return rounded

        stream = ((from_origin(block.X), block.y) for block in itertools.chain([first], blocks))
        if count is None:
            X_blocks, y_blocks = zip(*stream, strict=True)
            return Rows(np.concatenate(X_blocks), np.concatenate(y_blocks), origin)
        X, y, done = np.empty((count, len(origin)), dtype), np.empty(count), 0
        for X_block, y_block in stream:
            here = slice(done, done := done + len(y_block))
            if done > count:
                break
            X[here], y[here] = X_block, y_block
        if done != count:
            raise ValueError(
                f"{path} had {count:,} rows at first, but it changed while it was read: run the command again."
            )
        return Rows(X, y, origin)


class Rows(NamedTuple):
    """The rows of a table, with inputs counted from `origin`, so that float32 resolves their spread."""

    X: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n"]
    origin: Float[np.ndarray, "d"]

    @property
    def inputs(self) -> Float[np.ndarray, "n d"]:
        """The inputs in their own units."""
        return self.X + self.origin

    def some(self, index: Int[np.ndarray, "k"]) -> "Rows":
        """Return a copy of some of the rows."""
        return Rows(self.X[index], self.y[index], self.origin)


class _Rebatcher:
    """Rebatch blocks of any size into blocks of one size."""

    def __init__(self, rows: int) -> None:
        self.rows, self.blocks = rows, list[Block]()

    def add(self, block: Block) -> Iterator[Block]:
        """Add a block and yield the blocks that are complete."""
        self.blocks.append(block)
        if sum(len(held.X) for held in self.blocks) < self.rows:
            return
        whole = _stacked(self.blocks)
        starts = range(0, len(whole.X), self.rows)
        cut = [_cut(whole, start, start + self.rows) for start in starts]
        self.blocks = [cut.pop()] if len(whole.X) % self.rows else []
        yield from cut

    def rest(self) -> Iterator[Block]:
        """Yield the last, smaller block, if there is one."""
        if any(len(held.X) for held in self.blocks):
            yield _stacked(self.blocks)


def _stacked(blocks: Sequence[Block]) -> Block:
    kept = {name: pa.concat_arrays([block.kept[name] for block in blocks]) for name in blocks[0].kept}
    X, y = (np.concatenate(parts) for parts in ([b.X for b in blocks], [b.y for b in blocks]))
    return Block(X, y, kept, sum(block.missing for block in blocks))


def _cut(block: Block, start: int, end: int) -> Block:
    """Return some of the rows; all missing values are counted with the first ones."""
    kept = {name: column[start:end] for name, column in block.kept.items()}
    return Block(block.X[start:end], block.y[start:end], kept, block.missing if start == 0 else 0)


def numbers(kind: str, values: pa.Array) -> Float[np.ndarray, "n"]:
    """Return a column that is not text as numbers, with NaN for missing values."""
    if kind in DATES:
        return values.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / DAY
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


def is_missing(kind: str, values: pa.Array) -> Bool[np.ndarray, "n"]:
    """Return which rows of a column are empty or NaN."""
    if kind == TEXT:
        return values.is_null().to_numpy(zero_copy_only=False)
    return np.isnan(numbers(kind, values))


def complete(kinds: Mapping[str, str], batch: pa.RecordBatch) -> Bool[np.ndarray, "n"]:
    """Return which rows have a value in every column."""
    return ~np.any([is_missing(kind, batch[name]) for name, kind in kinds.items()], axis=0)


def read_target(path: pathlib.Path, name: str | None, batch: pa.RecordBatch) -> Float[np.ndarray, "n"]:
    """Return the target; raise `ValueError` if it is missing or infinite."""
    y = numbers(NUMBER, batch[name])
    if np.isnan(y).any():
        gaps = counted(int(np.isnan(y).sum()), "missing value")
        raise ValueError(f"{path}: the target {name!r} has {gaps}: remove those rows.")
    refuse_infinite(path, str(name), int(np.isinf(y).sum()))
    return y


def refuse_infinite(path: pathlib.Path, name: str, count: int) -> None:
    """Raise `ValueError` if a column has infinite values."""
    if count:
        raise ValueError(f"{path}: column {name!r} has {counted(count, 'infinite value')}: remove or correct them.")


def check_varies(name: str, y: Float[np.ndarray, "n"]) -> None:
    """Raise `ValueError` if the target is constant."""
    if np.ptp(y) == 0:
        raise ValueError(f"the target {name!r} is {y[0]:g} in every row: choose a target that varies.")
