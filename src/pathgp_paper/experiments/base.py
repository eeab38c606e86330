"""What an experiment is: independent cells, each stored when it is done, then a figure, tables and verdicts.

A run writes OUT/NAME/SCALE/cells/CELL.json, one file a cell with its settings and the version in it, so that it goes
on where it was stopped and computes again what was asked for differently or by another version.
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
"""No cell is begun after so many minutes of a run."""

Settings = dict[str, Any]
Result = dict[str, Any]


class NotRun(Exception):
    """A cell cannot be computed here: the message is the reason."""


class Cell(NamedTuple):
    """One computation, which needs no other. Its settings are JSON, and all that its result depends on."""

    name: str
    settings: Settings


class Record(NamedTuple):
    """A cell and its result, or why there is none."""

    cell: str
    settings: Settings
    result: Result | None
    not_run: str = ""
    seconds: float = 0.0
    where: str = ""
    """The machine and the date."""
    version: str = ""
    """Of pathgp."""


class Table(NamedTuple):
    """A table of the report: a caption, a head and lines of text."""

    caption: str
    head: list[str]
    lines: list[list[str]]


class Experiment(ABC):
    """A figure or a table of the paper. A subclass is one file in `experiments/paper`, which the list then shows."""

    name: ClassVar[str]
    title: ClassVar[str]
    reproduces: ClassVar[str]
    published: ClassVar[str]
    """What the paper shows, in words: its pictures are not ours to copy."""

    @abstractmethod
    def cells(self, scale: str) -> list[Cell]:
        """The cells of a scale, the most telling first."""

    @abstractmethod
    def compute(self, settings: Settings) -> Result:
        """The result of a cell, as JSON. Raises `NotRun` where it cannot be had here."""

    @abstractmethod
    def figure(self, records: list[Record]) -> "Figure | None":
        """The figure, drawn from stored results alone."""

    @abstractmethod
    def tables(self, records: list[Record]) -> list[Table]:
        """Ours, with the paper's numbers beside them."""

    @abstractmethod
    def claims(self, records: list[Record]) -> list[Claim]:
        """What the paper says, each with what was found here."""


def find(records: list[Record], **settings: Any) -> list[Record]:
    """The records with a result and these settings.

    >>> records = [Record("a", {"M": 1}, {"rmse": 0.1}), Record("b", {"M": 2}, None, "no data")]
    >>> [record.cell for record in find(records, M=1)], find(records, M=2)
    (['a'], [])
    """
    fits = lambda record: all(record.settings.get(name) == value for name, value in settings.items())
    return [record for record in records if record.result is not None and fits(record)]


def mean_of(records: list[Record], name: str) -> float | None:
    """The mean of one number over the records; None if there are none."""
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
    """Computes the cells which are not stored with the same settings, of those whose name contains `only`."""
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
    """A record for each cell of a scale, as far as it was run."""
    folder = cells_folder(experiment, scale, out)
    return [_stored(folder, cell) for cell in experiment.cells(scale)]


def cells_folder(experiment: Experiment, scale: str, out: pathlib.Path) -> pathlib.Path:
    """Where the cells of a scale are stored."""
    return out / experiment.name / scale / "cells"


def _compute(experiment: Experiment, cell: Cell) -> Record:
    start = time.perf_counter()
    try:
        result, reason = experiment.compute(cell.settings), ""
    except (NotRun, FileNotFoundError, NotPublished, DivergenceError) as error:  # reasons, and the others go on
        result, reason = None, str(error)
    computer = machine()
    where = f"{computer['processor']}, {computer['cores']} cores, {date.today().isoformat()}"
    return Record(cell.name, cell.settings, result, reason, time.perf_counter() - start, where, version("pathgp"))


def _stored(folder: pathlib.Path, cell: Cell) -> Record:
    """The stored record, if it has the settings of the cell and is of this version.

    A reason why it was not run does not last.
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
    """A figure without a screen, and its axes as an array of rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def plain_log_ticks(axis: Any) -> None:
    """Numbers as they are along a logarithmic axis: at 1, 2, 3 and 5 of each decade, so that none hides another."""
    from matplotlib.ticker import LogLocator

    axis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("{x:g}")


def png(figure: "Figure") -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
