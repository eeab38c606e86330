import gzip
import json
import os
import re

import numpy as np
import pytest
from scipy import special
from scipy.spatial import KDTree

from pathgp import GP
from pathgp.cli import main
from pathgp.kernels import Matern32
from pathgp_paper import datasets


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
    with pytest.raises(FileNotFoundError, match=r"nowhere/data.csv.gz"):
        datasets.load("nowhere")
    with pytest.raises(ValueError, match=r"split is 2.*'small'"):
        datasets.load("small", split=2)
    with pytest.raises(FileNotFoundError, match=r"published_hyperparameters.json"):
        datasets.published_gp("small")
    with pytest.raises(FileNotFoundError, match="small"):
        datasets.load("smal")
    with pytest.raises(FileNotFoundError, match="'song'"):
        datasets.load("song")
    with pytest.raises(FileNotFoundError, match=r"'infill'.*`datasets.infill`"):
        datasets.load("infill")
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        datasets.load("small", directory=folder / "elsewhere")
    write(folder / "small", "test_mask.csv.gz", np.zeros((5, 1)))
    with pytest.raises(ValueError, match=r"data.csv.gz.* 6 .*test_mask.csv.gz.* 5"):
        datasets.load("small")
    monkeypatch.delenv("PATHGP_DATA")
    with pytest.raises(FileNotFoundError, match="PATHGP_DATA"):
        datasets.load("small")


def test_published_scales_are_standard_deviations(folder):
    reference = folder.parent / "reference"
    reference.mkdir()
    published = {"small": {"0": {"noise_scale": 0.5, "signal_scale": 2.0, "length_scale": [1.0, 3.0]}, "1": None}}
    (reference / "published_hyperparameters.json").write_text(json.dumps(published))
    gp = datasets.published_gp("small")
    assert (float(gp.noise), float(gp.kernel.variance)) == (0.25, 4.0)
    np.testing.assert_allclose(gp.kernel.lengthscale, [1, 3])
    with pytest.raises(ValueError, match=r"'small'.* 1"):
        datasets.published_gp("small", split=1)


def test_synthetic_rows_are_standardised_and_repeatable():
    data = datasets.synthetic(500, d=4)
    assert (data.X.shape, data.X_test.shape) == ((500, 4), (1000, 4))
    np.testing.assert_allclose(data.y.std(), 1, rtol=1e-5)
    np.testing.assert_array_equal(data.y_test, datasets.synthetic(500, d=4).y_test)


def test_bad_files_are_sentences(folder):
    with gzip.open(folder / "small" / "data.csv.gz", "wt") as file:
        file.write("a,b,target\n1,2,3\n")
    with pytest.raises(ValueError, match=r"data.csv.gz.*'a'"):
        datasets.load("small")
    write(folder / "small", "data.csv.gz", np.array([[1.0, 2], [1, np.nan], [1, 2], [1, 2], [1, 2], [1, 2]]))
    with pytest.raises(ValueError, match=r"data.csv.gz.* 1"):
        datasets.load("small")


def test_what_is_known_and_what_is_there(folder, monkeypatch):
    write(folder / "pol", "data.csv.gz", np.zeros((2, 3)))
    write(folder / "pol", "test_mask.csv.gz", np.zeros((2, 1)))
    write(folder / "half", "data.csv.gz", np.zeros((2, 3)))  # without a mask it is not a data set
    with gzip.open(folder / "small" / "data.csv.gz", "at") as file:
        file.write("1,2,3")  # a last line without an end
    entries = {entry.name: entry for entry in datasets.known()}
    assert list(entries)[:9] == list(datasets.PAPER)
    assert entries["small"] == ("small", 7, 2, True, "folder")
    assert entries["pol"] == ("pol", 15000, 26, True, "paper")  # not counted
    assert not entries["song"].present
    assert "half" not in entries
    assert datasets.available() == ["pol", "small"]
    for name in datasets.MADE:
        assert entries[name].present
        assert callable(getattr(datasets, name))
    monkeypatch.delenv("PATHGP_DATA")
    assert datasets.available() == []
    assert datasets.available(folder) == ["pol", "small"]


def test_the_list_on_the_command_line(folder, capsys, monkeypatch):
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    assert ["small", "6", "2", "yes", "folder"] in [line.split() for line in printed.splitlines()]
    assert re.search("pol, elevators", printed)
    assert str(folder) in printed
    monkeypatch.delenv("PATHGP_DATA")
    assert main(["data", "list", "--json", "--data-dir", str(folder)]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {"name": "small", "N": 6, "d": 2, "present": True, "origin": "folder"} in entries
    assert main(["data", "list"]) == 0
    assert re.search("PATHGP_DATA.*--data-dir", capsys.readouterr().out)
    assert main(["data", "list", "--data-dir", str(folder / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_benchmarks_and_experiments_take_the_folder_as_an_option(folder, monkeypatch, capsys):
    monkeypatch.setenv("PATHGP_DATA", str(folder / "elsewhere"))
    seen = []

    def learned(data, method):
        seen.append((data.name, len(data.X), os.environ["PATHGP_DATA"]))
        raise ValueError("enough")

    monkeypatch.setattr("pathgp_paper.bench.learning.learn", learned)
    assert main(["bench", "learn", "--dataset", "small", "--data-dir", str(folder)]) == 2
    assert seen == [("small", 4, str(folder))]
    assert os.environ["PATHGP_DATA"] == str(folder / "elsewhere")
    assert main(["bench", "learn", "--dataset", "small"]) == 2
    assert "elsewhere" in capsys.readouterr().err
    for command in ("bench solve", "bench predict", "experiment run"):
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        assert "--data-dir" in capsys.readouterr().out


def test_the_toys():
    crowded, grid = datasets.infill(4000), datasets.large_domain(4000)
    np.testing.assert_allclose([crowded.X.mean(), crowded.X.std()], [0, 1], atol=4 / np.sqrt(4000))
    np.testing.assert_allclose(np.diff(grid.X[:, 0]), 0.02, atol=1e-5)
    assert grid.X[-1, 0] == pytest.approx(39.98)
    assert (grid.X_test[0, 0], grid.X_test[-1, 0]) == (pytest.approx(27.98), pytest.approx(43.98))
    for data in (crowded, grid):
        rest = data.y - np.sin(2 * data.X[:, 0]) - np.cos(5 * data.X[:, 0])
        np.testing.assert_allclose([rest.mean(), rest.var()], [0, 0.5], atol=4 * np.sqrt(0.5 / 4000))
        x = data.X_test[:, 0]
        np.testing.assert_allclose(data.y_test, np.sin(2 * x) + np.cos(5 * x), atol=1e-4)  # float32 of x up to 40
    assert np.abs(datasets.infill(10, seed=1).X - datasets.infill(10).X).max() > 0.01


def test_a_draw_has_the_covariance_of_its_process():
    """The variogram E (y(x) − y(z))²/2 = v + σ² − k(x, z), with the Bessel form of the Matérn kernel."""
    gp = GP(Matern32(0.05, 2.0), noise=0.3, mean=5.0)
    draws = [datasets.draw(gp, N=2000, d=2, seed=seed, num_features=1000) for seed in range(5)]
    for neighbour in (1, 20, 1000):
        halves, expected = [], []
        for data in draws:
            assert data.X.min() >= 0
            assert data.X.max() <= 1
            distance, index = KDTree(data.X).query(data.X, [neighbour + 1])
            r = np.sqrt(3) * distance[:, 0] / 0.05
            halves.append((data.y - data.y[index[:, 0]]).astype(float) ** 2 / 2)
            expected.append(2.3 - 2.0 * 2 ** (1 - 1.5) / special.gamma(1.5) * r**1.5 * special.kv(1.5, r))
        # Five squares of side 1 have 500 patches of side 2ℓ; the square of a normal deviates by √2 times its mean.
        np.testing.assert_allclose(np.mean(halves), np.mean(expected), rtol=4 * np.sqrt(2 / 500))
    np.testing.assert_allclose(np.mean([data.y for data in draws]), 5.0, atol=4 * np.sqrt(2.0 / 500))
    assert np.abs(draws[0].X - draws[1].X).max() > 0.1
    assert len(draws[0].X_test) == len(draws[0].y_test) == 1000


@pytest.mark.skipif(not os.environ.get("PATHGP_DATA"), reason="needs the real data sets of PATHGP_DATA")
def test_a_real_data_set():
    data = datasets.load("elevators")
    assert (data.X.shape, data.X_test.shape) == ((14940, 18), (1659, 18))
    assert datasets.published_gp("elevators").kernel.lengthscale.shape == (18,)
