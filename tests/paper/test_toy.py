import json
import subprocess
import sys

import numpy as np
import pytest

from pathgp_paper.experiments import fig1_toy, toy
from pathgp_paper.experiments.base import Record, png


def test_the_demo_on_fewer_points(tmp_path):
    out = tmp_path / "demo.png"
    command = [
        sys.executable,
        "-m",
        "pathgp_paper.experiments.toy",
        "--n",
        "600",
        "--seconds",
        "0.5",
        "--samples",
        "32",
    ]
    run = subprocess.run([*command, "--json", "--out", str(out)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert [(r["layout"], r["solver"]) for r in rows] == [
        (layout, solver) for layout in ("infill", "large domain") for solver in ("Cholesky", "SGD", "SDD", "SAP", "CG")
    ]
    by_name = {(r["layout"], r["solver"]): r for r in rows}
    for layout in ("infill", "large domain"):
        assert by_name[layout, "Cholesky"]["w2_to_exact_marginals"] == 0
        assert by_name[layout, "SAP"]["w2_to_exact_marginals"] < 1e-3  # of 600 points one block is the whole matrix
        assert 0 < by_name[layout, "SDD"]["w2_to_exact_marginals"] < 0.05
        assert by_name[layout, "SAP"]["rmse_to_exact_mean"] < by_name[layout, "SGD"]["rmse_to_exact_mean"]
    assert out.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [out]  # nothing half-written beside it


def record(layout, solver, mean, sd, residual=0.0):
    x = np.linspace(-2, 2, 5)
    curve = {"x": x.tolist(), "mean": [mean] * 5, "sd": [sd] * 5, "samples": [[0.0]] * 5}
    settings = {"layout": layout, "rows": 50, "solver": {"name": solver}}
    return Record(solver, settings, {"seconds": 1.5, "passes": 3.0, "relative_residual": residual, **curve})


RECORDS = [
    record("infill", "Cholesky", 0.0, 1.0),
    record("infill", "SAP", 3.0, 5.0, 0.01),
    record("large domain", "Cholesky", 1.0, 1.0),
    record("large domain", "SAP", 1.0, 3.0),
]


def test_a_picture_is_drawn_and_the_backend_stays_as_it_is(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "backend", "svg")
    figure = fig1_toy.EXPERIMENT.figure(RECORDS)
    assert png(figure).startswith(b"\x89PNG")
    assert [panel.get_title() for panel in figure.axes][1::2] == ["SAP: 1.5 s, W2 5.000", "SAP: 1.5 s, W2 2.000"]
    assert matplotlib.get_backend() == "svg"


def test_errors_are_to_the_exact_posterior_of_the_same_layout():
    rows = toy.compared(RECORDS)
    assert rows[1] == ("infill", "SAP", 1.5, 3.0, 0.01, 3.0, 5.0)  # √(3² + 4²)
    assert rows[3] == ("large domain", "SAP", 1.5, 3.0, 0.0, 0.0, 2.0)


def test_the_table_has_a_line_for_each_row():
    row = toy.Row("infill", "SAP", 1.5, 3.0, 0.01, 0.002, 0.003)
    assert toy.table([row]).split("\n")[-1].split() == ["infill", "SAP", "1.50", "3.0", "1.0e-02", "0.0020", "0.0030"]
