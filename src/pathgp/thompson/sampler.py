"""`ThompsonSampler`, the ask/tell interface: a mutable object around an immutable state."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Shaped

from pathgp import _checks as checks
from pathgp.posterior.gp import GP
from pathgp.solvers import Auto, Solver
from pathgp.thompson.loop import Model, Settings, State, observe, propose
from pathgp.thompson.maximise import Search
from pathgp.thompson.space import Categorical, Integer, Real, Space

CLASSES = (Real, Integer, Categorical, Space, Search, Settings, Model, State)
"""Classes in the file of an optimisation, in addition to those of a model file."""


SIGNS = {"minimize": -1.0, "maximize": 1.0, "minimise": -1.0, "maximise": 1.0}
"""The sign by which y is multiplied to be maximised, by the direction in American and British spelling."""


class Best(NamedTuple):
    """The best point that was told, and its value."""

    x: np.ndarray
    y: float


class ThompsonSampler:
    """Ask/tell optimisation by parallel Thompson sampling: each suggestion is the optimum of its own posterior sample.

    All randomness follows from `random_state` and the number of asks. A NaN or infinite value means that an evaluation
    failed: it is counted, its point is not suggested again, and the model ignores it. Points outside the bounds, and
    points that were not asked for, may be told too.

    Parameters
    ----------
    bounds
        One entry per input: `Real`, `Integer`, `Categorical`, or a pair (low, high).
    gp
        A GP of y as told and of the coded inputs: numbers scaled to [0, 1], and a 0 or 1 for each choice of a category.
        With "learn" its hyperparameters are fitted after `initial` evaluations, and again when the data have grown by
        half. Until then suggestions fill the space evenly.
    direction
        "maximize" or "minimize" (or "maximise", "minimise").
    batch_size
        Default number of points per ask.
    initial
        Number of evaluations before the model is used. None is twice the number of codes plus two.
    solver
        Solver of the posterior.
    search
        How maxima of samples are searched.
    random_state
        Random seed.

    >>> sampler = ThompsonSampler([(0.0, 1.0), Integer(1, 5)], direction="minimize", random_state=0)
    >>> X = sampler.ask(6)
    >>> sampler.tell(X, [(x - 0.3) ** 2 + k for x, k in X])
    >>> sampler.best().x.shape, sampler.best().y < 3
    ((2,), True)
    """

    def __init__(
        self,
        bounds: Sequence[Any] | np.ndarray,
        gp: GP | str = "learn",
        *,
        direction: str = "maximize",
        batch_size: int = 1,
        initial: int | None = None,
        solver: Solver = Auto(),  # noqa: B008, a frozen value
        search: Search = Search(),  # noqa: B008, a frozen value
        random_state: int = 0,
    ) -> None:
        space = Space.of(bounds)
        if direction not in SIGNS:
            raise ValueError(f'direction must be "minimize" or "maximize", but it is {direction!r}.')
        if not isinstance(gp, GP) and gp != "learn":
            raise ValueError(f'gp must be a GP or "learn", but it is {gp!r}.')
        if isinstance(gp, GP) and gp.noise.ndim:
            raise ValueError(
                "gp must have one noise variance, because the future rows are unknown, but it has one per row."
            )
        checks.require_int(random_state, 0, "random_state")
        if random_state >= 2**32:
            raise ValueError(f"random_state must be less than 2**32, but it is {random_state}.")
        checks.require_at_least(batch_size, 1, "batch_size")
        initial = space.initial if initial is None else initial
        checks.require_at_least(initial, 1, "initial")
        self.batch_size = batch_size
        given = gp if isinstance(gp, GP) else None
        self._settings = Settings(space, given, SIGNS[direction], solver, search, initial, random_state)
        self._state = State.empty(space)

    @property
    def gp(self) -> GP | None:
        """The GP that was given or fitted last; None before the first fit.

        A fitted GP describes (y − mean(y))/std(y).
        """
        return self._settings.gp if self._state.model is None else self._state.model.gp

    @property
    def told(self) -> int:
        """The number of evaluations told, including failed ones."""
        return self._state.num_told

    @property
    def failed(self) -> int:
        """The number of evaluations told as NaN or infinite."""
        return len(self._state.failed)

    @property
    def pending(self) -> np.ndarray:
        """The points that were asked for and not yet told."""
        return self._settings.space.decode(self._state.pending)

    def ask(self, n: int | None = None) -> np.ndarray:
        """Return the next points to evaluate, one per row.

        The array is of floats or integers if all inputs are, and of objects otherwise. No point is one that was told or
        is pending, unless the space has no others left.

        Parameters
        ----------
        n
            Number of points. None is `batch_size`.
        """
        n = self.batch_size if n is None else n
        checks.require_at_least(n, 1, "n")
        points, self._state = propose(self._settings, self._state, n)
        return self._settings.space.decode(points)

    def tell(self, X: Shaped[ArrayLike, "..."] | Sequence[Any], y: Shaped[ArrayLike, "..."] | Sequence[Any]) -> None:
        """Add evaluations of the objective.

        Parameters
        ----------
        X
            Points, one per row.
        y
            Values at the points. NaN or infinite for an evaluation that failed.

        Raises
        ------
        ValueError
            If X and y do not fit each other, or if X has a value that its input cannot take.
        """
        rows = np.asarray(X, dtype=object)
        if rows.ndim != 2:
            raise ValueError(f"X must have a row for each point, but it is {X!r}: for one point use [x].")
        codes, values = self._settings.space.encode(rows), np.asarray(y)
        if values.shape != (len(codes),):
            raise ValueError(
                f"y must have one value for each of the {len(codes)} rows of X, but its shape is {values.shape}."
            )
        if values.dtype.kind not in "biuf":
            raise ValueError(f"y must be numeric, but its dtype is {values.dtype}: give NaN for a failed evaluation.")
        self._state = observe(self._state, codes, values.astype(np.float64))

    def best(self) -> Best:
        """Return the best point told inside the bounds, and its value; raise `ValueError` if there is none."""
        X, y = self._state.X, self._state.y
        inside = np.flatnonzero(np.all((X > -1e-9) & (X < 1 + 1e-9), axis=1))  # a bound itself may round
        if not inside.size:
            raise ValueError(
                f"there is no best point yet: none of the {y.size} finite values is inside the bounds, and "
                f"{self.failed} evaluations failed."
            )
        best = inside[np.argmax(self._settings.sign * y[inside])]
        return Best(self._settings.space.decode(X[best : best + 1])[0], float(y[best]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the optimisation to one file, from which `load` resumes as if there had been no interruption.

        The file is replaced atomically. If you save after every ask and tell, a killed process loses only its current
        step.

        Parameters
        ----------
        path
            File to write.
        """
        from pathgp import storage

        value = self._settings, self._state, self.batch_size
        storage.save(path, value, metadata={"kind": "ThompsonSampler"}, classes=CLASSES)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ThompsonSampler":
        """Return the sampler that `save` wrote. It makes the same suggestions as the original.

        Parameters
        ----------
        path
            File that `save` wrote.

        Raises
        ------
        ValueError
            If the file is damaged or holds something else.
        """
        from pathgp import storage

        if storage.metadata(path).get("kind") != "ThompsonSampler":
            raise ValueError(f"{path} does not hold a ThompsonSampler: give a file written by `ThompsonSampler.save`.")
        sampler = cls.__new__(cls)
        sampler._settings, sampler._state, sampler.batch_size = storage.load(path, classes=CLASSES)
        return sampler
