"""Each dataset is a graph that runs without our code, and whose iterators can be saved and restored."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import Written, write_dataset
from tests.input.text.test_sequence import documents, write_tokens
from tpudata import (
    CentreCrop,
    FixedLengthRecordFiles,
    Mixture,
    MixUp,
    TextLineFiles,
    TFRecordFiles,
    TrainCrop,
    make_input_fn,
)
from tpudata.format import Feature

# Ops that call back into Python, which exists only in the process that made them.
PYTHON_OPS = {"PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset"}


@dataclasses.dataclass(frozen=True)
class Sources:
    digits: str
    raw: str
    pictures: str
    folder: Path


@pytest.fixture
def sources(digits: Written, raw_digits: Written, pictures: Written, tmp_path: Path) -> Sources:
    return Sources(digits.path, raw_digits.path, pictures.path, tmp_path)


def seeded(features: Any, labels: Any, seed: Any) -> Any:
    image = tf.cast(features["image"], tf.float32)
    return {"image": image + tf.random.stateless_uniform([], seed)}, labels


def compressed(sources: Sources) -> str:
    features = [Feature("x", "bytes", "uint8", (2,), "raw"), Feature("label", "int64", "int64")]
    records = [{"x": bytes([number % 7, number]), "label": number} for number in range(90)]
    return write_dataset(str(sources.folder / "d"), {"train": records}, features, layout="", compression="gzip")


def plain(sources: Sources, kind: str) -> Any:
    path = sources.folder / "plain"
    if kind == "tfrecord":
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(60):
                writer.write(b"%04d" % number)
        return TFRecordFiles(path)
    if kind == "lines":
        path.write_text("".join(f"line {number}\n" for number in range(60)))
        return TextLineFiles(path)
    path.write_bytes(np.arange(60, dtype="<i4").tobytes())
    return FixedLengthRecordFiles(path, np.dtype([("x", "<i4")]))


def sequences(sources: Sources) -> str:
    return write_tokens(sources.folder, documents(60, 16))


MAKES: dict[str, Callable[[Sources, bool], Any]] = {
    "images": lambda s, t: make_input_fn(s.digits, "train", training=t, seed=1),
    "images in memory": lambda s, t: make_input_fn(s.digits, "train", training=t, seed=1, cache=True),
    "images on disk": lambda s, t: make_input_fn(s.digits, "train", training=t, seed=1, cache=s.folder / "cache"),
    "window": lambda s, t: make_input_fn(s.raw, "train", training=t, seed=1, shuffle=100 if t else None),
    "fixed": lambda s, t: make_input_fn(s.raw, "train", training=t, seed=1, images=tpudata.Images(dtype="float32")),
    "crops": lambda s, t: make_input_fn(
        s.pictures, "train", training=t, seed=1, images=tpudata.Images(crop=TrainCrop(12) if t else CentreCrop(12))
    ),
    "mixed": lambda s, t: make_input_fn(
        s.digits,
        "train",
        training=t,
        seed=1,
        images=tpudata.Images(size=(8, 8), dtype="float32", mix=MixUp() if t else None),
    ),
    "transform": lambda s, t: make_input_fn(s.digits, "train", training=t, seed=1, transform=seeded),
    "sequences": lambda s, t: make_input_fn(
        sequences(s), "train", training=t, seed=1, tokens=tpudata.Tokens(sequence_length=16)
    ),
    "buckets": lambda s, t: make_input_fn(
        sequences(s), "train", training=t, seed=1, tokens=tpudata.Tokens(buckets=(8, 16))
    ),
    "compressed": lambda s, t: make_input_fn(compressed(s), "train", training=t, seed=1),
    "tfrecord": lambda s, t: make_input_fn(plain(s, "tfrecord"), training=t, seed=1, parse=lambda r: {"x": r}),
    "lines": lambda s, t: make_input_fn(plain(s, "lines"), training=t, seed=1),
    "in order": lambda s, t: make_input_fn(s.digits, "train", training=t, shuffle=False if t else None),
    "epochs": lambda s, t: make_input_fn(s.digits, "train", training=t, seed=1, num_epochs=2 if t else None),
    "filter": lambda s, t: make_input_fn(s.raw, "train", training=t, seed=1, filter=lambda f: f["label"] < 5),
    "batch transform": lambda s, t: make_input_fn(s.digits, "train", training=t, seed=1, batch_transform=seeded),
    "mixture": lambda s, t: Mixture(
        [(make_input_fn(path, "train", training=True, seed=1), 1) for path in ((s.digits, s.raw) if t else (s.raw,))]
    ),
    "fixed files": lambda s, t: make_input_fn(plain(s, "fixed"), training=t, seed=1),
}


def operations(dataset: tf.data.Dataset) -> set[str]:
    """Return the types of all operations, also of functions."""
    variant = tf.data.experimental.to_variant(dataset)
    serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = itertools.chain(graph.node, *(function.node_def for function in graph.library.function))
    return {node.op for node in nodes}


# Each is read or ordered in its own way.
WAYS = ("images", "images on disk", "window", "buckets", "compressed", "lines", "in order", "filter", "mixture")
SAVED = [*((name, True) for name in WAYS), *((name, False) for name in ("images", "buckets", "compressed"))]
# In evaluation these equal others: the digits, the raw digits, or files of records of one kind.
AS_OTHERS = {"window", "fixed", "transform", "in order", "epochs", "mixture", "batch transform", "lines", "fixed files"}


def check_is_a_graph(dataset: tf.data.Dataset) -> None:
    found = operations(dataset)
    assert not found & PYTHON_OPS
    assert any("Dataset" in op for op in found)


@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param(name, training, marks=[] if training or name not in AS_OTHERS else [pytest.mark.matrix])
        for training in (True, False)
        for name in MAKES
        if (name, training) not in SAVED
    ],
)
def test_the_dataset_is_a_graph_without_python(sources: Sources, name: str, training: bool) -> None:
    check_is_a_graph(MAKES[name](sources, training)({"batch_size": 3}))


@pytest.mark.parametrize(
    ("name", "training"),
    [*SAVED, *(pytest.param(name, True, marks=pytest.mark.matrix) for name in MAKES if name not in WAYS)],
)
def test_the_dataset_is_a_graph_that_saves_and_restores_iterators(sources: Sources, name: str, training: bool) -> None:
    dataset = MAKES[name](sources, training)({"batch_size": 3})
    check_is_a_graph(dataset)
    iterator = iter(dataset)
    next(iterator)
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).write(str(sources.folder / "saved"))
    rest = list(itertools.islice(iterator, 10))
    assert rest
    # Restored by an iterator that is further on, and once by a new one: TensorFlow rebuilds each from the graph.
    for other in (iterator, iter(dataset)) if name == "images" else (iterator,):
        tf.train.Checkpoint(iterator=other).read(saved).assert_consumed()
        for batch, expected in zip(itertools.islice(other, len(rest)), rest, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, batch, expected)
