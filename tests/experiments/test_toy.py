import json
import subprocess
import sys

import pytest

from pathgp import condition
from pathgp.experiments import toy
from pathgp.solvers import Cholesky


def test_the_demo_on_fewer_points(tmp_path):
    out = tmp_path / "demo.png"
    command = [sys.executable, "-m", "pathgp.experiments.toy", "--n", "600", "--seconds", "0.5", "--samples", "32"]
    run = subprocess.run([*command, "--json", "--out", str(out)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert [(r["layout"], r["solver"]) for r in rows] == [
        (layout, solver) for layout in ("infill", "large domain") for solver in ("Cholesky", "SGD", "SDD", "SAP", "CG")
    ]
    by_name = {(r["layout"], r["solver"]): r for r in rows}
    for layout in ("infill", "large domain"):
        assert by_name[layout, "Cholesky"]["w2_to_exact_marginals"] == 0
        assert 0 < by_name[layout, "SAP"]["w2_to_exact_marginals"] < 0.05
        assert by_name[layout, "SAP"]["rmse_to_exact_mean"] < by_name[layout, "SGD"]["rmse_to_exact_mean"]
    assert out.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [out]  # nothing half-written beside it


def test_a_picture_is_drawn_and_the_backend_stays_as_it_is(tmp_path, monkeypatch, key):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "backend", "svg")
    layout = next(toy.layouts(50))
    posterior = condition(layout.gp, layout.X, layout.y, solver=Cholesky(), num_samples=5, num_features=8, key=key)
    toy.draw([(layout, [posterior])], [toy.Row("infill", "Cholesky", 1.0, 1.0, 0.0, 0.0, 0.0)], tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert matplotlib.get_backend() == "svg"


def test_the_table_has_a_line_for_each_row():
    row = toy.Row("infill", "SAP", 1.5, 3.0, 0.01, 0.002, 0.003)
    assert toy.table([row]).split("\n")[-1].split() == ["infill", "SAP", "1.50", "3.0", "1.0e-02", "0.0020", "0.0030"]
