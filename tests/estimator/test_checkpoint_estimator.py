"""An estimator that is stopped goes on: through learning, the solve, and rows that are added."""

import numpy as np
import pytest

from pathgp import Checkpoint, PathGPRegressor
from pathgp.solvers import SAP, loop
from tests.runs.test_checkpoint import SOLVERS, X, files, stop_at_advance, y


@pytest.fixture
def kept(tmp_path):
    return Checkpoint(tmp_path / "run", every_seconds=0)


@pytest.mark.slow
def test_the_estimator_goes_on_through_learning_and_solve(kept, monkeypatch, tmp_path):
    given = {"solver": SOLVERS["SAP"], "num_samples": 3, "random_state": 0}
    Y = np.column_stack([y, y**2])
    undisturbed = PathGPRegressor(**given).fit(X, Y)
    model = PathGPRegressor(**given, checkpoint=kept)
    for count in (2, 20):
        with monkeypatch.context() as patched:
            stop_at_advance(patched, count)
            with pytest.raises(KeyboardInterrupt):
                model.fit(X, Y)
    model.fit(X, Y)
    assert files(kept.directory) == ["solve.checkpoint", "target0-learning.checkpoint", "target1-learning.checkpoint"]
    np.testing.assert_array_equal(model.predict(X[:9]), undisturbed.predict(X[:9]))
    model.save(tmp_path / "model")
    assert PathGPRegressor.load(tmp_path / "model").checkpoint is None


def steps_of_solves(monkeypatch, stop_at=None):
    """The numbers of steps that solvers take at once, from now on; Ctrl-C at one of them."""
    advance, taken = loop._advance, []

    def step(*arguments):
        taken.append(int(arguments[-1]))
        if len(taken) == stop_at:
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(loop, "_advance", step)
    return taken


def test_the_estimator_goes_on_with_rows_that_are_added_and_adds_others_later(kept, monkeypatch):
    given = {"solver": SAP(block_size=20, passes=6, tolerance=1e-3), "num_samples": 3, "random_state": 0}
    undisturbed = PathGPRegressor(**given).fit(X[:150], y[:150]).partial_fit(X[150:180], y[150:180])
    model = PathGPRegressor(**given, checkpoint=kept).fit(X[:150], y[:150])
    with monkeypatch.context() as patched:
        steps_of_solves(patched, stop_at=12)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X[150:180], y[150:180])
    assert model.n_samples_seen_ == 150
    assert "after150-update.checkpoint" in files(kept.directory)
    with monkeypatch.context() as patched:
        taken = steps_of_solves(patched)
        model.partial_fit(X[150:180], y[150:180])
    assert sum(taken) == undisturbed.info_.steps - 11
    np.testing.assert_array_equal(model.predict(X[:9]), undisturbed.predict(X[:9]))
    np.testing.assert_array_equal(
        model.partial_fit(X[180:], y[180:]).predict(X[:9]), undisturbed.partial_fit(X[180:], y[180:]).predict(X[:9])
    )


def test_the_estimator_needs_a_seed_to_go_on_from(tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint.*random_state"):
        PathGPRegressor(checkpoint=tmp_path).fit(X, y)
