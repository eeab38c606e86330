"""Ctrl-C: no broken file, a sentence of what was kept, exit code 130."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("pyarrow")
from pathgp.cli import main
from tests.support.tables_of_houses import houses, write


def test_a_fit_that_is_stopped_in_the_solve_writes_nothing(fitted, tmp_path, monkeypatch, capsys):
    from pathgp.cli import fitted as models

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(models.Fitted, "fit", stop)
    out = tmp_path / "model.safetensors"
    assert main(["fit", str(fitted.train), "--target", "price", "--one-hot", "--out", str(out)]) == 130
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith("pathgp: ")
    assert not list(tmp_path.iterdir())


def test_a_fit_whose_learning_is_stopped_keeps_the_best_so_far(fitted, tmp_path, monkeypatch, capsys):
    from pathgp.cli import fitted as models

    earlier = models.load(fitted.model)
    earlier.model.trace_ = [trace._replace(interrupted=True) for trace in earlier.model.trace_]
    monkeypatch.setattr(models.Fitted, "fit", lambda *_: earlier)
    out = tmp_path / "model.safetensors"
    assert main(["fit", str(fitted.train), "--target", "price", "--one-hot", "--out", str(out)]) == 130
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert f" {len(earlier.model.trace_[0].loss)} " in sentence
    assert str(out) in sentence
    assert main(["info", str(out)]) == 0


def test_predictions_that_are_stopped_leave_the_file_that_was_there(fitted, tmp_path, monkeypatch, capsys):
    from pathgp.cli import fitted as models

    predict, calls = models.Fitted.predict, []

    def stop_at_the_third(self, X):
        calls.append(len(X))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return predict(self, X)

    monkeypatch.setattr(models.Fitted, "predict", stop_at_the_third)
    out = tmp_path / "predictions.csv"
    out.write_text("precious")
    command = ["predict", str(fitted.model), str(fitted.test), "--chunk", "8", "--out", str(out), "--force"]
    assert main(command) == 130
    assert calls == [8, 8, 8]
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.csv"]
    assert out.read_text() == "precious"
    assert capsys.readouterr().err.splitlines()[-1].startswith("pathgp: ")


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request):
    """A signal that is not ignored, as SIGHUP is below nohup."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_termination_clears_away_what_is_half_written(fitted, tmp_path, monkeypatch, number):
    from pathgp.cli import fitted as models

    predict, seen = models.Fitted.predict, []

    def terminate_at_the_second(self, X):
        if seen:
            os.kill(os.getpid(), number)
        seen.extend(path.name for path in tmp_path.iterdir())
        return predict(self, X)

    monkeypatch.setattr(models.Fitted, "predict", terminate_at_the_second)
    out, before = tmp_path / "predictions.csv", signal.getsignal(number)
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(fitted.model), str(fitted.test), "--chunk", "8", "--out", str(out)])
    assert stop.value.code == 128 + number
    assert seen, "the test needs a file that is being written"
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(number) is before


@pytest.mark.slow
def test_a_real_signal_leaves_a_whole_model_or_none(tmp_path):
    train, out = write(tmp_path / "train.csv", houses(3000, 0)), tmp_path / "model.safetensors"
    command = [
        sys.executable,
        "-m",
        "pathgp",
        "fit",
        str(train),
        "--target",
        "price",
        "--one-hot",
        "--out",
        str(out),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "fitting" in line:
                break
        time.sleep(5)
        os.kill(process.pid, signal.SIGINT)
        said = process.stderr.read()
        code = process.wait(timeout=600)
    assert code == 130
    assert said.splitlines()[-1].startswith("pathgp: ")
    assert "Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} <= {"train.csv", "model.safetensors"}
    if out.exists():
        assert main(["info", str(out)]) == 0
    assert (str(out) in said) == out.exists()


def test_a_demo_that_is_stopped_says_that_its_tables_are_there(tmp_path, monkeypatch, capsys):
    from pathgp.cli import fitted as models

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(models.Fitted, "fit", stop)
    folder = tmp_path / "demo"
    assert main(["demo", "--out", str(folder)]) == 130
    said = capsys.readouterr().err
    assert str(folder) in said.splitlines()[-1]
    assert "--force" in said.splitlines()[-1]
    assert {path.name for path in folder.iterdir()} == {"train.csv", "new.csv"}
