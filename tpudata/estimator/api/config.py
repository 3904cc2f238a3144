"""What a run is configured with: frozen, and checked when it is made."""

import dataclasses
import enum
import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any

_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600}
_DEFAULT_CHECKPOINT_SECS = 600


class InputPipelineConfig(enum.IntEnum):
    """How input_fn is called where several replicas are fed: of R replicas on H hosts, and a global batch of B rows.

    One device calls it once in every mode, for B rows.

    Attributes:
        PER_SHARD_V1: once for each replica, B / R rows; in evaluation and prediction as PER_HOST_V1.
        PER_HOST_V1: once for each host, B / H rows, which are split over its replicas.
        PER_HOST_V2: once for each host, B / R rows: each of its replicas takes the next batch.
        BROADCAST: once, B rows, which every replica gets whole.
        SLICED: once, B rows, which are split over all replicas; for evaluation and prediction.
    """

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class _Default(enum.Enum):
    """Tells an argument that was left out from one that was given as None."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = _Default.DEFAULT


def _require_positive_int(owner: str, name: str, value: object, *, or_none: bool = False) -> None:
    if value is None and or_none:
        return
    allowed = "a positive int" + (" or None" if or_none else "")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{owner}({name}=...) must be {allowed}, got {value!r} ({type(value).__name__}).")
    if value < 1:
        raise ValueError(f"{owner}({name}=...) must be {allowed}, got {value!r}.")


@dataclasses.dataclass(frozen=True)
class TPUConfig:
    """How steps are run on the device.

    Attributes:
        iterations_per_loop: training steps in one call of the compiled loop, or a time such as "30s", "5m" or "1h":
            then the number of steps is fitted to the measured step time. Checkpoints, summaries and logs happen
            between loops.
        num_shards: number of model replicas on a TPU, checked against its cores; None takes them all. Ignored with
            `use_tpu=False`, as in the original.
        per_host_input_for_training: an InputPipelineConfig; False and True mean PER_SHARD_V1 and PER_HOST_V1.
        eval_training_input_configuration: PER_HOST_V1: evaluation and prediction are fed as training is; or SLICED.
        num_replicas: with `use_tpu=False`, that many GPUs, or else logical CPU devices, stand for a TPU's cores, and batches
            are split by its rules; None or 1 is one device. The original has no counterpart.

    Raises:
        TypeError: `iterations_per_loop`, `num_shards` or `num_replicas` is of another type.
        ValueError: a value outside the allowed ones.
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    # The original has num_cores_per_replica in between.
    _: dataclasses.KW_ONLY
    per_host_input_for_training: bool | int | InputPipelineConfig = True
    eval_training_input_configuration: int | InputPipelineConfig = InputPipelineConfig.PER_HOST_V1
    num_replicas: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.iterations_per_loop, str):
            _parse_duration(self.iterations_per_loop)
        else:
            _require_positive_int("TPUConfig", "iterations_per_loop", self.iterations_per_loop)
        for name in ("num_shards", "num_replicas"):
            _require_positive_int("TPUConfig", name, getattr(self, name), or_none=True)
        mode = self.per_host_input_for_training
        if isinstance(mode, bool):
            mode = InputPipelineConfig.PER_HOST_V1 if mode else InputPipelineConfig.PER_SHARD_V1
        try:
            object.__setattr__(self, "per_host_input_for_training", InputPipelineConfig(mode))
        except ValueError:
            allowed = ", ".join(item.name for item in InputPipelineConfig)
            raise ValueError(
                f"TPUConfig(per_host_input_for_training=...) must be a bool or one of {allowed}, got {mode!r}."
            ) from None
        allowed_modes = (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED)
        if self.eval_training_input_configuration not in allowed_modes:
            raise ValueError(
                "TPUConfig(eval_training_input_configuration=...) must be PER_HOST_V1 or SLICED, got "
                f"{self.eval_training_input_configuration!r}."
            )
        mode = InputPipelineConfig(self.eval_training_input_configuration)
        object.__setattr__(self, "eval_training_input_configuration", mode)

    @property
    def loop_seconds(self) -> int | None:
        """Seconds that a loop should take where iterations_per_loop is a time, else None."""
        return _parse_duration(self.iterations_per_loop) if isinstance(self.iterations_per_loop, str) else None


def _parse_duration(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)([smh])", text)
    if match is None or int(match[1]) == 0:
        raise ValueError(
            f'TPUConfig(iterations_per_loop={text!r}): must be a positive int or a time such as "30s", "5m" or "1h".'
        )
    return int(match[1]) * _SECONDS_PER_UNIT[match[2]]


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Where a run keeps its state and how often it writes it.

    Attributes:
        tpu_config: a TPUConfig.
        evaluation_master: None, "", or the same as `master`: one estimator has one TPU system.
        master: address of the TPU, grpc://HOST:PORT, or its name; None or "" leaves it to what follows. Like what follows, it is
            for `use_tpu=True`.
        cluster: a `tf.distribute.cluster_resolver.TPUClusterResolver`, which goes before `master`.
        tpu_name: name of the TPU; None: the environment variable TPU_NAME, or else the TPU of this machine.
        zone, project: where the name is looked up; None: gcloud's settings.
        model_dir: folder (local or gs://) of checkpoints and event files.
        tf_random_seed: seed of initial values and random ops; None draws one at random.
        save_summary_steps: steps between TensorBoard summaries, or None for none.
        save_checkpoints_steps, save_checkpoints_secs: at most one of them; by default every 600 seconds. None in both
            writes no checkpoint, as in the original: what is trained is gone when `train` returns.
        session_config: a `tf.compat.v1.ConfigProto`; its fields with a counterpart in TensorFlow 2 are applied.
        keep_checkpoint_max: how many checkpoints to keep; None or 0 keeps all.
        log_step_count_steps: steps between log lines, or None for none.

    Raises:
        TypeError: a value of another type.
        ValueError: a value outside the allowed ones, or both checkpoint intervals.
    """

    tpu_config: TPUConfig = dataclasses.field(default_factory=TPUConfig)
    evaluation_master: str | None = None
    master: str | None = None
    cluster: Any = None
    _: dataclasses.KW_ONLY
    tpu_name: str | None = None
    zone: str | None = None
    project: str | None = None
    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: int | float | _Default | None = DEFAULT
    session_config: Any = None
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100

    def __post_init__(self) -> None:
        tpu_config: object = self.tpu_config
        if tpu_config is None:  # programs give it, meaning the default
            object.__setattr__(self, "tpu_config", TPUConfig())
        elif not isinstance(tpu_config, TPUConfig):
            raise TypeError(f"RunConfig(tpu_config=...) must be a TPUConfig, got {type(tpu_config).__name__}.")
        for name in ("evaluation_master", "master", "tpu_name", "zone", "project"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"RunConfig({name}=...) must be a str or None, got {type(value).__name__}.")
        if self.evaluation_master and self.evaluation_master != self.master:
            raise ValueError(
                f"RunConfig(evaluation_master={self.evaluation_master!r}) differs from master={self.master!r}: evaluation runs on "
                "the TPU that trains. Leave it out."
            )
        if self.cluster is not None and not callable(getattr(self.cluster, "master", None)):
            raise TypeError(f"RunConfig(cluster=...) must be a TPUClusterResolver, got {type(self.cluster).__name__}.")
        if self.model_dir is not None:
            object.__setattr__(self, "model_dir", str(self.model_dir))
            if not self.model_dir:
                raise ValueError("RunConfig(model_dir='') names no folder: give a path, or None for a temporary one.")
        for name in ("save_summary_steps", "save_checkpoints_steps", "log_step_count_steps"):
            _require_positive_int("RunConfig", name, getattr(self, name), or_none=True)
        if self.keep_checkpoint_max != 0:
            _require_positive_int("RunConfig", "keep_checkpoint_max", self.keep_checkpoint_max, or_none=True)
        seed: object = self.tf_random_seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
            raise TypeError(f"RunConfig(tf_random_seed=...) must be an int or None, got {self.tf_random_seed!r}.")
        self._check_checkpoint_interval()

    def _check_checkpoint_interval(self) -> None:
        seconds = self.save_checkpoints_secs
        if seconds is DEFAULT:
            seconds = _DEFAULT_CHECKPOINT_SECS if self.save_checkpoints_steps is None else None
            object.__setattr__(self, "save_checkpoints_secs", seconds)
        elif seconds is not None:
            if self.save_checkpoints_steps is not None:
                raise ValueError(
                    f"RunConfig(save_checkpoints_steps={self.save_checkpoints_steps}, save_checkpoints_secs={seconds}):"
                    " give one of them."
                )
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise TypeError(f"RunConfig(save_checkpoints_secs=...) must be a number or None, got {seconds!r}.")
            if not seconds > 0:
                raise ValueError(f"RunConfig(save_checkpoints_secs=...) must be positive or None, got {seconds!r}.")

    def replace(self, **changes: Any) -> "RunConfig":
        """Return a copy with `changes`; a new checkpoint interval takes the place of the other one.

        Raises:
            TypeError: an unknown field or a value of another type.
            ValueError: a value outside the allowed ones.
        """
        given: Mapping[str, Any] = dict(changes)
        if given.get("save_checkpoints_steps") is not None:
            changes.setdefault("save_checkpoints_secs", None)
        if given.get("save_checkpoints_secs") is not None:
            changes.setdefault("save_checkpoints_steps", None)
        return dataclasses.replace(self, **changes)
