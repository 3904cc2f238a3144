"""Warm start: initial values from the checkpoint of another run."""

import dataclasses
import logging
import os
import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpudata.checks import require_type
from tpudata.console.nearest import did_you_mean
from tpudata.estimator.api.errors import CheckpointError, CheckpointNotFoundError
from tpudata.estimator.api.named_tuple import NamedTupleMethods
from tpudata.estimator.state.blueprint import VariableInfo
from tpudata.estimator.state.checkpoint import Checkpoint, read_value
from tpudata.estimator.state.checkpoints import find_latest
from tpudata.estimator.state.partition import Part
from tpudata.tensor_types import Array

_log = logging.getLogger("tpudata")
_SAVED_MODEL_VARIABLES = ("variables", "variables")


@dataclasses.dataclass(frozen=True)
class WarmStartSettings(NamedTupleMethods):
    """Choice of the variables that start from a checkpoint, if model_dir has no checkpoint yet.

    Attributes:
        ckpt_to_initialize_from: a checkpoint, in the form that tf.train.latest_checkpoint returns; a folder, for its newest
            checkpoint; or the folder of a SavedModel.
        vars_to_warm_start: the variables. A string is a regular expression, matched at the start of the names of the trainable
            variables. A list of strings is matched in the same way with all variables, including batch norm's averages and the
            optimizer's variables. As in `tf.compat.v1.get_collection`, the names end in ":0". None for no variable.
        var_name_to_vocab_info: None or empty, as vocabularies are not remapped.
        var_name_to_prev_var_name: name in the checkpoint by the variable's name, if they differ.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: there is no path, or a pattern is not a regular expression.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] | None = ".*"
    var_name_to_vocab_info: Mapping[str, object] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        path = self.ckpt_to_initialize_from
        if not path:
            raise ValueError(f"WarmStartSettings(ckpt_to_initialize_from={path!r}) names no checkpoint. Pass its path.")
        is_path = isinstance(path, str | bytes | os.PathLike)
        require_type("WarmStartSettings(ckpt_to_initialize_from=...)", path, is_path, "a path")
        object.__setattr__(self, "ckpt_to_initialize_from", os.fsdecode(path))
        choice: object = self.vars_to_warm_start
        is_choice = isinstance(choice, str | list | tuple | None)
        allowed = "a regular expression, a list of them or None"
        require_type("WarmStartSettings(vars_to_warm_start=...)", choice, is_choice, allowed)
        if self.var_name_to_vocab_info:
            raise ValueError(
                "WarmStartSettings(var_name_to_vocab_info=...) is not supported: vocabularies are not remapped, got "
                f"{sorted(self.var_name_to_vocab_info)}. Omit it, and remap the embedding in the checkpoint."
            )
        for pattern in self._list_patterns():
            _check_pattern(pattern)

    def _list_patterns(self) -> list[str]:
        """Return the regular expressions of vars_to_warm_start; [] for None."""
        if self.vars_to_warm_start is None:
            return []
        return [self.vars_to_warm_start] if isinstance(self.vars_to_warm_start, str) else list(self.vars_to_warm_start)

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint to start from.

        Raises:
            CheckpointError: there is no checkpoint, or its index cannot be read.
        """
        path = self.ckpt_to_initialize_from
        # If `path` is the folder of a SavedModel, its variables are a checkpoint.
        saved_model = tf.io.gfile.join(path, *_SAVED_MODEL_VARIABLES)
        if tf.io.gfile.exists(f"{saved_model}.index"):
            return Checkpoint.open(saved_model)
        newest = find_latest(path) if tf.io.gfile.isdir(path) else None
        # A checkpoint's path, or a folder without one, for which `open` raises the error.
        return Checkpoint.open(path) if newest is None else newest

    def previous_names(self, infos: Sequence[VariableInfo]) -> dict[str, str]:
        """Choose the variables in `infos` that start from the checkpoint; return their names in it by their names in the model.

        Raises:
            ValueError: var_name_to_prev_var_name names a variable that does not start from the checkpoint.
        """
        # Name in the checkpoint by name in the model, for the variables whose names differ.
        renamed = dict(self.var_name_to_prev_var_name or {})
        # As in TensorFlow's Estimator, the name of a partitioned variable stands for all its parts.
        for info in infos:
            if info.part is not None and info.part.full_name in renamed:
                renamed[info.name] = renamed[info.part.full_name]
        patterns = self._list_patterns()
        # As in TensorFlow's Estimator, a string chooses trainable variables, and a list chooses from all.
        requires_trainable = isinstance(self.vars_to_warm_start, str)
        chosen_names = [
            info.name
            for info in infos
            if (info.is_trainable or not requires_trainable) and any(_matches(pattern, info) for pattern in patterns)
        ]
        partitioned_names = {
            info.part.full_name for info in infos if info.name in chosen_names and info.part is not None
        }
        unused_names = sorted(renamed.keys() - partitioned_names - set(chosen_names))
        if unused_names:
            raise ValueError(
                f"WarmStartSettings(var_name_to_prev_var_name=...) names variables that vars_to_warm_start does not choose (got "
                f"{unused_names}, expected some of {sorted(chosen_names)}). Remove them, or choose them."
            )
        return {name: renamed.get(name, name) for name in chosen_names}


def _matches(pattern: str, info: VariableInfo) -> bool:
    """Return whether a regular expression matches the start of a variable's name with ":0" at its end, as in TensorFlow."""
    return re.match(pattern, f"{info.name}:0") is not None


def _check_pattern(pattern: object) -> None:
    """Raise TypeError if a pattern is not a string, and ValueError if it is not a regular expression."""
    if not isinstance(pattern, str):
        raise TypeError(
            f"WarmStartSettings(vars_to_warm_start=...) must contain names or regular expressions, not variables, got {pattern!r} "
            f"({type(pattern).__name__})."
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"WarmStartSettings(vars_to_warm_start=...): {pattern!r} is not a regular expression: {error}."
        ) from None


def make_warm_start_settings(warm_start_from: str | WarmStartSettings | None) -> WarmStartSettings | None:
    """Return the settings for TPUEstimator's `warm_start_from`; a path stands for all trainable variables.

    Settings, and None, are returned unchanged.

    Raises:
        ValueError: the value is neither a path, settings nor None.
    """
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    is_path = isinstance(warm_start_from, str | bytes | os.PathLike)
    allowed = "the path of a checkpoint or WarmStartSettings"
    require_type("TPUEstimator(warm_start_from=...)", warm_start_from, is_path, allowed, ValueError)
    return WarmStartSettings(warm_start_from)


def read_warm_values(
    settings: WarmStartSettings, infos: Sequence[VariableInfo], variables: Mapping[str, tf.Variable]
) -> dict[str, Array]:
    """Read the values (NumPy arrays) of the variables that start from the settings' checkpoint, by name.

    Args:
        settings: the settings.
        infos: all variables of the model that checkpoints contain.
        variables: the real variables by name.

    Raises:
        CheckpointError: there is no checkpoint, it lacks a variable or has it with a different shape or dtype, or it is damaged.
        ValueError: the settings rename a variable that they do not choose.
    """
    previous_names = settings.previous_names(infos)
    checkpoint = settings.checkpoint()
    reader = checkpoint.open_reader()
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    # By variable: its slice of a partitioned variable that the checkpoint stores whole; otherwise None.
    parts_of_wholes = {
        info.name: _find_part_of_whole(info, previous_names[info.name], shapes)
        for info in infos
        if info.name in previous_names
    }
    for name, previous_name in previous_names.items():
        if parts_of_wholes[name] is not None:
            continue
        if previous_name not in shapes:
            hint = did_you_mean(previous_name, shapes)
            raise CheckpointNotFoundError(
                f"Warm start: {checkpoint.prefix} lacks the variable {previous_name!r}.{hint} Choose other variables with "
                "vars_to_warm_start, or pass its name in the checkpoint in var_name_to_prev_var_name."
            )
        variable = variables[name]
        if list(variable.shape) != shapes[previous_name] or dtypes[previous_name] != variable.dtype:
            raise CheckpointError(
                f"Warm start: {checkpoint.prefix} has the variable {previous_name!r} as "
                f"{dtypes[previous_name].name}{tuple(shapes[previous_name])}, model_fn makes {name!r} as "
                f"{variable.dtype.name}{tuple(variable.shape)}. Omit it with vars_to_warm_start."
            )
    skipped = _find_skipped(settings, infos, variables, shapes)
    if skipped:
        _warn_of_skipped(settings, checkpoint.prefix, [*previous_names], skipped)
    log = _log.info if previous_names else _log.warning  # Settings that choose nothing are likely a mistake.
    log("Warm start from %s: %d of %d variables.", checkpoint.prefix, len(previous_names), len(infos))
    return {
        name: read_value(reader, checkpoint.prefix, previous_name, parts_of_wholes[name])
        for name, previous_name in previous_names.items()
    }


def _find_skipped(
    settings: WarmStartSettings,
    infos: Sequence[VariableInfo],
    variables: Mapping[str, tf.Variable],
    shapes: Mapping[str, Sequence[int]],
) -> list[str]:
    """Return the names of variables that the pattern matches, but that are skipped because they are not trainable.

    These are usually averages of batch norm. Variables that the checkpoint lacks or has with a different shape, slots of optimizers
    (`KERNEL/Momentum`), scalars and the global step are not listed.

    Args:
        settings: the settings.
        infos: all variables of the model that checkpoints contain.
        variables: the real variables by name.
        shapes: shapes of the checkpoint's variables by name.
    """
    pattern = settings.vars_to_warm_start
    if not isinstance(pattern, str):
        return []
    slot_prefixes = tuple(f"{info.name}/" for info in infos if info.is_trainable)
    return [
        info.name
        for info in infos
        if not info.is_trainable
        and _matches(pattern, info)
        and not info.name.startswith(slot_prefixes)
        and variables[info.name].shape.rank
        and shapes.get(info.name) == list(variables[info.name].shape)
    ]


def _warn_of_skipped(settings: WarmStartSettings, prefix: str, chosen: Sequence[str], skipped: Sequence[str]) -> None:
    """Warn of variables that a pattern skips; suggest a list with a pattern that also chooses them, but not the optimizer's slots.

    Args:
        settings: the settings, whose vars_to_warm_start is a string.
        prefix: path of the checkpoint.
        chosen: names of the variables that the pattern chooses.
        skipped: names of the variables that it skips, at least one.
    """
    # Slots are named VARIABLE/SLOT, so the last part of a name distinguishes them from variables.
    endings = sorted({re.escape(name.split("/")[-1]) for name in (*chosen, *skipped)})
    pattern = settings.vars_to_warm_start
    # The lookahead keeps the pattern as a condition on the start of the name; `.*` then reaches the last part. Names are matched
    # with ":0", so that the colon after an ending excludes slots such as kernel/Momentum:0.
    beginning = ".*" if pattern == ".*" else f"(?={pattern}).*"
    others_text = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
    _log.warning(
        "Warm start from %s: %r%s keep their initial values, as in TensorFlow's TPUEstimator, since a string chooses only "
        "trainable variables. Evaluation with batch norm's averages from the start is wrong. To take them, too: "
        "WarmStartSettings(..., vars_to_warm_start=[%r]).",
        prefix,
        skipped[0],
        others_text,
        f"{beginning}({'|'.join(endings)}):",
    )


def _find_part_of_whole(info: VariableInfo, previous_name: str, shapes: Mapping[str, Sequence[int]]) -> Part | None:
    """Return the variable's slice of a partitioned variable that the checkpoint stores whole; None for other variables.

    Args:
        info: the variable.
        previous_name: name of the variable in the checkpoint, according to the settings.
        shapes: shapes of the checkpoint's variables by name.
    """
    part = info.part
    if part is None:
        return None
    # A variable that is not renamed may be stored under the partitioned variable's name.
    name = part.full_name if previous_name == info.name and previous_name not in shapes else previous_name
    full_shape = tuple(shapes[name]) if name in shapes else None
    return dataclasses.replace(part, full_name=name) if full_shape == part.full_shape else None
