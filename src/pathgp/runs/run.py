"""What a long computation carries along: its clock, observer, progress bar and checkpoint."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from pathgp import _checks as checks
from pathgp.runs.checkpoint import Slot


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
        self._clock = time.perf_counter()
        self._bar: Any = None

    @property
    def seconds(self) -> float:
        """Seconds since the start, including those of interrupted runs that this one resumes."""
        return time.perf_counter() - self._clock

    @contextmanager
    def started(self, name: str, steps: int) -> Iterator[None]:
        """Start the clock, and show the progress bar within this context."""
        self._clock = time.perf_counter()
        if self.progress:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=steps, desc=name, unit="step")
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.close()

    def restore(self, like: Any) -> tuple[Any, Any] | None:
        """Return the state and the numbers of the checkpoint, or None; the clock and the bar continue from there."""
        before = None if self.saved is None else self.saved.restore(like)
        if before is not None:
            self._clock -= float(before[1]["seconds"])
            self._advance_bar(int(before[1]["steps"]))
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
        """Show `weights()` to the observer if it is its turn, and `remark` next to the bar."""
        if self.observe is not None and steps % self.observe.steps == 0:
            self.show(steps, passes, weights())
        if self._bar is not None:
            self._bar.set_postfix_str(remark, refresh=False)
        self._advance_bar(advanced)

    def show(self, steps: int, passes: float, weights: Float[Array, "N s"]) -> None:
        """Show weights to the observer, if there is one."""
        if self.observe is not None:
            self.observe.call(Snapshot(steps, passes, self.seconds, weights))

    def save(self, state: Any, **numbers: Any) -> None:
        """Save a state, if there is a checkpoint and it is time to."""
        if self.saved is not None:
            self.saved.save(state, **numbers)

    def _advance_bar(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.update(steps)
