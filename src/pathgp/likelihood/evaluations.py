"""What an optimiser has asked for, so that a run of it can be repeated without the work."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from pathgp.runs.checkpoint import Slot


class Evaluation(NamedTuple):
    """The loss and its gradient at a point, and the seconds that had passed."""

    point: Float64[np.ndarray, "p"]
    loss: float
    gradient: Float64[np.ndarray, "p"]
    seconds: float


class Evaluations:
    """All evaluations in their order, those of an earlier run first.

    The state of SciPy's optimiser cannot be stored, but it is deterministic: told the same again, it comes to where it
    was. `ahead` are those of an earlier run that were not asked for again yet, the next one last, and `before` is the
    time that they took.
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
        """The evaluation at a point: the next of an earlier run if it was of this point, else a new one."""
        if self.ahead and np.array_equal(self.ahead[-1].point, point):
            self.done.append(self.ahead.pop())
            return self.done[-1]
        self.ahead = []
        self.done.append(Evaluation(point.copy(), *evaluate(), time.perf_counter() - self._clock))
        if self.saved is not None:
            points, losses, gradients, seconds = zip(*self.done, strict=True)
            self.saved.keep((), points=points, losses=losses, gradients=gradients, seconds=seconds)
        return self.done[-1]
