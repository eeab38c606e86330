"""A model file that was changed, and given the right checksum, predicts finite numbers or is refused by name."""

import json
import subprocess
import sys

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pyarrow")

from pathgp import PathGPRegressor
from pathgp.estimator.standardize import Scaling
from tests.support import forged

X = np.random.default_rng(0).normal(size=(30, 2))


def test_files_changed_at_random_are_refused_or_predict_finite_numbers(tmp_path):
    # In a process of its own: here the annotations of all functions are checked as they run, which users do not have.
    command = [sys.executable, forged.__file__, str(tmp_path), "0", "250"]
    environment = {"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["wrong"] == []
    assert min(found["read"], found["refused"]) > 50


@pytest.fixture
def model():
    fixed = PathGPRegressor("rbf", noise=0.1, hyperparameters="fixed", num_samples=2, random_state=0)
    return fixed.fit(X, np.sin(X[:, 0]))


CHANGES = {
    "n_features_in_": (3, "n_features_in_"),
    "noise_": (-0.1, "noise_"),
    "noise_variance_": (np.ones(2), "noise_variance_"),
    "single_target_": (False, "single_target_"),
    "input_scaling_": (Scaling(np.zeros(3), np.ones(3)), "input_scaling_"),
    "target_scaling_": (Scaling(np.zeros(1), np.zeros(1)), "Scaling.scale"),
    "kernel_": ("rbf", "kernel_"),
    "trace_": ([1.0], "trace_"),
    "num_samples": (0, "num_samples"),
    "solver": ("none", "solver"),
    "random_state": ("text", "text"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_attribute_or_setting_that_does_not_fit_is_refused_by_name(name, model, tmp_path):
    value, named = CHANGES[name]
    assert model.posterior_.num_samples  # samples are drawn, which sets the other attributes
    setattr(model, name, value)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=named) as error:
        PathGPRegressor.load(tmp_path / "model")
    assert str(tmp_path / "model") in str(error.value)


def test_predictions_that_overflow_name_the_file(model, tmp_path):
    huge = lambda w: jnp.full_like(w, jnp.finfo(w.dtype).max)
    model.posterior_ = eqx.tree_at(lambda p: p.solution.weights, model.posterior_, replace_fn=huge)
    model.save(tmp_path / "model")
    loaded = PathGPRegressor.load(tmp_path / "model")
    for use in (loaded.predict, loaded.sample_y):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match=str(tmp_path / "model")):
            use(X[:3])
