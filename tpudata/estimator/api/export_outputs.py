"""Outputs of an exported model: the entries of a spec's export_outputs."""

import abc
from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.checks import require_type
from tpudata.devices.errors import ModelFnValueError
from tpudata.estimator.api.errors import ModelFnTypeError
from tpudata.tensor_types import Tensors

DEFAULT_SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
# The proto, which TensorFlow's public API does not name.
SignatureDef: TypeAlias = Any


class ExportOutput(abc.ABC):
    """One output of an exported model, which becomes a signature of the SavedModel."""

    @abc.abstractmethod
    def make_signature_def(self, receiver_tensors: Mapping[str, Tensors]) -> SignatureDef:
        """Return the `SignatureDef` that computes this output from `receiver_tensors` (from name to tensor).

        Raises:
            ValueError: the output cannot be served from these inputs.
        """


class PredictOutput(ExportOutput):
    """Output of any named tensors.

    Args:
        outputs: a dict from name to tensor, or one tensor, which is named "output".

    Raises:
        ValueError: there are no outputs, a value is not a tensor, or a name is not a string.
    """

    def __init__(self, outputs: tf.Tensor | Mapping[str, tf.Tensor]) -> None:
        self.outputs = dict(outputs) if isinstance(outputs, Mapping) else {"output": outputs}
        if not self.outputs:
            raise ModelFnValueError("PredictOutput({}) has no outputs (expected at least one). Pass one.")
        for name, tensor in self.outputs.items():
            if not isinstance(name, str):
                raise ModelFnValueError(f"PredictOutput: the names of outputs must be strings, got {name!r}.")
            _require_tensor(f"PredictOutput: the output {name!r}", tensor)

    def make_signature_def(self, receiver_tensors: Mapping[str, Tensors]) -> SignatureDef:
        """Return a predict signature, which takes any inputs."""
        return tf.compat.v1.saved_model.predict_signature_def(dict(receiver_tensors), self.outputs)


class ClassificationOutput(ExportOutput):
    """Scores or names of classes, for TensorFlow Serving's Classify; its only input is the serialized Examples.

    Args:
        scores: floats [batch, classes], or None.
        classes: strings [batch, classes], or None. With both, score [i, j] belongs to class [i, j].

    Raises:
        ValueError: both are None, or one has the wrong dtype.
    """

    def __init__(self, scores: tf.Tensor | None = None, classes: tf.Tensor | None = None) -> None:
        if scores is None and classes is None:
            raise ModelFnValueError("ClassificationOutput() needs scores, classes or both (got neither). Pass one.")
        _require_floating("ClassificationOutput(scores=...)", scores)
        if classes is not None:
            _require_tensor("ClassificationOutput(classes=...)", classes)
            if classes.dtype != tf.string:
                raise ModelFnValueError(
                    f"ClassificationOutput(classes=...) must be strings, got {classes.dtype.name}. Map the numbers to names, "
                    "or pass scores."
                )
        self.scores = scores
        self.classes = classes

    def make_signature_def(self, receiver_tensors: Mapping[str, Tensors]) -> SignatureDef:
        """Return a classification signature; ValueError unless the input is one string tensor."""
        examples = _require_examples("classification", receiver_tensors)
        return tf.compat.v1.saved_model.classification_signature_def(examples, self.classes, self.scores)


class RegressionOutput(ExportOutput):
    """Predicted values, for TensorFlow Serving's Regress; its only input is the serialized Examples.

    Args:
        value: floats [batch].

    Raises:
        ValueError: the value is not a floating tensor.
    """

    def __init__(self, value: tf.Tensor) -> None:
        if value is None:
            raise ModelFnValueError("RegressionOutput(value=...) must be a floating tensor, got None.")
        _require_floating("RegressionOutput(value=...)", value)
        self.value = value

    def make_signature_def(self, receiver_tensors: Mapping[str, Tensors]) -> SignatureDef:
        """Return a regression signature; ValueError unless the input is one string tensor."""
        examples = _require_examples("regression", receiver_tensors)
        return tf.compat.v1.saved_model.regression_signature_def(examples, self.value)


def _require_tensor(label: str, tensor: object) -> None:
    require_type(label, tensor, isinstance(tensor, tf.Tensor), "a tensor", ModelFnValueError)


def _require_floating(label: str, tensor: tf.Tensor | None) -> None:
    """Raise ModelFnValueError unless a tensor is floating, or None."""
    if tensor is None:
        return
    _require_tensor(label, tensor)
    if not tensor.dtype.is_floating:
        raise ModelFnValueError(f"{label} must be of a floating dtype, got {tensor.dtype.name}.")


def _require_examples(method: str, receiver_tensors: Mapping[str, Tensors]) -> tf.Tensor:
    """Return the receiver's only tensor, which must be a string tensor; raise ValueError if the receiver has other inputs.

    Args:
        method: "classification" or "regression", for the message.
        receiver_tensors: inputs of the receiver by name.
    """
    tensors = list(receiver_tensors.values())
    if len(tensors) == 1 and tensors[0].dtype == tf.string:
        return tensors[0]
    inputs = ", ".join(f"{name} ({tensor.dtype.name})" for name, tensor in receiver_tensors.items())
    raise ValueError(f"a {method} signature takes one string tensor, serialized Examples; the receiver has {inputs}")


def check_export_outputs(export_outputs: Mapping[str, ExportOutput] | None, owner: str) -> None:
    """Raise an error if a spec's export_outputs are not valid.

    Args:
        export_outputs: the field of the spec.
        owner: name of the spec's class, for messages.

    Raises:
        TypeError: it is not a dict of ExportOutputs.
        ValueError: there are several outputs, none named "serving_default".
    """
    if export_outputs is None:
        return
    label = f"{owner}(export_outputs=...)"
    is_dict = isinstance(export_outputs, Mapping)
    require_type(label, export_outputs, is_dict, "a dict from name to ExportOutput", ModelFnTypeError)
    allowed = "a PredictOutput, ClassificationOutput or RegressionOutput of tpudata.estimator.export"
    for name, output in export_outputs.items():
        require_type(f"{label}: {name!r}", output, isinstance(output, ExportOutput), allowed, ModelFnTypeError)
    if len(export_outputs) > 1 and DEFAULT_SIGNATURE not in export_outputs:
        raise ModelFnValueError(
            f"{label} has several outputs (got {sorted(export_outputs)}, expected {DEFAULT_SIGNATURE!r} among them). Give the "
            "default one this name."
        )


def name_outputs(export_outputs: Mapping[str, ExportOutput] | None, predictions: Tensors) -> dict[str, ExportOutput]:
    """Return the outputs to export by signature name: the spec's export_outputs or, if there are none, its predictions.

    A single output is also the default signature.
    """
    if not export_outputs:
        return {DEFAULT_SIGNATURE: PredictOutput(predictions)}
    outputs = dict(export_outputs)
    if len(outputs) == 1:
        (only_output,) = outputs.values()
        outputs[DEFAULT_SIGNATURE] = only_output
    return outputs
