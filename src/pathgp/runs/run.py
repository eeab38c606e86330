"""What a long computation carries along: its clock, observer, progress bar and checkpoint."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from pathgp import _checks as checks
from pathgp.runs.checkpoint import Slot

logger = logging.getLogger("pathgp.progress")

FIRST_REPORT = 3.0
"""Seconds after which the time left is logged first; then whenever as much time again has passed."""


class Progress:
    """How far a number of steps is, and the time left at the pace so far: a bar, or lines in the log without one.

    The pace is that of the steps after the first call of `advance`: those before it include the compilation.

    Parameters
    ----------
    name
        What the steps do.
    steps
        Number of steps.
    is_shown
        Whether to show a bar instead of lines in the log.
    """

    def __init__(self, name: str, steps: int, is_shown: bool) -> None:
        self.name, self.steps, self.done = name, steps, 0
        self._begun: tuple[float, int] | None = None
        self._next_report = FIRST_REPORT
        self._bar: Any = None
        if is_shown:
            from tqdm.auto import tqdm

            # The time left replaces tqdm's own estimate and its rate, so that the bar fits into 80 columns.
            shape = "{desc} {percentage:3.0f}%|{bar}|{n}/{total} [{elapsed}{postfix}]"
            self._bar = tqdm(total=steps, desc=name, bar_format=shape)

    @property
    def pace(self) -> float:
        """Seconds per step; 0 while it is not known."""
        start, first = self._begun or (0.0, self.done)
        return 0.0 if self.done == first else (time.perf_counter() - start) / (self.done - first)

    def skip(self, steps: int) -> None:
        """Count steps of an earlier run, which this one resumes."""
        self.done += steps
        if self._bar is not None:
            self._bar.update(steps)

    def advance(self, steps: int, remark: str, seconds_left: float) -> None:
        """Count steps, and report them with a remark and the time left, which is at most that of the time limit."""
        self.done += steps
        now = time.perf_counter()
        self._begun = self._begun or (now, self.done)
        if self._bar is not None:
            left = min(self.pace * (self.steps - self.done), seconds_left)
            self._bar.set_postfix_str(f"{remark}, {max(0.0, left):.0f} s left", refresh=False)
            self._bar.update(steps)
        elif now - self._begun[0] > self._next_report and self.done < self.steps:
            self._next_report = 2 * (now - self._begun[0])
            needed = self.pace * (self.steps - self.done)
            limit = f", of which the time limit allows {in_words(seconds_left)}" if seconds_left < needed else ""
            told = f"up to about {in_words(needed)} left{limit} ({remark})"
            logger.info("%s: %s of %s steps, %s.", self.name, f"{self.done:,}", f"{self.steps:,}", told)

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()


def in_words(seconds: float) -> str:
    """Return a time in words.

    >>> in_words(40.4), in_words(150), in_words(9000), in_words(3e6)
    ('40 s', '2 min', '2.5 h', '35 days')
    """
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} days"


class Snapshot(eqx.Module):
    """The state of a solve, as an observer sees it."""

    step: int
    passes: float
    seconds: float
    weights: Float[Array, "N s"]


class Observer(eqx.Module):
    """Call `call(snapshot)` every `steps` steps, for instance to record a learning curve."""

    steps: int
    call: Callable[[Snapshot], None]

    def __check_init__(self) -> None:
        checks.require_at_least(self.steps, 1, "Observer.steps")


class Run:
    """The clock, observer, progress bar and checkpoint of one run of an iterative method.

    Parameters
    ----------
    observe
        Called with a snapshot every `observe.steps` steps.
    progress
        Whether to show a progress bar.
    saved
        The file of a checkpoint that the run is resumed from and saved to.
    """

    def __init__(self, observe: Observer | None = None, progress: bool = False, saved: Slot | None = None) -> None:
        self.observe, self.progress, self.saved = observe, progress, saved
        self._created = self._clock = time.perf_counter()
        self._max_seconds = float("inf")
        self._progress = Progress("", 0, False)

    @property
    def seconds(self) -> float:
        """Seconds since the start, including those of interrupted runs that this one resumes."""
        return time.perf_counter() - self._clock

    def seconds_left(self, reserved_steps: float = 0.0) -> float:
        """Return the rest of the time limit, in which the time of prior draws counts and that of some steps is kept."""
        return self._max_seconds - (time.perf_counter() - self._created) - reserved_steps * self._progress.pace

    @contextmanager
    def started(self, name: str, steps: int, max_seconds: float = float("inf")) -> Iterator[None]:
        """Start the clock of the solve, and show its progress within this context."""
        self._clock, self._max_seconds = time.perf_counter(), max_seconds
        self._progress = Progress(name, steps, self.progress)
        try:
            yield
        finally:
            self._progress.close()

    def restore(self, like: Any) -> tuple[Any, Any] | None:
        """Return the state and the numbers of the checkpoint, or None; the clock and the bar continue from there."""
        before = None if self.saved is None else self.saved.restore(like)
        if before is not None:
            self._clock -= float(before[1]["seconds"])
            self._created -= float(before[1]["seconds"])
            self._progress.skip(int(before[1]["steps"]))
        return before

    def next_stop(self, done: int, check: int, last: int, is_timed: bool = False) -> int:
        """Return the step at which the host is needed next: to check, to observe, to save, or to read the clock."""
        stops = [last, done + check - done % check]
        if self.observe is not None:
            stops.append(done + self.observe.steps - done % self.observe.steps)
        if is_timed or self.saved is not None:
            stops.append(done + max(1, check // 10))
        return min(stops)

    def report(self, advanced: int, steps: int, passes: float, weights: Callable[[], Array], remark: str) -> None:
        """Show `weights()` to the observer if it is its turn, and report the progress with `remark`."""
        if self.observe is not None and steps % self.observe.steps == 0:
            self.show(steps, passes, weights())
        self._progress.advance(advanced, remark, self.seconds_left())

    def show(self, steps: int, passes: float, weights: Float[Array, "N s"]) -> None:
        """Show weights to the observer, if there is one."""
        if self.observe is not None:
            self.observe.call(Snapshot(steps, passes, self.seconds, weights))

    def save(self, state: Any, **numbers: Any) -> None:
        """Save a state, if there is a checkpoint and it is time to."""
        if self.saved is not None:
            self.saved.save(state, **numbers)
