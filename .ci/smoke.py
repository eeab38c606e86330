"""What an installed wheel must do, from a folder that is not the repository: `python smoke.py PATH_OF_PATHGP`."""

import csv
import importlib.metadata
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import pathgp

root = pathlib.Path(pathgp.__file__).parent
assert "site-packages" in str(root), f"{root} is not an installed package."
assert (root / "py.typed").is_file(), "the wheel has no py.typed."

X = np.random.default_rng(0).uniform(-2, 2, size=(60, 2))
y = np.sin(2 * X[:, 0]) + X[:, 1]
model = pathgp.PathGPRegressor(random_state=0, num_samples=8).fit(X[:40], y[:40])
assert model.score(X[40:], y[40:]) > 0.9, "the model does not predict."

with tempfile.TemporaryDirectory() as name:
    folder, command = pathlib.Path(name), str(pathlib.Path(sys.argv[1]).resolve())
    model.save(folder / "model.safetensors")
    loaded = pathgp.PathGPRegressor.load(folder / "model.safetensors")
    assert np.array_equal(loaded.predict(X), model.predict(X)), "a loaded model predicts something else."

    with open(folder / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "y"], *np.column_stack([X, y]).tolist()])
    run = lambda *words: (
        subprocess.run([command, *words], cwd=folder, check=True, capture_output=True, text=True).stdout
    )
    version = importlib.metadata.version("pathgp")
    assert run("--version").strip() == f"pathgp {version}"
    run("fit", "train.csv", "--target", "y", "--out", "fitted.safetensors")
    run("predict", "fitted.safetensors", "train.csv", "--out", "predicted.csv")
    predicted = np.loadtxt(folder / "predicted.csv", delimiter=",", skiprows=1)
    assert np.sqrt(np.mean((predicted[:, 0] - y) ** 2)) < 0.1 * y.std(), "the command line does not predict."

print(f"pathgp {version} is installed and works.")
