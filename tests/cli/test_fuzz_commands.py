"""Arguments and tables of chance: exit code 0 or 2, a sentence, never a traceback, and nothing half-written."""

import contextlib
import dataclasses
import io
import json
import subprocess

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet

from pathgp.cli import fitted as models
from pathgp.cli import main
from pathgp.thompson import loop

AS_OFTEN = settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NUMBERS = st.sampled_from(["0", "1", "-1", "0.5", "7", "nan", "inf", "1e400", "9" * 30, "1_000", "", "oak", "٣", "0x1"])
COLUMNS = st.sampled_from(["size", "colour", "age", "price", "y", "", " ", "--", "é", "size,age", "None"])
FILES = st.sampled_from(["{table}", "{model}", "{folder}", "{folder}/none.csv", "{folder}/x.parquet", "/dev/null", ""])
MADE = ("out", "out.csv", "out.csv.gz", "out.parquet", "out.png", "x.parquet", "none.csv")
OUTS = st.sampled_from(["{folder}/out.csv", "{folder}/out.csv.gz", "{folder}/out.parquet", "{folder}/out", "{table}"])


def option(name, *values):
    return st.tuples(st.just(name), *values).map(list)


SHARED = [option("--out", OUTS), option("--force"), option("--json"), option(""), option("--help")]
OPTIONS = {
    "fit": [
        *(option("--target", COLUMNS), option("--columns", COLUMNS, COLUMNS), option("--drop", COLUMNS)),
        *(option("--one-hot"), option("--one-hot", COLUMNS), option("--impute"), option("--kernel", COLUMNS)),
        *(option(name, NUMBERS) for name in ("--noise", "--num-samples", "--max-seconds", "--seed", "--test-share")),
        *(option(name, NUMBERS) for name in ("--points", "--memory", "--checkpoint-seconds", "--process-id")),
        *(option("--solver", COLUMNS), option("--solver", st.just("inducing")), option("--resume")),
        *(option("--checkpoint", FILES), option("--skip-missing")),
    ],
    "predict": [
        *(option("--quantiles", NUMBERS), option("--quantiles", NUMBERS, NUMBERS), option("--chunk", NUMBERS)),
        *(option("--keep", COLUMNS), option("--keep", COLUMNS, COLUMNS), option("--allow-unknown")),
    ],
    "sample": [
        *(option("--num-samples", NUMBERS), option("--chunk", NUMBERS), option("--keep", COLUMNS)),
        option("--allow-unknown"),
    ],
    "evaluate": [],
    "info": [],
    "suggest": [
        *(option("--n", NUMBERS), option("--seed", NUMBERS), option("--maximise"), option("--minimise")),
        *(option("--target", COLUMNS), option("--state", FILES), option("--pending", FILES), option("--bounds", FILES)),
    ],
    "plot": [option("--kind", st.sampled_from(["residuals", "relevance", "map", "posterior", "oak"]))],
    "data": [option("list"), option("list", COLUMNS)],
    "experiment": [
        *(option("list"), option("run", COLUMNS), option("report"), option("--scale", COLUMNS)),
        *(option("--minutes", NUMBERS), option("--only", COLUMNS)),
    ],
    "bench": [
        option("solve"),
        option("learn"),
        option("predict"),
        option("--n", NUMBERS),
        option("--dataset", COLUMNS),
    ],
}
LIKELY = {
    "fit": ["fit", "{table}", "--target", "price", "--out", "{folder}/out", "--one-hot"],
    "predict": ["predict", "{model}", "{table}", "--out", "{folder}/out.csv"],
    "sample": ["sample", "{model}", "{table}", "--out", "{folder}/out.csv"],
    "evaluate": ["evaluate", "{model}", "{table}"],
    "info": ["info", "{model}"],
    "suggest": ["suggest", "{table}", "--target", "price", "--bounds", "{bounds}"],
    "plot": ["plot", "{model}", "{table}", "--out", "{folder}/out.png"],
    "data": ["data", "list"],
    "experiment": ["experiment", "list"],
    "bench": ["bench", "solve", "--dataset", "none"],
}


@st.composite
def commands(draw):
    """A command that could be right, or files in any order; then options, each with values of chance."""
    name = draw(st.sampled_from([*LIKELY]))
    words = LIKELY[name] if draw(st.booleans()) else [name, *draw(st.lists(FILES, max_size=3))]
    extra = draw(st.lists(st.one_of(*OPTIONS[name], *SHARED), max_size=3))
    return [*words, *(word for words in extra for word in words)]


CELLS = st.sampled_from(
    [
        "1",
        "2.5",
        "-3",
        "red",
        "blue",
        "",
        "nan",
        "inf",
        "1e999",
        "true",
        "2020-01-01",
        "2020-01-01T00:00:00Z",
        '"a',
        "é",
        "0x",
    ]
)
HEADERS = st.sampled_from(
    ["size,colour,age,price", "price,age,colour,size", "size,colour,age", "a,b,c,d", "size,size,,"]
)
ROWS = st.lists(st.lists(CELLS, min_size=3, max_size=5).map(",".join), max_size=4)
GOOD = st.lists(st.tuples(st.floats(0, 200), st.sampled_from(["red", "blue"]), st.integers(0, 90), st.floats(-9, 9)))
TABLES = st.one_of(
    st.builds(lambda header, rows: "\n".join([header, *rows]).encode(), HEADERS, ROWS),
    GOOD.map(lambda rows: "\n".join(["size,colour,age,price", *(",".join(map(str, row)) for row in rows)]).encode()),
    st.text('ay,\n1."é\r;\t -', max_size=40).map(str.encode),
    st.binary(max_size=40),
)


RANGES = st.one_of(
    st.sampled_from(
        [[0, 200], [0, 90], {"integer": [0, 90]}, {"choices": ["red", "blue"]}, {"real": [1, 9], "log": True}]
    ),
    st.sampled_from([None, "oak", [], [1], [2, 1], [0, 0], ["a", "b"], {}, {"integer": [0.5, 2]}, {"choices": []}, 7]),
)
NAMED = st.dictionaries(st.sampled_from(["size", "colour", "age", "price", "é"]), RANGES, max_size=3)
BOUNDS = st.one_of(
    st.just({"size": [0, 200], "colour": {"choices": ["red", "blue"]}, "age": {"integer": [0, 90]}}).map(json.dumps),
    NAMED.map(json.dumps),
    RANGES.map(json.dumps),
    st.sampled_from(["", "{", "[" * 9999, '{"size": [NaN, 1]}', '{"size": [0, 1e999]}', "é"]),
)


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.iterdir()}


def run(words, folder, model):
    """The exit code, and what stands on stderr."""
    names = {"table": folder / "table.csv", "bounds": folder / "bounds.json", "folder": folder, "model": model}
    said, printed = io.StringIO(), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        try:
            code = main([word.format(**names) for word in words])
        except SystemExit as stop:  # argparse's own way to refuse, or to help
            code = stop.code
    return code, said.getvalue()


@pytest.fixture
def quick(fitted, monkeypatch):
    """Commands as they are, but for the learning and solving themselves, which other tests do."""
    learned = models.load(fitted.model)

    def learn(rows, scan, options, checkpoint):
        assert np.all(np.isfinite(rows.inputs))
        assert np.all(np.isfinite(rows.y))
        assert rows.X.shape == (len(rows.y), len(scan.encoding.inputs))
        return models.Fitted(learned.model, learned.encoding, {"rows": len(rows.y)})

    def designed(settings, state, num):
        points, end = loop.design(settings, state.designed, num, state.taken)
        return points, dataclasses.replace(state, designed=end)

    monkeypatch.setattr(models.Fitted, "fit", learn)
    monkeypatch.setattr("pathgp.thompson.loop.propose", designed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a benchmark was begun"))
    monkeypatch.setattr(models, "load", lambda path, load=models.load: learned if path == fitted.model else load(path))
    return fitted.model


@AS_OFTEN
@given(words=commands(), table=TABLES, bounds=BOUNDS)
def test_a_command_of_chance_ends_with_a_sentence(quick, tmp_path, words, table, bounds):
    folder = tmp_path
    for path in folder.iterdir():
        path.unlink()
    (folder / "table.csv").write_bytes(table)
    (folder / "bounds.json").write_text(bounds)
    before = snapshot(folder)
    code, said = run(words, folder, quick)
    assert code in (0, 2), (words, table, said)
    assert "Traceback" not in said
    after = snapshot(folder)
    if code == 2:
        assert after == before
        last = said.splitlines()[-1]
        assert last.startswith("pathgp")
        assert ": error: " in last or last.endswith("."), last
    assert after.keys() <= before.keys() | {folder / name for name in MADE}


@settings(AS_OFTEN, max_examples=50)
@given(rows=GOOD.filter(len))
def test_a_good_table_gets_a_prediction_for_every_row(quick, tmp_path, rows):
    table = "\n".join(["size,colour,age,price", *(",".join(map(str, row)) for row in rows)])
    (tmp_path / "table.csv").write_text(table)
    code, said = run(["predict", "{model}", "{table}", "--out", "{folder}/out.csv", "--force"], tmp_path, quick)
    assert (code, said) == (0, f"pathgp: wrote {len(rows):,} rows to {tmp_path}/out.csv.\n")
    written = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1, ndmin=2)
    assert written.shape == (len(rows), 2)
    assert np.all(np.isfinite(written))
    assert np.all(written[:, 1] > 0)


@AS_OFTEN
@given(data=st.data())
def test_a_damaged_parquet_file_is_read_or_refused(quick, tmp_path, data):
    """Parquet has no checksum, so that numbers may be others; what is written is whole all the same."""
    table = pa.table({"size": [90.0, 120.5, 60.0], "colour": ["red", "blue", "red"], "age": [1, 2, 3]})
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    content = bytearray(sink.getvalue())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[at] ^= data.draw(st.integers(1, 255))
    del content[data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content)))) :]
    (tmp_path / "table.parquet").write_bytes(content)
    (tmp_path / "out.csv").unlink(missing_ok=True)
    code, said = run(["predict", "{model}", "{folder}/table.parquet", "--out", "{folder}/out.csv"], tmp_path, quick)
    assert code in (0, 2), said
    assert (tmp_path / "out.csv").exists() == (code == 0)
    assert len(list(tmp_path.iterdir())) == 2 - (code == 2)
