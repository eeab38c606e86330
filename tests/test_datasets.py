import gzip
import json
import os

import numpy as np
import pytest

from pathgp import datasets


def write(folder, name, array):
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / name, "wt") as file:
        np.savetxt(file, array, delimiter=",")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data set of six rows whose second input is constant in the training rows."""
    data = np.array([[1.0, 5, 10], [2, 5, 20], [3, 5, 30], [4, 5, 40], [9, 6, 70], [8, 4, 90]])
    write(tmp_path / "data" / "small", "data.csv.gz", data)
    write(tmp_path / "data" / "small", "test_mask.csv.gz", np.array([[0, 1], [0, 0], [0, 0], [0, 0], [1, 0], [1, 0]]))
    monkeypatch.setenv("PATHGP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_standardised_with_training_statistics(folder):
    data = datasets.load("small")
    assert (data.X.shape, data.X_test.shape) == ((4, 2), (2, 2))
    np.testing.assert_allclose(data.X[:, 0].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(data.y.std(), 1, rtol=1e-6)
    assert bool(np.all(data.X[:, 1] == 0))
    np.testing.assert_allclose(data.X_test[:, 1], [1, -1])  # a constant column is only shifted
    np.testing.assert_allclose(data.y_test, (np.array([70, 90]) - 25) / np.sqrt(125), rtol=1e-6)
    assert len(datasets.load("small", split=1).X) == 5


def test_what_is_missing_is_a_sentence(folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nowhere/data.csv.gz is missing: put the data set 'nowhere' there"):
        datasets.load("nowhere")
    with pytest.raises(ValueError, match="split is 2, but 'small' has 2 splits"):
        datasets.load("small", split=2)
    with pytest.raises(FileNotFoundError, match=r"published_hyperparameters.json is missing"):
        datasets.published_gp("small")
    write(folder / "small", "test_mask.csv.gz", np.zeros((5, 1)))
    with pytest.raises(ValueError, match=r"data.csv.gz has 6 rows, but test_mask.csv.gz has 5"):
        datasets.load("small")
    monkeypatch.delenv("PATHGP_DATA")
    with pytest.raises(FileNotFoundError, match="PATHGP_DATA is not set"):
        datasets.load("small")


def test_published_scales_are_standard_deviations(folder):
    reference = folder.parent / "reference"
    reference.mkdir()
    published = {"small": {"0": {"noise_scale": 0.5, "signal_scale": 2.0, "length_scale": [1.0, 3.0]}, "1": None}}
    (reference / "published_hyperparameters.json").write_text(json.dumps(published))
    gp = datasets.published_gp("small")
    assert (float(gp.noise), float(gp.kernel.variance)) == (0.25, 4.0)
    np.testing.assert_allclose(gp.kernel.lengthscale, [1, 3])
    with pytest.raises(ValueError, match="no hyperparameters for 'small', split 1"):
        datasets.published_gp("small", split=1)


def test_synthetic_rows_are_standardised_and_repeatable():
    data = datasets.synthetic(500, d=4)
    assert (data.X.shape, data.X_test.shape) == ((500, 4), (1000, 4))
    np.testing.assert_allclose(data.y.std(), 1, rtol=1e-5)
    np.testing.assert_array_equal(data.y_test, datasets.synthetic(500, d=4).y_test)


@pytest.mark.skipif(not os.environ.get("PATHGP_DATA"), reason="needs the real data sets of PATHGP_DATA")
def test_a_real_data_set():
    data = datasets.load("elevators")
    assert (data.X.shape, data.X_test.shape) == ((14940, 18), (1659, 18))
    assert datasets.published_gp("elevators").kernel.lengthscale.shape == (18,)
