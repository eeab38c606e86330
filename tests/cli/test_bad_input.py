"""What is wrong with the input is one sentence, exit code 2, no traceback, and nothing written."""

import json
import pickle
import struct

import pytest

pytest.importorskip("pyarrow")

from pathgp.cli import main

GOOD = "a,b,y\n1,2,3\n2,1,4\n3,5,6\n4,4,9\n"
FIT = ["fit", "{data}", "--target", "y", "--out", "{out}"]
PREDICT = ["predict", "{model}", "{data}", "--out", "{table}"]
HEADER = "age,colour,size,price\n"


@pytest.mark.parametrize(
    ("text", "command", "sentence"),
    [
        # Tables that nothing can be learned from
        (GOOD, [*FIT, "--target", "price"], "--target names 'price', but the columns of"),
        ("", FIT, "is empty: it must have a header and rows"),
        ("a,b,y\n", FIT, "has no rows below its header"),
        ("a,b,y\n1,2,3\n", FIT, "data.csv has 1 training row: "),
        ("a,b,y\n1,2,3\n4,5,6\n", [*FIT, "--test-share", "0.9"], "data.csv has 0 training rows: "),
        ("a,y\n1,7\n2,7\n3,7\n", FIT, "the target 'y' is 7 in every row"),
        ("a,y\n1,2\noak,3\n4,5\n", FIT, "'oak' in row 2"),
        ("a,y\nelm,2\noak,3\n4,5\n", FIT, "--one-hot a, or"),
        ("a,y\n1,2\ninf,3\n4,5\n", FIT, "column 'a' has 1 infinite value"),
        ("a,a,y\n1,2,3\n4,5,6\n", FIT, "more than one column named 'a'"),
        ("a,y\n1,2\n,3\n4,5\n", FIT, "'a' (1 of 3)"),
        ("a,y\n1,2\n2,\n4,5\n", FIT, "the target 'y' is missing in 1 of 3 rows"),
        ("a,y\n1,true\n2,false\n4,true\n", FIT, "the target 'y' holds boolean, where numbers are needed"),
        ("a,y\n1,2\n3\n4,5\n", FIT, "cannot be read: Expected 2 columns, got 1: 3"),
        ("a,y\n10:30:00,2\n11:30:00,3\n", FIT, "'a' holds time32[s]"),
        # Options that do not fit the table, or make no sense
        (GOOD, [*FIT, "--columns", "a", "y"], "--columns names 'y', but that is the target"),
        (GOOD, [*FIT, "--columns", "size"], "--columns names 'size', but the columns of"),
        (GOOD, [*FIT, "--drop", "a", "b"], "no column left for an input"),
        (GOOD, [*FIT, "--one-hot", "colour"], "--one-hot names 'colour'"),
        (GOOD, [*FIT, "--noise", "-1"], "noise must be"),
        (GOOD, [*FIT, "--kernel", "matern"], "rational_quadratic, but it is 'matern'"),
        (GOOD, [*FIT, "--test-share", "0.001"], "--test-share 0.001 of 4 rows"),
        (GOOD, [*FIT, "--solver", "magic"], "'magic'"),
        (GOOD, [*FIT, "--num-samples", "0"], "--num-samples must be at least 1"),
        (GOOD, [*FIT, "--max-seconds", "-5"], "--max-seconds must be at least 0"),
        (GOOD, [*FIT, "--max-seconds", "nan"], "--max-seconds must be at least 0, but it is nan"),
        (GOOD, [*FIT, "--seed", "-1"], "4294967295, but it is -1"),
        (GOOD, [*FIT, "--test-share", "1.5"], "--test-share must be at least 0 and below 1"),
        # Files
        (GOOD, ["fit", "{folder}/nowhere.csv", *FIT[2:]], "nowhere.csv does not exist"),
        (GOOD, ["fit", "{folder}", *FIT[2:]], "is a folder"),
        (GOOD, [*FIT[:-1], "{folder}"], "is a folder"),
        (GOOD, [*FIT[:-1], "{folder}/none/model.safetensors"], "none does not exist"),
        (GOOD, [*FIT[:-1], "{data}"], "--force"),
        # Rows that a model cannot predict
        (HEADER + "1,red,2,3\n", [*PREDICT[:-1], "{data}"], "--force"),
        (HEADER + "1,red,2,3\n", [*PREDICT[:-1], "{folder}/predictions.xlsx"], "must end in .csv, .csv.gz or .parquet"),
        ("size,age\n1,2\n", PREDICT, "lacks 'colour', which the model needs"),
        (HEADER + "1,green,2,3\n", PREDICT, "column 'colour' has the unseen category 'green'"),
        (HEADER + "1,red,,3\n", PREDICT, "column 'size' has 1 missing value"),
        (HEADER + "1,red,oak,3\n", PREDICT, "column 'size' holds 'oak', where a number is expected"),
        (HEADER, PREDICT, "has no rows below its header"),
        (HEADER + "1,red,2,3\n", [*PREDICT, "--quantiles", "95"], "but one is 95"),
        (HEADER + "1,red,2,3\n", [*PREDICT, "--chunk", "0"], "--chunk must be at least 1"),
        (HEADER + "1,red,2,3\n", ["sample", *PREDICT[1:], "--num-samples", "65"], "from 1 to 64"),
        ("age,colour,size\n1,red,2\n", ["evaluate", "{model}", "{data}"], "lacks 'price'"),
        # Files that are no models
        (GOOD, ["predict", "{data}", "{data}"], "data.csv is not a complete safetensors file"),
        (GOOD, ["info", "{folder}/nowhere.safetensors"], "nowhere.safetensors is not a file"),
        (GOOD, ["info", "{pickle}"], "pickle is not a complete safetensors file"),
        (GOOD, ["info", "{future}"], "reads formats up to 1: update pathgp"),
        (GOOD, ["info", "{foreign}"], "foreign is a safetensors file"),
        (GOOD, ["info", "{truncated}"], "truncated is not a complete safetensors file"),
        # Pictures
        (GOOD, ["plot", "{model}", "--out", "{folder}/picture.doc"], "must end in .png, .pdf or .svg"),
        (GOOD, ["plot", "{model}", "--kind", "map", "--out", "{picture}"], "a model with 2 inputs, but this one has 4"),
        (GOOD, ["plot", "{model}", "--kind", "calibration", "--out", "{picture}"], "needs a table with known targets"),
        (GOOD, ["plot", "{model}", "{data}", "--kind", "relevance", "--out", "{picture}"], "relevance plots only"),
        (GOOD, ["plot", "{model}", "{data}", "--kind", "convergence", "--out", "{picture}"], "convergence plots only"),
        # What would not be what it seems
        (GOOD, [*PREDICT, "--quantiles", "0.1", "0.10"], "--quantiles 0.1 0.1 has duplicates"),
        (GOOD, [*FIT, "--columns", "a", "--one-hot", "b"], "--one-hot names 'b', which is not among the inputs 'a'"),
        (GOOD, ["suggest", "{data}", "--target", "y", "--bounds", "{data}", "--seed", "-1"], "--seed must be from 0"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path, fitted, capfd, text, command, sentence):
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
    assert sentence in complaint[0]
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
    assert capsys.readouterr().err == "pathgp: pyarrow is not installed: pip install pyarrow.\n"


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
    assert capsys.readouterr().err.splitlines()[-1].startswith("pathgp: not enough memory")
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
    assert "invalid choice: 'forecast'" in capsys.readouterr().err


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
