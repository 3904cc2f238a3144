"""Inputs of an exported model: the results of a serving_input_receiver_fn, and functions that make a serving_input_receiver_fn."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf

from tpudata.checks import require_type
from tpudata.tensor_types import Tensors

_TENSORS = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)


@dataclasses.dataclass(frozen=True)
class ServingInputReceiver:
    """The inputs of an exported model, and the features of model_fn that are computed from them.

    Attributes:
        features: a dict from name to tensor, for model_fn; one tensor becomes {"feature": tensor}.
        receiver_tensors: placeholders by name, which the caller feeds; one tensor becomes {"input": tensor}.
        receiver_tensors_alternatives: other sets of inputs, by name, such as tensors between the placeholders and the features.
            Each has separate signatures, named "alternative:output".

    Raises:
        ValueError: a value is not a tensor, or a name is not a string; names of features may also be ints.
    """

    features: Tensors
    receiver_tensors: Tensors
    receiver_tensors_alternatives: Mapping[str, Tensors] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", _name_tensors(self.features, "features", "feature"))
        object.__setattr__(self, "receiver_tensors", _name_tensors(self.receiver_tensors, "receiver_tensors", "input"))
        alternatives = self.receiver_tensors_alternatives
        if alternatives is None:
            return
        label = "ServingInputReceiver(receiver_tensors_alternatives=...)"
        require_type(label, alternatives, isinstance(alternatives, Mapping), "a dict from name to tensors", ValueError)
        named_alternatives = {
            name: _name_tensors(tensors, f"receiver_tensors_alternatives[{name!r}]", "input")
            for name, tensors in alternatives.items()
        }
        object.__setattr__(self, "receiver_tensors_alternatives", named_alternatives)


@dataclasses.dataclass(frozen=True)
class TensorServingInputReceiver(ServingInputReceiver):
    """A ServingInputReceiver whose `features` is one tensor, which model_fn gets unchanged.

    Raises:
        ValueError: features is a dict, a value is not a tensor, or a name is not a string.
    """

    def __post_init__(self) -> None:
        tensor = self.features
        label = "TensorServingInputReceiver(features=...)"
        fix = "Use ServingInputReceiver for a dict of features."
        require_type(label, tensor, isinstance(tensor, _TENSORS), "a tensor", ValueError, fix)
        super().__post_init__()
        # The base class has put the tensor into a dict.
        object.__setattr__(self, "features", tensor)


@dataclasses.dataclass(frozen=True)
class NamedReceiver(ServingInputReceiver):
    """A ServingInputReceiver with other sets of inputs, each with one signature of the default output, under the set's name.

    Attributes:
        named_receiver_tensors: the sets, by the signature's name.
    """

    named_receiver_tensors: Mapping[str, Mapping[str, tf.Tensor]] = dataclasses.field(default_factory=dict)


def _name_tensors(tensors: Tensors, field: str, default: str) -> dict[str, Tensors]:
    """Return tensors by name, checked; a single tensor gets the name `default`.

    Args:
        tensors: a tensor, or a dict of tensors; the argument `field` of a ServingInputReceiver.
        field: name of the argument; only the names of "features" may be ints.
        default: name for a single tensor.

    Raises:
        ValueError: there are no tensors (None), a value is not a tensor, or a name has the wrong type.
    """
    if tensors is None:
        raise ValueError(f"ServingInputReceiver has no {field} (got None). Pass a tensor or a dict of tensors.")
    tensors_by_name = dict(tensors) if isinstance(tensors, Mapping) else {default: tensors}
    for name, tensor in tensors_by_name.items():
        # Some programs number their features. A receiver's tensor needs a name, by which clients feed it.
        if not isinstance(name, str) and not (field == "features" and isinstance(name, int)):
            raise ValueError(f"ServingInputReceiver({field}=...): the names must be strings, got {name!r}.")
        label = f"ServingInputReceiver({field}=...): {name!r}"
        require_type(label, tensor, isinstance(tensor, _TENSORS), "a tensor", ValueError)
    return tensors_by_name


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, object], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Make a serving_input_receiver_fn for serialized `tf.train.Example`s, the input "examples" (strings [batch]).

    Args:
        feature_spec: feature spec for `tf.io.parse_example`.
        default_batch_size: fixed number of rows; None for any.

    Returns:
        The function, whose features are those of `feature_spec`.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.compat.v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        features = tf.io.parse_example(examples, dict(feature_spec))
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, tf.Tensor | tf.TensorSpec], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Make a serving_input_receiver_fn whose inputs are the features themselves.

    Args:
        features: by name, a tensor (or `tf.TensorSpec`) [batch, ...] of the feature's dtype and shape; values are ignored.
        default_batch_size: fixed number of rows; None for any.

    Returns:
        The function.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        """Return a receiver whose inputs are placeholders like `features`."""
        placeholders = {
            name: tf.compat.v1.placeholder(tensor.dtype, [default_batch_size, *tensor.shape[1:]])
            for name, tensor in features.items()
        }
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn
