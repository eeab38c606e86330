"""`pathgp fit --checkpoint`: stopped by Ctrl-C or SIGTERM, it goes on to the same model."""

import os
import re
import signal

import numpy as np
import pytest

pytest.importorskip("pyarrow")
from pathgp.cli import fitted as models
from pathgp.cli import main
from pathgp.estimator import regressor as estimator
from pathgp.runs.checkpoint import Slot
from pathgp.solvers import SAP


@pytest.fixture(autouse=True)
def of_several_steps(monkeypatch):
    monkeypatch.setitem(estimator.SOLVERS, "sap", lambda: SAP(block_size=16))


def command(fitted, out, *more):
    named = ["fit", str(fitted.train), "--target", "price", "--one-hot", "--solver", "sap", "--num-samples", "4"]
    return [*named, "--out", str(out), *more]


def said(capsys):
    return capsys.readouterr().err.splitlines()[-1]


def stop_at(monkeypatch, kind, count, stop):
    """Stops a run at the `count`-th time that one of this kind is kept."""
    keep, calls = Slot.save, []

    def kept(self, state, **numbers):
        keep(self, state, **numbers)
        calls.extend([1] * self.path.name.endswith(f"{kind}.checkpoint"))
        if len(calls) == count:
            stop()

    monkeypatch.setattr(Slot, "save", kept)


def ctrl_c():
    raise KeyboardInterrupt


def test_a_fit_goes_on_after_sigterm_in_learning_and_ctrl_c_in_the_solve(fitted, tmp_path, monkeypatch, capsys):
    out, folder = tmp_path / "model.safetensors", tmp_path / "run"
    assert main(command(fitted, tmp_path / "undisturbed.safetensors")) == 0
    kept = "--checkpoint", str(folder)
    with monkeypatch.context() as patched:
        stop_at(patched, "learning", 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as stop:
            main(command(fitted, out, *kept))
    assert stop.value.code == 143
    sentence = said(capsys)
    assert sentence.startswith("pathgp: ")
    assert str(folder) in sentence
    assert "--resume" in sentence
    assert [path.name for path in folder.iterdir()] == ["target0-learning.checkpoint"]

    assert main(command(fitted, out, *kept)) == 2
    assert re.fullmatch(rf"pathgp: {re.escape(str(folder))} .* --resume .* --force .*", said(capsys))
    assert main(command(fitted, out, *kept, "--resume", "--kernel", "rbf")) == 2
    assert re.search(r"target0-learning\.checkpoint .*\bkernel\b", said(capsys))

    with monkeypatch.context() as patched:
        stop_at(patched, "solve", 3, ctrl_c)
        assert main(command(fitted, out, *kept, "--resume")) == 130
    assert re.search(rf"{re.escape(str(folder))}.* --resume", said(capsys))
    assert not out.exists()

    assert main(command(fitted, out, *kept, "--resume")) == 0
    assert str(folder) in capsys.readouterr().err
    assert not folder.exists()
    a, b = (models.load(path).model for path in (out, tmp_path / "undisturbed.safetensors"))
    np.testing.assert_array_equal(a.posterior_.solution.weights, b.posterior_.solution.weights)
    assert a.trace_[0].loss == b.trace_[0].loss
    assert a.info_.steps == b.info_.steps


@pytest.mark.parametrize("more", [[], ["--resume"], ["--force"]], ids=" ".join)
def test_a_directory_that_another_fit_has_is_refused_and_left_alone(fitted, tmp_path, monkeypatch, capsys, more):
    folder, kept, codes = tmp_path / "run", ["--checkpoint", str(tmp_path / "run")], []
    content = lambda: {path.name: path.read_bytes() for path in folder.iterdir()}

    def begin_another():
        before = content()
        codes.append(main(command(fitted, tmp_path / "second.safetensors", *kept, *more)))
        assert str(folder) in said(capsys)
        assert content() == before

    stop_at(monkeypatch, "solve", 3, begin_another)
    assert main(command(fitted, tmp_path / "first.safetensors", *kept, "--checkpoint-seconds", "0")) == 0
    assert codes == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["first.safetensors"]


def test_force_begins_anew_and_resume_needs_a_directory(fitted, tmp_path, capsys):
    out, folder = tmp_path / "model.safetensors", tmp_path / "run"
    assert main(command(fitted, out, "--resume")) == 2
    assert re.search("--resume .*--checkpoint", said(capsys))
    folder.mkdir()
    (folder / "solve.checkpoint").write_bytes(b"of something else")
    assert main(command(fitted, out, "--checkpoint", str(folder), "--resume")) == 2
    assert str(folder / "solve.checkpoint") in said(capsys)
    assert main(command(fitted, out, "--checkpoint", str(folder), "--force")) == 0
    assert out.exists()
    assert not folder.exists()
