import io
import json
import os
import pickle
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pathgp import GP, Local, PathGPRegressor, condition, kernels, solvers, storage
from pathgp.likelihood import Trace
from pathgp.linalg.neighbours import build_tree
from pathgp.solvers.local import ComputedResidual
from pathgp.storage import model_file
from pathgp.system.system import System
from pathgp.thompson import ThompsonSampler

KERNEL = kernels.Matern32([0.7, 1.1], 2.0) + kernels.RBF(0.4)
X = np.random.default_rng(0).normal(size=(150, 2))
Y = np.sin(3 * X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=150)
QUERIES = np.random.default_rng(2).normal(size=(7, 2))


def posterior_of(**options):
    kernel = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype=float), KERNEL)  # in the precision of now
    gp = GP(kernel, noise=0.05, mean=0.3)
    return condition(gp, X, Y, num_samples=3, num_features=64, key=jax.random.key(0), **options)


@pytest.fixture(scope="module")
def posterior():
    """An unfinished solve with a local finish: it has all kinds of parts."""
    return posterior_of(solver=solvers.SAP(passes=1, block_size=64), local=Local(20))


@pytest.fixture
def path(posterior, tmp_path):
    path = tmp_path / "model.safetensors"
    storage.save(path, posterior, metadata={"target": "price", "rows": 150})
    return path


def bits(leaf):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), np.asarray(jax.random.key_data(leaf)).tobytes()
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return type(leaf), leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()
    return type(leaf), repr(leaf)


def same(left, right):
    """The same structure, and the same bits in every leaf."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    assert list(map(bits, jax.tree.leaves(left))) == list(map(bits, jax.tree.leaves(right)))


def test_a_posterior_comes_back_with_the_same_bits_and_goes_on(posterior, path):
    loaded = storage.load(path)
    same(posterior, loaded)
    more, again = (p.with_samples(2, key=jax.random.key(5)) for p in (posterior, loaded))
    same(more.prior, again.prior)
    np.testing.assert_array_equal(more.samples(QUERIES), again.samples(QUERIES))


def test_a_file_has_the_permissions_that_the_user_chose(path, tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_a_predictor_predicts_the_same_from_a_smaller_file(posterior, path, tmp_path):
    slim = tmp_path / "slim.safetensors"
    storage.save(slim, posterior.predictor)
    loaded = storage.load(slim)
    for expected, found in zip(posterior.predict(QUERIES), loaded.predict(QUERIES), strict=True):
        np.testing.assert_array_equal(expected, found)
    np.testing.assert_array_equal(posterior.samples(QUERIES), loaded.samples(QUERIES))
    payload = lambda p: sum(tensor.nbytes for tensor in load_file(p).values())
    # Of N rows: signal and noise of the four columns are gone, their sum is there instead; two inputs, weights,
    # residual and noise are left.
    size = jnp.result_type(float).itemsize
    gone, left = 150 * (8 - 4) * size, 150 * (2 + 4 + 4 + 1 + 4) * size
    assert payload(path) - payload(slim) == pytest.approx(gone, abs=200)
    assert payload(slim) == pytest.approx(left + 64 * (1.5 + 3) * size, abs=200)


READER = """
import sys, jax, numpy as np
jax.config.update("jax_enable_x64", sys.argv[3] == "1")
from pathgp import storage
model = storage.load(sys.argv[1])
mean, variance = model.predict(np.load(sys.argv[2]))
print(np.asarray(mean).tobytes().hex(), np.asarray(variance).tobytes().hex(), mean.dtype)
"""


@pytest.mark.parametrize("wide", [False, True])
def test_another_process_predicts_the_same_bits(wide, tmp_path):
    with jax.enable_x64(wide):
        posterior = posterior_of(solver=solvers.Cholesky(), local=Local(20))
        storage.save(tmp_path / "model", posterior)
        np.save(tmp_path / "queries.npy", QUERIES)
        mean, variance = (np.asarray(part) for part in posterior.predict(QUERIES))
    arguments = [tmp_path / "model", tmp_path / "queries.npy", str(int(wide))]
    run = subprocess.run(
        [sys.executable, "-c", READER, *map(str, arguments)], capture_output=True, text=True, env=os.environ
    )
    assert run.returncode == 0, run.stderr
    kind = "float64" if wide else "float32"
    assert run.stdout.split() == [mean.tobytes().hex(), variance.tobytes().hex(), kind]


def test_float64_is_kept_where_jax_is_set_to_float32(tmp_path):
    with jax.enable_x64(True):
        storage.save(tmp_path / "wide", GP(kernels.RBF(0.1), noise=0.1))
    with jax.enable_x64(False):
        loaded = storage.load(tmp_path / "wide")
    assert loaded.noise.dtype == np.float64
    assert np.asarray(loaded.noise) == 0.1


VALUES = {
    "plain": {
        "none": None,
        "yes": True,
        "int": 3,
        "text": "é \n",
        "floats": [0.1, -1e300, float("inf"), float("nan"), -0.0],
    },
    "nested": ((1, (2.5, "x")), [], ()),
    "named": Trace([0.5, 0.25], [1.0, 2.0], [0.1, 0.2], 1, True),
    "numpy": {"wide": np.array([1 / 3, 5e-324]), "scalar": np.float64(0.1), "bits": np.array([True, False])},
    "typed key": jax.random.key(7, impl="rbg"),
    "product": kernels.Product(kernels.Tanimoto(2.0, max_count=3), kernels.RationalQuadratic(alpha=2.0)),
    "nothing in it": jnp.zeros((0, 3)),
    "solvers": (
        solvers.Auto(Local(64)),
        solvers.SubsetOfData(100, solvers.CG(max_seconds=3.0)),
        solvers.InducingSGD(jnp.ones((2, 1))),
        solvers.SDD(step_size=None),
    ),
    "hashes": kernels.Tanimoto().features(jax.random.key(1), 4, 3),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_every_kind_come_back(name, tmp_path):
    storage.save(tmp_path / "value", VALUES[name])
    same(storage.load(tmp_path / "value"), VALUES[name])


def test_a_tree_is_saved_by_its_rows_alone(tmp_path):
    system = System(kernels.Matern32([0.5, 2.0]), jnp.asarray(X, jnp.result_type(float)), jnp.array(0.1))
    projection = Local(8).projection(system, search=lambda points: build_tree(points, leaf=16))
    assert projection.index.rows.size > 150  # there is padding to be told from rows
    storage.save(tmp_path / "tree", projection)
    same(projection, storage.load(tmp_path / "tree"))
    assert sum(t.size for t in load_file(tmp_path / "tree").values()) == 150 * 3 + 2 + 1 + projection.index.rows.size


def test_a_residual_that_is_computed_where_it_is_needed_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr("pathgp.posterior.posterior.ENTRIES_AT_ONCE", 0)
    posterior = posterior_of(solver=solvers.SubsetOfData(40), local=Local(20))
    assert isinstance(posterior.local_residual, ComputedResidual)
    for value in (posterior, posterior.predictor):
        storage.save(tmp_path / "model", value)
        loaded = storage.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.samples(QUERIES), posterior.samples(QUERIES))
        for expected, found in zip(posterior.predict(QUERIES), loaded.predict(QUERIES), strict=True):
            np.testing.assert_array_equal(expected, found)


def test_a_kept_matrix_is_left_out(tmp_path):
    system = System(kernels.RBF(), jnp.asarray(X, jnp.result_type(float)), jnp.array(0.1))
    storage.save(tmp_path / "system", system.with_stored_kernel(10**9))
    same(system, storage.load(tmp_path / "system"))
    assert (tmp_path / "system").stat().st_size < 150 * 150 * 4


def test_an_array_is_stored_once_and_the_file_is_ordinary_safetensors(posterior, path):
    tensors = load_file(path)
    assert sum(tensor.shape == (150, 2) for tensor in tensors.values()) == 1  # X, though three parts hold it
    assert any(np.array_equal(tensor, posterior.solution.weights) for tensor in tensors.values())
    with safe_open(path, framework="numpy") as file:
        assert json.loads(file.metadata()["structure"])["class"] == "Posterior"
    assert storage.metadata(path) == {
        "target": "price",
        "rows": 150,
        "format_version": 1,
        "pathgp_version": version("pathgp"),
    }


class OfMyOwn(kernels.RBF):
    pass


def test_a_class_of_ones_own_is_named_by_the_reader_not_by_the_file(tmp_path):
    path = tmp_path / "mine"
    with pytest.raises(ValueError, match=r"value.kernel.*OfMyOwn"):
        storage.save(path, GP(OfMyOwn(), noise=0.1))
    assert not path.exists()
    storage.save(path, GP(OfMyOwn(0.3), noise=0.1), classes=(OfMyOwn,))
    with pytest.raises(ValueError, match=r"mine.*OfMyOwn"):
        storage.load(path)
    assert type(storage.load(path, classes=(OfMyOwn,)).kernel) is OfMyOwn


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (solvers.SGD(optimizer=optax.adam(0.1)), "value.optimizer.*GradientTransformationExtraArgs"),
        ({"f": [1, len]}, r"value\['f'\]\[1\]"),
        (np.array(["text"]), "value.*ndarray"),
        ({1: 2}, "value.*dict"),
    ],
)
def test_what_is_code_or_foreign_is_refused_by_name(value, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        storage.save(tmp_path / "value", value)
    assert list(tmp_path.iterdir()) == []


def refused(path, match=None):
    with pytest.raises(ValueError, match=match) as error:
        storage.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_file_that_was_cut_short_is_refused(path, size):
    path.write_bytes(path.read_bytes()[:size])
    refused(path)


def test_any_flipped_byte_of_the_header_is_refused(path):
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].rstrip()
    for place in (*range(8), *range(8, 8 + len(header), 97), 8 + len(header) - 1):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"model.safetensors"):
            storage.load(path)


def test_any_flipped_byte_of_the_tensors_is_refused(path):
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for place in (*range(start, len(content), 1999), len(content) - 1):
        flipped = bytearray(content)
        flipped[place] ^= 0x10
        path.write_bytes(flipped)
        refused(path)


@pytest.mark.parametrize(
    "changed",
    [lambda A: A.reshape(A.shape[::-1]), lambda A: A.view(f"i{A.itemsize}"), lambda A: A[::-1].copy()],
    ids=["another shape", "another type", "another order"],
)
def test_the_same_bytes_that_mean_something_else_are_refused(path, changed):
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.shape == X.shape)
    save_file(tensors | {name: changed(tensors[name])}, path, metadata=header)
    refused(path)


def test_a_pickle_is_refused_and_not_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    refused(path)
    stored = io.BytesIO()
    np.savez(stored, weights=np.ones(3))
    path.write_bytes(stored.getvalue())
    refused(path)
    assert not (tmp_path / "executed").exists()


def test_files_of_others_and_of_the_future_are_refused(path, tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    for header in (None, {"format": "pt"}, {"format": "pathgp"}, {"format": "pathgp", "format_version": "one"}):
        save_file({"weights": np.ones(3)}, foreign, metadata=header)
        refused(foreign, r"foreign\.safetensors")
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    save_file(load_file(path), foreign, metadata=header | {"format_version": "2", "pathgp_version": "9.1"})
    refused(foreign, r" 2, .*9\.1.* 1")
    with pytest.raises(ValueError, match=" 2"):
        storage.metadata(foreign)
    save_file(load_file(path), foreign, metadata=header | {"structure": '{"class": "os.system", "fields": {}}'})
    refused(foreign)


def test_a_name_that_is_not_on_the_list_is_never_looked_up(tmp_path, monkeypatch):
    monkeypatch.setattr(model_file.Encoder, "encode", lambda *_: {"class": "os.system", "fields": {"command": "true"}})
    storage.save(tmp_path / "model", None)
    refused(tmp_path / "model", r"os\.system")


CHANGES = {
    "lengthscale": (lambda p: p.gp.kernel.left.lengthscale, lambda x: x.at[1].set(jnp.nan)),
    "variance": (lambda p: p.gp.kernel.right.variance, lambda x: -x),
    "GP.noise": (lambda p: p.gp.noise, lambda x: jnp.stack([x, x])),
    "System.noise": (lambda p: p.system.noise, jnp.zeros_like),
    "Projection.noise": (lambda p: p.predictor.correction.projection.noise, lambda x: -x),
    "Projection.X": (lambda p: p.predictor.correction.projection.X, lambda x: x.at[2].set(jnp.nan)),
    "System.X": (lambda p: p.system.X, lambda x: x.at[2].set(jnp.inf)),
    "Targets.signal": (lambda p: p.system.X, lambda x: x[:-1]),
    "Solution.weights": (lambda p: p.solution.weights, lambda x: x[:-1]),
    "Solution.rows": (lambda p: p.solution.rows, lambda _: jnp.arange(150) - 1),
    "Targets.noise": (lambda p: p.targets.noise, lambda x: x[:, :-1]),
    "Info.converged": (lambda p: p.solution.info.relative_residual, lambda x: x[:-1]),
    "Function.weights": (lambda p: p.prior.weights, lambda x: x[:-2]),
    "Fourier.power": (lambda p: p.prior.features.parts[0].power, lambda x: -x),
    "StoredResidual.values": (lambda p: p.local_residual.values, lambda x: x.at[0, 0].set(jnp.inf)),
    "Posterior.solver": (lambda p: p.solver, lambda _: kernels.RBF()),
    "SAP.passes": (lambda p: p.solver.passes, lambda _: 0),
    "SAP.block_size": (lambda p: p.solver.block_size, lambda _: "64"),
    "Posterior.key": (lambda p: p.key, lambda key: jax.random.split(key)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_parts_that_do_not_fit_each_other_are_refused_by_name(name, posterior, path):
    where, change = CHANGES[name]
    storage.save(path, eqx.tree_at(where, posterior, replace_fn=change, is_leaf=lambda leaf: leaf is None))
    refused(path, re.escape(name))


@pytest.mark.parametrize("row", [0, 150, -7])
def test_a_tree_without_each_row_once_is_refused(row, tmp_path):
    system = System(kernels.Matern32([0.5, 2.0]), jnp.asarray(X, jnp.result_type(float)), jnp.array(0.1))
    projection = Local(8).projection(system, search=lambda points: build_tree(points, leaf=16))
    leaf, place = np.argwhere(np.asarray(projection.index.leaves) == 3)[0]
    forged = eqx.tree_at(lambda p: p.index.rows, projection, projection.index.rows.at[leaf, place].set(row))
    storage.save(tmp_path / "tree", forged)
    refused(tmp_path / "tree", "leaves")


@pytest.mark.parametrize("kind", ["PathGPRegressor", "ThompsonSampler"])
def test_what_has_a_reader_of_its_own_is_said_to_have_one(kind, tmp_path):
    path = tmp_path / "model"
    if kind == "PathGPRegressor":
        PathGPRegressor(hyperparameters="fixed", num_samples=2, random_state=0).fit(X[:9], Y[:9]).save(path)
    else:
        ThompsonSampler([(0.0, 1.0)]).save(path)
    refused(path, rf"\b{kind}\.load\b")


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.safetensors"):
        storage.load(tmp_path / "nowhere.safetensors")


def test_a_failed_save_leaves_the_old_model(posterior, path, monkeypatch):
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        storage.save(path, posterior)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
