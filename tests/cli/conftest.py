"""One small model for all tests of the command line: fitting is what takes long."""

import pathlib
from typing import NamedTuple

import pytest
from tables_of_houses import houses, write


class Fitted(NamedTuple):
    folder: pathlib.Path
    train: pathlib.Path
    test: pathlib.Path
    model: pathlib.Path
    printed: str


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    pytest.importorskip("pyarrow")
    import contextlib
    import io

    from pathgp.cli import main

    folder = tmp_path_factory.mktemp("model")
    train, test = write(folder / "train.csv", houses(120, 0)), write(folder / "test.csv", houses(40, 1))
    model = folder / "model.safetensors"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert (
            main(["fit", str(train), "--target", "price", "--one-hot", "--test-share", "0.1", "--out", str(model)]) == 0
        )
    return Fitted(folder, train, test, model, out.getvalue())
