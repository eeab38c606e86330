"""Real data sets in one layout: `NAME/data.csv.gz`, the target last, and `NAME/test_mask.csv.gz`, a column a split."""

import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from pathgp.gp import GP
from pathgp.kernels import Matern32


class Dataset(NamedTuple):
    """Training and test rows, standardised with the statistics of the training rows."""

    name: str
    X: Float[np.ndarray, "N d"]
    y: Float[np.ndarray, "N"]
    X_test: Float[np.ndarray, "n d"]
    y_test: Float[np.ndarray, "n"]


def data_directory() -> pathlib.Path:
    """The folder that the environment variable PATHGP_DATA names."""
    folder = os.environ.get("PATHGP_DATA")
    if not folder:
        raise FileNotFoundError(
            "PATHGP_DATA is not set: let it name a folder with NAME/data.csv.gz (no header, the target last) and "
            "NAME/test_mask.csv.gz (a column a split, 1 for a test row)."
        )
    return pathlib.Path(folder)


def load(name: str, split: int = 0) -> Dataset:
    """The data set `name` with the test rows of one split, in float32."""
    folder = data_directory() / name
    for file in ("data.csv.gz", "test_mask.csv.gz"):
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder / file} is missing: put the data set {name!r} there, or check its name.")
    data = np.loadtxt(folder / "data.csv.gz", delimiter=",", ndmin=2)
    mask = np.loadtxt(folder / "test_mask.csv.gz", delimiter=",", ndmin=2).astype(bool)
    if not 0 <= split < mask.shape[1]:
        raise ValueError(f"split is {split}, but {name!r} has {mask.shape[1]} splits, counted from 0.")
    test = mask[:, split]
    if len(test) != len(data):
        raise ValueError(f"{folder}: data.csv.gz has {len(data)} rows, but test_mask.csv.gz has {len(test)}.")
    return standardised(name, data[~test], data[test])


def standardised(name: str, train: Float[np.ndarray, "N c"], test: Float[np.ndarray, "n c"]) -> Dataset:
    """Columns less their mean over their standard deviation in the training rows; a constant column becomes zero."""
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1)
    train, test = (((rows - mean) / scale).astype(np.float32) for rows in (train, test))
    return Dataset(name, train[:, :-1], train[:, -1], test[:, :-1], test[:, -1])


def synthetic(N: int, d: int = 8, noise: float = 0.1, seed: int = 0) -> Dataset:
    """A smooth function of the first three inputs with noise of variance `noise`, and 1000 test rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N + 1000, d))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * np.cos(X[:, 2 % d])
    rows = np.column_stack([X, f + np.sqrt(noise) * rng.normal(size=len(X))])
    return standardised("synthetic", rows[:N], rows[N:])


def published_gp(name: str, split: int = 0) -> GP:
    """The Matérn-3/2 process with the hyperparameters that the authors of the paper published for a data set.

    They are read from `published_hyperparameters.json` in the folder `reference` beside that of PATHGP_DATA.
    """
    file = data_directory().parent / "reference" / "published_hyperparameters.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: put the published hyperparameters there.")
    published = json.loads(file.read_text()).get(name, {}).get(str(split))
    if published is None:
        raise ValueError(f"{file} has no hyperparameters for {name!r}, split {split}.")
    return read_gp(published)


def read_gp(scales: dict[str, Any]) -> GP:
    """A Matérn-3/2 process from `length_scale`, `signal_scale`, `noise_scale` (standard deviations) and `mean`."""
    missing = {"length_scale", "signal_scale", "noise_scale"} - set(scales)
    if missing:
        raise ValueError(
            f"hyperparameters must have length_scale, signal_scale and noise_scale; missing: {sorted(missing)}."
        )
    kernel = Matern32(scales["length_scale"], scales["signal_scale"] ** 2)
    return GP(kernel, noise=scales["noise_scale"] ** 2, mean=scales.get("mean", 0.0))
