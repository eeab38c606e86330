"""Evaluations of a loss by an optimiser, kept so that a run can be repeated without computing them again."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from pathgp.runs.checkpoint import Slot


class Evaluation(NamedTuple):
    """The loss and its gradient at a point, and the seconds elapsed after it."""

    point: Float64[np.ndarray, "p"]
    loss: float
    gradient: Float64[np.ndarray, "p"]
    seconds: float


class Evaluations:
    """All evaluations in order, starting with those of an earlier run.

    The state of SciPy's optimiser cannot be stored, but the optimiser is deterministic. Given the same evaluations
    again, it returns to the same state. `before` is the time that the earlier run took.
    """

    def __init__(self, saved: Slot | None) -> None:
        self.saved = saved
        restored = None if saved is None else saved.restore(())
        columns = [] if restored is None else [restored[1][name] for name in Evaluation._fields]
        self.all = [Evaluation(p, float(loss), g, float(s)) for p, loss, g, s in zip(*columns, strict=True)]
        self.requested = 0
        self.before = self.all[-1].seconds if self.all else 0.0
        self._clock = time.perf_counter() - self.before

    @property
    def ahead(self) -> bool:
        """Whether there are evaluations of the earlier run that have not been requested again."""
        return self.requested < len(self.all)

    def at(
        self, point: Float64[np.ndarray, "p"], evaluate: Callable[[], tuple[float, Float64[np.ndarray, "p"]]]
    ) -> Evaluation:
        """Return the evaluation at a point: the next one of the earlier run if it is at that point, else a new one."""
        if not (self.ahead and np.array_equal(self.all[self.requested].point, point)):
            # From here on the run differs from the earlier one, whose other evaluations are useless.
            self.all[self.requested :] = [Evaluation(point.copy(), *evaluate(), time.perf_counter() - self._clock)]
            if self.saved is not None:
                self.saved.save((), **dict(zip(Evaluation._fields, zip(*self.all, strict=True), strict=True)))
        self.requested += 1
        return self.all[self.requested - 1]
