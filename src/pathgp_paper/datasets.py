"""Data sets: real ones, which are read from a folder, and generated ones (toys and draws from a GP).

A real data set consists of two files. `NAME/data.csv.gz` has no header, and the target is its last column.
`NAME/test_mask.csv.gz` has one column per split, which is 1 for test rows.
"""

import gzip
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pathgp.functions import Function
from pathgp.kernels import Matern32
from pathgp.posterior.gp import GP

PAPER = {
    "pol": (15_000, 26),
    "elevators": (16_599, 18),
    "bike": (17_379, 17),
    "protein": (45_730, 9),
    "keggdirected": (48_827, 20),
    "3droad": (434_874, 3),
    "song": (515_345, 90),
    "buzz": (583_250, 77),
    "houseelectric": (2_049_280, 11),
}
"""Number of rows and of inputs of each data set in the paper's table 1."""

FILES = ("data.csv.gz", "test_mask.csv.gz")
LAYOUT = "NAME/data.csv.gz (no header, the target last) and NAME/test_mask.csv.gz (a column a split, 1 for a test row)"
ORIGIN = "the UCI repository, or the `uci_datasets` collection, which has them with these very splits"

MADE = {"infill": 1, "large_domain": 1, "draw": None, "synthetic": None}
"""Functions of this module that generate a data set, and its number of inputs; None if the user chooses it."""

TEST_ROWS = 1000
NOISE, SPACING = 0.5, 0.02
"""Noise variance of the toys, and distance between adjacent points of the grid."""


class Dataset(NamedTuple):
    """Training and test rows. Real data are standardised with the mean and standard deviation of the training rows."""

    name: str
    X: Float[np.ndarray, "N d"]
    y: Float[np.ndarray, "N"]
    X_test: Float[np.ndarray, "n d"]
    y_test: Float[np.ndarray, "n"]


class Entry(NamedTuple):
    """A data set in the list: its total number of rows (training and test) and of inputs. None means any number."""

    name: str
    N: int | None
    d: int | None
    present: bool
    origin: str


def known(directory: str | os.PathLike[str] | None = None) -> list[Entry]:
    """Return the paper's data sets, the other data sets in the folder, and the generated ones.

    Sizes of the paper's data sets are the published ones; for other files, rows are counted. Without a folder, only the
    generated data sets are marked as present.
    """
    folder = data_directory(directory) if directory or os.environ.get("PATHGP_DATA") else None
    found = [] if folder is None else sorted(path.parent for path in folder.glob(f"*/{FILES[0]}"))
    found = {path.name: path for path in found if (path / FILES[1]).is_file()}
    paper = [Entry(name, N, d, name in found, "paper") for name, (N, d) in PAPER.items()]
    others = [
        Entry(name, _rows(path / FILES[0]), _columns(path / FILES[0]) - 1, True, "folder")
        for name, path in found.items()
        if name not in PAPER
    ]
    return [*paper, *others, *(Entry(name, None, d, True, "made on the spot") for name, d in MADE.items())]


def available(directory: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the real data sets in the folder."""
    return [entry.name for entry in known(directory) if entry.present and entry.origin in ("paper", "folder")]


def data_directory(directory: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Return the folder of the data sets: `directory` if given, otherwise the environment variable PATHGP_DATA."""
    folder = directory or os.environ.get("PATHGP_DATA")
    if not folder:
        raise FileNotFoundError(
            f"PATHGP_DATA is not set: let it, or --data-dir on the command line, name a folder with {LAYOUT}."
        )
    if not pathlib.Path(folder).is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: name one with {LAYOUT}.")
    return pathlib.Path(folder)


def load(name: str, split: int = 0, directory: str | os.PathLike[str] | None = None) -> Dataset:
    """Return the real data set `name` with the test rows of one split, in float32."""
    folder = data_directory(directory) / name
    for file in FILES:
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder / file} is missing: {_where_from(name, directory)}")
    splits = _columns(folder / FILES[1])
    if not 0 <= split < splits:
        raise ValueError(f"split is {split}, but {name!r} has {splits} splits, counted from 0.")
    data = _read(folder / FILES[0])
    test = _read(folder / FILES[1], split)[:, 0].astype(bool)
    if len(test) != len(data):
        raise ValueError(f"{folder}: data.csv.gz has {len(data)} rows, but test_mask.csv.gz has {len(test)}.")
    bad = np.flatnonzero(~np.isfinite(data).all(axis=1))
    if bad.size:
        raise ValueError(
            f"{folder / FILES[0]} has NaN or infinite entries, the first in row {bad[0]}: remove such rows."
        )
    return standardised(name, data[~test], data[test])


def _where_from(name: str, directory: str | os.PathLike[str] | None) -> str:
    layout = f"put the data set {name!r} there ({LAYOUT.replace('NAME', name)})"
    if name in PAPER:
        return f"{layout}. It is one of the paper's, from {ORIGIN}."
    if name in MADE:
        return f"{name!r} is made on the spot, by `datasets.{name}`."
    return f"{layout}, or check its name: the folder has {', '.join(available(directory)) or 'none'}."


def _read(file: pathlib.Path, column: int | None = None) -> Float[np.ndarray, "N c"]:
    """Read with NumPy, which took 2.4 s for two million rows of twelve columns; Arrow took 4.1 s."""
    try:
        return np.loadtxt(file, delimiter=",", ndmin=2, usecols=column)
    except ValueError as error:
        raise ValueError(f"{file} must be numbers between commas, without a header: {error}.") from error


def _columns(file: pathlib.Path) -> int:
    with gzip.open(file) as stream:
        return stream.readline().count(b",") + 1


def _rows(file: pathlib.Path) -> int:
    """Return the number of lines, read in chunks: one second for two million. The last may lack its newline."""
    rows, last = 0, b"\n"
    with gzip.open(file) as stream:
        while chunk := stream.read(1 << 20):
            rows, last = rows + chunk.count(b"\n"), chunk
    return rows + (not last.endswith(b"\n"))


def standardised(name: str, train: Float[np.ndarray, "N c"], test: Float[np.ndarray, "n c"]) -> Dataset:
    """Standardise columns with the mean and standard deviation of the training rows; a constant column becomes 0."""
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1)
    train, test = (((rows - mean) / scale).astype(np.float32) for rows in (train, test))
    return Dataset(name, train[:, :-1], train[:, -1], test[:, :-1], test[:, -1])


def synthetic(N: int, d: int = 8, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Return a smooth function of the first three inputs with noise of variance `noise`, and 1000 test rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N + TEST_ROWS, d))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * np.cos(X[:, 2 % d])
    rows = np.column_stack([X, f + np.sqrt(noise) * rng.normal(size=len(X))])
    return standardised("synthetic", rows[:N], rows[N:])


def infill(N: int, seed: int = 0) -> Dataset:
    """Return a toy with inputs from N(0, 1), which are dense, so that K is ill-conditioned (figure 1 of the paper)."""
    return _toy("infill", jax.random.normal(jax.random.split(jax.random.key(seed))[0], (N, 1)), (-6.0, 6.0), seed)


def large_domain(N: int, seed: int = 0) -> Dataset:
    """Return a toy on a grid that grows with N, so that K is well-conditioned; test rows surround its right end."""
    X = SPACING * (jnp.arange(N, dtype=float)[:, None] - N / 2)
    edge, window = float(X[-1, 0]), 600 * SPACING
    return _toy("large_domain", X, (edge - window, edge + window / 3), seed)


def _toy(name: str, X: Float[Array, "N 1"], shown: tuple[float, float], seed: int) -> Dataset:
    """Return observations sin(2x) + cos(5x) + N(0, NOISE), and 400 test rows without noise, for figures."""
    f = lambda x: jnp.sin(2 * x[:, 0]) + jnp.cos(5 * x[:, 0])
    noise = jax.random.normal(jax.random.split(jax.random.key(seed))[1], (X.shape[0],))
    x = jnp.linspace(*shown, 400)[:, None]
    return Dataset(name, *map(np.asarray, (X, f(X) + NOISE**0.5 * noise, x, f(x))))


def draw(gp: GP, N: int, d: int, seed: int = 0, num_features: int = 10_000) -> Dataset:
    """Return noisy observations of a draw from a GP with known hyperparameters, at uniform points of [0, 1]^d.

    The draw is approximated by `num_features` random features, so N can be large. Nothing is standardised.

    >>> from pathgp.kernels import Matern32
    >>> data = draw(GP(Matern32(0.3), noise=0.1), N=50, d=2, num_features=200)
    >>> data.X.shape, data.y_test.shape
    ((50, 2), (1000,))
    """
    input_key, feature_key, weight_key, noise_key = jax.random.split(jax.random.key(seed), 4)
    X = jax.random.uniform(input_key, (N + TEST_ROWS, d))
    features = gp.kernel.features(feature_key, num_features, d)
    f = Function(features, jax.random.normal(weight_key, (features.num,)))
    y = gp.mean + f(X) + jnp.sqrt(gp.noise) * jax.random.normal(noise_key, (X.shape[0],))
    X, y = np.asarray(X), np.asarray(y)
    return Dataset("draw", X[:N], y[:N], X[N:], y[N:])


class NotPublished(ValueError):
    """Raised if no hyperparameters are published for a data set and split."""


def published_gp(name: str, split: int = 0) -> GP:
    """Return a Matérn-3/2 GP with the hyperparameters that the authors of the paper published for a data set.

    They are read from `../reference/published_hyperparameters.json`, relative to the folder PATHGP_DATA.
    """
    file = data_directory().parent / "reference" / "published_hyperparameters.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing: put the published hyperparameters there, as "
            '{"NAME": {"SPLIT": {"noise_scale": …, "signal_scale": …, "length_scale": […]}}}, from the authors\' '
            "repository cambridge-mlg/sgd-gp on GitHub; or learn them by `pathgp bench learn --dataset NAME`."
        )
    published = json.loads(file.read_text()).get(name, {}).get(str(split))
    if published is None or published["noise_scale"] is None:
        raise NotPublished(f"{file} has no hyperparameters for {name!r}, split {split}.")
    return read_gp(published)


def read_gp(scales: dict[str, Any]) -> GP:
    """Return a Matérn-3/2 GP from `length_scale`, `signal_scale`, `noise_scale` (standard deviations) and `mean`."""
    missing = {"length_scale", "signal_scale", "noise_scale"} - set(scales)
    if missing:
        raise ValueError(
            f"hyperparameters must have length_scale, signal_scale and noise_scale; missing: {sorted(missing)}."
        )
    kernel = Matern32(scales["length_scale"], scales["signal_scale"] ** 2)
    return GP(kernel, noise=scales["noise_scale"] ** 2, mean=scales.get("mean", 0.0))
