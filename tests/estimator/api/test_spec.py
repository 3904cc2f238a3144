from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tpudata.estimator import EstimatorSpec, ModeKeys, ModelFnError, TPUEstimatorSpec

LOSS = tf.constant(1.0)
HOOK = tf.compat.v1.train.SessionRunHook()
Spec = type[TPUEstimatorSpec] | type[EstimatorSpec]
BOTH = pytest.mark.parametrize("spec", [TPUEstimatorSpec, EstimatorSpec])


def test_modes_have_the_original_names() -> None:
    assert (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT) == ("train", "eval", "infer")


@BOTH
def test_rejects_a_spec_that_lacks_what_its_mode_needs(spec: Spec) -> None:
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
def test_loss_must_be_a_floating_scalar(spec: Spec) -> None:
    with pytest.raises(ValueError, match=r"scalar, got shape \(2,\)"):
        spec(ModeKeys.EVAL, loss=tf.constant([1.0, 2.0]))
    with pytest.raises(TypeError, match="int32"):
        spec(ModeKeys.EVAL, loss=tf.constant(1))
    assert spec(ModeKeys.EVAL, loss=tf.constant([1.0])).loss is not None


def test_predictions_can_be_one_tensor() -> None:
    for kind in (TPUEstimatorSpec, EstimatorSpec):
        assert kind(ModeKeys.PREDICT, predictions=LOSS).predictions is LOSS


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
def test_rejects_wrong_eval_metrics(eval_metrics: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="eval_metrics"):
        TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metrics=eval_metrics)


@pytest.mark.parametrize("tensors", [[LOSS, LOSS], (LOSS, LOSS), {"labels": LOSS, "outputs": LOSS}])
def test_accepts_eval_metrics_of_lists_tuples_and_dicts(tensors: Any) -> None:
    assert TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metrics=(two, tensors)).eval_metrics == (two, tensors)


SPARSE = tf.sparse.from_dense([[1.0]])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (lambda: TPUEstimatorSpec(ModeKeys.TRAIN, loss=LOSS, train_op=5), r"train_op=.*, got 5"),
        (lambda: EstimatorSpec(ModeKeys.TRAIN, loss=LOSS, train_op=[LOSS, "x"]), r"train_op=.*, got 'x'"),
        (lambda: TPUEstimatorSpec(ModeKeys.PREDICT, {"a": LOSS, "b": None}), r"predictions=.*'b' .* got NoneType"),
        (lambda: TPUEstimatorSpec(ModeKeys.PREDICT, {"a": {"c": SPARSE}}), r"predictions=.*'a' .* got SparseTensor"),
        (lambda: EstimatorSpec(ModeKeys.PREDICT, SPARSE), r"predictions=.*0 .* got SparseTensor"),
        (
            lambda: TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metrics=(two, [LOSS, None])),
            r"eval_metrics=.*1 .* got NoneType",
        ),
        (
            lambda: TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS, host_call=(two, {"labels": SPARSE, "outputs": LOSS})),
            r"host_call=.*'labels' .* got SparseTensor",
        ),
        (lambda: EstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metric_ops={"m": (1, 2)}), r"'m' must be .*\(1, 2\)"),
        (lambda: TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS, evaluation_hooks=HOOK), r"evaluation_hooks=.*into a list"),
    ],
)
def test_rejects_values_of_wrong_types(spec: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        spec()
    assert isinstance(caught.value, ModelFnError)


def test_rejects_wrong_eval_metric_ops() -> None:
    with pytest.raises(TypeError, match="eval_metric_ops"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metric_ops=[LOSS])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'mean'"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metric_ops={"mean": LOSS})
    with pytest.raises(ValueError, match="'loss'"):
        EstimatorSpec(ModeKeys.EVAL, loss=LOSS, eval_metric_ops={"loss": (LOSS, LOSS)})


def test_specs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        TPUEstimatorSpec(ModeKeys.EVAL, loss=LOSS).loss = None  # type: ignore[misc]
