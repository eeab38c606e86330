"""Shared by the methods of hyperparameter fitting: the record of a descent, its two ways to end early, and Adam."""

import time
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from pathgp.likelihood.base import Trace
from pathgp.parallel.sharding import any_over_processes
from pathgp.runs.checkpoint import Slot
from pathgp.runs.run import Progress


class Record:
    """The trace of a descent while it grows, and its progress.

    As a context manager it ends the descent at Ctrl-C and sets `interrupted`. The exception reaches the caller if the
    descent is `saved` in a checkpoint, or if other processes take part in it.
    """

    def __init__(
        self,
        steps: int,
        max_seconds: float,
        progress: bool,
        saved: Slot | None = None,
        loss_name: str = "−log p(y)/N",
        mesh: Mesh | None = None,
    ) -> None:
        self.steps, self.max_seconds, self.saved, self.loss_name = steps, max_seconds, saved, loss_name
        self.mesh = mesh
        self.loss: list[float] = []
        self.gradient: list[float] = []
        self.seconds: list[float] = []
        self.left_out = 0
        self.interrupted = False
        self._clock = time.perf_counter()
        self._progress = Progress("fitting", steps, progress)

    def __enter__(self) -> "Record":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._progress.close()
        self.interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        return self.interrupted and self.saved is None and (self.mesh is None or jax.process_count() == 1)

    @property
    def seconds_left(self) -> float:
        """The seconds that are left of the time limit."""
        return self.max_seconds - self.elapsed

    @property
    def elapsed(self) -> float:
        """The seconds since the start, including those of earlier runs."""
        return time.perf_counter() - self._clock

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit is over in any process, after at least one step."""
        # Clocks differ between processes, but all of them have to stop at the same step.
        return (
            bool(self.loss) and self.max_seconds < float("inf") and any_over_processes(self.mesh, self.seconds_left < 0)
        )

    def add_elapsed(self, seconds: float) -> None:
        """Count `seconds` of earlier runs as elapsed."""
        self._clock -= seconds

    def resumed(self, state: Any) -> tuple[Any, int]:
        """Return the state and step to resume from: those of an earlier run, or `state` and 0."""
        before = None if self.saved is None else self.saved.restore(state)
        if before is None:
            return state, 0
        state, numbers = before
        self.loss, self.gradient, self.seconds = (numbers[name].tolist() for name in ("loss", "gradient", "seconds"))
        self.left_out = int(numbers["left_out"])
        self.add_elapsed(float(numbers["elapsed"]))
        self._progress.skip(len(self.loss))
        return state, int(numbers["step"])

    def save(self, state: Any, step: int) -> None:
        """Save the state before a step, with the trace, if there is a checkpoint."""
        if self.saved is not None:
            trace = {"loss": self.loss, "gradient": self.gradient, "seconds": self.seconds}
            self.saved.save(state, **trace, left_out=self.left_out, elapsed=self.elapsed, step=step)

    def add(self, loss: float, gradient: float, seconds: float | None = None) -> None:
        """Append to the trace: the loss per row, the norm of its gradient, and the seconds (None is now)."""
        self.loss.append(loss)
        self.gradient.append(gradient)
        self.seconds.append(self.elapsed if seconds is None else seconds)

    def advance(self) -> None:
        """Report one more step, with the last entry of the trace and the time left."""
        if self.loss:
            remark = f"{self.loss_name} {self.loss[-1]:.3f}, |∇| {self.gradient[-1]:.1e}"
            self._progress.advance(1, remark, self.seconds_left)

    def trace(self) -> Trace:
        """Return the trace so far."""
        return Trace(self.loss, self.gradient, self.seconds, self.left_out, self.interrupted)


def decaying_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Return Adam with a cosine decay of its rate to a twentieth.

    Updates that are not finite are left out and counted.
    """
    decaying = optax.adam(
        lambda count: rate * (0.05 + 0.95 * (1 + jnp.cos(jnp.pi * jnp.minimum(count / steps, 1))) / 2)
    )
    return optax.apply_if_finite(decaying, max_consecutive_errors=10**9)  # it never gives up


def norm(gradient: Any) -> Float[Array, ""]:
    """Return the Euclidean norm of a gradient over all parameters."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
