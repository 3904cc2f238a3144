"""Errors of ours, out of what Beam and TensorFlow make of them."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.images import encode, picture
from tpudata.error_text.own import own_error
from tpudata.errors import (
    BadRecordError,
    CorruptionError,
    DatasetError,
    FeatureError,
    MissingExtraError,
    SourceError,
    TpudataError,
)
from tpudata.format.read_errors import reader_error
from tpudata.input.dataset_ops import to_int32

ERRORS = [
    BadRecordError("/in/a: b.jpg", "neither: this nor that"),
    BadRecordError("/in/x.tar", "no image", 512),
    CorruptionError("/out/train-00000-of-00001.tfrecord", 12, "the checksum does not fit"),
    SourceError("nothing at byte 5: there"),
    MissingExtraError("tpudata.input", "tensorflow"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_from_the_text_of_a_traceback(error: TpudataError) -> None:
    kind = f"{type(error).__module__}.{type(error).__name__}"
    text = f"Traceback (most recent call last):\n  File x\n{kind}: {error} [while running 'WriteShards']\n\nmore"
    found = own_error(RuntimeError(text))
    assert found is not None
    assert str(found) == str(error)
    if isinstance(error, (BadRecordError, CorruptionError)):
        assert type(found) is type(error)
        assert vars(found) == vars(error)
        assert vars(pickle.loads(pickle.dumps(found))) == vars(error)


def test_from_a_cause() -> None:
    try:
        try:
            raise ERRORS[1]
        except TpudataError as error:
            raise RuntimeError("a runner failed") from error
    except RuntimeError as error:
        found = own_error(error)
    assert isinstance(found, BadRecordError)
    assert (found.source, found.offset) == ("/in/x.tar", 512)


def test_from_a_function_that_tensorflow_called() -> None:
    def fail(row: tf.Tensor) -> tf.Tensor:
        raise ERRORS[2]

    dataset = tf.data.Dataset.range(1).map(lambda row: tf.py_function(fail, [row], tf.int64))
    with pytest.raises(tf.errors.OpError) as caught:
        list(dataset)
    found = own_error(caught.value)
    assert isinstance(found, CorruptionError)
    assert (found.offset, found.reason) == (12, "the checksum does not fit")


def test_others_are_none_of_ours() -> None:
    assert own_error(RuntimeError("tpudata.errors was imported")) is None


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF"])
def test_an_image_that_tensorflow_cannot_decode(name: str) -> None:
    data = encode(picture(24, 40), name)
    dataset = tf.data.Dataset.from_tensors(data[: len(data) // 4]).map(tf.io.decode_image)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    assert own_error(caught.value) is None
    found = reader_error(caught.value)
    assert isinstance(found, DatasetError)
    assert f"an encoded image does not decode: Invalid {name} data" in str(found)
    assert "`tpudata verify DIR --decode` names the file and the offset" in str(found)
    assert "read_records" not in str(found)
    assert len(str(found).splitlines()) == 1
    either = str(reader_error(caught.value, may_be_plain=True))
    assert either.startswith(str(found))
    assert "For files without a manifest, tpudata.format.read_records(FILE) yields (offset, record)" in either


def test_an_image_of_no_format_is_told_with_one_full_stop() -> None:
    dataset = tf.data.Dataset.from_tensors(b"no image").map(tf.io.decode_image)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    assert re.search(
        r"does not decode: Unknown image file format\..*[^.]\. TensorFlow", str(reader_error(caught.value))
    )


@pytest.mark.parametrize("record", [b"\x0a\x08some line", b"\x0a\xc3(some line \xff", b"Invalid PNG data"])
def test_a_record_that_tensorflow_cannot_take_apart(record: bytes) -> None:
    spec = {"label": tf.io.FixedLenFeature((), tf.int64)}
    dataset = tf.data.Dataset.from_tensors([record]).map(lambda records: tf.io.parse_example(records, spec))
    # It puts the record into its message, and Python's binding takes that for text.
    with pytest.raises((tf.errors.InvalidArgumentError, UnicodeDecodeError)) as caught:
        list(dataset)
    found = reader_error(caught.value, may_be_plain=True)
    assert isinstance(found, DatasetError)
    assert str(found).startswith(
        "a record is not a tf.train.Example. TensorFlow does not say which: `tpudata verify DIR`"
    )
    assert str(found).endswith("one by one.")


def test_an_integer_that_no_tpu_takes() -> None:
    dataset = tf.data.Dataset.from_tensors(np.array([1, 2**40])).map(lambda values: to_int32("some]/label", values))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    found = reader_error(caught.value)
    assert isinstance(found, FeatureError)
    assert str(found) == (
        "Feature some]/label: a value does not fit int32, which is what a TPU takes. Omit the feature, or store smaller"
        " numbers."
    )


def test_the_reader_s_own_errors_come_first() -> None:
    found = reader_error(RuntimeError("tpudata.errors.UsageError: Invalid PNG data"))
    assert str(found) == "Invalid PNG data"
    assert reader_error(RuntimeError("something else")) is None
    assert reader_error(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")) is None
