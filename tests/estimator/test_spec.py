from typing import Any

import pytest
import tensorflow as tf

from tpudata.estimator import EstimatorSpec, ModeKeys, TPUEstimatorSpec

LOSS = tf.constant(1.0)
Spec = type[TPUEstimatorSpec] | type[EstimatorSpec]
BOTH = pytest.mark.parametrize("spec", [TPUEstimatorSpec, EstimatorSpec])


def test_mode_names() -> None:
    assert (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT) == ("train", "eval", "infer")


@BOTH
def test_what_a_mode_needs(spec: Spec) -> None:
    with pytest.raises(ValueError, match="no loss"):
        spec(ModeKeys.TRAIN, train_op=tf.no_op())
    with pytest.raises(ValueError, match="no train_op"):
        spec(ModeKeys.TRAIN, loss=LOSS)
    with pytest.raises(ValueError, match="no loss"):
        spec(ModeKeys.EVAL)
    with pytest.raises(ValueError, match="no predictions"):
        spec(ModeKeys.PREDICT)
    with pytest.raises(ValueError, match=r"mode=.*predict"):
        spec("predict", predictions={"a": LOSS})


@BOTH
def test_loss_is_a_floating_scalar(spec: Spec) -> None:
    with pytest.raises(ValueError, match=r"scalar, got shape \(2,\)"):
        spec(ModeKeys.EVAL, loss=tf.constant([1.0, 2.0]))
    with pytest.raises(TypeError, match="int32"):
        spec(ModeKeys.EVAL, loss=tf.constant(1))
    assert spec(ModeKeys.EVAL, loss=tf.constant([1.0])).loss is not None


def test_predictions_are_a_dict() -> None:
    with pytest.raises(TypeError, match="predictions"):
        TPUEstimatorSpec(ModeKeys.PREDICT, predictions=LOSS)
    assert EstimatorSpec(ModeKeys.PREDICT, predictions=LOSS).predictions is LOSS


def two(labels: Any, outputs: Any) -> dict[str, Any]:
    return {"same": (labels, outputs)}


@pytest.mark.parametrize(
    ("eval_metrics", "error"),
    [
        (two, ValueError),
        ((two,), ValueError),
        ((two, [LOSS], 3), ValueError),
        (("accuracy", [LOSS]), TypeError),
        ((two, LOSS), TypeError),
        ((two, [LOSS]), ValueError),
        ((two, {"labels": LOSS, "other": LOSS}), ValueError),
        ((two, {"labels": LOSS}), ValueError),
    ],
)
def test_bad_eval_metrics(eval_metrics: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="eval_metrics"):
        TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metrics=eval_metrics)


@pytest.mark.parametrize("tensors", [[LOSS, LOSS], (LOSS, LOSS), {"labels": LOSS, "outputs": LOSS}])
def test_good_eval_metrics(tensors: Any) -> None:
    assert TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metrics=(two, tensors)).eval_metrics == (two, tensors)


def test_bad_eval_metric_ops() -> None:
    with pytest.raises(TypeError, match="eval_metric_ops"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metric_ops=[LOSS])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'mean'"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metric_ops={"mean": LOSS})
    with pytest.raises(ValueError, match="'loss'"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metric_ops={"loss": (LOSS, LOSS)})


def test_specs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS).loss = None  # type: ignore[misc]
