"""Thompson sampling as an Optuna sampler (`pip install ".[optuna]"`)."""

import dataclasses
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from pathgp import _checks as checks
from pathgp.solvers import Auto, Solver
from pathgp.thompson.loop import Settings, State, observe, propose
from pathgp.thompson.maximise import Search
from pathgp.thompson.space import Categorical, Codes, Dimension, Integer, Real, Space

__all__ = ["PathGPSampler"]


class Parameter(NamedTuple):
    """An Optuna parameter as a dimension. If it has `values`, the dimension codes their positions in that list."""

    dimension: Dimension
    values: tuple[Any, ...] | range | None = None

    @classmethod
    def of(cls, distribution: BaseDistribution) -> "Parameter":
        """Return the parameter of an Optuna distribution; raise `ValueError` for an unknown one."""
        match distribution:
            case FloatDistribution(step=None):
                return cls(Real(distribution.low, distribution.high, distribution.log))
            case IntDistribution(step=1):
                return cls(Integer(distribution.low, distribution.high, distribution.log))
            case IntDistribution():
                values = range(distribution.low, distribution.high + 1, distribution.step)
                return cls(Integer(0, len(values) - 1), values)
            case FloatDistribution(low=low, high=high, step=float(step)):
                steps = round((high - low) / step)
                return cls(Integer(0, steps), tuple(min(low + i * step, high) for i in range(steps + 1)))
            case CategoricalDistribution(choices=choices):
                return cls(Categorical(tuple(range(len(choices)))), choices)
        raise ValueError(f"PathGPSampler supports float, int and categorical parameters, but not {distribution!r}.")

    def inward(self, value: Any) -> Any:
        """Return the value of the dimension for a value of the parameter."""
        if self.values is None:
            return value
        if isinstance(self.dimension, Categorical):
            return self.values.index(value)
        # Values on a grid of floats are rounded, so that equality could miss them.
        return int(np.argmin(np.abs(np.asarray(self.values) - value)))

    def outward(self, value: Any) -> Any:
        """Return the value of the parameter for a value of the dimension."""
        return value if self.values is None else self.values[value]


class PathGPSampler(BaseSampler):
    """Optuna sampler that suggests, for each trial, the optimum of its own posterior sample.

    Trials that are asked for before others have finished, in batches or with `n_jobs`, are therefore as good as they
    can be without those results. As many points are found together as were last asked for without a new result in
    between.

    Parameters that not all trials have, and all parameters before the first trial is complete, are left to
    `independent_sampler`. Suggestions depend only on `seed`, the results and the number of the trial.

    Parameters
    ----------
    seed
        Random seed. None draws one.
    n_startup_trials
        Number of trials that fill the space evenly. None is twice the number of codes plus two.
    independent_sampler
        Sampler of the other parameters. None is a `RandomSampler`.
    solver
        Solver of the posterior.
    search
        How maxima of samples are searched.

    >>> import optuna
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> study = optuna.create_study(sampler=PathGPSampler(seed=0))
    >>> study.optimize(lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=4)
    >>> study.best_value < 1
    True
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        n_startup_trials: int | None = None,
        independent_sampler: BaseSampler | None = None,
        solver: Solver = Auto(),  # noqa: B008, a frozen value
        search: Search = Search(),  # noqa: B008, a frozen value
    ) -> None:
        if n_startup_trials is not None:
            checks.require_at_least(n_startup_trials, 1, "n_startup_trials")
        self._seed = secrets.randbits(31) if seed is None else seed
        self._n_startup_trials = n_startup_trials
        self._independent_sampler = independent_sampler or RandomSampler(seed=self._seed)
        self._solver, self._search = solver, search
        self._lock = threading.Lock()
        self._history: History | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        vars(self).update(attributes)
        self._lock = threading.Lock()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that all complete trials have, except those with a single value."""
        if len(study.directions) > 1:
            raise ValueError(
                f"PathGPSampler supports one objective, but the study has {len(study.directions)}: use another sampler."
            )
        space = IntersectionSearchSpace().calculate(study)
        return {name: distribution for name, distribution in space.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next of the points that were found together, after finding new ones if none is left."""
        if not search_space:
            return {}
        with self._lock:
            if self._history is None or not self._history.belongs_to(study, search_space):
                self._history = History(study, search_space, self._settings)
            return self._history.suggest(study, trial)

    def _settings(self, space: Space, direction: StudyDirection) -> Settings:
        initial = space.initial if self._n_startup_trials is None else self._n_startup_trials
        sign = 1.0 if direction == StudyDirection.MAXIMIZE else -1.0
        return Settings(space, None, sign, self._solver, self._search, initial, self._seed)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the value that the independent sampler suggests."""
        return self._independent_sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Notify the independent sampler."""
        self._independent_sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Notify the independent sampler."""
        self._independent_sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Reseed the independent sampler only: here suggestions differ by the number of the trial."""
        self._independent_sampler.reseed_rng()


class History:
    """The evaluations and suggestions of one study in one search space."""

    def __init__(
        self,
        study: Study,
        search_space: dict[str, BaseDistribution],
        settings: Callable[[Space, StudyDirection], Settings],
    ) -> None:
        self.name, self.search_space = study.study_name, search_space
        self.parameters = {name: Parameter.of(distribution) for name, distribution in search_space.items()}
        self.settings = settings(Space(tuple(p.dimension for p in self.parameters.values())), study.direction)
        self.state = State.empty(self.settings.space)
        self.told: set[int] = set()
        self.suggested: dict[int, Codes] = {}
        self.queue: list[Codes] = []
        self.handed, self.expected = 0, 1

    def belongs_to(self, study: Study, search_space: dict[str, BaseDistribution]) -> bool:
        """Return whether the history is that of this study and search space."""
        return self.name == study.study_name and self.search_space == search_space

    def suggest(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """Return the values of the parameters for a trial."""
        trials = [t for t in study.get_trials(deepcopy=False) if self.knows(t)]
        ended = (TrialState.COMPLETE, TrialState.FAIL)
        new = [t for t in trials if t.state in ended and t.number not in self.told]
        if new:
            values = np.array([np.nan if t.value is None else t.value for t in new])
            self.state = observe(self.state, self.codes(new), values)
            self.told.update(t.number for t in new)
            # Points found before these results are outdated. As many as were handed out since the last results are
            # expected again.
            self.queue, self.expected, self.handed = [], max(self.handed, 1), 0
        if not self.queue:
            pending = self.pending([t for t in trials if t.state == TrialState.RUNNING and t.number != trial.number])
            state = dataclasses.replace(self.state, pending=pending, asks=trial.number, designed=trial.number)
            points, self.state = propose(self.settings, state, self.handed or self.expected)
            self.queue = [points[i : i + 1] for i in range(len(points))]
        self.handed += 1
        self.suggested[trial.number] = point = self.queue.pop(0)
        row = self.settings.space.decode(point)[0].tolist()  # Optuna stores values as JSON
        return {name: p.outward(value) for (name, p), value in zip(self.parameters.items(), row, strict=True)}

    def knows(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has all parameters, or was suggested here and is about to get them.

        Another thread may have finished a trial with other parameters after the search space was inferred.
        """
        has = trial.distributions
        is_point = all(has.get(name) == distribution for name, distribution in self.search_space.items())
        return is_point or (trial.number in self.suggested and trial.state == TrialState.RUNNING)

    def codes(self, trials: Sequence[FrozenTrial]) -> Codes:
        """Return the codes of trials that have all parameters."""
        rows = [[p.inward(t.params[name]) for name, p in self.parameters.items()] for t in trials]
        return self.settings.space.encode(rows)

    def pending(self, running: Sequence[FrozenTrial]) -> Codes:
        """Return the codes of running trials: as suggested here, or as others have stored them."""
        here = [self.suggested[t.number] for t in running if t.number in self.suggested]
        others = [t for t in running if t.number not in self.suggested]
        return np.concatenate([*here, self.codes(others)])
