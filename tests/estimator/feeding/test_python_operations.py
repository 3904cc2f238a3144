"""Python functions in a dataset."""

from typing import Any

import tensorflow as tf

from tpudata.estimator.feeding.python_operations import python_operations


def twice(numbers: Any) -> Any:
    return numbers * 2


def test_python_in_nested_functions_is_found() -> None:
    rows = tf.data.Dataset.range(3)
    assert python_operations(rows.map(twice).batch(2)) == ()
    nested = rows.interleave(lambda _: rows.map(lambda row: tf.numpy_function(twice, [row], tf.int64)))
    assert python_operations(nested) == ("PyFunc",)
    assert python_operations(rows.map(lambda row: tf.py_function(twice, [row], tf.int64))) == ("EagerPyFunc",)
    generated = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64))
    assert "GeneratorDataset" in python_operations(generated)
