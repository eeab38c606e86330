import csv
import json
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow.parquet as pq
from scipy.stats import norm

from pathgp import PathGPRegressor
from pathgp.cli import main
from pathgp.cli.tables.encoding import Column, Encoding
from pathgp.cli.tables.files import NUMBER
from tests.support.tables_of_houses import houses, write


def run(capsys, *words) -> str:
    """The standard output of a command that succeeds."""
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def told(capsys, *words) -> str:
    """What a command that succeeds says on standard error."""
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().err


def columns(path: pathlib.Path) -> dict[str, np.ndarray]:
    with open(path, newline="") as file:
        names, *rows = csv.reader(file)
    return {name: np.array(column, float) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


@pytest.fixture(scope="module")
def predictions(fitted, tmp_path_factory):
    out = tmp_path_factory.mktemp("predictions") / "predictions.csv"
    assert main(["predict", str(fitted.model), str(fitted.test), "--out", str(out)]) == 0
    return columns(out)


def test_a_fit_says_what_it_did(fitted, capsys):
    assert re.search("price.* 108 .* 4 ", fitted.printed)
    assert "Cholesky" in fitted.printed
    assert "RMSE" in fitted.printed
    told = json.loads(run(capsys, "info", fitted.model, "--json"))
    assert told["rows"] == 108
    assert told["inputs"] == ["size", "colour=blue", "colour=red", "age"]
    assert told["noise_variance"] ** 0.5 == pytest.approx(10, rel=0.5)  # of the data; 108 rows tell it so far
    assert told["lengthscales"]["size"] < told["lengthscales"]["age"]
    assert "size " in run(capsys, "info", fitted.model).split("length scales")[1].splitlines()[1]


def test_predictions_are_near_the_truth(predictions):
    true = houses(40, 1)["price"]
    assert list(predictions) == ["mean", "sd"]
    error = predictions["mean"] - true
    assert np.sqrt(np.mean(error**2)) < 20  # the noise is 10, the spread of prices 140
    assert np.all((predictions["sd"] > 7) & (predictions["sd"] < 60))


def test_other_orders_chunks_and_formats_give_the_same_numbers(fitted, predictions, tmp_path, capsys):
    table = houses(40, 1)
    shuffled = write(tmp_path / "other.csv", {n: table[n] for n in ("age", "price", "colour", "size")})
    run(capsys, "predict", fitted.model, shuffled, "--out", tmp_path / "other.parquet", "--chunk", 16)
    read = pq.read_table(tmp_path / "other.parquet").to_pydict()
    np.testing.assert_allclose(read["mean"], predictions["mean"], rtol=1e-5)  # float32
    np.testing.assert_allclose(read["sd"], predictions["sd"], rtol=1e-4)


def test_quantiles_and_standard_output(fitted, predictions, capfdbinary):
    assert main(["predict", str(fitted.model), str(fitted.test), "--quantiles", "0.05", "0.5"]) == 0
    header, *rows = capfdbinary.readouterr().out.decode().splitlines()
    assert header == "mean,sd,q0.05,q0.5"
    q05, q50 = np.array([row.split(",")[2:] for row in rows], float).T
    np.testing.assert_allclose(q50, predictions["mean"], rtol=1e-5)
    np.testing.assert_allclose(norm.cdf(q05, predictions["mean"], predictions["sd"]), 0.05, rtol=1e-3)


def test_scores_are_those_of_the_predictions(fitted, predictions, capsys):
    told = json.loads(run(capsys, "evaluate", fitted.model, fitted.test, "--json"))
    true = houses(40, 1)["price"]
    mean, sd = predictions["mean"], predictions["sd"]
    assert told["rows"] == 40
    assert told["rmse"] == pytest.approx(np.linalg.norm(mean - true) / 40**0.5, rel=1e-4)
    assert told["nll"] == pytest.approx(-norm.logpdf(true, mean, sd).mean(), rel=1e-4)
    assert told["r2"] == pytest.approx(
        1 - np.var(true - mean) / np.var(true), abs=0.01
    )  # the errors average to nearly 0
    low, high = norm.interval(0.9, mean, sd)
    assert told["coverage"]["90"] == pytest.approx(np.mean((low < true) & (true < high)), abs=1 / 40)
    printed = run(capsys, "evaluate", fitted.model, fitted.test)
    assert dict(line.split()[:2] for line in printed.splitlines())["RMSE"] == f"{told['rmse']:.5g}"


def test_samples_are_the_same_functions_in_every_chunk(fitted, predictions, tmp_path, capsys):
    run(capsys, "sample", fitted.model, fitted.test, "--num-samples", 64, "--out", tmp_path / "all.csv")
    run(capsys, "sample", fitted.model, fitted.test, "--num-samples", 3, "--chunk", 16, "--out", tmp_path / "few.csv")
    every, few = columns(tmp_path / "all.csv"), columns(tmp_path / "few.csv")
    assert list(few) == ["sample_1", "sample_2", "sample_3"]
    # The trend gives the kernel a variance of 10⁴ times the noise, so float32 leaves errors of about 0.1; two other
    # functions would be 4 apart, for each has a standard deviation of 3 around the mean.
    for name, values in few.items():
        assert np.mean(np.abs(values - every[name])) < 0.5
    drawn = np.column_stack(list(every.values()))
    noise = json.loads(run(capsys, "info", fitted.model, "--json"))["noise_variance"]
    spread = np.sqrt(np.mean((drawn - predictions["mean"][:, None]) ** 2, axis=1) + noise)
    # sd is that of a new observation; in float64 it is exact, and the variance of f that 64 samples have is not.
    np.testing.assert_allclose(spread, predictions["sd"], rtol=3e-3 if jnp.finfo(float).bits == 32 else 0.1)


def test_a_file_is_replaced_with_force_alone(fitted, tmp_path, capsys):
    out = tmp_path / "predictions.csv"
    out.write_text("precious")
    assert main(["predict", str(fitted.model), str(fitted.test), "--out", str(out)]) == 2
    assert out.read_text() == "precious"
    run(capsys, "predict", fitted.model, fitted.test, "--out", out, "--force")
    assert out.read_text().startswith("mean,sd\n")


@pytest.mark.parametrize(
    ("kind", "with_rows"), [("predicted", True), ("calibration", True), ("relevance", False), ("convergence", False)]
)
def test_pictures(fitted, tmp_path, capsys, kind, with_rows):
    pytest.importorskip("matplotlib")
    out = tmp_path / f"{kind}.png"
    run(capsys, "plot", fitted.model, *([fitted.test] if with_rows else []), "--kind", kind, "--out", out)
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    if kind in ("predicted", "relevance"):  # the default, where there are many inputs
        run(capsys, "plot", fitted.model, *([fitted.test] if with_rows else []), "--out", tmp_path / "default.png")
        assert (tmp_path / "default.png").read_bytes() == out.read_bytes()


def test_a_picture_of_one_input_shows_its_predictions(fitted, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    from pathgp.cli import fitted as models
    from pathgp.cli import plot

    model, table, test = tmp_path / "one.safetensors", houses(60, 0), houses(40, 1)
    quick = PathGPRegressor(hyperparameters="fixed", solver="cholesky", num_samples=3, random_state=0)
    quick.fit(table["size"][:, None], table["price"])
    encoding, facts = Encoding("price", (Column("size", NUMBER),)), {"rows": 60, "ranges": [[60.0, 180.0]]}
    models.save(models.Fitted(quick, encoding, facts), model)
    figure = plot.posterior(models.load(model), fitted.test)
    lines = {line.get_label(): np.array(line.get_data()) for line in figure.axes[0].get_lines()}
    x, mean = lines["mean"]
    assert (x[0], x[-1]) == (60, 180)
    np.testing.assert_allclose(lines["40 rows"], [test["size"], test["price"]])
    write(tmp_path / "along.csv", {"size": x})
    run(capsys, "predict", model, tmp_path / "along.csv", "--out", tmp_path / "along.out.csv")
    np.testing.assert_allclose(mean, columns(tmp_path / "along.out.csv")["mean"], rtol=1e-5)
    for kind, name in (["--kind", "posterior"], "one.png"), ([], "default.png"):  # with one input it is the default
        assert "posterior" in told(capsys, "plot", model, fitted.test, *kind, "--out", tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "default.png").read_bytes()
    assert main(["plot", str(fitted.model), "--kind", "posterior", "--out", str(tmp_path / "four.png")]) == 2
    assert re.search("--kind posterior.* 1 .* 4", capsys.readouterr().err)


@pytest.mark.parametrize("targets", [["y"], ["y", "z"]])
def test_a_model_from_python_is_taken_if_it_has_one_target(tmp_path, capsys, targets):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.linspace(0, 3, 20), "y": np.sin(np.linspace(0, 3, 20)), "z": np.arange(20.0)})
    frame.to_csv(tmp_path / "new.csv", index=False)
    settings = {"hyperparameters": "fixed", "solver": "cholesky", "num_samples": 1, "random_state": 0}
    model = PathGPRegressor("rbf", **settings).fit(frame[["a"]], frame[targets])
    model.save(tmp_path / "model")
    out = tmp_path / "out.csv"
    code = main(["predict", str(tmp_path / "model"), str(tmp_path / "new.csv"), "--out", str(out)])
    if len(targets) == 1:
        assert code == 0
        np.testing.assert_allclose(pandas.read_csv(out)["mean"], model.predict(frame[["a"]])[:, 0], rtol=1e-5)
    else:
        assert code == 2
        assert re.search(r"model\b.* 2 ", capsys.readouterr().err)
        assert not out.exists()
