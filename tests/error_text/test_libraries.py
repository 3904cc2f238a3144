"""The patterns of libraries' errors, each against errors that the installed libraries raise."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.images import encode, picture
from tpudata.error_text import libraries
from tpudata.format import encode_example
from tpudata.format.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, LENGTH_BYTES, pack_frame
from tpudata.input.dataset_ops import cast_to_int32, ensure

# Errors that need devices, other processes or a server, which other tests provoke; none makes another process hold a TPU.
PROVOKED_ELSEWHERE = {
    "CHECKED_SERVICE": "tests/input/test_service.py",
    "GCS_FAILURE": "tests/gcs/test_reading.py",
    "LOST_EXCHANGE": "tests/estimator/test_cluster.py",
    "NO_DEVICE_MEMORY": "tests/devices/tpu_compiler/test_compiler.py",
    "RUNTIME_STATUS": "tests/estimator/test_cluster.py",
    "TPU_IN_USE": "",
}


def run(function: Callable[[tf.Tensor], Any], element: Any = 0, name: str | None = None) -> None:
    """Map a function over a dataset of one element."""
    list(tf.data.Dataset.from_tensors(element).map(function, name=name))


def read(data: bytes, compression: str = "") -> Callable[[Path], None]:
    """Return a function that reads bytes as a file of records, within a function of a dataset."""

    def read_file(folder: Path) -> None:
        path = folder / "file"
        path.write_bytes(data)
        read_path(str(path), compression)

    return read_file


def read_path(path: str, compression: str = "") -> None:
    run(
        lambda _: tf.data.TFRecordDataset(path, compression).batch(9).get_single_element(),
        name="tpudata__5b_5d",
    )


def parse(spec: Any, example: bytes) -> Callable[[Path], None]:
    """Return a function that parses a batch of one Example."""
    return lambda _: run(lambda row: tf.io.parse_example(row, {"x": spec}), [example])


def decode(data: bytes) -> Callable[[Path], None]:
    return lambda _: run(tf.io.decode_image, data)


def decode_of_shape(_: Path) -> None:
    run(lambda data: tf.ensure_shape(tf.io.decode_image(data), (9, 9, 3)), encode(picture(4, 5), "PNG"))


def compile_step(function: Callable[[tf.Tensor], Any]) -> Callable[[Path], None]:
    return lambda _: tf.function(function, jit_compile=True).experimental_get_compiler_ir(
        tf.TensorSpec([4], tf.float32)
    )("stablehlo")


def capture(_: Path) -> None:
    value = tf.constant(1.0)
    with tf.Graph().as_default():
        tf.add(value, 1.0)


def make_variable_again(_: Path) -> None:
    function = tf.function(lambda x: tf.Variable(1.0) + x)
    function(1.0)


def grow_in_loop(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda y: tf.size(y) < 9, lambda y: tf.concat([y, y], 0), [x], [tf.TensorShape([None])])[0]


def open_loop(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: y * tf.exp(y), [x])[0]
    return tape.gradient(result, x)


def lose(_: Path) -> None:
    tf.nn.sparse_softmax_cross_entropy_with_logits(tf.constant([7]), tf.zeros([1, 3]))


RECORD = pack_frame(b"abc")
INT = tf.io.FixedLenFeature((), tf.int64)
TEXT = tf.io.FixedLenFeature((), tf.string)
ERRORS: list[tuple[str, Callable[[Path], Any], tuple[str, ...]]] = [
    ("DATASET_NAME", read(b"short"), ("_5b_5d",)),
    ("DAMAGED_RECORD", read(RECORD[:-FOOTER_BYTES] + b"1234"), ("12",)),
    ("DAMAGED_RECORD", read(RECORD[:LENGTH_BYTES] + b"1234" + RECORD[HEADER_BYTES:]), ("0",)),
    ("DAMAGED_RECORD", read(RECORD[:-1]), ("0",)),
    ("DAMAGED_BLOCK", read(gzip.compress(RECORD)[:9] + b"\xff" * 20, "GZIP"), ()),
    ("DAMAGED_BLOCK", read(b"no gzip member at all", "GZIP"), ()),
    ("SHORT_FILE", lambda _: tf.data.Dataset.range(0).get_single_element(), ()),
    ("UNREADABLE_FILE", lambda folder: read_path(str(folder)), ()),
    ("UNREADABLE_FILE", lambda folder: read_path(str(folder / "no file")), ()),
    ("NO_EXAMPLE", parse(INT, b"\x0a\x08some line"), ()),
    ("ABSENT_FEATURE", parse(INT, encode_example({"y": 1})), ("x",)),
    ("OTHER_COUNT", parse(INT, encode_example({"x": [1, 2]})), ("x", "2", "[]")),
    ("OTHER_KIND", parse(INT, encode_example({"x": 0.5})), ("x", "int64")),
    ("OTHER_KIND", parse(tf.io.RaggedFeature(tf.string), encode_example({"x": 0.5})), ("x", "string")),
    ("OTHER_VALUES", parse(TEXT, encode_example({"x": [b"a", b"b"]})), ("x",)),
    *[("NO_IMAGE", decode(encode(picture(24, 40), name)[:70]), ()) for name in ("JPEG", "PNG", "GIF", "BMP", "WEBP")],
    ("NO_IMAGE", decode(b"no image"), ()),
    ("OTHER_IMAGE_SHAPE", decode_of_shape, ("[4,5,3]", "[9,9,3]")),
    ("CHECKED_VALUE", lambda _: run(lambda value: cast_to_int32("x", value), np.int64(2**40)), ()),
    (
        "CHECKED_BYTES",
        lambda _: run(
            lambda x: ensure(x, x > 0, "Feature x: a record does not have the 6 bytes of (6,) uint8 values. Fix.")
        ),
        ("x", "does not have the 6 bytes of (6,) uint8 values", "6"),
    ),
    ("NEEDS_GRAPH", lambda _: tf.compat.v1.placeholder(tf.int32), ()),
    ("NEEDS_GRAPH", lambda _: tf.compat.v1.data.make_initializable_iterator(tf.data.Dataset.range(1)), ()),
    ("NEEDS_GRAPH", lambda _: tf.compat.v1.train.batch([tf.zeros(1)], 1), ()),
    ("EAGER_CAPTURE", capture, ()),
    ("NEW_VARIABLE", make_variable_again, ()),
    ("LABEL_OUTSIDE", lose, ("7", "3")),
    ("NO_KERNEL", compile_step(lambda x: tf.strings.length(tf.strings.as_string(x))), ()),
    ("NO_CONSTANT", compile_step(lambda x: tf.zeros(tf.cast(x, tf.int32))), ()),
    ("NO_LIST_SIZE", compile_step(open_loop), ()),
    ("OTHER_LOOP_SHAPE", compile_step(grow_in_loop), ()),
]


def patterns() -> dict[str, re.Pattern[str]]:
    return {
        name: value
        for name, value in vars(libraries).items()
        if isinstance(value, re.Pattern) and not name.startswith("_")
    }


def provoke(cause: Callable[[Path], Any], folder: Path) -> str:
    """Return the text of the error that a function raises."""
    with pytest.raises((tf.errors.OpError, RuntimeError, ValueError, TypeError)) as caught:
        cause(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "cause", "groups"), ERRORS, ids=[f"{number}-{name}" for number, (name, _, _) in enumerate(ERRORS)]
)
def test_finds_an_error_of_the_installed_library(
    name: str, cause: Callable[[Path], Any], groups: tuple[str, ...], tmp_path: Path
) -> None:
    text = provoke(cause, tmp_path)
    found = patterns()[name].search(text)
    assert found is not None, text
    assert not groups or found.groups() == groups


def test_every_pattern_is_provoked() -> None:
    root = Path(__file__).parents[2]
    assert [path for path in PROVOKED_ELSEWHERE.values() if not (root / path).exists()] == []
    assert {name for name, _, _ in ERRORS} | set(PROVOKED_ELSEWHERE) == set(patterns())
