"""Tables in files, CSV (also .gz), Parquet and .npy, as streams of columns in constant memory (the extra `files`)."""

import codecs
import csv
import io
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from pathgp.cli.tables import npy
from pathgp.runs.atomic import atomic_path

NUMBER, BOOLEAN, TEXT, DATE, ZONED = "number", "boolean", "text", "date", "date with a zone"
DATES = (DATE, ZONED)
ARROW = {
    NUMBER: pa.float64(),
    BOOLEAN: pa.bool_(),
    TEXT: pa.string(),
    DATE: pa.timestamp("us"),
    ZONED: pa.timestamp("us", "UTC"),
}
"""Arrow type of each kind of column."""
AS_IT_IS = "as it is"
"""Kind of a column that is copied: as text from a CSV, with its own type from other tables."""
WORDS = {NUMBER: "a number", BOOLEAN: "true or false", TEXT: "text", DATE: "a date", ZONED: "a date with a time zone"}
ROWS_AT_ONCE = 65_536
GZIP = b"\x1f\x8b"
SEPARATORS = ",;\t"
LOOK_BYTES, LOOK_LINES = 65_536, 20
"""Beginning of a CSV from which its separator and its decimal point are inferred."""
BLOCK_BYTES, LONGEST_LINE = 1 << 20, 1 << 25
"""Bytes of a CSV that Arrow reads at once, unless its lines are longer, and the largest length of a line."""
MOST_COLUMNS, LONGEST_NAME = 100_000, 500
"""Largest number of columns of a table, and of characters of a column's name. To open a CSV of a million columns takes
Arrow 9 GB.
"""


def is_parquet(path: pathlib.Path, others: str = ".csv, .csv.gz or .parquet") -> bool:
    """Return whether a file is Parquet rather than CSV, by its name; raise `ValueError` for any other name."""
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        raise ValueError(f"{path} is not a supported table: its name must end in {others}.")
    return name.endswith(".parquet")


def row_count(path: pathlib.Path) -> int | None:
    """Return the number of rows if the file states it; a CSV does not."""
    with _reraise_arrow_errors(path):
        if npy.is_npy(path):
            return npy.header(path).rows
        if _is_parquet(path):
            with pyarrow.parquet.ParquetFile(path) as file:
                return file.metadata.num_rows
    return None


def column_kinds(path: pathlib.Path) -> dict[str, str]:
    """Return the columns of a file with their kinds, or with Arrow's name of a type that is not supported.

    The kinds of a CSV are inferred from its first million bytes. A column that is empty there counts as numbers.
    """
    with _reraise_arrow_errors(path):
        if npy.is_npy(path):
            matrix = npy.header(path)
            return {str(i): BOOLEAN if matrix.dtype.kind == "b" else NUMBER for i in range(matrix.columns)}
        if _is_parquet(path):
            with pyarrow.parquet.ParquetFile(path) as file:
                schema = file.schema_arrow
        else:
            with _open_csv(path, {}) as reader:
                schema = reader.schema
        names = schema.names
    long = next((name for name in names if len(name) > LONGEST_NAME), None)
    if long is not None:
        raise ValueError(
            f"{path}: the name of column {names.index(long) + 1} has {len(long):,} characters, {excerpt(long)!r}: "
            "shorten it, or close the quote in the header."
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{path} has more than one column named {listed(repeated)}: rename the duplicates.")
    return {field.name: _kind(field.type) for field in schema}


def read_batches(path: pathlib.Path, kinds: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the named columns, in that order and each as its kind, in batches of rows."""
    types = {name: ARROW.get(kind) for name, kind in kinds.items()}
    done = 0
    with _reraise_arrow_errors(path, lambda: done, kinds):
        if npy.is_npy(path):
            yield from _rows_of_npy(path, types)
            return
        if _is_parquet(path):
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(types)):
                    done += batch.num_rows
                    yield pa.record_batch({name: cast(path, name, batch[name], types[name]) for name in types})
            return
        as_it_is = None in types.values()
        with _open_csv(path, {name: type or pa.string() for name, type in types.items()}, as_it_is) as reader:
            for batch in reader:
                done += batch.num_rows
                yield batch


def option(name: str, values: Sequence[str]) -> str:
    """Return an option with its values, quoted for the shell.

    >>> print(option("--drop", ["id", "area (m²)"]))
    --drop id 'area (m²)'
    """
    return shlex.join([name, *values])


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "row"), counted(20_000, "row")
    ('1 row', '20,000 rows')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def excerpt(text: str, most: int = 80) -> str:
    """Return the beginning of a text, short enough for an error message.

    >>> excerpt("a long story", 7)
    'a long…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return the first `most` names in quotes.

    >>> listed(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(excerpt(str(name))) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


class Writer(Protocol):
    """Writes the columns of a table, some rows at a time."""

    def __call__(self, columns: Mapping[str, np.ndarray | pa.Array]) -> None:
        """Append rows."""
        ...


@contextmanager
def table_writer(path: pathlib.Path | None, standard_output: Any, force: bool = True) -> Iterator[Writer]:
    """Write a CSV or Parquet file atomically, or CSV to standard output if `path` is None.

    Unless `force`, a file that another process has written in the meantime is kept (see `replacing`).
    """
    if path is None:
        with _csv_writer(standard_output) as write:
            yield write
        return
    parquet = is_parquet(path)
    with atomic_path(path, force) as temporary:
        if parquet:
            with _parquet_writer(temporary) as write:
                yield write
        else:
            compression = "gzip" if path.name.lower().endswith(".gz") else None
            with pa.output_stream(temporary, compression=compression) as sink, _csv_writer(sink) as write:
                yield write


@contextmanager
def _csv_writer(sink: Any) -> Iterator[Writer]:
    started = False

    def write(columns: Mapping[str, np.ndarray | pa.Array]) -> None:
        nonlocal started
        options = pyarrow.csv.WriteOptions(include_header=False)
        if not started:  # Arrow would put every name of the header in quotes
            header = io.StringIO()
            csv.writer(header, lineterminator="\n").writerow(columns)
            sink.write(header.getvalue().encode())
        started = True
        pyarrow.csv.write_csv(pa.table(dict(columns)), sink, options)

    yield write


@contextmanager
def _parquet_writer(path: pathlib.Path) -> Iterator[Writer]:
    writer: pyarrow.parquet.ParquetWriter | None = None

    def write(columns: Mapping[str, np.ndarray | pa.Array]) -> None:
        nonlocal writer
        table = pa.table(dict(columns))
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def _is_parquet(path: pathlib.Path) -> bool:
    """Return whether an input file is Parquet rather than CSV, by its name."""
    return is_parquet(path, ".csv, .csv.gz, .parquet or .npy")


def _rows_of_npy(path: pathlib.Path, types: Mapping[str, pa.DataType | None]) -> Iterator[pa.RecordBatch]:
    for start in range(0, npy.header(path).rows, ROWS_AT_ONCE):
        block = npy.rows_of(path, start, start + ROWS_AT_ONCE)
        numbers = block if block.dtype.kind == "b" else block.astype(np.float64)  # Arrow lacks some NumPy dtypes
        arrays = {name: pa.array(numbers[:, int(name)]) for name in types}
        yield pa.record_batch({name: cast(path, name, arrays[name], types[name]) for name in types})


def _open_csv(
    path: pathlib.Path, types: Mapping[str, pa.DataType], as_it_is: bool = False
) -> pyarrow.csv.CSVStreamingReader:
    separator, point, above = dialect(path)
    # Arrow takes a file for empty if its header does not fit into one block.
    longest = max(map(len, _beginning(path).splitlines()), default=0)
    options = pyarrow.csv.ConvertOptions(
        column_types=types, include_columns=list(types), strings_can_be_null=not as_it_is, decimal_point=point
    )
    return pyarrow.csv.open_csv(
        str(path),
        read_options=pyarrow.csv.ReadOptions(skip_rows=above, block_size=max(BLOCK_BYTES, 4 * longest)),
        convert_options=options,
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
    )


class Dialect(NamedTuple):
    """Format of a CSV file."""

    separator: str
    point: str
    """The decimal point."""
    above: int
    """Number of lines above the header."""


def dialect(path: pathlib.Path) -> Dialect:
    """Infer the separator and the decimal point of a CSV file.

    The separator is the one that occurs equally often in each of the first lines, or that a line `sep=` for Excel
    names. The decimal point is a comma if the separator is not, and numbers occur with a comma and none with a point.
    """
    _refuse_other_bytes(path)
    text = _beginning(path).decode(errors="replace")
    named = re.match(rf'\ufeff?"?sep=([{SEPARATORS}])"?\r?\n', text, re.IGNORECASE)
    text = text[named.end() :] if named else text
    # Separators within quotes do not count.
    lines = re.sub('"[^"]*"', "", text).splitlines()
    whole = (lines[:-1] if len(text) > LOOK_BYTES // 2 else lines)[:LOOK_LINES] or [""]
    even = [s for s in SEPARATORS if s in whole[0] and len({line.count(s) for line in whole if line}) == 1]
    separator = named[1] if named else max(even or SEPARATORS, key=whole[0].count)
    columns = whole[0].count(separator) + 1
    if columns > MOST_COLUMNS:
        raise ValueError(
            f"{path} has {columns:,} columns, but a CSV may have at most {MOST_COLUMNS:,}: keep only those that "
            "matter, or save the matrix as .npy with numpy.save."
        )
    number = rf"(?:^|{re.escape(separator)})\s*[+-]?\d*{{}}\d+(?:[eE][+-]?\d+)?\s*(?={re.escape(separator)}|\r?$)"
    seen = lambda point: re.search(number.format(point), text.replace('"', ""), re.MULTILINE)
    point = "," if separator != "," and seen(",") and not seen(r"\.") else "."
    return Dialect(separator, point, 1 if named else 0)


def _beginning(path: pathlib.Path) -> bytes:
    """Return the first bytes of a CSV, enough for a line for Excel, the header and the first row."""
    with pa.input_stream(str(path), compression="detect") as stream:
        raw = stream.read(LOOK_BYTES)
        while len(raw) < LONGEST_LINE and len(raw.splitlines()) < 4 and (more := stream.read(BLOCK_BYTES)):
            raw += more
    if len(raw) >= LONGEST_LINE and len(raw.splitlines()) < 2:
        raise ValueError(
            f"{path} has no line end in its first {len(raw) / 1e6:.0f} MB: it must have a header and one line per row."
        )
    return raw


def _kind(of: pa.DataType) -> str:
    is_type = pa.types
    if is_type.is_dictionary(of):
        return _kind(of.value_type)
    if is_type.is_boolean(of):
        return BOOLEAN
    if any(check(of) for check in (is_type.is_integer, is_type.is_floating, is_type.is_decimal, is_type.is_null)):
        return NUMBER
    if is_type.is_string(of) or is_type.is_large_string(of) or is_type.is_string_view(of):
        return TEXT
    if is_type.is_date(of) or is_type.is_timestamp(of):
        return ZONED if getattr(of, "tz", None) else DATE
    return str(of)


def cast(path: pathlib.Path, name: str, column: pa.Array, to: pa.DataType | None) -> pa.Array:
    """Return a column that is not from a CSV as the requested kind; raise `ValueError` if it holds another one."""
    if to is None:
        return column
    kind, asked = _kind(column.type), next(k for k, arrow in ARROW.items() if arrow == to)
    if pa.types.is_null(column.type):
        return column.cast(to)
    if asked != kind and (asked, kind) not in ((NUMBER, BOOLEAN), (BOOLEAN, NUMBER)) and asked != TEXT:
        raise ValueError(f"{path}: column {name!r} holds {WORDS.get(kind, kind)}, where {WORDS[asked]} is expected.")
    if pa.types.is_dictionary(column.type):  # Arrow cannot cast every kind of dictionary
        column = column.dictionary.cast(to).take(column.indices)
    if asked == BOOLEAN and kind == NUMBER:
        return _as_booleans(path, name, column)
    return column.cast(to, safe=False)


def _as_booleans(path: pathlib.Path, name: str, column: pa.Array) -> pa.Array:
    """Return zeros and ones as booleans; raise `ValueError` for other numbers."""
    x = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    strange = x[~np.isnan(x) & (x != 0) & (x != 1)]
    if strange.size:
        raise ValueError(f"{path}: column {name!r} holds {strange[0]:g}, where true or false is expected.")
    return pa.array(x == 1, mask=np.isnan(x))


@contextmanager
def _reraise_arrow_errors(
    path: pathlib.Path, done: Any = lambda: 0, kinds: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Re-raise errors of pyarrow with the name of the file, the column, and the kind as which it is read."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the path of a file.")
    if path.exists() and not path.is_file():
        # The scan of the columns and the reading of the rows open the file one after the other.
        raise ValueError(
            f"{path} is not a regular file, and the table is read more than once: save it to a file first."
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: check the path.")
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(_encoded(path, "latin1")) from None
    except pa.ArrowException as error:
        message = excerpt(str(error).splitlines()[0].removeprefix("CSV parse error: "), 200)
        where = f" (after row {done()})" if done() else ""
        if "Empty CSV file" in message:
            if _beginning(path).count(b'"') % 2:
                raise ValueError(f"{path} cannot be read: a quote in its header is not closed.") from None
            raise ValueError(f"{path} is empty: it must have a header and rows.") from None
        if "out of sync" in message or "straddling" in message:
            raise ValueError(
                f"{path} cannot be read{where}: a quote is not closed, a value spans several lines, or a row is much "
                "longer than the first rows."
            ) from None
        conversion = re.match(r"In CSV column #(\d+): .*?(?:value|offset in) '(.*?)'", str(error), re.DOTALL)
        if conversion:
            column, value = _header(path)[int(conversion[1])], excerpt(conversion[2])
            kind = (kinds or {}).get(column, NUMBER)
            written = ", written like 2024-01-31" if kind in DATES else ""
            where += " (is a quote not closed?)" if "\n" in value else ""
            raise ValueError(
                f"{path}: column {column!r} holds {value!r}{where}, where {WORDS[kind]} is expected{written}: correct "
                f"it, or leave it empty if it is missing; `pathgp fit {option('--one-hot', [column])}` reads an input "
                "as text."
            ) from None
        raise ValueError(f"{path} cannot be read{where}: {message}.") from None


def _refuse_other_bytes(path: pathlib.Path) -> None:
    """Raise `ValueError` if the first bytes of a CSV are those of another format than its name says."""
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz")):
        return
    with path.open("rb") as file:
        first = file.read(2)
    if name.endswith(".gz") and first and first != GZIP:
        raise ValueError(f"{path} is not compressed with gzip: if it is a plain CSV, rename it without .gz.")
    if name.endswith(".csv") and first == GZIP:
        raise ValueError(f"{path} is compressed with gzip: rename it to .csv.gz.")
    if first in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise ValueError(_encoded(path, "utf-16"))


def _encoded(path: pathlib.Path, as_what: str) -> str:
    return (
        f"{path} is not a table in UTF-8: if it is a CSV in another encoding, convert it first, for example with "
        f"`iconv -f {as_what} -t utf8 {shlex.quote(path.name)}`."
    )


def _header(path: pathlib.Path) -> list[str]:
    with _open_csv(path, {}) as reader:
        return reader.schema.names
