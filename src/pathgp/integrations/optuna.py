"""Thompson sampling as a sampler of Optuna (`pip install ".[optuna]"`)."""

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


class Parameter(NamedTuple):
    """A parameter of Optuna as a dimension; where it has `values`, the dimension has their places in the list."""

    dimension: Dimension
    values: tuple[Any, ...] | range | None = None

    @classmethod
    def of(cls, distribution: BaseDistribution) -> "Parameter":
        """The dimension that a distribution of Optuna asks for."""
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
        raise ValueError(f"PathGPSampler knows float, int and categorical parameters, not {distribution!r}.")

    def inward(self, value: Any) -> Any:
        """The value of the dimension for one of the parameter."""
        if self.values is None:
            return value
        if isinstance(self.dimension, Categorical):
            return self.values.index(value)
        return int(np.argmin(np.abs(np.asarray(self.values) - value)))

    def outward(self, value: Any) -> Any:
        """The value of the parameter for one of the dimension."""
        return value if self.values is None else self.values[value]


class PathGPSampler(BaseSampler):
    """Suggests, for each trial, the optimum of a posterior sample of its own.

    Trials that are asked for before others have finished, in batches or by `n_jobs`, are therefore as good as they can
    be without knowing these. As many points as were asked for without news the last time are found together.

    Parameters that not all trials have, and all parameters before the first trial is complete, are left to
    `independent_sampler`, a random one if None. The first `n_startup_trials`, twice the number of inputs and two if
    None, fill the space evenly. All follows from `seed` and the number of the trial; None draws a seed.

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
            checks.at_least(n_startup_trials, 1, "n_startup_trials")
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
        """The parameters that all complete trials have, but for those with a single value."""
        if len(study.directions) > 1:
            raise ValueError("PathGPSampler optimises one objective: use another sampler for several.")
        space = IntersectionSearchSpace().calculate(study)
        return {name: distribution for name, distribution in space.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next of the points that were found together, or of as many new ones."""
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
        """What the independent sampler says."""
        return self._independent_sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Told to the independent sampler."""
        self._independent_sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Told to the independent sampler."""
        self._independent_sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Only the independent sampler needs it: the number of the trial makes suggestions differ."""
        self._independent_sampler.reseed_rng()


class History:
    """What is known of one study in one search space."""

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
        """Whether it speaks of this study and these parameters."""
        return self.name == study.study_name and self.search_space == search_space

    def suggest(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """The values of the parameters for a trial."""
        trials = [t for t in study.get_trials(deepcopy=False) if self.knows(t)]
        ended = (TrialState.COMPLETE, TrialState.FAIL)
        new = [t for t in trials if t.state in ended and t.number not in self.told]
        if new:
            values = np.array([np.nan if t.value is None else t.value for t in new])
            self.state = observe(self.state, self.codes(new), values)
            self.told.update(t.number for t in new)
            self.queue, self.expected, self.handed = [], max(self.handed, 1), 0
        if not self.queue:
            pending = self.pending([t for t in trials if t.state == TrialState.RUNNING and t.number != trial.number])
            state = dataclasses.replace(self.state, pending=pending, asks=trial.number, designed=trial.number)
            points, self.state = propose(self.settings, state, self.handed or self.expected)
            self.queue = [points[i : i + 1] for i in range(len(points))]
        self.handed += 1
        self.suggested[trial.number] = point = self.queue.pop(0)
        row = self.settings.space.decode(point)[0].tolist()  # as JSON can say it
        return {name: p.outward(value) for (name, p), value in zip(self.parameters.items(), row, strict=True)}

    def knows(self, trial: FrozenTrial) -> bool:
        """Whether a trial has all parameters, or was suggested here and is about to have them.

        Another thread may have ended one with others since the search space was looked at.
        """
        has = trial.distributions
        is_point = all(has.get(name) == distribution for name, distribution in self.search_space.items())
        return is_point or (trial.number in self.suggested and trial.state == TrialState.RUNNING)

    def codes(self, trials: Sequence[FrozenTrial]) -> Codes:
        """The points of trials that have all parameters."""
        rows = [[p.inward(t.params[name]) for name, p in self.parameters.items()] for t in trials]
        return self.settings.space.encode(rows)

    def pending(self, running: Sequence[FrozenTrial]) -> Codes:
        """The points of trials that run: as they were suggested here, or as far as others have stored them."""
        here = [self.suggested[t.number] for t in running if t.number in self.suggested]
        others = [t for t in running if t.number not in self.suggested]
        return np.concatenate([*here, self.codes(others)])
