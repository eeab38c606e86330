import base64
import json
import pathlib
import re
from importlib.metadata import version

import jax.numpy as jnp
import numpy as np
import pytest

from pathgp.cli import main
from pathgp.kernels import Matern32
from pathgp.solvers import DivergenceError, Snapshot
from pathgp.system.system import System
from pathgp_paper import experiments as paper
from pathgp_paper.experiments import base, fig1_toy, fig2_inducing, fig2_variance, published, report, table1_regression
from pathgp_paper.experiments.base import Cell, Experiment, NotRun, Record, Table
from pathgp_paper.experiments.problems import Curve, Watch
from pathgp_paper.experiments.verdicts import Behaviour, Number, summary

ALL = paper.experiments()


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    assert main(["experiment", "run", "all", "--scale", "smoke", "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ALL, ids=lambda e: e.name)
def test_every_cell_of_the_smallest_scale_runs_and_is_drawn(out, experiment):
    records = base.load(experiment, "smoke", out)
    assert len({record.cell for record in records}) == len(records)
    folder = out / experiment.name / "smoke"
    claims = json.loads((folder / "summary.json").read_text())["claims"]
    assert claims
    assert all(record.result is not None for record in records), [record.not_run for record in records]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ALL, ids=lambda e: e.name)
def test_a_second_run_computes_nothing(out, experiment, monkeypatch):
    calls = []
    monkeypatch.setattr(type(experiment), "compute", lambda self, settings: calls.append(settings))
    before = {file: file.stat().st_mtime_ns for file in (out / experiment.name).rglob("cells/*.json")}
    base.run(experiment, "smoke", out)
    assert calls == []
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.slow
def test_the_report_is_one_file_with_a_section_for_every_experiment(out, capsys):
    assert main(["experiment", "report", "--out", str(out)]) == 0
    page = out / "report.html"
    assert capsys.readouterr().out.strip() == str(page)
    html = page.read_text()
    for experiment in ALL:
        assert f'<section id="{experiment.name}">' in html
        assert f'href="#{experiment.name}"' in html
    assert html.count('src="data:image/png;base64,') == len(ALL)
    assert 'name="viewport"' in html
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)  # nothing from outside
    assert "http" not in html.replace("http-equiv", "")
    assert html.count("<table>") == html.count('<div class="wide"><table>')


def test_the_list_names_every_experiment(capsys):
    assert main(["experiment", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == [experiment.name for experiment in ALL]
    assert {"Figure 1", "Figure 4", "Figure 5", "Table 1"} <= {row["reproduces"] for row in listed}
    assert main(["experiment", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ALL)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["run", "nothing", "--out", "OUT"], "'nothing'"),
        (
            ["run", "toy", "--scale", "huge", "--out", "OUT"],
            "--scale.*'huge'",
        ),
        (["run", "toy", "--out", "FILE"], "file"),
        (["report", "--scale", "huge", "--out", "OUT"], "--scale.*'huge'"),
        (["report", "--out", "OUT/nowhere"], "nowhere"),
        (["report", "--out", "OUT", "--published", "FILE"], "file"),
    ],
)
def test_bad_names_are_a_sentence_and_exit_code_2(command, named, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    places = {"OUT": str(tmp_path), "FILE": str(tmp_path / "file"), "OUT/nowhere": str(tmp_path / "nowhere")}
    assert main(["experiment", *(places.get(word, word) for word in command)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pathgp: ")
    assert re.search(named, error)


class Squares(Experiment):
    """Squares of numbers, of which 3 cannot be had at first."""

    name, title, reproduces, published = "squares", "Squares <&>", "nothing", "that squares grow"

    def __init__(self, numbers=(1, 2, 3), power=2):
        self.numbers, self.power, self.calls, self.missing = numbers, power, [], {3}

    def cells(self, scale):
        return [Cell(f"n-{n}", {"n": n, "power": self.power, "scale": scale}) for n in self.numbers]

    def compute(self, settings):
        self.calls.append(settings["n"])
        if settings["n"] in self.missing:
            raise NotRun("three is missing")
        return {"square": settings["n"] ** settings["power"]}

    def figure(self, records):
        return None

    def tables(self, records):
        lines = [[record.cell, str(record.result["square"])] for record in base.find(records)]
        return [Table("squares & more", ["n", "square"], lines)]

    def claims(self, records):
        found = base.mean_of(base.find(records, n=2), "square")
        return [Behaviour("Two squared", "square", found, 4.0, "not run")]


def test_a_run_goes_on_where_it_was_and_notices_a_changed_setting(tmp_path):
    squares = Squares()
    base.run(squares, "smoke", tmp_path, only="n-1")
    assert squares.calls == [1]
    records = base.run(squares, "smoke", tmp_path)
    assert squares.calls == [1, 2, 3]
    assert [record.result for record in records] == [{"square": 1}, {"square": 4}, None]
    assert records[2].not_run == "three is missing"
    squares.missing = set()
    assert base.run(squares, "smoke", tmp_path)[2].result == {"square": 9}  # a reason does not last
    assert squares.calls == [1, 2, 3, 3]
    cubes = Squares(power=3)
    assert base.load(cubes, "smoke", tmp_path)[1].not_run == "the settings have changed since it was run"
    cubes.missing = set()
    assert [record.result for record in base.run(cubes, "smoke", tmp_path)] == [{"square": n**3} for n in (1, 2, 3)]
    assert cubes.calls == [1, 2, 3]
    assert base.run(cubes, "machine", tmp_path)[0].settings["scale"] == "machine"  # beside, not instead
    assert base.load(cubes, "smoke", tmp_path)[0].result == {"square": 1}
    assert report.scale_of(cubes, tmp_path) == "machine"
    base.run(cubes, "paper", tmp_path, only="n-1")
    assert report.scale_of(cubes, tmp_path) == "machine"  # one cell more does not hide three
    assert report.scale_of(cubes, tmp_path / "nothing") == "smoke"
    assert "Scale <b>paper</b>: 1 of 3" in report.write([cubes], tmp_path, "paper").read_text()


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (["--only", "zzz"], "--only 'zzz'.*n-1, n-2, n-3"),
        (["--minutes", "nan"], "--minutes.*nan"),
    ],
)
def test_limits_that_mean_nothing_are_refused(tmp_path, monkeypatch, capsys, option, named):
    monkeypatch.setattr(paper, "named", lambda name: Squares())
    assert main(["experiment", "run", "squares", "--out", str(tmp_path / "runs"), *option]) == 2
    assert re.search(named, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_stopped_says_where_its_cells_are(tmp_path, monkeypatch, capsys):
    class Stopping(Squares):
        def compute(self, settings):
            if settings["n"] == 2:
                raise KeyboardInterrupt
            return super().compute(settings)

    monkeypatch.setattr(paper, "named", lambda name: Stopping())
    assert main(["experiment", "run", "squares", "--out", str(tmp_path)]) == 130
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith("pathgp: ")
    assert str(tmp_path) in sentence
    records = base.load(Squares(), "smoke", tmp_path)
    assert [record.result for record in records] == [{"square": 1}, None, None]


def test_cells_of_another_version_are_computed_again(tmp_path, monkeypatch):
    squares = Squares(numbers=(1, 2))
    base.run(squares, "smoke", tmp_path)
    monkeypatch.setattr(base, "version", lambda name: "9.9")
    record, _ = base.load(squares, "smoke", tmp_path)
    assert record.result is None
    assert record.not_run == f"it was run by pathgp {version('pathgp')}, not by this version"
    assert base.run(squares, "smoke", tmp_path)[0].version == "9.9"
    assert squares.calls == [1, 2, 1, 2]


def test_no_cell_is_begun_when_the_time_is_used_up(tmp_path):
    squares, said = Squares(), []
    records = base.run(squares, "smoke", tmp_path, minutes=-1.0, say=said.append)
    assert squares.calls == []
    assert {record.not_run for record in records} == {"not reached yet"}
    assert said == ["The time is used up: the same command goes on from here."]


def test_a_section_says_what_was_found_and_what_was_not_run_and_escapes_text(tmp_path):
    squares = Squares()
    base.run(squares, "smoke", tmp_path)
    section = report.publish(squares, "smoke", tmp_path)
    assert section.verdict == "agrees 1"
    assert "Squares &lt;&amp;&gt;" in section.html
    assert "Not run: n-3 (three is missing)." in section.html
    assert "2 of 3 cells" in section.html
    assert "<td>n-2</td><td>4</td>" in section.html


def test_a_figure_of_the_paper_stands_beside_ours_where_the_user_has_it(tmp_path):
    squares = Squares()
    base.run(squares, "smoke", tmp_path)
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "squares.png").write_bytes(b"theirs")
    html = report.write([squares], tmp_path, published=tmp_path / "published").read_text()
    assert f"data:image/png;base64,{base64.b64encode(b'theirs').decode()}" in html
    assert "data:image" not in report.write([squares], tmp_path).read_text()


def test_one_solve_that_diverges_does_not_end_a_run(tmp_path):
    class Diverging(Squares):
        def compute(self, settings):
            if settings["n"] == 1:
                raise DivergenceError("SGD diverged")
            return super().compute(settings)

    records = base.run(Diverging(), "smoke", tmp_path)
    assert [record.not_run for record in records] == ["SGD diverged", "", "three is missing"]


def test_a_missing_data_set_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.delenv("PATHGP_DATA", raising=False)
    records = base.run(paper.named("subset-of-data"), "machine", tmp_path, only="pol-0-5")
    reason = next(record.not_run for record in records if record.cell == "pol-0-5")
    assert reason.startswith("PATHGP_DATA is not set")


@pytest.mark.parametrize(
    ("paper_mean", "error", "ours", "splits", "verdict"),
    [
        # five splits beside five: 0.005 + 2 · 0.01 · √2 = 0.0333
        (0.35, 0.01, 0.38, 5, "agrees"),
        (0.35, 0.01, 0.384, 5, "worse"),
        (0.35, 0.01, 0.316, 5, "better"),
        # one split: 0.005 + 2 · 0.01 · √6 = 0.0540
        (0.35, 0.01, 0.40, 1, "agrees"),
        # ± 0.00 is 0.0025: 0.005 + 2 · 0.0025 · √2 = 0.0121
        (0.35, 0.00, 0.362, 5, "agrees"),
        (0.35, 0.00, 0.363, 5, "worse"),
        (0.35, 0.00, float("nan"), 5, "worse"),
        (0.35, 0.00, None, 0, "not run"),
        # of the same splits: rounding alone
        (0.35, None, 0.3549, 1, "agrees"),
        (0.35, None, 0.3551, 1, "worse"),
    ],
)
def test_the_verdict_on_a_number(paper_mean, error, ours, splits, verdict):
    assert Number("RMSE", paper_mean, error, ours, splits, "no data").verdict == verdict


def test_the_verdict_on_behaviour_and_the_summary():
    claims = [Behaviour("a", "b", x, 1.0, "why") for x in (0.5, 1.0, 1.01, None)]
    assert [claim.verdict for claim in claims] == ["agrees", "agrees", "differs", "not run"]
    assert summary(claims) == "agrees 2, differs 1, not run 1"
    assert claims[3].cells[1] == "why"


def test_the_claims_of_the_regression_table_follow_from_the_numbers():
    def record(solver, noise=None, split=0, **result):
        settings = {"dataset": "elevators", "split": split, "noise": noise, "solver": {"name": solver}}
        return Record(f"{solver}-{noise}-{split}", settings, result or None, "" if result else "no time")

    records = [
        record("SGD", rmse=0.383, nll=0.60),
        record("SGD", split=1, rmse=0.393, nll=0.80),
        record("SGD", 1e-6, low_noise_rmse=0.352),
        record("CG", rmse=0.35, nll=0.38),
        record("CG", 1e-6, low_noise_rmse=0.70),
        record("Auto", rmse=0.355, nll=0.39),
        record("SAP", rmse=0.36, nll=0.38),
        record("SAP", split=1, failed="diverged"),
        record("SVGP"),
    ]
    claims = {claim.what: claim for claim in table1_regression.EXPERIMENT.claims(records)}
    sgd, auto, sap = (
        "elevators, SGD: ",
        "elevators, Auto (beside the paper's CG): ",
        "elevators, SAP (beside the paper's CG)",
    )
    assert claims[sgd + "RMSE"].paper == pytest.approx((0.3858 + 0.3889) / 2)  # the authors' runs of the same splits
    assert claims[sgd + "RMSE"].verdict == "agrees"
    assert claims[sgd + "NLL"].ours == pytest.approx(0.7)
    assert claims[sgd + "NLL"].splits == 2
    assert claims[sgd + "NLL"].verdict == "worse"
    assert claims[auto + "RMSE"].paper == pytest.approx(0.3566)
    assert claims[auto + "RMSE"].verdict == claims[auto + "NLL"].verdict == "agrees"
    assert (claims[sap + ": RMSE"].verdict, claims[sap + ": RMSE"].cells[1]) == ("worse", "diverged")
    assert claims["elevators, SVGP: RMSE"].verdict == "not run"
    assert claims["elevators, SVGP: RMSE"].why == "no time"
    changed = claims["elevators: low noise leaves SGD's RMSE as it is"]
    assert changed.measured == pytest.approx(0.388 / 0.352)
    assert changed.verdict == "differs"
    assert claims["elevators: low noise makes CG's RMSE worse"].verdict == "agrees"
    records += [record("SVGP", split=1, rmse=0.4), record("SVGP", 1e-6, 1, failed="diverged")]
    failing = {claim.what: claim.verdict for claim in table1_regression.EXPERIMENT.claims(records)}
    assert failing["elevators: SVGP fails at low noise"] == "agrees"
    del records[-2:]
    lines = {line[0]: line for line in table1_regression.EXPERIMENT.tables(records)[0].lines}
    assert lines["paper: CG"] == ["paper: CG", "0.35 ± 0.00"]
    assert lines["here: SGD"] == ["here: SGD", "0.388 (2)"]


def test_this_librarys_solvers_are_compared_with_the_papers_best_row():
    best = {name: table1_regression._best_row(name) for name in published.DATASETS}
    assert best.pop("buzz") == "SVGP"
    assert {best.pop(name) for name in ("3droad", "song", "houseelectric")} == {"SGD"}
    assert set(best.values()) == {"CG"}


def test_a_run_that_was_given_more_time_takes_the_place_of_the_first():
    cells = {cell.name: cell.settings for cell in table1_regression.EXPERIMENT.cells("machine")}
    first, patient = cells["pol-1-cg"], cells["pol-1-cg-patient"]
    assert first["solver"]["max_seconds"] < patient["solver"]["max_seconds"]
    assert cells["pol-1-sgd"]["solver"] == cells["pol-1-sgd-low-noise"]["solver"]  # as many steps
    assert [name for name in cells if name.startswith("houseelectric-0")][:2] == [
        "houseelectric-0-auto-patient",
        "houseelectric-0-svgp-patient",
    ]
    low_noise = cells["pol-1-cg-low-noise"], cells["pol-1-cg-low-noise-patient"]
    names = ("pol-0-cg", "pol-0-cg-low-noise")
    records = [Record(name, cells[name], {"rmse": 0.3}) for name in names]
    records += [Record("a", first, {"rmse": 0.2}), Record("b", low_noise[0], {"low_noise_rmse": 0.5})]
    records += [Record("c", patient, {"rmse": 0.1}), Record("d", low_noise[1], None, "not reached yet")]
    assert table1_regression.furthest(records) == records[:4]  # 120 s at one noise and 12 at the other do not compare
    records[5] = records[5]._replace(result={"low_noise_rmse": 0.4})
    assert table1_regression.furthest(records) == records[4:]  # nor split 0 by one round and split 1 by another


def test_one_number_of_points_says_nothing_of_fewer():
    settings = {"dataset": "houseelectric", "rows": 30_000, "steps": 9}
    result = {"M": 10, "N": 90, "seconds": [1.0], "rmse": [0.1], "nll": [0.1]}
    records = [Record(str(share), settings | {"share": share}, result) for share in (0.12, 0.23)]
    assert {claim.verdict for claim in fig2_inducing.EXPERIMENT.claims(records)} == {"not run"}


def test_every_experiment_is_on_the_page_about_the_paper():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "reproduction.md").read_text()
    assert [e.name for e in ALL if f"| `{e.name}` |" not in page] == []


def test_entries_of_the_papers_tables_stand_at_their_place():
    assert published.REGRESSION["nll"]["CG"]["3droad"] == (16.27, 0.45)
    assert published.REGRESSION["low_noise_rmse"]["CG"]["keggdirected"] == (9.79, 1.06)
    assert published.REGRESSION["rmse"]["SVGP"]["buzz"] == (0.33, 0.00)
    assert published.REGRESSION["minutes"]["SGD"]["houseelectric"] == (162, 54.3)
    assert published.SUBSET["nll"]["10%"]["bike"] == (-1.28, 0.07)
    assert published.SUBSET["rmse"]["50000"]["3droad"] == (0.16, 0.00)


def test_the_variance_of_one_row_gradients_is_that_over_all_rows():
    rng = np.random.default_rng(0)
    X, alpha, t = rng.normal(size=(30, 2)), rng.normal(size=(30, 3)), rng.normal(size=(30, 3))
    distance = np.sqrt(3 * np.sum((X[:, None] - X[None]) ** 2, axis=2))
    K = (1 + distance) * np.exp(-distance)
    system = System(Matern32(), jnp.asarray(X, dtype=float), jnp.array(0.3))
    norms = fig2_variance.squared_norms(system, tile=7)
    np.testing.assert_allclose(norms, [row @ row for row in K], rtol=1e-5)
    found = fig2_variance.row_variance(system, norms, jnp.asarray(alpha, float), jnp.asarray(t, float))
    for column in range(3):
        gradients = np.array([K[:, i] * (K[i] @ alpha[:, column] - t[i, column]) for i in range(30)])
        assert found[column] == pytest.approx(np.trace(np.cov(gradients.T, bias=True)), rel=1e-4)


def test_a_watch_keeps_what_is_a_third_further_on_and_the_end():
    watch = Watch()
    for step in range(10, 101, 10):
        watch(Snapshot(step, 0.0, step / 10, jnp.full((2, 1), float(step))))
    assert watch.steps == [10, 20, 30, 40, 60, 80]
    np.testing.assert_allclose(watch.seconds, [1, 2, 3, 4, 6, 8], atol=0.5)  # less the time of looking
    assert [int(w[0, 0]) for w in watch.weights] == watch.steps


def test_distances_of_the_toy_are_to_the_exact_marginals_of_the_same_layout():
    x = np.linspace(-2, 2, 5).tolist()

    def record(layout, solver, mean, sd):
        settings = {"layout": layout, "solver": {"name": solver}}
        result = {"x": x, "mean": [mean] * 5, "sd": [sd] * 5, "samples": [[0.0]] * 5, "seconds": 1.0, "passes": 1.0}
        return Record(f"{layout}-{solver}", settings, result)

    records = [record("infill", "Cholesky", 0.0, 1.0), record("infill", "SGD", 3.0, 5.0)]
    records += [record("large domain", "Cholesky", 3.0, 5.0), record("large domain", "CG", 3.0, 5.0)]
    found = fig1_toy.distances(records)
    assert found["infill", "SGD"] == pytest.approx(5.0)  # √(3² + 4²)
    assert found["large domain", "CG"] == 0
    assert Curve.read(records[1]).sd.tolist() == [5.0] * 5
