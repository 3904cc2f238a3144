from typing import Any

import pytest
import tensorflow as tf

from tpudata.estimator import EstimatorSpec, TPUEstimatorSpec, export

Y = tf.zeros([2])
OUTPUT = export.PredictOutput(Y)


def test_public_names_are_sorted_and_documented() -> None:
    assert export.__all__ == sorted(export.__all__)
    for name in export.__all__:
        assert getattr(export, name).__doc__


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: export.PredictOutput({}), "no outputs"),
        (lambda: export.PredictOutput({3: Y}), "strings, got 3"),
        (lambda: export.PredictOutput({"a": 3}), "'a' must be a tensor, got int"),
        (lambda: export.ClassificationOutput(), "scores, classes or both"),
        (lambda: export.ClassificationOutput(scores=tf.zeros([2], tf.int32)), "floating dtype, got int32"),
        (lambda: export.ClassificationOutput(classes=Y), "strings, got float32"),
        (lambda: export.RegressionOutput(None), "got None"),
        (lambda: export.RegressionOutput(tf.zeros([2], tf.int32)), "floating dtype, got int32"),
    ],
)
def test_outputs_reject_wrong_values(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("spec", [TPUEstimatorSpec, EstimatorSpec])
def test_specs_reject_wrong_export_outputs(spec: Any) -> None:
    predictions = {"y": Y}
    with pytest.raises(TypeError, match="dict from name to ExportOutput, got list"):
        spec("infer", predictions, export_outputs=[OUTPUT])
    with pytest.raises(TypeError, match="'a' must be a PredictOutput"):
        spec("infer", predictions, export_outputs={"a": Y})
    with pytest.raises(ValueError, match=r"\['a', 'b'\].*'serving_default'"):
        spec("infer", predictions, export_outputs={"a": OUTPUT, "b": OUTPUT})
    spec("infer", predictions, export_outputs={"a": OUTPUT, "serving_default": OUTPUT})
