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
    again, it returns to the same state. `ahead` has the evaluations of an earlier run that have not been requested
    again, the next one last. `before` is the time that they took.
    """

    def __init__(self, saved: Slot | None) -> None:
        self.saved = saved
        self.ahead: list[Evaluation] = []
        self.done: list[Evaluation] = []
        restored = None if saved is None else saved.restore(())
        if restored is not None:
            columns = (restored[1][name] for name in ("points", "losses", "gradients", "seconds"))
            stored = [Evaluation(p, float(loss), g, float(s)) for p, loss, g, s in zip(*columns, strict=True)]
            self.ahead = stored[::-1]
        self.before = self.ahead[0].seconds if self.ahead else 0.0
        self._clock = time.perf_counter() - self.before

    def at(
        self, point: Float64[np.ndarray, "p"], evaluate: Callable[[], tuple[float, Float64[np.ndarray, "p"]]]
    ) -> Evaluation:
        """Return the evaluation at a point: the next one of the earlier run if it is at that point, else a new one."""
        if self.ahead and np.array_equal(self.ahead[-1].point, point):
            self.done.append(self.ahead.pop())
            return self.done[-1]
        # From here on the run differs from the earlier one, whose other evaluations are useless.
        self.ahead = []
        self.done.append(Evaluation(point.copy(), *evaluate(), time.perf_counter() - self._clock))
        if self.saved is not None:
            points, losses, gradients, seconds = zip(*self.done, strict=True)
            self.saved.save((), points=points, losses=losses, gradients=gradients, seconds=seconds)
        return self.done[-1]
