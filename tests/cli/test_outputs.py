"""Where the commands write: a file that another command wrote meanwhile is kept, and a bad place is noticed first."""

import shutil
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")
from pathgp.cli import fitted as models
from pathgp.cli import main
from tests.support.tables_of_houses import houses, write


def words_of(command, fitted, out):
    return {
        "fit": ["fit", fitted.train, "--target", "price", "--one-hot", "--out", out],
        "predict": ["predict", fitted.model, fitted.test, "--out", out],
        "sample": ["sample", fitted.model, fitted.test, "--num-samples", "2", "--out", out],
        "plot": ["plot", fitted.model, "--kind", "relevance", "--out", out],
    }[command]


def meanwhile(monkeypatch, command, fitted, happens):
    """Has something happen while a command works."""
    owner, name = {
        "fit": (models.Fitted, "fit"),
        "predict": (models.Fitted, "predict"),
        "sample": (models.Fitted, "samples"),
        "plot": (models.Fitted, "summary"),
    }[command]
    work = getattr(owner, name)

    def work_and_more(*given):
        happens()
        return models.load(fitted.model) if command == "fit" else work(*given)

    monkeypatch.setattr(owner, name, work_and_more)


@pytest.mark.parametrize(
    ("command", "name"),
    [("fit", "m.safetensors"), ("predict", "p.csv.gz"), ("sample", "s.parquet"), ("plot", "picture.png")],
)
def test_a_file_that_another_command_wrote_meanwhile_is_kept_and_so_is_the_result(
    fitted, tmp_path, monkeypatch, capsys, command, name
):
    if command == "plot":
        pytest.importorskip("matplotlib")
    alone, out, second = tmp_path / "alone" / name, tmp_path / name, tmp_path / f"2-{name}"
    alone.parent.mkdir()
    meanwhile(monkeypatch, command, fitted, lambda: out.write_text("of the other"))
    words = lambda path: [str(word) for word in words_of(command, fitted, path)]
    assert main(words(alone)) == 0
    out.unlink()
    capsys.readouterr()
    assert main(words(out)) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert str(out) in sentence
    assert str(second) in sentence
    assert out.read_text() == "of the other"
    assert second.read_bytes() == alone.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"alone", name, f"2-{name}"}
    assert main([*words(out), "--force"]) == 0
    assert out.read_bytes() == alone.read_bytes()


def test_two_predictions_at_once_are_both_kept_and_one_of_them_fails(fitted, tmp_path):
    new, out = write(tmp_path / "new.csv", houses(2000, 2)), tmp_path / "predictions.csv"
    command = [sys.executable, "-m", "pathgp", "predict", str(fitted.model), str(new), "--out", str(out)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300)[1] for process in running]
    if any("already exists" in text for text in said):
        pytest.skip("one was done before the other began")
    assert sorted(process.returncode for process in running) == [0, 2], said
    assert (tmp_path / "2-predictions.csv").read_bytes() == out.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="writes to /proc")
@pytest.mark.parametrize("command", ["fit", "predict", "sample", "plot"])
def test_a_place_that_cannot_be_written_to_is_named_before_the_work(fitted, monkeypatch, capsys, command):
    meanwhile(monkeypatch, command, fitted, lambda: pytest.fail("it had begun to work"))
    name = {"fit": "/proc/m.safetensors", "plot": "/proc/picture.png"}.get(command, "/proc/table.csv")
    assert main([str(word) for word in words_of(command, fitted, name)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert name in said[0]


@pytest.mark.parametrize("options", ["size=16k", "ro"])
def test_a_disk_that_is_full_or_read_only_is_noticed_before_the_work(fitted, tmp_path, options):
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.skip("file systems cannot be mounted here")
    fit = [sys.executable, "-m", "pathgp", *map(str, words_of("fit", fitted, tmp_path / "model.safetensors"))]
    script = f"mount -t tmpfs -o {options} tmpfs {tmp_path} && cat /dev/zero > {tmp_path}/rest; cd {tmp_path} && "
    listing = f"; code=$?; ls -A {tmp_path}; exit $code"
    run = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script + '"$@"' + listing, "-", *fit], capture_output=True, text=True
    )
    assert run.returncode == 2, run.stderr
    sentence = run.stderr.splitlines()[-1]
    assert str(tmp_path / "model.safetensors") in sentence
    assert "reading" not in run.stderr
    assert run.stdout.split() in (["rest"], [])


def test_a_device_is_not_replaced(fitted, capsys):
    assert main([str(word) for word in words_of("fit", fitted, "/dev/null")] + ["--force"]) == 2
    assert "/dev/null" in capsys.readouterr().err
