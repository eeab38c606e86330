"""Base class of experiments: independent cells, stored one by one, then a figure, tables and verdicts.

A run writes one file per cell, OUT/NAME/SCALE/cells/CELL.json, with its settings and the version of pathgp. A later
run resumes from these files. It computes a cell again if its settings or the version have changed.
"""

import io
import json
import pathlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pathgp.runs.atomic import write_atomically
from pathgp.solvers import DivergenceError
from pathgp_paper.bench.machine import machine
from pathgp_paper.datasets import NotPublished
from pathgp_paper.experiments.verdicts import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("smoke", "machine", "paper")
MINUTES = {"smoke": float("inf"), "machine": 30.0, "paper": float("inf")}
"""Time limit of a run, in minutes: no cell starts later."""

Settings = dict[str, Any]
Result = dict[str, Any]


class NotRun(Exception):
    """Raised if a cell cannot be computed on this machine. The message is the reason."""


class Cell(NamedTuple):
    """One independent computation. Its settings are JSON, and its result depends on nothing else."""

    name: str
    settings: Settings


class Record(NamedTuple):
    """A cell and its result, or the reason why there is none."""

    cell: str
    settings: Settings
    result: Result | None
    not_run: str = ""
    seconds: float = 0.0
    where: str = ""
    """Machine and date."""
    version: str = ""
    """Version of pathgp."""


class Table(NamedTuple):
    """A table of the report: caption, column heads, and rows of text."""

    caption: str
    head: list[str]
    lines: list[list[str]]


class Experiment(ABC):
    """A figure or a table of the paper. A subclass in a file of `pathgp_paper/experiments` is listed automatically."""

    name: ClassVar[str]
    title: ClassVar[str]
    reproduces: ClassVar[str]
    published: ClassVar[str]
    """The paper's result in words, because its figures may not be copied here."""

    @abstractmethod
    def cells(self, scale: str) -> list[Cell]:
        """Return the cells of a scale, the most informative first."""

    @abstractmethod
    def compute(self, settings: Settings) -> Result:
        """Return the result of a cell, as JSON. Raise `NotRun` if this machine cannot compute it."""

    @abstractmethod
    def figure(self, records: list[Record]) -> "Figure | None":
        """Return the figure, drawn from stored results only."""

    @abstractmethod
    def tables(self, records: list[Record]) -> list[Table]:
        """Return the tables of our numbers and the paper's."""

    @abstractmethod
    def claims(self, records: list[Record]) -> list[Claim]:
        """Return the paper's claims, each with the number measured here."""


def find(records: list[Record], **settings: Any) -> list[Record]:
    """Return the records that have a result and these settings.

    >>> records = [Record("a", {"M": 1}, {"rmse": 0.1}), Record("b", {"M": 2}, None, "no data")]
    >>> [record.cell for record in find(records, M=1)], find(records, M=2)
    (['a'], [])
    """
    fits = lambda record: all(record.settings.get(name) == value for name, value in settings.items())
    return [record for record in records if record.result is not None and fits(record)]


def mean_of(records: list[Record], name: str) -> float | None:
    """Return the mean of one number over the records that have it; None if none has."""
    values = [record.result[name] for record in records if record.result is not None and name in record.result]
    return sum(values) / len(values) if values else None


def run(
    experiment: Experiment,
    scale: str,
    out: pathlib.Path,
    *,
    only: str = "",
    minutes: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Record]:
    """Compute the cells whose name contains `only` and that are not stored with the same settings and version."""
    folder = cells_folder(experiment, scale, out)
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * (MINUTES[scale] if minutes is None else minutes)
    for cell in experiment.cells(scale):
        if only not in cell.name or _stored(folder, cell).result is not None:
            continue
        if time.monotonic() > end:
            say("The time is used up: the same command goes on from here.")
            break
        record = _compute(experiment, cell)
        write_atomically(folder / f"{cell.name}.json", json.dumps(record._asdict(), indent=1).encode())
        say(f"{cell.name}: {record.not_run or f'{record.seconds:.1f} s'}")
    return load(experiment, scale, out)


def load(experiment: Experiment, scale: str, out: pathlib.Path) -> list[Record]:
    """Return one record per cell of a scale. Cells without a stored result have a reason."""
    folder = cells_folder(experiment, scale, out)
    return [_stored(folder, cell) for cell in experiment.cells(scale)]


def cells_folder(experiment: Experiment, scale: str, out: pathlib.Path) -> pathlib.Path:
    """Return the folder in which the cells of a scale are stored."""
    return out / experiment.name / scale / "cells"


def _compute(experiment: Experiment, cell: Cell) -> Record:
    start = time.perf_counter()
    try:
        result, reason = experiment.compute(cell.settings), ""
    except (NotRun, FileNotFoundError, NotPublished, DivergenceError) as error:  # stored as the reason
        result, reason = None, str(error)
    computer = machine()
    where = f"{computer['processor']}, {computer['cores']} cores, {date.today().isoformat()}"
    return Record(cell.name, cell.settings, result, reason, time.perf_counter() - start, where, version("pathgp"))


def _stored(folder: pathlib.Path, cell: Cell) -> Record:
    """Return the stored record if its settings and version match, otherwise a record with the reason.

    The next run computes a stored record without a result again.
    """
    file = folder / f"{cell.name}.json"
    if not file.is_file():
        return Record(cell.name, cell.settings, None, "not reached yet")
    stored = json.loads(file.read_text())
    if stored["settings"] != json.loads(json.dumps(cell.settings)):
        return Record(cell.name, cell.settings, None, "the settings have changed since it was run")
    by = stored.get("version", "of an earlier version")
    if by != version("pathgp"):
        return Record(cell.name, cell.settings, None, f"it was run by pathgp {by}, not by this version")
    return Record(**{field: stored[field] for field in Record._fields if field in stored})


def canvas(rows: int, columns: int, width: float, height: float) -> "tuple[Figure, Any]":
    """Return a figure that needs no display, and its axes as a 2-D array."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def plain_log_ticks(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers at 1, 2, 3 and 5 of each decade to avoid overlap."""
    from matplotlib.ticker import LogLocator

    axis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("{x:g}")


def png(figure: "Figure") -> bytes:
    """Return the figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
