import gzip
import io
import json
import pathlib
import pickle
import re

import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq

from pathgp.cli.tables import files as tables
from pathgp.cli.tables.encoding import Encoding
from pathgp.cli.tables.infer import infer_encoding


def written(folder: pathlib.Path, text: str, name: str = "table.csv") -> pathlib.Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


MIXED = "size,colour,y,sold\n1,red,0.5,true\n2,blue,1.5,false\n4,red,2.5,true\n"
MIXED_INPUTS = [[1, 0, 1, 1], [2, 1, 0, 0], [4, 0, 1, 1]]  # size, colour=blue, colour=red, sold


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.parquet"])
def test_the_same_matrix_from_every_format(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        columns = {
            "size": [1, 2, 4],
            "colour": ["red", "blue", "red"],
            "y": [0.5, 1.5, 2.5],
            "sold": [True, False, True],
        }
        table = pa.table(columns)
        pq.write_table(table.set_column(1, "colour", table["colour"].dictionary_encode()), path)
    else:
        written(tmp_path, MIXED, name)
    encoding = infer_encoding(path, "y", one_hot=[])[0]
    assert encoding.inputs == ("size", "colour=blue", "colour=red", "sold")
    rows = encoding.read(path)
    assert rows.X.dtype == np.float32
    np.testing.assert_array_equal(rows.inputs, MIXED_INPUTS)
    np.testing.assert_array_equal(rows.y, [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(rows.some(np.array([2, 0])).inputs, [MIXED_INPUTS[2], MIXED_INPUTS[0]])


def test_far_from_zero_a_column_keeps_what_it_varies_by_in_single_precision(tmp_path):
    seconds = 1.7e9 + np.arange(0.0, 1.0, 0.001)
    path = tmp_path / "table.npy"
    np.save(path, np.column_stack([seconds, seconds]))
    rows = infer_encoding(path, "1")[0].read(path)
    assert rows.X.dtype == np.float32
    np.testing.assert_allclose(rows.inputs[:, 0], seconds, rtol=0, atol=2e-7)  # the spacing of float64 there


def test_a_column_that_varies_by_rounding_alone_is_constant(tmp_path):
    path = written(tmp_path, "a,b,y\n0.3,1,1\n0.30000000000000004,2,2\n")
    rows = infer_encoding(path, "y")[0].read(path)
    np.testing.assert_array_equal(rows.X, [[0, -1], [0, 0]])
    assert rows.origin[1] == 2


def test_a_first_row_unlike_the_others_takes_no_precision_from_them(tmp_path):
    seconds = np.r_[0.0, 1.7e9 + np.arange(100.0)]
    path = tmp_path / "table.npy"
    np.save(path, np.column_stack([seconds, seconds]))
    np.testing.assert_array_equal(infer_encoding(path, "1")[0].read(path).inputs[1:, 0], seconds[1:])


def test_values_that_single_precision_cannot_hold_are_refused_by_name(tmp_path):
    path = written(tmp_path, "a,b,y\n1,2,1\n2,1e200,2\n3,-1e200,3\n")
    with pytest.raises(ValueError, match="'b'"):
        infer_encoding(path, "y")[0].read(path)


def test_an_encoding_survives_json_and_finds_columns_by_name(tmp_path):
    encoding = infer_encoding(written(tmp_path, MIXED), "y", one_hot=["colour"], impute=True)[0]
    same = Encoding.from_json(json.loads(json.dumps(encoding.as_json())))
    assert same == encoding
    other = written(tmp_path, "sold,extra,colour,size\nfalse,x,blue,2\n1,z,,\n", "other.csv")
    (block,) = same.blocks(other)
    np.testing.assert_array_equal(
        block.X, [[2, 1, 0, 0], [2, 0, 1, 1]]
    )  # the median of 1, 2, 4 and the more frequent red
    assert len(block.y) == 2


@pytest.mark.parametrize("rows", ["1,2\n", "1,2\n" * 9])
def test_a_table_that_changes_while_it_is_read_is_refused(rows, tmp_path):
    path = written(tmp_path, "a,y\n1,2\n3,4\n")
    encoding, count, *_ = infer_encoding(path, "y")
    assert count == 2
    written(tmp_path, "a,y\n" + rows)
    with pytest.raises(ValueError, match=" 2 "):
        encoding.read(path, count=count)


def test_a_median_needs_no_more_than_some_of_the_values(tmp_path, monkeypatch):
    monkeypatch.setattr("pathgp.cli.tables.infer.MOST_VALUES", 1000)
    values = np.random.default_rng(0).permutation(20_001)
    path = written(tmp_path, "a,b,y\n" + "".join(f"{v},{'' if v % 2 else 7},1\n" for v in values))
    encoding = infer_encoding(path, "y", impute=True).encoding
    a, b = (column.fill for column in encoding.columns)
    assert a == pytest.approx(10_000, abs=4 * 20_001 / 2 / np.sqrt(500))  # four standard errors of 500 values
    assert a != 10_000
    assert b == 7
    mostly = written(tmp_path, "a,y\n" + "".join(f"{'' if i else 3},1\n" for i in range(30_000)), "mostly.csv")
    assert infer_encoding(mostly, "y", impute=True)[0].columns[0].fill == 3


def test_columns_are_picked_or_dropped(tmp_path):
    path = written(tmp_path, "a,b,c,y\n1,2,x,3\n4,5,z,6\n")
    assert infer_encoding(path, "y", columns=["b", "a"])[0].inputs == ("b", "a")
    assert infer_encoding(path, "y", drop=["c", "a"])[0].inputs == ("b",)
    np.testing.assert_array_equal(infer_encoding(path, "y", columns=["b", "a"])[0].read(path).inputs, [[2, 1], [5, 4]])


def test_whole_numbers_that_turn_into_fractions_far_down(tmp_path):
    rows = 300_000  # more than the first million bytes, by which Arrow judges
    text = "a,y\n" + "1,2\n" * rows + "1.5,2.5\n"
    path = written(tmp_path, text)
    read = infer_encoding(path, "y")[0].read(path)
    assert read.inputs.sum() == rows + 1.5
    assert read.y.sum() == 2 * rows + 2.5
    with pytest.raises(ValueError, match=r"'a'.*'oak'.*\d"):
        infer_encoding(written(tmp_path, text + "oak,1\n", "late.csv"), "y")


def test_blocks_have_the_same_rows_whatever_their_size(tmp_path):
    values = np.random.default_rng(0).normal(size=(1000, 2))
    path = tmp_path / "table.csv"
    np.savetxt(path, values, delimiter=",", header="a,y", comments="", fmt="%.17g")
    encoding = infer_encoding(path, "y")[0]
    for rows, sizes in ((300, [300, 300, 300, 100]), (500, [500, 500]), (2000, [1000])):
        blocks = list(encoding.blocks(path, with_target=True, rows=rows))
        assert [len(block.X) for block in blocks] == sizes
        np.testing.assert_array_equal(np.concatenate([block.X[:, 0] for block in blocks]), values[:, 0])
        np.testing.assert_array_equal(np.concatenate([block.y for block in blocks]), values[:, 1])


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_a_table_is_written_in_pieces_and_appears_whole(tmp_path, name):
    path = tmp_path / name
    with tables.table_writer(path, None) as write:
        write({"mean": np.array([1.5, 2.0]), "sd": np.array([0.1, 0.2])})
        write({"mean": np.array([3.0]), "sd": np.array([0.3])})
        assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == [name]
    batches = tables.read_batches(path, {"sd": "number", "mean": "number"})
    assert pa.Table.from_batches(batches).to_pydict() == {"sd": [0.1, 0.2, 0.3], "mean": [1.5, 2.0, 3.0]}


def test_a_failure_while_writing_leaves_nothing(tmp_path):
    def fail():
        with tables.table_writer(tmp_path / "out.parquet", None) as write:
            write({"mean": np.array([1.5])})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not list(tmp_path.iterdir())


def test_standard_output_gets_a_csv():
    sink = io.BytesIO()
    with tables.table_writer(None, sink) as write:
        write({"mean": np.array([1.5]), "sd": np.array([0.25])})
    assert sink.getvalue() == b"mean,sd\n1.5,0.25\n"


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_names_of_columns_that_need_quotes_are_read_back(tmp_path, name):
    columns = {"size, in m": [1.5, 2.5], 'the "best"': [1.0, 2.0], "two\nlines": [3.0, 4.0], "plain": [5.0, 6.0]}
    with tables.table_writer(tmp_path / name, None) as write:
        write({name: np.array(values) for name, values in columns.items()})
    kinds = tables.column_kinds(tmp_path / name)
    assert kinds == dict.fromkeys(columns, "number")
    assert pa.Table.from_batches(tables.read_batches(tmp_path / name, kinds)).to_pydict() == columns


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        ("", {}, r"table\.csv"),
        ("a,y", {}, r"table\.csv"),
        ("a,y\n", {}, r"table\.csv"),
        ("a,a,y\n1,2,3\n", {}, "'a'"),
        ("a,b\n1,2\n", {}, "--target.*'y'.*'a'.*'b'"),
        ("a,y\n1,2\n", {"columns": ["z"]}, "--columns.*'z'"),
        ("a,y\n1,2\n", {"columns": ["a", "y"]}, "--columns.*'y'"),
        ("a,y\n1,2\n", {"columns": ["a", "a"]}, "--columns.*'a'"),
        ("a,y\n1,2\n", {"drop": ["z"]}, "--drop.*'z'"),
        ("a,y\n1,2\n", {"drop": ["a"]}, r"table\.csv"),
        ("a,y\n1,2\n", {"one_hot": ["z"]}, "--one-hot.*'z'"),
        ("a,y\nx,2\nz,3\n", {}, "'a'.*--one-hot a.*--drop a"),
        ("a,y\n1,x\n2,z\n", {}, "'y'"),
        ("a,y\n1,2020-01-01\n", {}, "'y'"),
        ("a,y\n12:30:00,1\n", {}, r"'a'.*time32\[s\].*--drop a"),
        ("area (m²),y\noak,2\n", {}, r"'area \(m²\)'.*--one-hot 'area \(m²\)'.*--drop 'area"),
        ("a,b,y\nx,1,p\nz,n.a.,q\nw,3,r\n", {}, "'y'.*'b'.*'n.a.'.* 2.*'a'"),
        ("a,y\n1,\n2,2\n", {}, "'y'.*1 of 2.*--skip-missing"),
        ("a,y\n1,\n,2\n", {"skip_missing": True}, r"table.csv.*'a'.*\(1 of 2\)"),
        ("a,b,y\n,1,1\n3,,2\n,5,3\n", {}, r"'a' \(2 of 3\).*'b' \(1 of 3\).*--impute"),
        ("a,y\n,1\n,2\n", {"impute": True}, "'a'"),
        ("a,y\n1,\n2,2\n", {"impute": True}, "'y'.*1 of 2"),
        ("a,y\ninf,1\n-inf,2\n", {}, "'a'.* 2 "),
        ("a,y\n1,inf\n2,2\n", {}, "'y'"),
        ("a,y\n1,2\n3\n", {}, r"table\.csv"),  # it counts on one core alone
        (
            "a,y\n" + "".join(f"id{i},1\n" for i in range(101)),
            {"one_hot": []},
            "'a'.* 100 ",
        ),
    ],
)
def test_bad_tables_get_a_sentence(tmp_path, text, options, named):
    with pytest.raises(ValueError, match=named) as refused:
        infer_encoding(written(tmp_path, text), "y", **options)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("size,sold\n1,true\n", "'colour'"),
        ("size,colour,sold\n1,green,true\n", "'colour'.*'green'.*'blue'.*'red'"),
        ("size,colour,sold\n,red,true\n", "'size'"),
        ("size,colour,sold\n1,,true\n", "'colour'"),
        ("size,colour,sold\noak,red,true\n", "'size'.*'oak'"),
        ("size,colour,sold\n1,red,maybe\n", "'sold'.*'maybe'"),
        ("size,colour,sold\ninf,red,true\n", "'size'"),
    ],
)
def test_rows_unlike_those_of_the_fit_get_a_sentence(tmp_path, text, named):
    encoding = infer_encoding(written(tmp_path, MIXED), "y", one_hot=[])[0]
    with pytest.raises(ValueError, match=named):
        list(encoding.blocks(written(tmp_path, text, "new.csv")))


LONG = "5,6\n" * 300_000


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a,y\n1,2\n" + "x" * 300_000 + ",3\n1,2\n", "'a'.*'xxx"),  # a long value
        ("a,y\n" + "1,2\n" * 9 + '"' + LONG[:100_000] + '",2\n', "'a'.*'5,6"),
        ("a,y\n" + "1,2\n" * 300_000 + "x" * 300_000 + ",2\n", "'a'.*'xxx"),  # below what is looked at
        ("a,y\n" + "1,2\n" * 300_000 + '"' + LONG[:100_000] + '",2\n', "'a'.*'5,6"),
        ("a" * 300_000 + ",y\n1,2\n", "column 1 .*300,000"),
        ('a,"y\n1,2\n' + LONG[:100_000] + '"\n', "column 2 .*100,006"),
        ('a,"y\n1,2\n' + LONG, r"table\.csv"),
        ("a,y\n" + "1,2\n" * 9 + '1,"2\n' + LONG, r"table\.csv"),
        ("a,y\n1,2\n" + '1,"2\n' + LONG + LONG, r"table\.csv"),
        ("a,y\n1," + "2," * 200_000 + "\n", r"table\.csv"),
    ],
)
def test_what_is_wrong_is_said_with_a_short_excerpt(tmp_path, text, named):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=r"table\.csv") as caught:
        infer_encoding(path, "y")
    assert re.search(named, str(caught.value))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_header_longer_than_a_block_is_read(tmp_path, name):
    names = [f"the-expression-of-gene-{i}" for i in range(40_000)]
    text = "\n".join(["\t".join(names), *("\t".join(["0,25"] * len(names)) for _ in range(3))])
    assert len("\t".join(names)) > 2**20
    path = written(tmp_path, text, name)
    assert tables.column_kinds(path) == dict.fromkeys(names, tables.NUMBER)
    (batch,) = tables.read_batches(path, {names[-1]: tables.NUMBER})
    assert batch[names[-1]].to_pylist() == [0.25] * 3


def test_a_table_of_a_million_columns_is_not_called_empty(tmp_path):
    path = written(tmp_path, ",".join(f"c{i}" for i in range(10**6)) + "\n" + "1," * (10**6 - 1) + "1\n")
    with pytest.raises(ValueError, match="1,000,000"):
        tables.column_kinds(path)


def test_a_file_without_lines_is_said_to_be_so(tmp_path):
    path = written(tmp_path, "1" * 40_000_000)
    with pytest.raises(ValueError, match=r"table\.csv"):
        tables.column_kinds(path)


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        tables.column_kinds(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match=str(tmp_path)):
        tables.column_kinds(tmp_path)
    with pytest.raises(ValueError, match=r"table\.xlsx"):
        tables.column_kinds(written(tmp_path, "a", "table.xlsx"))
    with pytest.raises(ValueError, match=r"table\.parquet"):
        tables.column_kinds(written(tmp_path, "a,b\n1,2\n", "table.parquet"))
    text = tmp_path / "text.parquet"
    pq.write_table(pa.table({"size": ["oak"], "colour": ["red"], "sold": [True]}), text)
    encoding = infer_encoding(written(tmp_path, MIXED), "y", one_hot=[])[0]
    with pytest.raises(ValueError, match="'size'"):
        list(encoding.blocks(text))


MATRIX = np.array([[1.0, 0.5, 3.0], [2.0, 1.5, -4.0], [4.0, 2.5, np.nan]])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "longdouble", "int32", "uint8"])
def test_a_matrix_in_an_npy_file_is_a_table_of_numbered_columns(tmp_path, dtype, order):
    path = tmp_path / "table.npy"
    values = np.abs(MATRIX[:, [0, 1, 0]]).astype(dtype)
    np.save(path, np.asarray(values, order=order))
    assert tables.column_kinds(path) == {"0": "number", "1": "number", "2": "number"}
    assert tables.row_count(path) == 3
    rows = infer_encoding(path, "1")[0].read(path)
    np.testing.assert_array_equal(rows.inputs, values[:, [0, 2]].astype(float))
    np.testing.assert_array_equal(rows.y, values[:, 1].astype(float))


def test_an_npy_file_is_read_like_any_other_table(tmp_path):
    path = tmp_path / "table.npy"
    np.save(path, MATRIX)
    with pytest.raises(ValueError, match=r"'2' \(1 of 3\)"):
        infer_encoding(path, "1")
    rows = infer_encoding(path, "1", impute=True)[0].read(path)
    np.testing.assert_array_equal(rows.inputs, [[1, 3, 0], [2, -4, 0], [4, -0.5, 1]])  # the median of 3 and −4
    assert infer_encoding(path, "1", columns=["0"], one_hot=["0"])[0].inputs == ("0=1", "0=2", "0=4")
    np.save(path, np.array([[True, False], [False, True]]))
    assert tables.column_kinds(path) == {"0": "boolean", "1": "boolean"}


def test_rows_of_an_npy_file_come_in_pieces(tmp_path, monkeypatch):
    path = tmp_path / "table.npy"
    values = np.random.default_rng(0).normal(size=(1000, 3))
    np.save(path, values)
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 300)
    batches = list(tables.read_batches(path, {"2": "number", "0": "number"}))
    assert [batch.num_rows for batch in batches] == [300, 300, 300, 100]
    read = pa.Table.from_batches(batches)
    np.testing.assert_array_equal(np.column_stack([read["2"], read["0"]]), values[:, [2, 0]])


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros(3), r"\(3,\)"),
        (np.zeros((2, 2, 2)), r"\(2, 2, 2\)"),
        (np.zeros((0, 3)), r"table\.npy"),
        (np.array([[1, "a"]], dtype=object), r"table\.npy"),
        (np.zeros((2, 2), complex), "complex128"),
        (np.array([["a", "b"]]), "<U1"),
    ],
)
def test_arrays_that_are_no_tables(tmp_path, array, named):
    path = tmp_path / "table.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(ValueError, match=named):
        infer_encoding(path, "1")


def test_npy_files_that_are_damaged_or_something_else(tmp_path):
    path = tmp_path / "table.npy"
    np.save(path, np.zeros((100, 3)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(ValueError, match=r"table\.npy.*2392.*2400"):
        tables.column_kinds(path)
    for content in (whole[:20], whole[:4], b"", pickle.dumps([1, 2]), b"a,b\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"table\.npy"):
            tables.column_kinds(path)


@pytest.mark.parametrize(("name", "rows"), [("table.csv", None), ("table.parquet", 3)])
def test_the_number_of_rows_is_known_where_the_file_says_so(tmp_path, name, rows):
    path = tmp_path / name
    with tables.table_writer(path, None) as write:
        write({"a": np.arange(3.0)})
    assert tables.row_count(path) == rows
