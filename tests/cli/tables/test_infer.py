"""Tables as they come: dates, gaps, texts that are new, other separators; and what is said about them."""

import datetime
import gzip
import os
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pathgp.cli import main
from pathgp.cli.tables import files as tables
from pathgp.cli.tables.infer import infer_encoding

GAPS = "size,colour,y\n1,red,1\n,red,2\n4,,3\n8,blue,\n16,blue,5\n"


@pytest.fixture
def written(tmp_path):
    def write(text, name="table.csv", encoding="utf-8"):
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    return write


def inputs(scan, path, **options):
    return np.concatenate([block.X for block in scan.encoding.blocks(path, **options)])


@pytest.mark.parametrize("zone", ["", "Z"])
def test_dates_are_days(written, zone):
    path = written(f"when,y\n1970-01-03T12:00:00{zone},1\n1969-12-31T00:00:00{zone},2\n2024-02-29T06:00:00{zone},3\n")
    days = (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days
    scan = infer_encoding(path, "y")
    np.testing.assert_allclose(inputs(scan, path)[:, 0], [2.5, -1, days + 0.25], rtol=1e-12)


def test_dates_of_every_format_are_the_same_days_and_gaps_are_filled(written, tmp_path):
    path = written("when,y\n2024-01-01,1\n2024-01-04,2\n2024-01-03,3\n")
    scan = infer_encoding(path, "y", impute=True)
    np.testing.assert_array_equal(np.diff(inputs(scan, path)[:, 0]), [3, -1])
    new = written("when\n\n2024-01-05\n".replace("\n\n", '\n""\n'), "new.csv")
    other = tmp_path / "new.parquet"
    dates = [None, datetime.date(2024, 1, 5)]
    for kind in (pa.date32(), pa.timestamp("ns"), pa.timestamp("s")):
        pq.write_table(pa.table({"when": pa.array(dates, pa.date32()).cast(pa.timestamp("ns")).cast(kind)}), other)
        np.testing.assert_array_equal(inputs(scan, other), inputs(scan, new))
    np.testing.assert_array_equal(inputs(scan, new)[1] - inputs(scan, new)[0], 2)  # the median is the third


def test_a_gap_gets_the_median_and_an_input_that_says_so(written):
    path = written(GAPS.replace("blue,\n", "blue,4\n"))
    scan = infer_encoding(path, "y", one_hot=[], impute=True)
    assert scan.encoding.inputs == ("size", "size is missing", "colour=blue", "colour=red", "colour is missing")
    expected = [[1, 0, 0, 1, 0], [6, 1, 0, 1, 0], [4, 0, 0, 0, 1], [8, 0, 1, 0, 0], [16, 0, 1, 0, 0]]
    np.testing.assert_array_equal(inputs(scan, path), expected)
    assert scan.missing == {"size": 1, "colour": 1}
    assert "replaced 2 missing values" in scan.notes[0]
    assert "'size' (1), 'colour' (1)" in scan.notes[0]
    assert [block.missing for block in scan.encoding.blocks(path, rows=2)] == [2, 0, 0]


def test_rows_with_a_gap_are_left_out(written):
    path = written(GAPS)
    scan = infer_encoding(path, "y", one_hot=[], skip_missing=True)
    assert (scan.rows, scan.skipped, scan.missing) == (2, 3, {})
    assert scan.notes == ["left out 3 rows with a missing value."]
    assert scan.encoding.inputs == ("size", "colour=blue", "colour=red")
    rows = scan.encoding.read(path, count=2, skip_missing=True)
    np.testing.assert_array_equal(rows.inputs, [[1, 0, 1], [16, 1, 0]])
    np.testing.assert_array_equal(rows.y, [1, 5])
    with pytest.raises(ValueError, match="'size'"):
        inputs(scan, path)


def test_a_text_that_is_not_known_is_none_of_those_that_are_if_that_is_allowed(written):
    scan = infer_encoding(written("colour,y\nred,1\nblue,2\n"), "y", one_hot=[])
    new = written("colour\ngreen\nred\n", "new.csv")
    with pytest.raises(ValueError, match=r"'colour'.*'green'.*--allow-unknown"):
        inputs(scan, new)
    np.testing.assert_array_equal(inputs(scan, new, allow_unknown=True), [[0, 0], [0, 1]])


def test_columns_are_kept_as_they_are(written, tmp_path):
    scan = infer_encoding(written("x,y\n1,1\n2,2\n"), "y")
    new = written("id,x,y\n007,1.50,oak\nNA,2,\n,3,elm\n", "new.csv")
    blocks = list(scan.encoding.blocks(new, rows=2, keep=["x", "id"]))
    assert [block.kept["id"].to_pylist() for block in blocks] == [["007", "NA"], [""]]
    assert [block.kept["x"].to_pylist() for block in blocks] == [["1.50", "2"], ["3"]]
    assert [block.X[:, 0].tolist() for block in blocks] == [[1.5, 2], [3]]
    pq.write_table(pa.table({"x": [1.0, 2.0], "id": pa.array([7, 8], pa.int64())}), tmp_path / "new.parquet")
    (block,) = scan.encoding.blocks(tmp_path / "new.parquet", keep=["id"])
    assert block.kept["id"].type == pa.int64()
    with pytest.raises(ValueError, match=r"'key'.*--keep"):
        inputs(scan, new, keep=["key"])


@pytest.mark.parametrize(
    "text",
    [
        "a;name, of it;y\n1,5;x,y;2\n-2,25;z;3,5\n",
        "a\tname, of it\ty\n1.5\tx,y\t2\n-2.25\tz\t3.5\n",
        '"a";"name, of it";"y"\r\n"1,5";"x,y";"2"\r\n"-2,25";"z";"3,5"\r\n',
        'a,"name, of it",y\n1.5,"x,y",2\n-2.25,z,3.5\n',
        "sep=;\r\na;name, of it;y\r\n1,5;x,y;2\r\n-2,25;z;3,5\r\n",
        "\ufeffsep=\t\na\tname, of it\ty\n1.5\tx,y\t2\n-2.25\tz\t3.5\n",
    ],
    ids=["semicolons", "tabs", "quotes", "commas", "sep=;", "sep=tab"],
)
def test_separators_and_decimal_points_are_told_from_the_file(written, text):
    path = written(text)
    scan = infer_encoding(path, "y", one_hot=[])
    assert scan.encoding.inputs == ("a", "name, of it=x,y", "name, of it=z")
    rows = scan.encoding.read(path)
    np.testing.assert_array_equal(rows.inputs, [[1.5, 1, 0], [-2.25, 0, 1]])
    np.testing.assert_array_equal(rows.y, [2, 3.5])


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("table.csv", gzip.compress(b"x,y\n1,2\n", mtime=0), r"table\.csv .*\.csv\.gz"),
        ("table.csv.gz", b"x,y\n1,2\n", r"table\.csv\.gz"),
        ("table.csv", "x,y\n1,2\n".encode("utf-16"), r"table\.csv.*-f utf-16 -t utf8"),
    ],
)
def test_bytes_that_are_not_what_the_name_says_are_a_sentence(tmp_path, capsys, name, content, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=named):
        infer_encoding(tmp_path / name, "y")
    assert main(["fit", str(tmp_path / name), "--target", "y", "--out", str(tmp_path / "model")]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "reading" not in line]
    assert len(said) == 1
    assert re.search(named, said[0])


def test_a_pipe_is_not_said_to_be_missing(tmp_path):
    os.mkfifo(tmp_path / "table.csv")
    with pytest.raises(ValueError, match=r"table\.csv"):
        infer_encoding(tmp_path / "table.csv", "y")


def test_another_encoding_is_a_sentence(written):
    with pytest.raises(ValueError, match=r"table\.csv.*`iconv -f latin1 -t utf8 table.csv`"):
        infer_encoding(written("area (m²),y\n1,2\n", encoding="latin1"), "y")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x;kg;m,y\n1,2\n", (",", ".", 0)),
        ("size, m;price, k\n1,5;2\n", (";", ",", 0)),
        ("a;b\n1,5e-3;2\n", (";", ",", 0)),
        ("a;b\n1,5;2.5\n", (";", ".", 0)),
        ("a\n1\n", (",", ".", 0)),
        ("", (",", ".", 0)),
        ("sep=,\na;b,y\n1,2\n", (",", ".", 1)),
        ("sep=;y\n1;2\n", (";", ".", 0)),
    ],
)
def test_the_separator_is_what_lines_have_equally_often(written, text, expected):
    assert tables.dialect(written(text)) == expected


def test_zones_are_not_mixed(written, tmp_path):
    naive = infer_encoding(written("when,y\n2024-01-01,1\n2024-01-04,2\n"), "y")
    zoned = infer_encoding(written("when,y\n2024-01-01T00:00Z,1\n2024-01-04T00:00Z,2\n", "zoned.csv"), "y")
    day = pa.array([datetime.datetime(2024, 1, 5)], pa.timestamp("s"))
    for scan, type in ((naive, pa.timestamp("s", "Europe/Berlin")), (zoned, pa.timestamp("s"))):
        pq.write_table(pa.table({"when": day.cast(type)}), tmp_path / "new.parquet")
        with pytest.raises(ValueError, match="'when'"):
            inputs(scan, tmp_path / "new.parquet")
    with pytest.raises(ValueError, match=r"'when'.*'2024-01-05"):
        inputs(zoned, written("when\n2024-01-05T00:00\n", "new.csv"))


def test_a_day_without_end_is_a_day(written):
    path = written("until,y\n9999-12-31,1\n2024-01-01,2\n")
    days = (datetime.date(9999, 12, 31) - datetime.date(1970, 1, 1)).days
    assert inputs(infer_encoding(path, "y"), path)[0, 0] == days


def test_gaps_and_other_numbers_are_no_truth_values(written, tmp_path):
    scan = infer_encoding(written("flag,y\ntrue,1\nfalse,2\n"), "y")
    for values, named in (([1.0, np.nan], "'flag'.* 1 "), ([0.0, 2.0], "'flag'.* 2")):
        pq.write_table(pa.table({"flag": pa.array(values)}), tmp_path / "new.parquet")
        with pytest.raises(ValueError, match=named):
            inputs(scan, tmp_path / "new.parquet")
    pq.write_table(pa.table({"flag": [1, 0]}), tmp_path / "new.parquet")
    np.testing.assert_array_equal(inputs(scan, tmp_path / "new.parquet")[:, 0], [1, 0])


def test_the_index_of_pandas_is_no_input(tmp_path):
    pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0]}, index=[5, 9]).to_parquet(tmp_path / "table.parquet")
    assert infer_encoding(tmp_path / "table.parquet", "y").encoding.inputs == ("x",)


def test_tables_without_rows_and_names_that_would_be_there_twice(written, tmp_path):
    pq.write_table(pa.table({"a": pa.array([], pa.string()), "y": pa.array([], pa.float64())}), tmp_path / "no.parquet")
    with pytest.raises(ValueError, match="'a'"):
        infer_encoding(tmp_path / "no.parquet", "y")
    with pytest.raises(ValueError, match="'a is missing'"):
        infer_encoding(written("a,a is missing,y\n1,2,3\n,4,5\n"), "y", impute=True)
    with pytest.raises(ValueError, match=r"'b'.*2 of 2"):
        infer_encoding(written("a,b,y\n1,,3\n,,5\n"), "y", skip_missing=True)


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (pd.DataFrame({"when": [19000, 19001], "size": [1.0, 2.0]}), "'when'"),
        (pd.DataFrame({"when": pd.to_datetime(["2024-01-01"]), "size": ["1.5"]}), "'size'"),
        (np.ones((2, 2)), "frame"),
    ],
)
def test_a_frame_is_refused_where_a_file_would_be(written, frame, named):
    scan = infer_encoding(written("when,size,y\n2024-01-01,1,1\n2024-01-04,2,2\n"), "y")
    with pytest.raises(ValueError, match=named):
        scan.encoding.matrix(frame)


def test_categories_of_pandas_and_polars_are_texts(written):
    scan = infer_encoding(written("colour,y\nred,1\nblue,2\n"), "y", one_hot=[])
    for frame in (
        pd.DataFrame({"colour": pd.Categorical(["red", "blue"])}),
        pl.DataFrame({"colour": ["red", "blue"]}, schema={"colour": pl.Categorical}),
    ):
        np.testing.assert_array_equal(scan.encoding.matrix(frame), [[0, 1], [1, 0]])


@pytest.mark.parametrize("library", [pd, pl])
def test_a_data_frame_becomes_the_matrix_of_its_table(written, library):
    path = written(
        "size,colour,when,sold,y\n1,red,2024-01-01,true,1\n,blue,2024-01-04,false,2\n4,red,2024-01-02,true,3\n"
    )
    scan = infer_encoding(path, "y", one_hot=[], impute=True)
    frame = pd.read_csv(path, parse_dates=["when"])
    frame = frame if library is pd else pl.from_pandas(frame)
    np.testing.assert_array_equal(scan.encoding.matrix(frame), inputs(scan, path))
    with pytest.raises(ValueError, match=r"'size'.*'when'"):
        scan.encoding.matrix(frame[["colour", "sold"]])
