"""What the methods of learning share: the record of a descent, its two ways to end early, and Adam."""

import time
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from pathgp.likelihood.base import Trace
from pathgp.parallel.sharding import any_process
from pathgp.runs.checkpoint import Slot


class Record:
    """The trace as it grows, and the bar that shows it. As a context it ends at Ctrl-C, and knows that it did.

    Where the descent is `saved`, or other processes take part in it, Ctrl-C goes on to whoever called it.
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
        self._bar = _bar(steps) if progress else None

    def __enter__(self) -> "Record":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._bar is not None:
            self._bar.close()
        self.interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        return self.interrupted and self.saved is None and (self.mesh is None or jax.process_count() == 1)

    @property
    def left(self) -> float:
        """The seconds of the budget that are left."""
        return self.max_seconds - self.elapsed

    @property
    def elapsed(self) -> float:
        """The seconds since the beginning, those of earlier runs included."""
        return time.perf_counter() - self._clock

    @property
    def out_of_time(self) -> bool:
        """Whether the budget is used up, in any process, after one step at least."""
        return bool(self.loss) and self.max_seconds < float("inf") and any_process(self.mesh, self.left < 0)

    def went_before(self, seconds: float) -> None:
        """Counts the time of earlier runs."""
        self._clock -= seconds

    def resumed(self, state: Any) -> tuple[Any, int]:
        """The state and the step to go on from: those of an earlier run, else the given state and 0."""
        before = None if self.saved is None else self.saved.restore(state)
        if before is None:
            return state, 0
        state, numbers = before
        self.loss, self.gradient, self.seconds = (numbers[name].tolist() for name in ("loss", "gradient", "seconds"))
        self.left_out = int(numbers["left_out"])
        self.went_before(float(numbers["elapsed"]))
        if self._bar is not None:
            self._bar.update(len(self.loss))
        return state, int(numbers["step"])

    def keep(self, state: Any, step: int) -> None:
        """What the descent has come to before a step, where it is saved."""
        if self.saved is not None:
            trace = {"loss": self.loss, "gradient": self.gradient, "seconds": self.seconds}
            self.saved.keep(state, **trace, left_out=self.left_out, elapsed=self.elapsed, step=step)

    def add(self, loss: float, gradient: float, seconds: float | None = None) -> None:
        """A point of the trace: the loss per row and the norm of its gradient, now unless it was at another time."""
        self.loss.append(loss)
        self.gradient.append(gradient)
        self.seconds.append(self.elapsed if seconds is None else seconds)

    def advance(self) -> None:
        """One step more on the bar, with what was added last and the time that is left."""
        if self._bar is not None and self.loss:
            done = self._bar.n + 1
            rest = min(self.seconds[-1] / done * (self.steps - done), self.left)
            self._bar.set_postfix_str(
                f"{self.loss_name} {self.loss[-1]:.3f}, |∇| {self.gradient[-1]:.1e}, {max(0.0, rest):.0f} s left",
                refresh=False,
            )
            self._bar.update(1)

    def trace(self) -> Trace:
        """What there is so far."""
        return Trace(self.loss, self.gradient, self.seconds, self.left_out, self.interrupted)


def decaying_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam, its rate falling to a twentieth along a cosine. Updates that are not finite are left out and counted."""
    decaying = optax.adam(
        lambda count: rate * (0.05 + 0.95 * (1 + jnp.cos(jnp.pi * jnp.minimum(count / steps, 1))) / 2)
    )
    return optax.apply_if_finite(decaying, max_consecutive_errors=10**9)


def norm(gradient: Any) -> Float[Array, ""]:
    """The Euclidean norm over all parameters."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))


def _bar(total: int) -> Any:
    from tqdm.auto import tqdm

    # The time that is left within the budget stands in place of tqdm's own and of its speed, so that 80 columns do.
    shape = "{desc} {percentage:3.0f}%|{bar}|{n}/{total} [{elapsed}{postfix}]"
    return tqdm(total=total, desc="learning", bar_format=shape)
