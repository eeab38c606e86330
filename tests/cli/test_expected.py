"""Matrices in .npy files, inducing points, and what a fit says of itself before it begins."""

import json
import re
import time

import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.spatial.distance import cdist

from pathgp.cli import expected, main
from pathgp.cli import fitted as models
from pathgp.cli.tables.encoding import Encoding
from pathgp.estimator.regressor import PathGPRegressor
from pathgp.kernels import Matern32
from pathgp.solvers.inducing.points import RandomPoints

ROWS, POINTS = 300, 40


def matrix(rows, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(rows, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=rows)
    return np.column_stack([X[:, 0], y, X[:, 1]])


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    """The folder, with a model on inducing points of a matrix whose column 1 is the target."""
    folder = tmp_path_factory.mktemp("matrix")
    np.save(folder / "train.npy", matrix(ROWS, 0))
    words = ["fit", folder / "train.npy", "--target", "1", "--solver", "inducing", "--points", POINTS]
    words += ["--num-samples", "8", "--out", folder / "model.safetensors"]
    assert main([str(word) for word in words]) == 0
    return folder


def test_inducing_points_are_rows_of_the_data(fit):
    model, X = PathGPRegressor.load(fit / "model.safetensors"), matrix(ROWS, 0)[:, [0, 2]]
    points = np.asarray(model.posterior_.solution.points, float)
    assert points.shape == (POINTS, 2)
    assert cdist(points, (X - X.mean(0)) / X.std(0)).min(axis=1).max() < 1e-5  # in standard units
    assert model.info_.solver == "InducingCG"


def test_inducing_points_give_the_mean_of_the_closed_form():
    data = matrix(ROWS, 0)
    X, y = data[:, [0, 2]], data[:, 1]
    process = {"kernel": Matern32(0.7), "noise": 0.02, "hyperparameters": "fixed"}
    model = PathGPRegressor(**process, solver=RandomPoints(POINTS), tolerance=1e-6, num_samples=1, random_state=0)
    model.fit(X, y)
    k = lambda A, Z: (1 + (r := 3**0.5 * cdist(A, Z) / 0.7)) * np.exp(-r)
    z, t = np.asarray(model.posterior_.solution.points, float), (y - y.mean()) / y.std()
    K = k(z, (X - X.mean(0)) / X.std(0))
    v = np.linalg.solve(0.02 * k(z, z) + K @ K.T, K @ t)
    exact = K.T @ v * y.std() + y.mean()
    np.testing.assert_allclose(model.predict(X), exact, atol=2e-3)  # in float32, of values of about one


def test_npy_parquet_and_csv_are_predicted_alike(fit, capsys):
    rows = matrix(30, 1)
    np.save(fit / "new.npy", rows)
    pq.write_table(pa.table({str(i): column for i, column in enumerate(rows.T)}), fit / "new.parquet")
    np.savetxt(fit / "new.csv", rows, delimiter=",", header="0,1,2", comments="", fmt="%.17g")
    printed = []
    for name in ("new.npy", "new.parquet", "new.csv"):
        for words in (["predict"], ["sample", "--num-samples", "2"], ["evaluate", "--json"]):
            assert main([words[0], str(fit / "model.safetensors"), str(fit / name), *words[1:]]) == 0
            printed.append(capsys.readouterr().out)
    assert printed[:3] == printed[3:6] == printed[6:]
    assert json.loads(printed[2])["rmse"] < 0.25  # the noise is 0.1, the spread 1.3


def test_what_is_to_come_is_said_before_it_begins(fit, capsys):
    out = fit / "told.safetensors"
    words = ["fit", str(fit / "train.npy"), "--target", "1", "--num-samples", "8", "--json", "--out", str(out)]
    assert main(words) == 0
    captured = capsys.readouterr()
    (told,) = (i for i, line in enumerate(captured.err.splitlines()) if "GB (Cholesky)" in line)
    (fitting,) = (i for i, line in enumerate(captured.err.splitlines()) if "'1' to 300 rows" in line)
    assert told < fitting
    result = json.loads(captured.out)["expected"]
    assert 0.2 < result["gigabytes"] < 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--points", "10"], "--points.*--solver.*auto"),
        (["--solver", "inducing", "--points", "0"], "--points"),
        (["--solver", "inducing", "--points", "301"], "--points.* 300 .* 301"),
        (["--solver", "inducing", "--points", "300", "--test-share", "0.1"], "--points.* 270 .* 300"),
        (["--memory", "0.2"], "Cholesky.*--memory.* 0.2 "),
        (["--memory", "0"], "--memory.* 0"),
        (["--memory", "nan"], "--memory.*nan"),
        (["--solver", "magic"], "'magic'"),
    ],
)
@pytest.mark.parametrize("name", ["train.npy", "train.csv"])
def test_what_cannot_be_is_refused(fit, capsys, name, words, named):
    np.savetxt(fit / "train.csv", matrix(ROWS, 0), delimiter=",", header="0,1,2", comments="")
    out = fit / "never.safetensors"
    assert main(["fit", str(fit / name), "--target", "1", "--out", str(out), *words]) == 2
    said = capsys.readouterr().err
    assert re.search(named, said)
    assert "fitting" not in said
    assert not out.exists()
    if name == "train.npy":
        assert "reading" not in said


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (30_000, []),
        (100_000, []),
        (100_000, ["--solver", "inducing", "--points", "2000"]),
        (100_000, ["--solver", "inducing"]),
        (100_000, ["--solver", "inducing", "--points", "2000", "--num-samples", "4"]),
        (4000, ["--solver", "cholesky", "--num-samples", "4"]),
        (4000, ["--solver", "inducing", "--points", "2000"]),
    ],
)
def test_what_is_advised_for_little_memory_is_not_what_was_given_and_fits(tmp_path, monkeypatch, capsys, rows, words):
    def begin(*_):
        raise KeyboardInterrupt

    def fit(rows, words):
        np.save(tmp_path / "train.npy", data[:rows])
        code = main(["fit", str(tmp_path / "train.npy"), "--target", "1", "--out", str(tmp_path / "model"), *words])
        return code, capsys.readouterr().err.splitlines()[-1]

    data = matrix(rows, 0)
    monkeypatch.setattr(models.Fitted, "fit", begin)
    _, sentence = fit(rows, [*words, "--memory", "0.001"])
    needed = re.search(r"([0-9.]+) GB", sentence)
    assert needed is not None, sentence
    words = [*words, "--memory", f"{0.98 * float(needed[1]):.4g}"]
    code, sentence = fit(rows, words)
    assert code == 2
    advice = re.search("--memory allows .*?: use (.*);", sentence)
    assert advice is not None, sentence
    for one in advice[1].split(", or "):
        number = re.fullmatch("about ([0-9,]+) rows", one)
        changed = [*words, *([] if number else one.split())]  # the last of two values of an option counts
        assert f" {one} " not in f" {' '.join(words)} "
        code, sentence = fit(int(number[1].replace(",", "")) if number else rows, changed)
        assert code == 130, f"{one}: {sentence}"


def test_a_matrix_without_rows_is_refused_as_such(tmp_path, capsys):
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    assert main(["fit", str(tmp_path / "none.npy"), "--target", "1", "--out", str(tmp_path / "m.safetensors")]) == 2
    assert "none.npy" in capsys.readouterr().err


def test_a_machine_that_says_nothing_refuses_nothing(fit, monkeypatch, capsys):
    words = ["fit", str(fit / "train.npy"), "--target", "1", "--out", str(fit / "none.safetensors")]
    monkeypatch.setattr(expected, "memory_limit", lambda: 10**8)
    assert main(words) == 2
    assert " 0.1 GB" in capsys.readouterr().err
    monkeypatch.setattr(expected, "memory_limit", lambda: None)
    assert main([*words, "--num-samples", "8"]) == 0


def given_seconds(monkeypatch, words):
    """The seconds that the estimator is given, where reading the table takes one."""
    given = []

    def slowly(*values, **named):
        time.sleep(1)
        return read(*values, **named)

    def begin(self, *_):
        given.append(self.max_seconds)
        raise KeyboardInterrupt

    read = Encoding.read
    with monkeypatch.context() as patched:
        patched.setattr(Encoding, "read", slowly)
        patched.setattr(PathGPRegressor, "fit", begin)
        assert main([str(word) for word in words]) == 130
    return given[0]


def test_max_seconds_is_for_the_whole_command(fit, monkeypatch, capsys):
    words = ["fit", fit / "train.npy", "--target", "1", "--out", fit / "timed.safetensors"]
    assert given_seconds(monkeypatch, words) is None
    alone = given_seconds(monkeypatch, [*words, "--max-seconds", "1000"])
    assert 800 < alone < 999
    judged = given_seconds(monkeypatch, [*words, "--max-seconds", "1000", "--test-share", "0.3"])
    assert judged < alone
    assert "--max-seconds" not in capsys.readouterr().err
    assert 0 < given_seconds(monkeypatch, [*words, "--max-seconds", "1"]) < 1
    assert "--max-seconds 1" in capsys.readouterr().err
