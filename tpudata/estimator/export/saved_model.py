"""Export of the model for prediction as a SavedModel, for TensorFlow Serving, `tf.saved_model.load` and other tools.

The graph is built again by model_fn in PREDICT mode, on the inputs of a serving_input_receiver_fn, and gets its values from a
checkpoint. As in TensorFlow's Estimator, it is a v1 SavedModel: a graph with signatures and named variables, tagged "serve".
"""

import contextlib
import copy
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from tpudata.checks import require_type
from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.graph_walk import find_needed_operations
from tpudata.devices.graphs.keras_state import fresh_keras_state
from tpudata.error_text.libraries import find_reason
from tpudata.errors import StorageError
from tpudata.estimator.api.errors import SPACE_AND_PERMISSION, CheckpointError
from tpudata.estimator.api.export_outputs import DEFAULT_SIGNATURE, SignatureDef, name_outputs
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.spec import ModelSpec, check_spec
from tpudata.estimator.export.serving_input import NamedReceiver, ServingInputReceiver
from tpudata.estimator.feeding.signature import call_model_fn
from tpudata.estimator.hooks.scaffold import build_scaffold, restore_with
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state.checkpoint import Checkpoint
from tpudata.estimator.state.checkpoints import find_latest
from tpudata.estimator.state.partition import Part, select_part_of_whole
from tpudata.tensor_types import Tensors

v1 = tf.compat.v1
_log = logging.getLogger("tpudata")
# Folder in which TensorFlow Serving expects files that the model itself does not read.
_EXTRA_ASSETS = "assets.extra"


def export_saved_model(
    runtime: Runtime,
    export_dir_base: str | os.PathLike[str],
    serving_input_receiver_fn: Callable[[], ServingInputReceiver],
    assets_extra: Mapping[str, str] | None,
    as_text: bool,
    checkpoint_path: str | None,
) -> bytes:
    """Export a SavedModel; see `TPUEstimator.export_saved_model`."""
    require_type(
        "export_saved_model(serving_input_receiver_fn=...)",
        serving_input_receiver_fn,
        callable(serving_input_receiver_fn),
        "a function that returns a ServingInputReceiver",
        ValueError,
    )
    checkpoint = _open_checkpoint(runtime, checkpoint_path)
    target, temporary = _choose_folders(tf.compat.as_str_any(tf.compat.path_to_str(export_dir_base)))
    with tf.Graph().as_default():
        signatures, scaffold = _build_graph(runtime, serving_input_receiver_fn)
        # The session sees no GPUs: training may use them, and the files must not depend on them.
        with v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as session:
            _restore(session, checkpoint, signatures, scaffold.saver)
            try:
                main_op = scaffold.local_init_op or v1.train.Scaffold.default_local_init_op()
                _write_model(session, temporary, signatures, main_op, as_text, assets_extra or {})
                tf.io.gfile.rename(temporary, target)
            except tf.errors.OpError as error:
                _remove(temporary)
                raise StorageError(
                    f"export_saved_model: {target} could not be written: {find_reason(error)}. {SPACE_AND_PERMISSION}"
                ) from error
            except BaseException:  # Including Ctrl-C.
                _remove(temporary)
                raise
    _log.info("Exported %s to %s, signatures %s.", checkpoint.prefix, target, sorted(signatures))
    return target.encode()


def _remove(folder: str) -> None:
    """Remove the folder of a failed export, if it exists; ignore errors, since the first error is the one to report."""
    with contextlib.suppress(tf.errors.OpError):
        if tf.io.gfile.exists(folder):
            tf.io.gfile.rmtree(folder)


def _open_checkpoint(runtime: Runtime, checkpoint_path: str | None) -> Checkpoint:
    """Return the checkpoint at a path, or the newest one of model_dir if it is None; CheckpointError without one."""
    if checkpoint_path is not None:
        return Checkpoint.open(str(checkpoint_path))
    newest = find_latest(runtime.model_dir)
    if newest is None:
        raise CheckpointError(
            f"export_saved_model: there is no checkpoint in {runtime.model_dir}. Train first, or pass checkpoint_path."
        )
    return newest


def _choose_folders(base: str) -> tuple[str, str]:
    """Return the folder of a new export and the temporary folder to write it in.

    They are named after the seconds since 1970, or after the next number whose folders do not exist.
    """
    stamp = int(time.time())
    while True:
        target = tf.io.gfile.join(base, str(stamp))
        temporary = tf.io.gfile.join(base, f"temp-{stamp}")
        if not tf.io.gfile.exists(target) and not tf.io.gfile.exists(temporary):
            return target, temporary
        stamp += 1


def _build_graph(
    runtime: Runtime, serving_input_receiver_fn: Callable[[], ServingInputReceiver]
) -> tuple[dict[str, SignatureDef], tf.compat.v1.train.Scaffold]:
    """Build the graph to export in the default graph; return its `SignatureDef`s by name, and the model's scaffold.

    Raises:
        TypeError: serving_input_receiver_fn or model_fn returned a value of the wrong type.
        ModelFnValueError: no signature can be served.
    """
    seed = runtime.config.tf_random_seed
    v1.train.get_or_create_global_step()
    v1.set_random_seed(seed)
    receiver = serving_input_receiver_fn()
    if not isinstance(receiver, ServingInputReceiver):
        raise TypeError(
            "serving_input_receiver_fn must return a ServingInputReceiver or a TensorServingInputReceiver, got "
            f"{type(receiver).__name__}."
        )
    params = {**copy.deepcopy(dict(runtime.user_model.params)), "use_tpu": False}  # Exports are for CPUs and GPUs.
    # Without AutoGraph, as in training.
    call_without_autograph = tf.autograph.experimental.do_not_convert(call_model_fn)
    with fresh_keras_state(seed):
        spec = call_without_autograph(
            runtime.user_model.model_fn,
            receiver.features,
            labels=None,
            mode=ModeKeys.PREDICT,
            params=params,
            config=runtime.config,
        )
    check_spec(spec)
    return _make_signatures(receiver, spec), build_scaffold(spec)


def _make_signatures(receiver: ServingInputReceiver, spec: ModelSpec) -> dict[str, SignatureDef]:
    """Return the signatures that can be served, by name; log the signatures that cannot.

    Raises:
        ModelFnValueError: no signature can be served.
    """
    outputs = name_outputs(spec.export_outputs, spec.predictions)
    # (inputs, output) by name of the signature.
    candidates = {name: (receiver.receiver_tensors, output) for name, output in outputs.items()}
    for prefix, tensors in (receiver.receiver_tensors_alternatives or {}).items():
        candidates |= {f"{prefix}:{name}": (tensors, output) for name, output in outputs.items()}
    signatures = {}
    omissions = []  # "NAME: REASON" of each omitted signature.
    # Each additional set of inputs of a NamedReceiver serves only the default output.
    named_tensors = receiver.named_receiver_tensors if isinstance(receiver, NamedReceiver) else {}
    for name, tensors in named_tensors.items():
        if DEFAULT_SIGNATURE in outputs:
            candidates[name] = (tensors, outputs[DEFAULT_SIGNATURE])
        else:
            omissions.append(f"{name}: model_fn has no export_output {DEFAULT_SIGNATURE!r}")
    for name, (tensors, output) in candidates.items():
        try:
            signature = output.make_signature_def(tensors)
            _check_inputs_suffice(signature, tensors)
        except ValueError as error:
            omissions.append(f"{name}: {error}")
        else:
            signatures[name] = signature
    if not signatures:
        raise ModelFnValueError(
            f"export_saved_model: no signature can be served; {'; '.join(omissions)}. Add a PredictOutput to export_outputs, or "
            "use another serving_input_receiver_fn."
        )
    if omissions:
        _log.warning("The export omits signatures: %s.", "; ".join(omissions))
    if DEFAULT_SIGNATURE not in signatures:
        _log.warning("The export has no signature %r: callers must name one of %s.", DEFAULT_SIGNATURE, [*signatures])
    return signatures


def _check_inputs_suffice(signature: SignatureDef, inputs: Mapping[str, Tensors]) -> None:
    """Raise ValueError if a signature's outputs need a placeholder that is not among its inputs."""
    fed_names = {tensor.name for tensor in tf.nest.flatten(dict(inputs), expand_composites=True)}
    for operation in _find_needed((info.name for info in signature.outputs.values()), fed_names):
        if operation.type == "Placeholder" and operation.outputs[0].name not in fed_names:
            raise ValueError(f"its outputs need the placeholder {operation.name!r}, which is not an input")


def _find_needed(output_names: Iterable[str], fed_names: Iterable[str] = ()) -> set[tf.Operation]:
    """Return the default graph's operations that the tensors named `output_names` depend on, up to the fed tensors."""
    fed_names = frozenset(fed_names)
    tensors = map(v1.get_default_graph().get_tensor_by_name, output_names)
    return find_needed_operations((tensor.op for tensor in tensors if tensor.name not in fed_names), fed_names)


def _restore(
    session: tf.compat.v1.Session,
    checkpoint: Checkpoint,
    signatures: Mapping[str, SignatureDef],
    saver: tf.compat.v1.train.Saver | None,
) -> None:
    """Set the variables to the checkpoint's values; variables that it lacks and no signature needs get initial values.

    Args:
        session: session on the graph to export.
        checkpoint: the checkpoint.
        signatures: signatures by name.
        saver: the scaffold's saver, which restores the variables instead; or None.

    Raises:
        CheckpointError: the checkpoint lacks a variable that a signature needs, has one with a different shape or dtype, or is
            damaged; or the saver cannot restore it.
    """
    if saver is not None:
        session.run(v1.global_variables_initializer())
        restore_with(saver, session, checkpoint)
        return
    variables = {variable.op.name: variable for variable in v1.global_variables()}
    needed_operations = _find_needed(
        info.name for signature in signatures.values() for info in signature.outputs.values()
    )
    stored_names = checkpoint.open_reader().get_variable_to_shape_map()
    parts = {name: Part.from_variable(variable) for name, variable in variables.items()}
    restored_variables = {
        name: variable
        for name, variable in variables.items()
        if variable.op in needed_operations
        or name in stored_names
        or select_part_of_whole(name, parts[name], stored_names)
    }
    values = checkpoint.read(restored_variables, parts)
    # The initializers assign the fed values instead of the initial ones.
    feeds = {variables[name].initial_value: value for name, value in values.items()}
    session.run([variable.initializer for variable in variables.values()], feeds)


def _write_model(
    session: tf.compat.v1.Session,
    folder: str,
    signatures: Mapping[str, SignatureDef],
    main_op: tf.Operation,
    as_text: bool,
    assets_extra: Mapping[str, str],
) -> None:
    """Write the session's graph and variables as a SavedModel to `folder`, and copy further files into it.

    Args:
        session: session with the variables' values.
        folder: folder to create.
        signatures: signatures by name.
        main_op: operation that loaders run first.
        as_text: whether to write a text file instead of a binary one.
        assets_extra: paths of files, by their name in the folder `assets.extra`.
    """
    builder = v1.saved_model.Builder(folder)
    builder.add_meta_graph_and_variables(
        session,
        [tf.saved_model.SERVING],
        signature_def_map=signatures,
        assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
        clear_devices=True,
        main_op=main_op,
        strip_default_attrs=True,
    )
    builder.save(as_text)
    for name, source in assets_extra.items():
        path = tf.io.gfile.join(folder, _EXTRA_ASSETS, name)
        tf.io.gfile.makedirs(os.path.dirname(path))  # noqa: PTH120  (the path may be gs://)
        tf.io.gfile.copy(str(source), path)
