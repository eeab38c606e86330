import copy
import pickle
import subprocess
import sys

import numpy as np
import optuna
import pytest

from pathgp.integrations.optuna import Parameter, PathGPSampler
from pathgp.thompson import Search

optuna.logging.set_verbosity(optuna.logging.WARNING)
QUICK = Search(rounds=2, candidates=512, steps=20)


def quick(**settings):
    return PathGPSampler(**({"seed": 1, "search": QUICK} | settings))


def bowl(trial):
    x, y = trial.suggest_float("x", -1, 3), trial.suggest_float("y", 1e-3, 1e1, log=True)
    return (x - 1) ** 2 + np.log10(y / 0.1) ** 2


@pytest.fixture(scope="module")
def batches():
    """Asked in batches of eight, told at the end of each; the first two fill the space."""
    study = optuna.create_study(sampler=quick(n_startup_trials=9))
    for _ in range(4):
        trials = [study.ask() for _ in range(8)]
        for trial, value in [(trial, bowl(trial)) for trial in trials]:
            study.tell(trial, value)
    return study


def test_batches_find_the_minimum(batches):
    assert batches.best_value < 0.05
    assert np.mean([t.value for t in batches.trials[24:]]) < 0.5 * np.mean([t.value for t in batches.trials[:8]])


def test_no_two_trials_of_a_batch_are_the_same(batches):
    points = np.array([[t.params["x"], np.log10(t.params["y"])] for t in batches.trials])
    apart = np.abs(points[:, None] - points).max(axis=2) + np.eye(len(points))
    assert apart.min() > 3e-4  # SAME, on ranges of four


def test_a_batch_is_found_together(batches):
    history = batches.sampler._history
    assert (history.expected, history.handed) == (8, 8)
    assert history.queue == []


def test_a_pickled_sampler_goes_on_in_the_same_way(batches):
    again = pickle.loads(pickle.dumps(batches.sampler))
    space = again.infer_relative_search_space(batches, batches.trials[-1])
    trial = copy.copy(batches.trials[-1])
    trial.number = 99
    first = again.sample_relative(batches, trial, space)
    assert first == pickle.loads(pickle.dumps(batches.sampler)).sample_relative(batches, trial, space)


@pytest.mark.slow
def test_all_kinds_of_parameters_conditional_ones_failures_and_threads():
    def objective(trial):
        kind = trial.suggest_categorical("kind", ["a", "b", None])
        depth, width = trial.suggest_int("depth", 1, 9, step=2), trial.suggest_int("width", 1, 100, log=True)
        rate = trial.suggest_float("rate", 0, 1, step=0.25)
        trial.suggest_float("fixed", 2, 2)
        extra = trial.suggest_float("extra", 0, 1) if kind is None else 0
        assert depth in (1, 3, 5, 7, 9)
        assert isinstance(width, int)
        assert rate in (0, 0.25, 0.5, 0.75, 1)
        if trial.number == 6:
            raise RuntimeError
        return float("nan") if trial.number == 7 else depth + rate + extra - (kind == "a")

    study = optuna.create_study(direction="maximize", sampler=quick(n_startup_trials=6))
    study.optimize(objective, n_trials=16, n_jobs=2, catch=(RuntimeError,))
    states = [t.state for t in study.trials]
    assert states.count(optuna.trial.TrialState.FAIL) == 2
    assert states.count(optuna.trial.TrialState.COMPLETE) == 14
    assert study.best_params["depth"] >= 7


def test_trials_that_failed_are_not_suggested_again_and_those_with_other_parameters_do_not_count():
    study = optuna.create_study(sampler=quick(n_startup_trials=1))
    space = {"k": optuna.distributions.IntDistribution(0, 3)}
    add = lambda state, params, spaces, **value: study.add_trial(
        optuna.trial.create_trial(state=state, params=params, distributions=spaces, **value)
    )
    add(optuna.trial.TrialState.COMPLETE, {"k": 0}, space, value=1.0)
    number = study.ask().number
    frozen = study.get_trials()[number]
    for k in (1, 2):
        add(optuna.trial.TrialState.FAIL, {"k": k}, space)
    # ended by another thread since the search space was looked at, with another range or without the parameter
    add(optuna.trial.TrialState.COMPLETE, {"k": 9}, {"k": optuna.distributions.IntDistribution(0, 9)}, value=0.0)
    add(optuna.trial.TrialState.COMPLETE, {}, {}, value=0.0)
    assert study.sampler.sample_relative(study, frozen, space) == {"k": 3}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_being_tried_is_not_suggested_though_there_is_news(seed):
    space = {"k": optuna.distributions.IntDistribution(0, 3)}
    study = optuna.create_study(sampler=quick(seed=seed, n_startup_trials=1))
    first = study.ask(space)
    study.tell(first, 1.0)
    running, ended = study.ask(space), study.ask(space)
    study.tell(ended, 2.0)
    last = study.ask(space)
    assert {trial.params["k"] for trial in (first, running, ended, last)} == {0, 1, 2, 3}
    assert type(last.params["k"]) is int


def test_no_startup_trials_are_refused():
    with pytest.raises(ValueError, match="n_startup_trials"):
        quick(n_startup_trials=0)


@pytest.mark.parametrize(
    "distribution",
    [
        optuna.distributions.FloatDistribution(-1.0, 2.0),
        optuna.distributions.FloatDistribution(0.1, 10.0, log=True),
        optuna.distributions.FloatDistribution(0.0, 1.0, step=0.1),
        optuna.distributions.IntDistribution(-3, 4),
        optuna.distributions.IntDistribution(1, 1000, log=True),
        optuna.distributions.IntDistribution(2, 20, step=3),
        optuna.distributions.CategoricalDistribution(("a", None, 3)),
    ],
)
def test_values_belong_to_their_distribution_and_come_back(distribution):
    parameter = Parameter.of(distribution)
    codes = np.random.default_rng(0).random((200, parameter.dimension.width))
    values = [parameter.outward(value) for value in parameter.dimension.decode(codes)]
    for value in values:
        assert distribution._contains(distribution.to_internal_repr(value))
    inward = [parameter.inward(value) for value in values]
    again = [parameter.outward(v) for v in parameter.dimension.decode(parameter.dimension.encode(inward, "x"))]
    assert again == pytest.approx(values) if isinstance(values[0], float) else again == values


def test_several_objectives_are_refused():
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=quick())
    with pytest.raises(ValueError, match="one objective"):
        study.ask().suggest_float("x", 0, 1)


def test_the_library_does_not_import_optuna():
    code = "import pathgp, pathgp.thompson, sys; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
