"""`pathgp suggest`: the same suggestions as the loop in Python gives, from tables and JSON."""

import json
import re

import numpy as np
import pytest
from scipy.stats import qmc

pytest.importorskip("pyarrow")
import pyarrow.csv
import pyarrow.parquet

from pathgp import storage
from pathgp.cli import main
from pathgp.thompson import Categorical, Integer, Real, ThompsonSampler

BOUNDS = {
    "heat": [20, 80],
    "rate": {"real": [1e-3, 1.0], "log": True},
    "layers": {"integer": [1, 4]},
    "solvent": {"choices": ["water", "oil"]},
}
SPACE = [Real(20, 80), Real(1e-3, 1, log=True), Integer(1, 4), Categorical(("water", "oil"))]
FAILED = (3, 11)


def yields(rows):
    return [-(((h - 50) / 30) ** 2) - np.log10(r / 0.1) ** 2 - (k - 3) ** 2 + (s == "oil") for h, r, k, s in rows]


def write(path, rows, y, name="yield"):
    lines = [",".join(map(str, [*row, *([] if np.isnan(v) else [v])])) for row, v in zip(rows, y, strict=True)]
    lines = [line + "," * (line.count(",") < len(BOUNDS)) for line in lines]
    path.write_text("\n".join([",".join([*BOUNDS, name]), *lines]) + "\n")


def suggest(folder, *options, target="yield"):
    command = ["suggest", folder / "history.csv", "--bounds", folder / "bounds.json", "--target", target, *options]
    return main([str(word) for word in command])


@pytest.fixture(scope="module")
def told():
    """Thirty points, of which two failed."""
    rng = np.random.default_rng(0)
    rows = [
        (float(h.round(3)), float((10**r).round(5)), int(k), str(s))
        for h, r, k, s in zip(
            rng.uniform(20, 80, 30),
            rng.uniform(-3, 0, 30),
            rng.integers(1, 5, 30),
            rng.choice(["water", "oil"], 30),
            strict=True,
        )
    ]
    y = np.array(yields(rows))
    y[list(FAILED)] = np.nan
    return rows, y


@pytest.fixture(scope="module")
def folder(tmp_path_factory, told):
    """The tables, and two calls of the command that go on from each other, with what they printed."""
    place = tmp_path_factory.mktemp("search")
    (place / "bounds.json").write_text(json.dumps(BOUNDS))
    write(place / "history.csv", *told)
    return place


@pytest.fixture(scope="module")
def sampler(told):
    """The same in Python."""
    rows, y = told
    loop = ThompsonSampler(SPACE, random_state=5)
    loop.tell(rows, y)
    return loop


@pytest.fixture(scope="module")
def first(folder, sampler):
    out = folder / "next.csv"
    assert suggest(folder, "--n", "6", "--seed", "5", "--state", folder / "state", "--out", out) == 0
    return out, sampler.ask(6)


def rows_of(path):
    return [tuple(row.values()) for row in pyarrow.csv.read_csv(path).to_pylist()]


def test_suggestions_are_those_of_the_sampler(first):
    out, asked = first
    assert pyarrow.csv.read_csv(out).column_names == list(BOUNDS)
    found = rows_of(out)
    for row, expected in zip(found, asked, strict=True):
        assert row[2:] == tuple(expected[2:])
        np.testing.assert_allclose(row[:2], expected[:2].astype(float), rtol=1e-12)  # as text
        assert isinstance(row[2], int)
    assert np.mean(yields(found)) > np.mean(yields(_corners()))


def _corners():
    return [(h, r, k, s) for h in (20, 50, 80) for r in (1e-3, 1e-1, 1) for k in (1, 2, 3, 4) for s in ("water", "oil")]


def test_a_state_goes_on_and_knows_what_is_pending(folder, first, told, sampler, capsys):
    out, asked = first
    rows, y = told
    new = rows_of(out)[:4]
    values = np.array([*yields(new[:3]), np.nan])
    write(folder / "history.csv", [*rows, *new], [*y, *values])
    assert main(["info", str(folder / "state")]) == 2
    assert f"{folder / 'state'}" in capsys.readouterr().err
    assert suggest(folder, "--n", "6", "--seed", "5", "--state", folder / "state", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    write(folder / "history.csv", rows, y)
    sampler.tell(asked[:4], values)
    expected = sampler.ask(6)
    assert (result["results"], result["failed"], result["pending"]) == (31, 3, 2)
    assert result["suggestions"]["solvent"] == expected[:, 3].tolist()
    np.testing.assert_allclose(result["suggestions"]["heat"], expected[:, 0].astype(float), rtol=1e-9)
    assert result["out"] is None
    best = max(range(30), key=lambda i: np.nan_to_num(y[i], nan=-np.inf))
    top = max(float(y[best]), *values[:3])
    assert result["best"]["value"] == pytest.approx(top)


def test_what_is_pending_is_not_suggested_again(folder, first, told, capsys):
    out, _ = first
    assert suggest(folder, "--n", "6", "--pending", out, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["results"], result["failed"], result["pending"]) == (28, 2, 6)
    fresh = list(zip(*result["suggestions"].values(), strict=True))
    for row in fresh:
        for other in [*rows_of(out), *told[0]]:
            same = row[2:] == other[2:] and abs(row[0] - other[0]) < 6e-3 and abs(np.log(row[1] / other[1])) < 6.9e-4
            assert not same  # by less than 1e-4 of every range


def test_few_results_are_followed_by_points_that_fill_the_space(tmp_path, capsys):
    (tmp_path / "bounds.json").write_text('{"a": [0, 1], "b": [-1, 1]}')
    (tmp_path / "history.csv").write_text("a,b,note,y\n0.5,0.5,x,3\n0.25,0,x,1\n0.1,0.1,x,\n")
    out = tmp_path / "next.parquet"
    assert suggest(tmp_path, "--n", "5", "--direction", "minimize", "--out", out, "--seed", "7", target="y") == 0
    printed = capsys.readouterr()
    assert "'note'" in printed.err
    assert re.search("2 .* 1 .* 0 ", printed.out)  # finite, failed and pending
    assert "a = 0.25, b = 0.0" in printed.out
    table = pyarrow.parquet.read_table(out)
    sobol = qmc.Sobol(2, seed=7).random(8)[3:8]  # three rows are known already
    np.testing.assert_allclose(table["a"], sobol[:, 0], atol=1e-6)
    np.testing.assert_allclose(table["b"], 2 * sobol[:, 1] - 1, atol=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {"bounds.json", "history.csv", "next.parquet"}


def test_suggestions_with_names_that_need_quotes_are_read_back_as_pending(tmp_path, capsys):
    (tmp_path / "bounds.json").write_text(json.dumps({"rate, per hour": [0, 1], 'the "b"': {"integer": [1, 9]}}))
    (tmp_path / "history.csv").write_text('"rate, per hour","the ""b""",y\n0.5,3,1\n')
    out = tmp_path / "next.csv"
    assert suggest(tmp_path, "--n", "3", "--out", out, target="y") == 0
    capsys.readouterr()
    assert suggest(tmp_path, "--pending", out, "--json", target="y") == 0
    assert json.loads(capsys.readouterr().out)["pending"] == 3


def test_a_file_that_exists_is_kept_unless_forced(tmp_path, capfd):
    (tmp_path / "bounds.json").write_text('{"a": [0, 1]}')
    (tmp_path / "history.csv").write_text("a,y\n0.5,1\n")
    out = tmp_path / "next.csv"
    out.write_text("precious")
    assert suggest(tmp_path, "--out", out, target="y") == 2
    assert out.read_text() == "precious"
    assert suggest(tmp_path, "--out", out, "--force", target="y") == 0
    assert out.read_text().startswith("a\n0.")
    capfd.readouterr()
    assert suggest(tmp_path, target="y") == 0
    assert capfd.readouterr().out == out.read_text()


GOOD = "a,k,c,y\n0.5,1,red,1\n0.2,2,blue,2\n"
ABC = '{"a": [0, 1], "k": {"integer": [1, 3]}, "c": {"choices": ["red", "blue"]}}'


@pytest.mark.parametrize(
    ("history", "bounds", "options", "named"),
    [
        (GOOD, ABC, ["--target", "z"], "--target.*'z'"),
        (GOOD, ABC, ["--target", "a"], "--target 'a'"),
        (GOOD, ABC, ["--target", "c"], "--target 'c'"),
        (GOOD, '{"a": [0, 1]}', ["--target", "c"], "'c'"),
        (GOOD, ABC, ["--n", "0"], "--n"),
        (GOOD, ABC, ["--out", "{folder}/next.xlsx"], "next.xlsx"),
        (GOOD, ABC, ["--out", "{folder}/none/next.csv"], "/none"),
        (GOOD, ABC, ["--bounds", "{folder}/nowhere.json"], "nowhere.json"),
        (GOOD, ABC, ["--pending", "{folder}/nowhere.csv"], "nowhere.csv"),
        (GOOD, ABC, ["--pending", "{folder}/bounds.json"], "bounds.json"),
        (GOOD, ABC, ["--state", "{folder}/history.csv"], "history.csv"),
        (GOOD, "[[0, 1]]", [], "--bounds"),
        (GOOD, "{}", [], "--bounds"),
        (GOOD, '{"a": [0, 1]', [], "bounds.json"),
        (GOOD, '{"a": [1, 0]}', [], "'a'.* 1 .* 0"),
        (GOOD, '{"a": [1, 1]}', [], "'a'.* 1 .* 1"),
        (GOOD, '{"a": [0, Infinity]}', [], "'a'.* 0 .* inf"),
        (GOOD, '{"a": ["low", "high"]}', [], r'a.*\["low", "high"\]'),
        (GOOD, '{"a": {"real": [0, 1], "log": true}}', [], "low.* 0"),
        (GOOD, '{"a": {"real": [0, 1], "lgo": true}}', [], '"lgo": true'),
        (GOOD, '{"k": {"integer": [1, 2.5]}}', [], r"'k'.*\[1, 2\.5\]"),
        (GOOD, '{"c": {"choices": ["red"]}}', [], r"\['red'\]"),
        (GOOD, '{"c": {"choices": ["red", 1]}}', [], r"\['red', 1\]"),
        (GOOD, '{"c": {"choices": [null, null]}}', [], r"\[None, None\]"),
        (GOOD, '{"c": {"choices": ["red", "green"]}}', [], "'c'.*'blue'"),
        (GOOD, '{"a": [0, 1], "size": [0, 1]}', [], "'size'"),
        (GOOD, '{"c": [0, 1]}', [], "'c'"),
        (GOOD, '{"a": [0.3, 1]}', [], "'a'.* 0.2 .* 2"),
        (GOOD, '{"a": {"integer": [0, 1]}}', [], "'a'"),
        ("a,y\n0.5,1\n,2\n", '{"a": [0, 1]}', [], "'a'.* 2"),
        ("a,y\n", '{"a": [0, 1]}', [], "history.csv"),
        ("", '{"a": [0, 1]}', [], "history.csv"),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence_and_nothing_is_written(tmp_path, capfd, history, bounds, options, named):
    (tmp_path / "history.csv").write_text(history)
    (tmp_path / "bounds.json").write_text(bounds)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    words = [option.format(folder=tmp_path) for option in options]
    assert suggest(tmp_path, *words, target="y") == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert re.search(named, printed.err)
    assert printed.err.startswith("pathgp: ")
    assert printed.err.endswith(".\n")
    assert printed.err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("history", "options", "named"),
    [
        ("a,y\n0.5,1\n0.25,2\n", ["--minimise"], "state.safetensors"),
        ("a,y\n0.5,1\n0.25,2\n", ["--seed", "1"], "state.safetensors"),
        ("a,y\n0.25,2\n0.5,1\n", [], "history.csv.* 2 .*state.safetensors"),
        ("a,y\n0.5,1\n", [], "history.csv.* 2 .*state.safetensors"),
        ("a,y\n0.5,1\n0.25,\n", [], "history.csv.* 2 .*state.safetensors"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(tmp_path, capfd, history, options, named):
    (tmp_path / "bounds.json").write_text('{"a": [0, 1]}')
    (tmp_path / "history.csv").write_text("a,y\n0.5,1\n0.25,2\n")
    state = tmp_path / "state.safetensors"
    assert suggest(tmp_path, "--state", state, target="y") == 0
    before = state.read_bytes()
    (tmp_path / "history.csv").write_text(history)
    capfd.readouterr()
    assert suggest(tmp_path, "--state", state, *options, target="y") == 2
    assert re.search(named, capfd.readouterr().err)
    assert state.read_bytes() == before


def test_a_file_of_another_kind_is_no_state(tmp_path, capfd):
    (tmp_path / "bounds.json").write_text('{"a": [0, 1]}')
    (tmp_path / "history.csv").write_text("a,y\n0.5,1\n")
    loop = ThompsonSampler([(0.0, 1.0)])
    loop.save(tmp_path / "loop")
    storage.save(tmp_path / "model", Integer(1, 2), metadata={"kind": "model", "told": 1}, classes=(Integer,))
    for name in ("loop", "model"):
        before = (tmp_path / name).read_bytes()
        assert suggest(tmp_path, "--state", tmp_path / name, target="y") == 2
        assert f"--state {tmp_path / name}" in capfd.readouterr().err
        assert (tmp_path / name).read_bytes() == before
    assert suggest(tmp_path, "--state", tmp_path / "state", target="y") == 0
    with pytest.raises(ValueError, match="ThompsonSampler"):
        ThompsonSampler.load(tmp_path / "state")


def test_help_shows_the_json(capsys):
    with pytest.raises(SystemExit):
        main(["suggest", "--help"])
    printed = capsys.readouterr().out
    assert "examples:\n  pathgp suggest" in printed
    assert '{"integer": [1, 8]}' in printed
