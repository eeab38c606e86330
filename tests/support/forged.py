"""Model files changed at random, each with a valid checksum: what happens when they are loaded and used.

Run as a program, without the run-time checks of types that tests have: `python forged.py FOLDER SEED COUNT`.
"""

import contextlib
import copy
import io
import json
import pathlib
import random
import sys
import traceback
import warnings

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pathgp import PathGPRegressor, kernels, solvers
from pathgp.cli import main
from pathgp.storage import model_file

ROWS, SAMPLES = 30, 3
QUERIES = np.random.default_rng(1).normal(size=(5, 2))
COLUMNS = [{"name": name, "kind": "number", "categories": [], "fill": None, "indicator": False} for name in "ab"]


def write_models(folder):
    """Models with all kinds of parts: a local correction, a sum of kernels, fingerprints, inducing points; and slim."""
    rng = np.random.default_rng(0)
    X, counts = rng.normal(size=(ROWS, 2)), rng.integers(0, 3, size=(ROWS, 2)).astype(float)
    y = np.sin(X[:, 0])
    stationary = kernels.Matern32([1.0, 0.5], 1.5)
    mixed = kernels.RBF(1.0) + stationary * kernels.RationalQuadratic([0.5, 2.0])
    unfinished = solvers.SAP(passes=1, block_size=8, tolerance=1e-9)
    variants = {
        "local": {"kernel": stationary, "solver": solvers.Auto()},
        "mixed": {"kernel": mixed, "solver": unfinished},
        "counts": {"kernel": kernels.Tanimoto(2.0, max_count=2), "solver": "cg", "standardize": False},
        "inducing": {"kernel": stationary, "solver": "inducing"},
    }
    fixed = {"noise": 0.1, "hyperparameters": "fixed", "num_samples": SAMPLES, "random_state": 0}
    paths = []
    for name, options in variants.items():
        model = PathGPRegressor(**options, **fixed).fit(counts if name == "counts" else X, y)
        for slim in (False, True):
            paths.append(folder / f"{name}{'-slim' * slim}")
            ranges = [[-3.0, 3.0], [-3.0, 3.0]]
            said = {"encoding": {"target": "y", "columns": COLUMNS}, "rows": ROWS, "ranges": ranges, "missing": {}}
            model.save(paths[-1], slim=slim, metadata=said)
    return paths


def read(path):
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    return header, load_file(path)


def write(path, header, tensors):
    """With the checksum of what is written."""
    header = {**header, "checksum": model_file._checksum(header, tensors)}
    save_file(tensors, path, metadata=header)


def places(node, at=()):
    """Where every node of a piece of JSON is."""
    yield at
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def node_at(root, at):
    for key in at:
        root = root[key]
    return root


STRANGE = [
    *(None, True, False, 0, 1, -1, 2, 10**6, 10**20, 0.0, -0.5, 1e-300, 1e300, "", "nan", "1", "text", [], {}, [1]),
    *({"float": "nan"}, {"float": "inf"}, {"float": "-inf"}, {"float": "x"}, {"dict": {}}, {"tuple": []}),
    *({"jax": "0"}, {"numpy": "0"}, {"jax": "none"}, {"key": "threefry2x32", "data": "0"}, {"key": "rbg", "data": "1"}),
    *(
        {"class": cls.__name__, "fields": {}}
        for cls in (*model_file.CLASSES[:8], solvers.CG, solvers.Auto, kernels.RBF)
    ),
]
NAMES = [*(cls.__name__ for cls in model_file.CLASSES), "Scaling", "os.system", ""]


def mutated_json(root, rng):
    """A copy with one node changed, and what was done."""
    root = {"root": copy.deepcopy(root)}
    at = rng.choice([place for place in places(root) if place])
    parent, key = node_at(root, at[:-1]), at[-1]
    node = parent[key]
    kind = rng.choice(["replace", "remove", "rename", "another", "swap", "repeat", "class"])
    if kind == "remove" and isinstance(parent, dict):
        del parent[key]
    elif kind == "remove":
        parent.pop(key)
    elif kind == "rename" and isinstance(parent, dict):
        parent[rng.choice([f"{key}_", "x", "__class__", "predict", *list(parent)])] = parent.pop(key)
    elif kind == "another":
        parent[key] = copy.deepcopy(node_at(root, rng.choice(list(places(root)))))
    elif kind == "swap":
        other = rng.choice([place for place in places(root) if place])
        if other[: len(at)] != at and at[: len(other)] != other:
            parent[key] = node_at(root, other)
            node_at(root, other[:-1])[other[-1]] = node
    elif kind == "repeat" and isinstance(node, list):
        parent[key] = node * 2
    elif kind == "class":
        classes = [place for place in places(root) if place and place[-1] == "class"]
        at = rng.choice(classes) if classes else at
        node_at(root, at[:-1])[at[-1]] = rng.choice(NAMES)
    else:
        kind, parent[key] = "replace", copy.deepcopy(rng.choice(STRANGE))
    return root.get("root"), f"{kind} at {'/'.join(map(str, at[1:]))}"


VALUES = [np.nan, np.inf, -np.inf, 0, -1, 1, 1e-30, 1e30, 3e38, 2**31 - 1, -(2**31), 1e300]


def changed_values(A, value, where):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        number = np.asarray(value).astype(A.dtype)
    A = A.copy()
    if where == "all":
        A[...] = number
    elif A.size:
        A.reshape(-1)[where % A.size] = number
    return A


def mutated_tensors(tensors, rng):
    """A copy with one tensor changed, and what was done."""
    name = rng.choice(sorted(tensors))
    A = tensors[name]
    kind = rng.choice(["one", "one", "all", "all", "negate", "scale", "shape", "dtype", "remove", "swap"])
    done = f"{kind} of {name}{A.shape}"
    if kind in ("one", "all"):
        value = rng.choice(VALUES)
        A, done = changed_values(A, value, "all" if kind == "all" else rng.randrange(10**6)), f"{done} {value}"
    elif kind == "negate" and A.dtype.kind in "if":
        A = -A
    elif kind == "scale" and A.dtype.kind == "f":
        factor = rng.choice([1e-30, 1e10, 1e20, 1e37])
        with np.errstate(all="ignore"):
            A, done = (A * factor).astype(A.dtype), f"{done} {factor}"
    elif kind == "dtype":
        dtype = rng.choice(["float16", "float32", "float64", "int32", "int64", "uint8", "uint32", "bool"])
        with np.errstate(all="ignore"):
            A, done = A.astype(dtype), f"{done} {dtype}"
    elif kind == "remove":
        return {key: value for key, value in tensors.items() if key != name}, done
    elif kind == "swap":
        other = rng.choice(sorted(tensors))
        return {**tensors, name: tensors[other].copy(), other: A.copy()}, f"{done} and {other}"
    else:
        shapes = [
            *(lambda A: A[None], lambda A: A[..., None], lambda A: A.reshape(-1), lambda A: A.T.copy()),
            *(
                lambda A: np.concatenate([A, A]),
                lambda A: A[:1],
                lambda A: A[:0],
                lambda A: A[:-1],
                lambda A: A[..., :-1],
            ),
            *(lambda A: np.concatenate([A, A], axis=-1), lambda A: A.reshape(-1)[0], lambda A: A[..., :0]),
        ]
        with contextlib.suppress(ValueError, IndexError):
            A = rng.choice(shapes)(A)
        done = f"{done} {A.shape}"
    return {**tensors, name: np.array(A, order="C")}, done


def mutated(header, tensors, rng):
    kind = rng.choices(["structure", "tensors", "metadata"], [5, 5, 1])[0]
    if kind == "tensors":
        tensors, done = mutated_tensors(tensors, rng)
        return header, tensors, done
    changed, done = mutated_json(json.loads(header[kind]), rng)
    return {**header, kind: json.dumps(changed)}, tensors, f"{kind}: {done}"


def used(path):
    """Finite predictions and samples in Python."""
    model = PathGPRegressor.load(path)
    mean, std = model.predict(QUERIES, return_std=True)
    draws = model.sample_y(QUERIES, 2)
    assert mean.shape == std.shape == (5,)
    assert draws.shape == (5, 2)
    assert all(np.isfinite(values).all() for values in (mean, std, draws)), "not finite"


def refused_in_python(path):
    try:
        used(path)
    except ValueError as error:
        says = str(error)
    else:
        return False
    assert str(path) in says, f"the file is not named: {says}"
    assert says.endswith("."), f"no sentence: {says}"
    return True


def refused_by_command(path, table):
    out, errors = io.StringIO(), io.StringIO()
    out.buffer = io.BytesIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(["predict", str(path), str(table)])
        known = main(["info", str(path)])
    assert code or not known, f"it predicts, but: {errors.getvalue()}"
    if code == 0:
        found = np.genfromtxt(io.BytesIO(out.buffer.getvalue()), delimiter=",", names=True)
        assert found.shape == (5,)
        assert np.isfinite(found["mean"]).all(), "not finite"
        assert np.isfinite(found["sd"]).all(), "not finite"
        return False
    says = errors.getvalue()
    assert str(path) in says or f"{table} lacks" in says, f"the file is not named: {says}"
    return True


def outcomes(folder, seed, count):
    """How many files were read and refused, and what went wrong with the others."""
    rng = random.Random(seed)
    table = folder / "table.csv"
    np.savetxt(table, np.abs(QUERIES), delimiter=",", header="a,b", comments="")
    originals = [(path, *read(path)) for path in write_models(folder)]
    for path, _, _ in originals:
        assert not refused_in_python(path)
        assert not refused_by_command(path, table)
    counts = {"read": 0, "refused": 0, "wrong": []}
    for number in range(count):
        path, header, tensors = rng.choice(originals)
        changed = mutated(header, tensors, rng)
        forged = folder / "forged.safetensors"
        write(forged, *changed[:2])
        for use in (refused_in_python, lambda path: refused_by_command(path, table)):
            try:
                counts["refused" if use(forged) else "read"] += 1
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {error}"[:300]
                counts["wrong"].append(f"{number} {path.name}: {changed[2]}: {text} ({where.filename}:{where.lineno})")
    return counts


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(outcomes(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
