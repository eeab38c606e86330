"""One small model for all tests of the command line: fitting is what takes long."""

import contextlib
import io
import pathlib
from typing import NamedTuple

from tests.support.tables_of_houses import houses, write


class Fitted(NamedTuple):
    folder: pathlib.Path
    train: pathlib.Path
    test: pathlib.Path
    model: pathlib.Path
    printed: str


def fit_small_model(folder):
    from pathgp.cli import main

    train, test = write(folder / "train.csv", houses(120, 0)), write(folder / "test.csv", houses(40, 1))
    model = folder / "model.safetensors"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert (
            main(["fit", str(train), "--target", "price", "--one-hot", "--test-share", "0.1", "--out", str(model)]) == 0
        )
    return Fitted(folder, train, test, model, out.getvalue())
