import json

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")

from pathgp.cli import main


@pytest.mark.slow
def test_a_first_run_without_data(tmp_path, capsys):
    folder = tmp_path / "first run"
    assert main(["demo", "--out", str(folder)]) == 0
    made = {path.name for path in folder.iterdir()}
    tables = {"train.csv", "new.csv", "predictions.csv"}
    assert made == tables | {"model.safetensors", "map.png", "calibration.png", "predicted.png", "convergence.png"}
    *_, title, info, evaluate, sample = capsys.readouterr().out.splitlines()
    assert title.endswith("try:")
    assert info.split()[:2] == ["pathgp", "info"]
    assert sample.split()[:2] == ["pathgp", "sample"]
    assert evaluate.split()[:2] == ["pathgp", "evaluate"]
    assert main(["evaluate", str(folder / "model.safetensors"), str(folder / "new.csv"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert 14 < scores["rmse"] < 18  # the noise is 15
    assert scores["coverage"]["90"] == pytest.approx(0.9, abs=0.05)  # 400 rows: a standard error of 0.015
    before = (folder / "train.csv").stat().st_mtime_ns
    assert main(["demo", "--out", str(folder)]) == 2
    assert "--force" in capsys.readouterr().err
    assert (folder / "train.csv").stat().st_mtime_ns == before
