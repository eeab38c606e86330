"""Tables for the tests of the command line."""

import pathlib

import numpy as np


def houses(rows: int, seed: int) -> dict[str, np.ndarray]:
    """A price that depends on the size and the colour, and not on the age."""
    rng = np.random.default_rng(seed)
    size, age = rng.uniform(50, 200, rows).round(2), rng.uniform(0, 90, rows).round(2)
    colour = rng.choice(["red", "blue"], rows)
    price = 3 * size + 50 * np.sin(size / 20) + 100 * (colour == "red") + rng.normal(0, 10, rows)
    return {"size": size, "colour": colour, "age": age, "price": price.round(3)}


def write(path: pathlib.Path, columns: dict[str, np.ndarray]) -> pathlib.Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path
