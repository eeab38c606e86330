import json
import re

import pytest

from pathgp.cli import bench, main
from pathgp.likelihood import Exact, NearestNeighbour, Neighbourhoods, Pathwise
from pathgp.plots import error_against_time
from pathgp_paper.bench import contest, learning, product


@pytest.mark.slow
def test_solvers_and_peers_agree_on_a_small_problem(tmp_path, capsys):
    out = tmp_path / "figures.json"
    names = ["auto", "cholesky", "scipy-float64", "scipy-float32", "sklearn"]
    assert main(["bench", "solve", "--n", "600", "--only", *names, "--out", str(out)]) == 0
    stored = json.loads(out.read_text())
    results = {r["name"]: r for r in stored["results"]}
    assert list(results) == names
    for r in results.values():
        assert r["rmse"] == pytest.approx(results["sklearn"]["rmse"], rel=2e-3)
        assert r["nll"] == pytest.approx(results["sklearn"]["nll"], abs=0.05)  # ours estimates the variance
        assert r["seconds"] > 0
        assert r["rows"] == 600
    assert results["auto"]["solver"] == "Cholesky"
    assert stored["machine"]["cores"] >= 1
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in names)


def test_ratios_are_to_the_fastest_peer_that_finished():
    rows = [
        {"name": "sap", "seconds": 1.0, "gigabytes": 0.5, "rmse": 0.1, "nll": 0.2, "passes": 3.0},
        {"name": "sklearn", "seconds": 9.0, "gigabytes": 0.5, "rmse": 0.1, "nll": 0.2},
        {"name": "scipy-float32", "seconds": 4.0, "gigabytes": 0.5, "rmse": 0.1, "nll": 0.2},
        {"name": "scipy-float64", "failed": "crashed with signal 11"},
    ]
    lines = bench.table(rows).splitlines()
    assert lines[1].split()[:3] == ["sap", "1.00", "0.25"]
    assert lines[2].split()[2] == "2.25"
    assert lines[4] == "scipy-float64  crashed with signal 11"


def test_a_peer_that_is_not_there_or_fails_is_a_line(monkeypatch):
    arguments = main_arguments()
    fake = "import sys; sys.stderr.write('ModuleNotFoundError: No module named \\'gpytorch\\''); sys.exit(1)"
    run = bench.subprocess.run
    command = {"code": fake}
    monkeypatch.setattr(bench.subprocess, "run", lambda argv, **kwargs: run([argv[0], "-c", command["code"]], **kwargs))
    assert bench.contested("auto", arguments)["failed"] == "not installed (No module named 'gpytorch')"
    command["code"] = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert bench.contested("auto", arguments)["failed"] == "crashed with signal 11"
    command["code"] = "import time; time.sleep(60)"
    assert bench.contested("auto", arguments)["failed"] == "stopped after 1 s"


def main_arguments():
    import argparse

    return argparse.Namespace(
        dataset="synthetic", split=0, n=100, noise=None, hyperparameters=None, test_rows=None, timeout=1.0
    )


def test_first_calls_are_timed_in_new_processes(tmp_path, capsys):
    out = tmp_path / "cold.json"
    assert main(["bench", "cold", "--rows", "40", "--out", str(out)]) == 0
    cells = json.loads(out.read_text())["rows"]
    assert [cell["library"] for cell in cells] == ["pathgp, empty cache", "pathgp", "scikit-learn"]
    for cell in cells:
        assert cell["total"] > cell["fit"] + cell["predict"] > 0
        assert cell["rmse"] < 0.3  # the standard deviation of the target is 0.6
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["bench", "solve", "--dataset", "nowhere"], "nowhere/data.csv.gz"),
        (["bench", "solve", "--dataset", "elevators"], "PATHGP_DATA"),
        (["bench", "solve", "--n", "0"], "--n .* 0"),
        (["bench", "solve", "--test-rows", "-3"], "--test-rows.*-3"),
        (["bench", "solve", "--split", "1"], "--split.* 1"),
        (["bench", "solve", "--timeout", "nan"], "--timeout.*nan"),
        (["bench", "solve", "--plot", "error.doc"], "error.doc"),
        (["bench", "kernel", "--out", "nowhere/figures.json"], "nowhere"),
        (["bench", "learn", "--out", "nowhere/figures.json"], "nowhere"),
        (["bench", "predict", "--out", "nowhere/figures.json"], "nowhere"),
        (["bench", "cold", "--out", "nowhere/figures.json"], "nowhere"),
        (["bench", "cold", "--rows", "3"], "--rows .* 3"),
        (["bench", "solve", "--hyperparameters", "none.json"], "--hyperparameters none.json"),
        (["bench", "solve", "--hyperparameters", "text.json"], "--hyperparameters text.json"),
        (
            ["bench", "solve", "--hyperparameters", "two.json"],
            "two.json.* 2 .* 8",
        ),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(command, named, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATHGP_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("length_scale")
    (tmp_path / "two.json").write_text('{"length_scale": [1, 2], "signal_scale": 1, "noise_scale": 0.1}')
    if named.startswith("PATHGP_DATA"):
        monkeypatch.delenv("PATHGP_DATA")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("pathgp: ")
    assert re.search(named, error)
    assert "Traceback" not in error


def test_synthetic_data_take_given_hyperparameters_and_so_many_test_rows(tmp_path):
    given = {"length_scale": [0.5] * 8, "signal_scale": 2.0, "noise_scale": 0.5, "mean": 0.25}
    (tmp_path / "given.json").write_text(json.dumps(given))
    plain, _ = contest.problem("synthetic", 20, 0)
    data, gp = contest.problem("synthetic", 20, 0, None, tmp_path / "given.json", 7)
    assert (gp.kernel.lengthscale.tolist(), float(gp.kernel.variance), float(gp.noise)) == ([0.5] * 8, 4.0, 0.25)
    assert (data.X.shape, data.X_test.shape, data.y_test.shape) == ((20, 8), (7, 8), (7,))
    assert data.y_test.tolist() == pytest.approx((plain.y_test[:7] - 0.25).tolist())


def test_unknown_contestants_are_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "solve", "--only", "nobody"])
    assert stop.value.code == 2
    assert "'nobody'" in capsys.readouterr().err


def test_every_peer_is_a_contestant():
    assert set(bench.PEERS) <= set(contest.CONTESTANTS)


def test_the_naive_product_is_the_same_product():
    import jax
    import numpy as np

    from pathgp.kernels import Matern32

    A, X = jax.random.normal(jax.random.key(0), (5, 6)), jax.random.normal(jax.random.key(1), (7, 6))
    V = jax.random.normal(jax.random.key(2), (7, 2))
    np.testing.assert_allclose(product.naive(A, X, V), Matern32()(A, X) @ V, atol=1e-5)
    row = product.Row(1, 20.0, 18.0, 5.0, 4.0, 3.6, 1.2)
    assert product.table([row]).splitlines()[1].split() == ["1", "20.0", "18.0", "5.0", "4.00", "3.60", "1.20"]


def test_error_against_time_is_drawn(tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "backend", "svg")
    results = [
        {"name": "auto", "seconds": 2.0, "rmse": 0.3},
        {"name": "sgd", "seconds": 9.0, "rmse": 0.5, "curve": [(0.0, 1.0), (1.0, 0.8), (9.0, 0.5)]},
        {"name": "sklearn", "failed": "not installed"},
    ]
    out = tmp_path / "picture.png"
    error_against_time(results, "a title", out)
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert matplotlib.get_backend() == "svg"  # as the user has it


def test_throughput_of_predictions(tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert main(["bench", "predict", "--n", "300", "--points", "700", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [r["asked"] for r in rows] == ["mean", "mean and variance", "64 samples"]
    assert all(r["points"] == 700 and r["points_per_second"] > 0 for r in rows)
    assert "Cholesky" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["nearest", "neighbourhoods", "pathwise", "exact"])
def test_each_method_of_learning_learns_and_is_judged(method, tmp_path, monkeypatch):
    monkeypatch.setitem(learning.METHODS, "nearest", [NearestNeighbour(steps=60, neighbours=16, batch_size=64)])
    monkeypatch.setitem(learning.METHODS, "neighbourhoods", [Neighbourhoods(centroids=1, size=200, steps=10)])
    quick = Pathwise(steps=25, probes=8, passes=2, num_features=200, block_size=128)
    monkeypatch.setitem(learning.METHODS, "pathwise", [quick])
    monkeypatch.setitem(learning.METHODS, "exact", [Exact(steps=10)])
    out = tmp_path / "figures.json"
    assert main(["bench", "learn", "--n", "300", "--method", method, "--out", str(out)]) == 0
    stored = json.loads(out.read_text())
    assert (stored["method"], stored["rows"], stored["left_out"]) == (method, 300, 0)
    # The noise is a tenth: its density has an NLL of about 0.3, and standardising divides by less than two.
    assert 0.15 < stored["rmse"] < 0.6
    assert stored["nll"] < 0.9
    assert stored["loss"] < 1.0
    assert stored["learn_seconds"] > 0
    assert stored["gigabytes"] > 0
    assert len(stored["length_scale"]) == 8


def test_what_was_learned_is_stored_before_it_is_judged_on_the_test_rows_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(learning.METHODS, "nearest", [NearestNeighbour(steps=2, neighbours=8, batch_size=16)])
    judged = []

    def interrupted(data, gp):
        judged.append(len(data.X_test))
        raise KeyboardInterrupt

    monkeypatch.setattr(learning, "judge", interrupted)
    out = tmp_path / "figures.json"
    assert main(["bench", "learn", "--n", "100", "--test-rows", "7", "--out", str(out)]) != 0
    assert judged == [7]
    assert len(json.loads(out.read_text())["length_scale"]) == 8


def test_no_test_rows_to_judge_on_is_a_sentence(capsys):
    assert main(["bench", "learn", "--n", "100", "--test-rows", "0"]) == 2
    assert re.search("--test-rows.* 0", capsys.readouterr().err)
