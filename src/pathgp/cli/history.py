"""State of an optimisation for `pathgp suggest`, from tables or from a file."""

import argparse
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float64

from pathgp import storage
from pathgp.cli import inputs
from pathgp.cli.common import print_message
from pathgp.cli.tables.files import NUMBER, column_kinds, listed
from pathgp.solvers import Auto
from pathgp.thompson import Search
from pathgp.thompson.loop import Settings, State, observe
from pathgp.thompson.sampler import CLASSES, SIGNS
from pathgp.thompson.space import Codes, Dimension, Space

KIND = "pathgp suggest"


class Optimisation(NamedTuple):
    """An optimisation, with the names of its inputs and target in the tables."""

    settings: Settings
    state: State
    names: list[str]
    target: str

    @classmethod
    def read(cls, arguments: argparse.Namespace) -> "Optimisation":
        """Return the optimisation that the command line describes, with all evaluations."""
        a = arguments
        bounds = inputs.read_bounds(a.bounds)
        if a.target in bounds:
            raise ValueError(
                f"--target {a.target!r} is also an input in {a.bounds}: remove it there, or choose another target."
            )
        space = Space(tuple(bounds.values()))
        settings = Settings(space, None, SIGNS[a.direction], Auto(), Search(), space.initial, a.seed)
        found = cls(settings, State.empty(space), list(bounds), a.target)
        X, y = read_history(a.file, bounds, a.target)
        if a.state is None:
            return found.afresh(a.pending, bounds, X, y)
        return found.resumed(a.state, a.file, X, y)

    def afresh(
        self,
        pending: pathlib.Path | None,
        bounds: Mapping[str, Dimension],
        X: Codes,
        y: Float64[np.ndarray, "n"],
    ) -> "Optimisation":
        """Return the optimisation from tables only."""
        codes = self.state.pending if pending is None else inputs.encode(pending, bounds, inputs.read(pending, bounds))
        state = observe(dataclasses.replace(self.state, pending=codes), X, y)
        # There is no stored state of the random numbers, so that they advance with the number of known points.
        known = len(y) + len(state.pending)
        return self._replace(state=dataclasses.replace(state, asks=known, designed=known))

    def resumed(
        self, path: pathlib.Path, history: pathlib.Path, X: Codes, y: Float64[np.ndarray, "n"]
    ) -> "Optimisation":
        """Return the optimisation from a stored state, with the rows added since; from the start if the file does not
        exist.
        """
        if not path.exists():
            return self._replace(state=observe(self.state, X, y))
        said = storage.metadata(path)
        if said.get("kind") != KIND:
            raise ValueError(f"--state {path} was not written by `pathgp suggest`: choose another file.")
        before, state = storage.load(path, classes=CLASSES)
        given = lambda settings: (settings.space, settings.sign, settings.random_state)
        same = bool(eqx.tree_equal(given(before), given(self.settings)))
        if not same or (said["inputs"], said["target"]) != (self.names, self.target):
            raise ValueError(
                f"--state {path} was made with different bounds or a different target, direction or seed: use the "
                "same ones, or choose another file."
            )
        told = said["told"]
        valid = np.flatnonzero(np.isfinite(y[:told]))
        if len(y) < told or not (np.array_equal(X[valid], state.X) and np.array_equal(y[valid], state.y)):
            raise ValueError(
                f"{history} does not begin with the {told} rows stored in --state {path}: append new rows below them, "
                "or choose another file for the state."
            )
        return self._replace(state=observe(state, X[told:], y[told:]))

    def save(self, path: pathlib.Path) -> None:
        """Write the state for the next call, with the names that the state does not hold."""
        said = {
            "kind": KIND,
            "inputs": self.names,
            "target": self.target,
            "told": self.state.num_told,
        }
        storage.save(path, (self.settings, self.state), metadata=said, classes=CLASSES)

    def best(self) -> dict[str, Any] | None:
        """Return the best result and its inputs; None before the first result."""
        state = self.state
        if not state.y.size:
            return None
        row = int(np.argmax(self.settings.sign * state.y))
        point = self.settings.space.decode(state.X[row : row + 1])[0].tolist()
        return {"value": float(state.y[row]), "inputs": dict(zip(self.names, point, strict=True))}


def read_history(
    path: pathlib.Path, bounds: Mapping[str, Dimension], target: str
) -> tuple[Codes, Float64[np.ndarray, "n"]]:
    """Return the codes of the inputs and the results, which are NaN for failed evaluations."""
    present = column_kinds(path)
    if target not in present:
        raise ValueError(f"--target names {target!r}, but the columns of {path} are {listed(list(present))}.")
    if present[target] != NUMBER:
        raise ValueError(
            f"{path}: the target {target!r} holds {present[target]}, where numbers are needed: leave it empty where an "
            "evaluation failed."
        )
    columns = inputs.read(path, bounds, target)
    y = np.array([np.nan if value is None else value for value in columns[target]], dtype=np.float64)
    if not y.size:
        raise ValueError(f"{path} has no rows below its header: evaluate a few points first.")
    codes = inputs.encode(path, bounds, columns)
    spare = [name for name in present if name != target and name not in bounds]
    if spare:
        print_message(f"ignoring columns that are not in the bounds: {listed(spare)}.")
    return codes, y
