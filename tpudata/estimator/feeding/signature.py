"""Signatures of input_fn and model_fn, and the results of input_fn."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpudata.checks import require_type
from tpudata.console.tables import count_text
from tpudata.devices.errors import ModelFnValueError
from tpudata.error_text.libraries import NEEDS_GRAPH
from tpudata.estimator.api.errors import ModelFnTypeError
from tpudata.estimator.api.spec import ModelSpec
from tpudata.estimator.api.user_functions import InputFunction, ModelFunction
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.feeding.input_tensors import are_tensors, make_tensor_dataset
from tpudata.estimator.feeding.sparse_parts import are_sparse_parts, split_sparse
from tpudata.tensor_types import Specs, Tensors

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")


def _list_argument_names(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the arguments that a call can pass by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds)


def check_model_fn(model_fn: ModelFunction) -> None:
    """Raise an error if an estimator cannot call model_fn.

    Raises:
        ModelFnTypeError: model_fn is not callable.
        ModelFnValueError: it has no argument `features`, or it has an unknown argument without a default.
    """
    require_type("model_fn", model_fn, callable(model_fn), "callable", ModelFnTypeError)
    names = _list_argument_names(model_fn)
    if "features" not in names:
        raise ModelFnValueError(f"model_fn must take an argument named features, got {names}.")
    parameters = inspect.signature(model_fn).parameters
    unknown = [
        name
        for name in names
        if name not in _MODEL_FN_ARGUMENTS and parameters[name].default is inspect.Parameter.empty
    ]
    if unknown:
        raise ModelFnValueError(
            f"model_fn has unknown arguments (got {unknown}, expected some of {_MODEL_FN_ARGUMENTS})."
        )


def call_model_fn(
    model_fn: ModelFunction,
    features: Tensors,
    labels: Tensors,
    mode: str,
    params: Mapping[str, object],
    config: RunConfig,
) -> ModelSpec:
    """Call model_fn with the arguments that it names.

    Args:
        model_fn: the function.
        features: its features.
        labels: its labels, or None.
        mode: a value of ModeKeys.
        params: its params, of which it gets a shallow copy.
        config: the RunConfig.

    Raises:
        ModelFnValueError: there are labels, but model_fn has no argument `labels`.
    """
    names = _list_argument_names(model_fn)
    arguments: dict[str, object] = {"mode": mode, "params": dict(params), "config": config, "labels": labels}
    if labels is not None and "labels" not in names:
        raise ModelFnValueError(
            "input_fn returned labels, but model_fn has no argument named labels. Return only features, or add the argument."
        )
    return model_fn(features=features, **{name: value for name, value in arguments.items() if name in names})


def call_input_fn(
    input_fn: InputFunction,
    mode: str,
    params: Mapping[str, object],
    config: RunConfig,
    input_context: tf.distribute.InputContext,
    start_step: int = 0,
    *,
    needs_dataset: bool = False,
    needs_params: bool = True,
    takes_sparse: bool = False,
) -> tf.data.Dataset:
    """Call input_fn and check its result.

    Args:
        input_fn: function of `params` and any of `config`, `mode`, `input_context` (a `tf.distribute.InputContext`) and
            `start_step`.
        mode: a value of ModeKeys.
        params: params for input_fn, which gets a copy.
        config: the RunConfig.
        input_context: context that describes this call among several.
        start_step: number of steps done.
        needs_dataset: whether to reject an input_fn that returns tensors instead of a dataset.
        needs_params: whether input_fn must have the argument `params`.
        takes_sparse: whether to accept sparse tensors.

    Returns:
        The `tf.data.Dataset` that input_fn returned, or a dataset of the tensors that it returned; each sparse tensor is replaced
        by its parts.

    Raises:
        TypeError: input_fn is not callable, or returned a value of the wrong type.
        ValueError: input_fn has no argument `params`, a tensor has an unknown rank, or the elements are neither features nor
            (features, labels).
    """
    require_type("input_fn", input_fn, callable(input_fn), "callable")
    names = _list_argument_names(input_fn)
    if needs_params and "params" not in names:
        raise ValueError(f"input_fn must take an argument named params, which has the batch_size, got {names}. Add it.")
    arguments = {"config": config, "mode": mode, "input_context": input_context, "start_step": start_step}

    def call() -> tf.data.Dataset | Tensors:
        """Call input_fn with the arguments that it names."""
        # A new copy of params for each call, since an input_fn that only works in a graph is called twice.
        all_arguments = {**arguments, "params": dict(params)}
        return input_fn(**{name: value for name, value in all_arguments.items() if name in names})

    result = _call_eagerly(call)
    # `_call_eagerly` returns None if input_fn only works in a graph.
    if not needs_dataset and (result is None or are_tensors(result)):
        result = make_tensor_dataset(call, config.tf_random_seed)
    if not isinstance(result, tf.data.Dataset):
        fix = " PER_HOST_V2 does not support tensors: return the dataset itself." if needs_dataset else ""
        raise TypeError(
            f"input_fn must return a tf.data.Dataset of features or of (features, labels), got {type(result).__name__}.{fix}"
        )
    dataset = result
    if any(isinstance(spec, tf.SparseTensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        # `map` passes the parts of a tuple one by one, and any other element as the only argument.
        dataset = dataset.map(lambda *element: split_sparse(element[0] if len(element) == 1 else element))
    _check_element(dataset.element_spec, takes_sparse=takes_sparse)
    return dataset


def _check_element(element_spec: Specs, *, takes_sparse: bool) -> None:
    """Raise an error if the estimator does not accept an element; its sparse tensors must have been split into parts.

    Raises:
        TypeError: a tensor is ragged, or sparse without `takes_sparse`.
        ValueError: a tensor has an unknown rank, or the element is neither features nor (features, labels).
    """
    for path, spec in list_leaves(split_element(element_spec)):
        if are_sparse_parts(spec):
            if not takes_sparse:
                raise TypeError(
                    f"input_fn: a TPU and several replicas only take dense tensors (got {path} as a SparseTensor, expected a "
                    "tensor). Use tf.sparse.to_dense in the dataset's map."
                )
            continue
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(
                f"input_fn: the estimator takes dense and sparse tensors (got {path} as a {type(spec).__name__}). Use "
                "RaggedTensor.to_tensor or to_sparse in the dataset's map."
            )
        if spec.shape.rank is None:
            raise ValueError(
                f"input_fn: {path} has an unknown shape (expected a known rank). Use set_shape or reshape in the dataset's map."
            )


def _call_eagerly(call: Callable[[], tf.data.Dataset | Tensors]) -> tf.data.Dataset | Tensors:
    """Return the result of input_fn, called eagerly; None if it uses operations that only work in a graph."""
    try:
        return call()
    except RuntimeError as error:
        if NEEDS_GRAPH.search(str(error)):
            return None
        raise


def split_element(element: Tensors) -> tuple[Tensors, Tensors]:
    """Split a dataset's element into (features, labels); a named tuple, or anything but a tuple, is features.

    Raises:
        ValueError: a tuple does not have two parts.
    """
    if isinstance(element, tuple) and not hasattr(element, "_fields"):
        if len(element) != 2:
            raise ValueError(
                f"input_fn: an element must be features or (features, labels), got {count_text(len(element), 'part')}."
            )
        return element
    return element, None


def check_for_devices(element_spec: Specs) -> None:
    """Raise ValueError if devices cannot take an element.

    Raises:
        ValueError: a tensor of the element is not dense, is neither numeric nor bool, or has a dynamic shape.
    """
    for path, spec in list_leaves(split_element(element_spec)):
        if spec.is_compatible_with(None):  # The spec of None; TensorFlow 2.20 has no tf.NoneTensorSpec to compare with.
            continue
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(
                f"input_fn: devices take dense tensors (got {path} as a {type(spec).__name__}, expected a tf.Tensor). Use "
                "to_dense or to_tensor in the dataset's map."
            )
        if spec.dtype in (tf.string, tf.variant, tf.resource) or spec.dtype.is_quantized:
            raise ValueError(
                f"input_fn: devices take numbers (got {path} as {spec.dtype.name}, expected a number or bool). Omit it in the "
                "dataset's map, or turn it into numbers."
            )
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"input_fn: devices take static shapes (got {path} as {spec.shape}, expected no None). Use set_shape in the "
                "dataset's map, or batch(..., drop_remainder=True)."
            )


def find_row_weights(features: Tensors | Specs) -> tf.Tensor | tf.TensorSpec | None:
    """Return features["weights"] (or its spec) if they are floats [batch]; None if there are none, or if they have another type."""
    weights = features.get("weights") if isinstance(features, Mapping) else None
    if weights is None or are_sparse_parts(weights):
        return None
    return weights if weights.dtype.is_floating and weights.shape.rank == 1 else None


def list_leaves(element: tuple[Tensors, Tensors]) -> list[tuple[str, Any]]:
    """Return the (path, leaf) pairs of (features, labels), with paths such as "features['image']".

    The parts of a sparse tensor are one leaf, and None is omitted.
    """
    leaves: list[tuple[str, Any]] = []

    def walk(path: str, node: object) -> None:
        """Add the leaves of a node to `leaves`; `path` is the node's."""
        if are_sparse_parts(node):
            leaves.append((path, node))
        elif isinstance(node, Mapping):
            for key, child in node.items():
                walk(f"{path}[{key!r}]", child)
        elif isinstance(node, tuple | list):
            fields = getattr(node, "_fields", range(len(node)))
            for field, child in zip(fields, node, strict=True):
                walk(f"{path}[{field!r}]", child)
        elif node is not None:
            leaves.append((path, node))

    features, labels = element
    walk("features", features)
    walk("labels", labels)
    return leaves
