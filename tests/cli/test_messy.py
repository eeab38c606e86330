"""A table as people have them: dates, gaps, a constant column, names with spaces; and its model in Python."""

import csv
import json
import re

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyarrow")

from pathgp import PathGPRegressor
from pathgp.cli import main
from pathgp.cli.fitted import load

ROWS = 150


def table(seed):
    rng = np.random.default_rng(seed)
    day, area = rng.integers(0, 365, ROWS), rng.uniform(50, 200, ROWS)
    frame = pd.DataFrame(
        {
            "house id": [f"H{i:03d}" for i in range(ROWS)],
            "sale date": pd.Timestamp("2023-01-01") + pd.to_timedelta(day, "D"),
            "living area (m²)": np.round(area, 1),
            "district": rng.choice(["north", "south"], ROWS),
            "country": 49,
        }
    )
    frame["price"] = 1e5 + 1000 * area + 100 * day + 2e4 * (frame["district"] == "north") + rng.normal(0, 3e3, ROWS)
    return frame


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    """A folder with tables, a model fitted at the command line, and what that said."""
    folder = tmp_path_factory.mktemp("messy")
    train, test = table(0), table(1)
    train.loc[3:20, "living area (m²)"] = np.nan
    train.loc[30:33, "price"] = np.nan
    train.to_csv(folder / "train.csv", index=False)
    test.to_csv(folder / "test.csv", index=False)
    return folder


def fit(folder, capsys, *words):
    model = folder / f"{len(words)}.safetensors"
    command = ["fit", folder / "train.csv", "--target", "price", "--drop", "house id", "--one-hot", "district", *words]
    assert main([str(word) for word in [*command, "--out", model, "--force"]]) == 0
    return model, capsys.readouterr()


@pytest.fixture
def skipped(messy, capsys):
    return fit(messy, capsys, "--skip-missing")


def predict(model, file, out, *words):
    assert main([str(word) for word in ["predict", model, file, "--out", out, *words]]) == 0
    with open(out, newline="") as lines:
        return list(csv.DictReader(lines))


def test_rows_with_gaps_are_left_out_and_a_constant_column_is_said_to_be_one(messy, skipped, capsys):
    model, said = skipped
    assert " 22 rows" in said.err
    assert "'country' is 49" in said.err
    assert re.search("price.* 128 rows", said.out)
    assert main(["info", str(model)]) == 0
    listed = capsys.readouterr().out.split("length scales")[1].splitlines()
    assert any(line.split()[:2] == ["country", "49"] for line in listed)
    assert [line.split()[0] for line in listed[1:-1]][-1] == "country"
    assert main(["info", str(model), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["skipped"], told["missing"], told["constant"]) == (22, {}, ["country"])


def test_predictions_have_the_key_of_their_row_and_are_near_the_truth(messy, skipped, tmp_path):
    found = predict(skipped[0], messy / "test.csv", tmp_path / "out.csv", "--keep", "house id", "sale date")
    assert [row["house id"] for row in found] == [f"H{i:03d}" for i in range(ROWS)]
    assert list(found[0]) == ["house id", "sale date", "mean", "sd"]
    test = table(1)
    assert [row["sale date"] for row in found] == [str(day.date()) for day in test["sale date"]]
    error = np.array([float(row["mean"]) for row in found]) - test["price"]
    assert np.sqrt(np.mean(error**2)) < 4500  # the noise is 3000, the spread 50,000


def test_gaps_that_are_filled_are_counted_and_have_a_level_of_their_own(messy, capsys, tmp_path):
    """Houses of unknown area are dearer here, and would be taken for those of the median area without an input."""
    train, test = table(0), table(1)
    for frame, rows in ((train, slice(0, 49)), (test, slice(0, 49))):
        frame.loc[rows, "living area (m²)"] = np.nan
        frame.loc[rows, "price"] = 6e5 + np.random.default_rng(2).normal(0, 3e3, 50)
        frame.to_csv(tmp_path / ("train.csv" if frame is train else "test.csv"), index=False)
    model, said = fit(tmp_path, capsys, "--impute", "--seed", "0")
    assert "'living area (m²)' (50)" in said.err
    assert "50 values" in said.out
    found = predict(model, tmp_path / "test.csv", tmp_path / "out.csv")
    assert " 50 " in capsys.readouterr().err
    error = np.array([float(row["mean"]) for row in found]) - test["price"]
    assert np.sqrt(np.mean(error[:50] ** 2)) < 4500
    assert np.sqrt(np.mean(error[50:] ** 2)) < 4500


def test_a_text_that_is_new_is_refused_or_allowed(messy, skipped, tmp_path, capsys):
    test = table(1)
    test.loc[5, "district"] = "moon base"
    test.to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(skipped[0]), str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv")]) == 2
    assert re.search("'district'.*'moon base'", capsys.readouterr().err)
    assert len(predict(skipped[0], tmp_path / "new.csv", tmp_path / "out.csv", "--allow-unknown")) == ROWS
    assert main(["predict", str(skipped[0]), str(messy / "test.csv"), "--keep", "mean"]) == 2
    assert re.search("'mean'.*--keep", capsys.readouterr().err)


def test_in_python_the_model_knows_its_inputs_and_takes_a_frame(messy, skipped, tmp_path):
    frame = table(1)
    at_the_command_line = [float(row["mean"]) for row in predict(skipped[0], messy / "test.csv", tmp_path / "out.csv")]
    fitted = load(skipped[0])
    mean, _ = fitted.predict(fitted.encoding.matrix(frame))
    np.testing.assert_allclose(mean, at_the_command_line, rtol=1e-6)
    model = PathGPRegressor.load(skipped[0])
    inputs = ["sale date", "living area (m²)", "district=north", "district=south", "country"]
    assert model.feature_names_in_.tolist() == inputs
    matrix = pd.DataFrame(fitted.encoding.matrix(frame), columns=inputs)
    np.testing.assert_allclose(model.predict(matrix, return_std=True)[0], at_the_command_line, rtol=1e-6)
    with pytest.raises(ValueError, match=r"(?i)feature names"):
        model.predict(matrix[inputs[::-1]])
