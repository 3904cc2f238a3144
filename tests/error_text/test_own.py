"""Errors of ours, out of what Beam and TensorFlow make of them."""

from __future__ import annotations

import pickle

import pytest
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.error_text.own import recover_own_error
from tpudata.errors import (
    BadRecordError,
    CorruptionError,
    MissingExtraError,
    SourceError,
    TpudataError,
)
from tpudata.estimator import CheckpointError

ERRORS = [
    BadRecordError("/in/a: b.jpg", "neither: this nor that"),
    BadRecordError("/in/x.tar", "no image", 512),
    CorruptionError("/out/train-00000-of-00001.tfrecord", 12, "the checksum does not match"),
    SourceError("nothing at byte 5: there"),
    MissingExtraError("tpudata.input", "tensorflow"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_from_the_text_of_a_traceback(error: TpudataError) -> None:
    kind = f"{type(error).__module__}.{type(error).__name__}"
    text = f"Traceback (most recent call last):\n  File x\n{kind}: {error} [while running 'WriteShards']\n\nmore"
    found = recover_own_error(RuntimeError(text))
    assert found is not None
    assert str(found) == str(error)
    assert type(found) is type(error)
    if isinstance(error, (BadRecordError, CorruptionError, MissingExtraError)):
        assert vars(found) == vars(error)
        assert vars(pickle.loads(pickle.dumps(found))) == vars(error)


def test_from_a_cause() -> None:
    try:
        try:
            raise ERRORS[1]
        except TpudataError as error:
            raise RuntimeError("a runner failed") from error
    except RuntimeError as error:
        found = recover_own_error(error)
    assert isinstance(found, BadRecordError)
    assert (found.source, found.offset) == ("/in/x.tar", 512)


def test_keeps_the_exit_code_of_a_missing_extra() -> None:
    # Beam passes on errors of this class by their message.
    for error in (MissingExtraError("tpudata.input", "tensorflow"), MissingExtraError("beam_jobs", "")):
        caught = RuntimeError("a runner failed")
        caught.__cause__ = error
        found = recover_own_error(caught)
        assert isinstance(found, MissingExtraError)
        assert (str(found), found.exit_code, found.feature, found.extra) == (str(error), 2, error.feature, error.extra)


def test_keeps_the_class_of_errors_that_take_a_message() -> None:
    class PlugInError(SourceError, ValueError):
        def __init__(self, message: str) -> None:
            super().__init__(message)

    for error in (ModelFnValueError("no loss"), CheckpointError("no step 5"), PlugInError("no cat")):
        caught = RuntimeError("a runner failed")
        caught.__cause__ = error
        found = recover_own_error(caught)
        assert (type(found), str(found)) == (type(error), str(error))


def test_an_error_whose_arguments_are_not_its_message_becomes_a_plain_one() -> None:
    class NumberedError(SourceError):
        def __init__(self, number: int, text: str) -> None:
            super().__init__(f"{text} {number}")

    found = recover_own_error(NumberedError(3, "step"))
    assert found is not None
    assert (type(found), str(found)) == (TpudataError, "step 3")


def test_from_a_function_that_tensorflow_called() -> None:
    def fail(row: tf.Tensor) -> tf.Tensor:
        raise ERRORS[2]

    dataset = tf.data.Dataset.range(1).map(lambda row: tf.py_function(fail, [row], tf.int64))
    with pytest.raises(tf.errors.OpError) as caught:
        list(dataset)
    found = recover_own_error(caught.value)
    assert isinstance(found, CorruptionError)
    assert (found.offset, found.reason) == (12, "the checksum does not match")


def test_others_are_none_of_ours() -> None:
    assert recover_own_error(RuntimeError("tpudata.errors was imported")) is None
