"""Files of chance: a damaged model is refused with a sentence, or is the model; nothing of it is executed."""

import json
import pathlib
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pathgp import GP, PathGPRegressor, kernels, solvers, storage
from pathgp.functions import Canonical, Function
from pathgp.solvers import Info
from pathgp.storage import model_file

VALUE = {
    "gp": GP(kernels.Matern32([0.3, 2.0], 1.5), noise=0.1),
    "function": Function(Canonical(kernels.RBF(), jnp.ones((5, 2))), jnp.ones((5, 3))),
    "info": Info("CG", 3, 1.5, 0.1, 0.01, jnp.zeros(4), jnp.ones(4, bool)),
    "key": jax.random.key(3),
    "rest": (1, "text", None, np.arange(6.0, dtype=np.float32), solvers.SAP(passes=3)),
}
AS_OFTEN = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "model"
    storage.save(path, VALUE, metadata={"kind": "PathGPRegressor"})
    return path.read_bytes()


def bits(value):
    """The structure, and the bytes of every leaf."""
    is_key = lambda leaf: isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    leaves = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(value)]
    return jax.tree.structure(value), [np.asarray(leaf).tobytes() for leaf in leaves]


def refused_or(expected, path):
    """Whether the file was refused, by a sentence that names it, whoever reads it; else it is what was written."""
    sentences = []
    for read in (storage.load, storage.metadata, PathGPRegressor.load):
        try:
            found = read(path)
        except ValueError as error:
            sentences.append(str(error))
        else:
            assert read is not storage.load or expected is None or bits(found) == expected
    assert all(str(path) in sentence and sentence.endswith(".") for sentence in sentences)
    return len(sentences) > 0


@AS_OFTEN
@given(data=st.data())
def test_a_damaged_file_is_refused_or_harmless(content, tmp_path, data):
    place = st.integers(0, len(content) - 1)
    header = st.integers(0, 8 + struct.unpack("<Q", content[:8])[0])
    changed = bytearray(content)
    match data.draw(st.sampled_from(["flip", "cut", "insert", "remove", "copy"])):
        case "flip":
            for at in data.draw(st.lists(st.one_of(place, header), min_size=1, max_size=4)):
                changed[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del changed[data.draw(place) :]
        case "insert":
            at = data.draw(st.one_of(place, header))
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        case "remove":
            at = data.draw(st.one_of(place, header))
            del changed[at : at + data.draw(st.integers(1, 100))]
        case "copy":
            at, to, size = data.draw(place), data.draw(place), data.draw(st.integers(1, 200))
            changed[to : to + size] = content[at : at + size]
    path = tmp_path / "model"
    path.write_bytes(changed)
    refused_or(bits(VALUE), path)


@AS_OFTEN
@given(st.binary(max_size=300), st.booleans())
def test_bytes_of_chance_are_refused(tmp_path, noise, with_length):
    path = tmp_path / "model"
    path.write_bytes(struct.pack("<Q", len(noise)) + noise if with_length else noise)
    assert refused_or(None, path)


NAMES = st.sampled_from([cls.__name__ for cls in model_file.CLASSES] + ["os.system", "eval", ""])
FIELDS = st.sampled_from(["kernel", "noise", "lengthscale", "X", "weights", "settings", "fitted", "columns", "index"])
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-3, 10**20), st.sampled_from(["0", "1", "nan", "threefry2x32"]))
NODES = st.recursive(
    PLAIN,
    lambda node: st.one_of(
        st.lists(node, max_size=3),
        st.dictionaries(st.sampled_from(["float", "jax", "numpy", "key", "data", "tuple", "dict", "class"]), node),
        st.fixed_dictionaries({"class": NAMES, "fields": st.dictionaries(FIELDS, node, max_size=3)}),
        st.fixed_dictionaries({"key": node, "data": node}),
        st.fixed_dictionaries({"dict": st.dictionaries(FIELDS, node, max_size=3)}),
    ),
    max_leaves=8,
)
MANY_BRACKETS = "[" * 100_000


@AS_OFTEN
@given(NODES.map(json.dumps), NODES.map(json.dumps), st.sampled_from(["1", "0", "9" * 5000, "٣", "-1", ""]))
@example(MANY_BRACKETS, "{}", "1")
@example("null", MANY_BRACKETS, "1")
@example("null", "[1]", "1")
@example('{"class": "GP", "fields": {}}', "{}", "1")
@example('{"dict": {"settings": {"dict": {"command": "true"}}}}', '{"kind": "PathGPRegressor"}', "1")
def test_a_forged_file_with_the_right_checksum_is_a_value_or_refused(tmp_path, structure, metadata, version):
    tensors = {"0": np.ones(3, np.float32), "1": np.zeros((0, 2), np.int64)}
    header = {"format": "pathgp", "format_version": version, "pathgp_version": "0", "metadata": metadata}
    header["structure"] = structure
    header["checksum"] = model_file._checksum(header, tensors)
    path = tmp_path / "model"
    save_file(tensors, path, metadata=header)
    before = set(tmp_path.iterdir())
    refused_or(None, path)
    assert set(pathlib.Path(tmp_path).iterdir()) == before
