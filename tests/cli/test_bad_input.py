"""What is wrong with the input is one sentence, exit code 2, no traceback, and nothing written."""

import json
import pickle
import re
import struct

import pytest

pytest.importorskip("pyarrow")

from pathgp.cli import main

GOOD = "a,b,y\n1,2,3\n2,1,4\n3,5,6\n4,4,9\n"
FIT = ["fit", "{data}", "--target", "y", "--out", "{out}"]
PREDICT = ["predict", "{model}", "{data}", "--out", "{table}"]
HEADER = "age,colour,size,price\n"


@pytest.mark.parametrize(
    ("text", "command", "named"),
    [
        # Tables that nothing can be learned from
        (GOOD, [*FIT, "--target", "price"], "--target.*'price'"),
        ("", FIT, "data.csv"),
        ("a,b,y\n", FIT, "data.csv"),
        ("a,b,y\n1,2,3\n", FIT, "data.csv has 1 "),
        ("a,b,y\n1,2,3\n4,5,6\n", [*FIT, "--test-share", "0.9"], "data.csv has 0 "),
        ("a,y\n1,7\n2,7\n3,7\n", FIT, "'y' is 7 "),
        ("a,y\n1,2\noak,3\n4,5\n", FIT, "'oak'.* 2"),
        ("a,y\nelm,2\noak,3\n4,5\n", FIT, "--one-hot a"),
        ("a,y\n1,2\ninf,3\n4,5\n", FIT, "'a'.* 1 "),
        ("a,a,y\n1,2,3\n4,5,6\n", FIT, "'a'"),
        ("a,y\n1,2\n,3\n4,5\n", FIT, "'a'.*1 of 3"),
        ("a,y\n1,2\n2,\n4,5\n", FIT, "'y'.*1 of 3"),
        ("a,y\n1,true\n2,false\n4,true\n", FIT, "'y'"),
        ("a,y\n1,2\n3\n4,5\n", FIT, "data.csv"),
        ("a,y\n10:30:00,2\n11:30:00,3\n", FIT, r"'a'.*time32\[s\]"),
        # Options that do not fit the table, or make no sense
        (GOOD, [*FIT, "--columns", "a", "y"], "--columns.*'y'"),
        (GOOD, [*FIT, "--columns", "size"], "--columns.*'size'"),
        (GOOD, [*FIT, "--drop", "a", "b"], "data.csv"),
        (GOOD, [*FIT, "--one-hot", "colour"], "--one-hot.*'colour'"),
        (GOOD, [*FIT, "--noise", "-1"], "noise"),
        (GOOD, [*FIT, "--kernel", "matern"], "'matern'"),
        (GOOD, [*FIT, "--test-share", "0.001"], "--test-share 0.001"),
        (GOOD, [*FIT, "--solver", "magic"], "'magic'"),
        (GOOD, [*FIT, "--num-samples", "0"], "--num-samples"),
        (GOOD, [*FIT, "--max-seconds", "-5"], "--max-seconds.*-5"),
        (GOOD, [*FIT, "--max-seconds", "nan"], "--max-seconds.*nan"),
        (GOOD, [*FIT, "--seed", "-1"], "--seed.*-1"),
        (GOOD, [*FIT, "--test-share", "1.5"], "--test-share.* 1.5"),
        # Files
        (GOOD, ["fit", "{folder}/nowhere.csv", *FIT[2:]], "nowhere.csv"),
        (GOOD, ["fit", "{folder}", *FIT[2:]], "{folder}"),
        (GOOD, [*FIT[:-1], "{folder}"], "{folder}"),
        (GOOD, [*FIT[:-1], "{folder}/none/model.safetensors"], "{folder}/none"),
        (GOOD, [*FIT[:-1], "{data}"], "--force"),
        # Rows that a model cannot predict
        (HEADER + "1,red,2,3\n", [*PREDICT[:-1], "{data}"], "--force"),
        (HEADER + "1,red,2,3\n", [*PREDICT[:-1], "{folder}/predictions.xlsx"], "predictions.xlsx"),
        ("size,age\n1,2\n", PREDICT, "'colour'"),
        (HEADER + "1,green,2,3\n", PREDICT, "'colour'.*'green'"),
        (HEADER + "1,red,,3\n", PREDICT, "'size'"),
        (HEADER + "1,red,oak,3\n", PREDICT, "'size'.*'oak'"),
        (HEADER, PREDICT, "data.csv"),
        (HEADER + "1,red,2,3\n", [*PREDICT, "--quantiles", "95"], "--quantiles.* 95"),
        (HEADER + "1,red,2,3\n", [*PREDICT, "--chunk", "0"], "--chunk"),
        (HEADER + "1,red,2,3\n", ["sample", *PREDICT[1:], "--num-samples", "65"], "--num-samples.*64.*65"),
        ("age,colour,size\n1,red,2\n", ["evaluate", "{model}", "{data}"], "'price'"),
        # Files that are no models
        (GOOD, ["predict", "{data}", "{data}"], "data.csv"),
        (GOOD, ["info", "{folder}/nowhere.safetensors"], r"nowhere\.safetensors"),
        (GOOD, ["info", "{pickle}"], "pickle"),
        (GOOD, ["info", "{future}"], "future.* 99"),
        (GOOD, ["info", "{foreign}"], "foreign"),
        (GOOD, ["info", "{truncated}"], "truncated"),
        # Pictures
        (GOOD, ["plot", "{model}", "--out", "{folder}/picture.doc"], "picture.doc"),
        (GOOD, ["plot", "{model}", "--kind", "map", "--out", "{picture}"], "map.* 2 .* 4"),
        (GOOD, ["plot", "{model}", "--kind", "calibration", "--out", "{picture}"], "--kind calibration"),
        (GOOD, ["plot", "{model}", "{data}", "--kind", "relevance", "--out", "{picture}"], "--kind relevance"),
        (GOOD, ["plot", "{model}", "{data}", "--kind", "convergence", "--out", "{picture}"], "--kind convergence"),
        # What would not be what it seems
        (GOOD, [*PREDICT, "--quantiles", "0.1", "0.10"], "--quantiles 0.1 0.1"),
        (GOOD, [*FIT, "--columns", "a", "--one-hot", "b"], "--one-hot.*'b'.*'a'"),
        (GOOD, ["suggest", "{data}", "--target", "y", "--bounds", "{data}", "--seed", "-1"], "--seed.*-1"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path, fitted, capfd, text, command, named):
    files = {name: tmp_path / name for name in ("pickle", "future", "foreign", "truncated")}
    data = tmp_path / "data.csv"
    data.write_text(text)
    content = fitted.model.read_bytes()
    files["pickle"].write_bytes(pickle.dumps({"weights": [1, 2, 3]}))
    files["truncated"].write_bytes(content[: len(content) // 2])
    files["future"].write_bytes(with_header(content, format_version="99"))
    files["foreign"].write_bytes(with_header(content, format="another"))
    names = {"data": data, "folder": tmp_path, "model": fitted.model, **files}
    names |= {"out": tmp_path / "out.safetensors", "table": tmp_path / "out.csv", "picture": tmp_path / "out.png"}
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([word.format(**names) for word in command]) == 2
    printed = capfd.readouterr()
    complaint = [
        line for line in printed.err.splitlines() if not line.startswith(("pathgp: reading", "pathgp: fitting"))
    ]
    assert len(complaint) == 1
    assert complaint[0].startswith("pathgp: ")
    assert re.search(named.format(**names), complaint[0])
    assert complaint[0].endswith(".")
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def with_header(content: bytes, **changes: str) -> bytes:
    """A safetensors file with other metadata."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] |= changes
    new = json.dumps(header).encode()
    return struct.pack("<Q", len(new)) + new + content[8 + length :]


def test_a_missing_library_is_named_with_what_to_install(tmp_path, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pathgp.cli.tables.files", raising=False)
    monkeypatch.delitem(sys.modules, "pathgp.cli.tables.encoding", raising=False)
    monkeypatch.delitem(sys.modules, "pathgp.cli.tables.infer", raising=False)
    monkeypatch.delitem(sys.modules, "pathgp.cli.fitted", raising=False)
    assert main(["fit", "train.csv", "--target", "y", "--out", str(tmp_path / "m")]) == 2
    assert re.fullmatch(r"pathgp: .*pip install pyarrow\.\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")]
)
def test_too_little_memory_is_said(fitted, tmp_path, monkeypatch, capsys, error):
    from pathgp.cli import fitted as models

    def fail(*_):
        raise error

    monkeypatch.setattr(models.Fitted, "fit", fail)
    command = ["fit", str(fitted.train), "--target", "price", "--one-hot", "--out", str(tmp_path / "model")]
    assert main(command) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("pathgp: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["demo", "fit", "predict", "sample", "evaluate", "info", "plot"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"examples:\n  pathgp {command}" in capsys.readouterr().out


def test_help_names_every_command_and_an_unknown_one_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for command in ("demo", "fit", "predict", "sample", "evaluate", "info", "plot", "bench"):
        assert f"\n    {command} " in printed
    with pytest.raises(SystemExit) as stop:
        main(["forecast"])
    assert stop.value.code == 2
    assert "'forecast'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "unknown", "nearest"),
    [
        (["fit", "x.csv", "--target", "y", "--out", "m", "--kernl", "rbf"], "--kernl rbf", "--kernel?"),
        (["predict", "a", "b", "extra"], "extra", ""),
    ],
)
def test_an_option_that_is_not_known_is_refused_by_the_command_with_the_nearest(words, unknown, nearest, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: pathgp {words[0]} ")
    error = said.splitlines()[-1]
    assert error.startswith(f"pathgp {words[0]}: error: ")
    assert unknown in error
    assert nearest in error


def test_a_message_is_never_so_long_that_its_end_is_out_of_sight():
    from pathgp.cli.common import one_line

    line = one_line("what is wrong " + "x" * 10**6 + "\n what to do")
    assert line.startswith("what is wrong xxx")
    assert line.endswith("xxx what to do")
    assert len(line) < 2100
    assert one_line("two\n lines") == "two lines"
