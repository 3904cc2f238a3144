"""Warm start of `tpudata train`: the model's variables from the checkpoint of another run.

All variables of the model start from that checkpoint, the averages of batch normalization included; the optimizer's variables and
the step do not. The last layer is omitted if its size differs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import tensorflow as tf

from tpudata.console.nearest import did_you_mean
from tpudata.console.tables import count_text
from tpudata.devices.graphs.keras_state import fresh_keras_state
from tpudata.error_text.lines import first_line
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, RunConfig, WarmStartSettings
from tpudata.estimator.api.user_functions import ModelFunction
from tpudata.estimator.feeding.signature import call_model_fn
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.input.serving import ServingFeatures
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.places import find_checkpoint

_v1 = tf.compat.v1
_log = logging.getLogger("tpudata")


class WarmStart:
    """Choice of the variables that start from another run's checkpoint.

    The variables are chosen after the estimator is made: the model must be built to list them, and a process of a cluster must not
    start TensorFlow before its estimator joins the other processes.

    Attributes:
        settings: settings for the estimator, whose list of variables `choose` fills.

    Args:
        options: options of the run.

    Raises:
        UsageError: there is no checkpoint.
        CheckpointError: the checkpoint cannot be read.
    """

    def __init__(self, options: TrainOptions) -> None:
        assert options.warm_start is not None
        path = find_checkpoint("--warm-start", options.warm_start)
        if path is None:
            raise UsageError(
                f"--warm-start {options.warm_start}: there is no checkpoint. Pass one, or the folder of a model."
            )
        self._options = options
        self._path = path
        # `choose` fills this list, which the settings share. In a list, patterns also match variables that are not trainable.
        self._patterns: list[str] = []
        self.settings = WarmStartSettings(path, self._patterns)

    def choose(self, model_fn: ModelFunction, params: Mapping[str, object], serving: ServingFeatures) -> None:
        """Choose the model's variables, without the last layer if its size differs.

        Args:
            model_fn: function that builds the model's graph of one mode.
            params: params of model_fn, without those that the estimator adds.
            serving: builder of the features that the model is fed.

        Raises:
            UsageError: the checkpoint does not fit the model.
        """
        model, path = self._options.model, self._path
        variables, last_layer = _find_model_variables(self._options, model_fn, params, serving)
        reader = Checkpoint.open(path).open_reader()
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        omitted = []
        for name, variable in variables.items():
            if name not in shapes:
                raise UsageError(
                    f"--warm-start {path}: it lacks the variable {name!r} of {model}.{did_you_mean(name, shapes)} Pass a "
                    "checkpoint of the same model with the same parameters."
                )
            shape, dtype = tuple(variable.shape), variable.dtype.base_dtype
            if shape == tuple(shapes[name]) and dtype == dtypes[name]:
                # A regular expression that matches only this name, since TensorFlow appends ":0" to names of variables.
                self._patterns.append(f"{re.escape(name)}:0$")
            elif name in last_layer:
                omitted.append(f"{name} (got {tuple(shapes[name])}, expected {shape})")
            else:
                raise UsageError(
                    f"--warm-start {path}: the variable {name!r} does not fit {model} (got {dtypes[name].name}"
                    f"{tuple(shapes[name])}, expected {dtype.name}{shape}), and only the last layer, {', '.join(last_layer)}, may "
                    "differ. Pass the same parameters and input size."
                )
        if not self._patterns:
            raise UsageError(f"--warm-start {path}: no variable of {model} fits. Pass a checkpoint of the same model.")
        omitted_text = f"; the last layer starts anew, as its size differs: {', '.join(omitted)}" if omitted else ""
        variables_text = count_text(len(variables), "variable")
        _log.info(
            "--warm-start: %d of the model's %s from %s%s.", len(self._patterns), variables_text, path, omitted_text
        )


def _find_model_variables(
    options: TrainOptions, model_fn: ModelFunction, params: Mapping[str, object], serving: ServingFeatures
) -> tuple[dict[str, tf.Variable], list[str]]:
    """Return the model's variables by name, without the optimizer's variables, and the names of the last layer's variables.

    The model is built in a scratch graph for prediction, which needs no optimizer.

    Args:
        options: options of the run.
        model_fn: function that builds the model's graph of one mode.
        params: params of model_fn, without those that the estimator adds.
        serving: builder of the features that the model is fed.

    Raises:
        UsageError: the model cannot be built for prediction, or has no trainable variable.
    """
    # Without AutoGraph, as the estimator calls a model_fn.
    call_without_autograph = tf.autograph.experimental.do_not_convert(call_model_fn)
    with tf.Graph().as_default():
        step = _v1.train.get_or_create_global_step()
        features = serving.build().features
        with fresh_keras_state(options.seed):
            config = RunConfig(tf_random_seed=options.seed)
            try:
                call_without_autograph(model_fn, features, None, ModeKeys.PREDICT, {**params, "use_tpu": False}, config)
            except (UsageError, MemoryError):
                raise
            except Exception as error:
                raise UsageError(
                    f"--warm-start: {options.model} cannot be built for prediction, which shows its variables (got "
                    f"{type(error).__name__}: {first_line(error)}). Let it return predictions in mode "
                    f"{ModeKeys.PREDICT!r}."
                ) from error
        variables = {variable.op.name: variable for variable in _v1.global_variables() if variable is not step}
        trainable = {variable.op.name: variable for variable in _v1.trainable_variables()}
    if not trainable:
        raise UsageError(f"--warm-start: {options.model} has no trainable variable (expected 1 or more). Omit it.")
    return variables, _find_last_layer(trainable)


def _find_last_layer(trainable: Mapping[str, tf.Variable]) -> list[str]:
    """Return the names of the last layer's variables: the variables in the scope of the last variable.

    If the last variable has no scope, or all variables share one, the layer begins at the last kernel, a variable of two or more
    dimensions. If this kernel is the last variable, its bias may come directly before it: a vector as long as the kernel's outputs,
    unless the kernel before has as many outputs and may own the vector. Without kernels, the layer is the last variable.

    Args:
        trainable: the model's trainable variables by name, 1 or more, in the order in which they were made.
    """
    names = [*trainable]
    scope = names[-1].rpartition("/")[0]
    names_in_scope = [name for name in names if name.rpartition("/")[0] == scope]
    if scope and names_in_scope != names:
        return names_in_scope
    # The indices of the kernels; a variable of unknown rank may be one.
    kernels = [index for index, name in enumerate(names) if trainable[name].shape.rank not in (0, 1)]
    if not kernels:
        return names[-1:]
    last_kernel = kernels[-1]
    if last_kernel == len(names) - 1 and last_kernel > 0:
        bias, kernel = trainable[names[last_kernel - 1]], trainable[names[last_kernel]]
        outputs_before = trainable[names[kernels[-2]]].shape[-1:] if len(kernels) > 1 else None
        if bias.shape.rank == 1 and bias.shape == kernel.shape[-1:] and bias.shape != outputs_before:
            return names[last_kernel - 1 :]
    return names[last_kernel:]
