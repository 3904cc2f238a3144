"""TPUConfig: settings for running steps on the device. Frozen, and checked at construction."""

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence

from tpudata.checks import require, require_flag, require_positive_int, require_seconds
from tpudata.error_text.values import format_value
from tpudata.estimator.api.named_tuple import NamedTupleMethods

_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600}
# Steps that buffers hold for a loop that is limited by time.
_STEPS_OF_A_TIMED_LOOP = 100


class InputPipelineConfig(enum.IntEnum):
    """Modes of calling input_fn to feed R replicas on H hosts with a global batch of B rows.

    On one device, every mode calls it once, for B rows.

    Attributes:
        PER_SHARD_V1: one call for each replica, for B / R rows; in evaluation and prediction as PER_HOST_V1.
        PER_HOST_V1: one call for each host, for B / H rows, which are split over its replicas.
        PER_HOST_V2: one call for each host, for B / R rows; each of its replicas takes the next batch.
        BROADCAST: one call, for B rows; every replica gets all rows. On one host.
        SLICED: one call, for B rows, which are split over all replicas; for evaluation and prediction.
    """

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


@dataclasses.dataclass(frozen=True)
class TPUConfig(NamedTupleMethods):
    """Settings for running steps on the device.

    Attributes:
        iterations_per_loop: training steps in one call of the compiled loop, or a time such as "30s", "5m" or "1h":
            then the number of steps is fitted to the measured step time. On a TPU, checkpoints, summaries and logs are written
            between loops; with `use_tpu=False`, loops end at the steps at which they are due.
        num_shards: number of model replicas on a TPU, which must equal its cores; None for all cores. Ignored with
            `use_tpu=False`, as in TensorFlow.
        num_cores_per_replica, computation_shape: None or 1 (for each axis): a replica has one core.
        per_host_input_for_training: an InputPipelineConfig; False and True mean PER_SHARD_V1 and PER_HOST_V1.
        tpu_job_name: None or "worker", the name of the job of a TPU system.
        initial_infeed_sleep_secs: seconds that training on a TPU waits before its first batch.
        input_partition_dims: None, since a replica gets whole rows.
        eval_training_input_configuration: PER_HOST_V1 to feed evaluation and prediction as training, or SLICED.
        experimental_host_call_every_n_steps: 1, since host_call runs at each step.
        experimental_allow_per_host_v2_parallel_get_next: a bool, which has no effect: batches keep the dataset's order.
        experimental_feed_hook: None.
        num_replicas: with `use_tpu=False`, the number of GPUs, or of jax's CPU devices if a process has fewer GPUs, that take the
            place of a TPU's cores, with batches split by the same rules; None or 1 for one device. In a cluster, the number of
            devices of each process. TensorFlow has no counterpart.

    Values that are only wrong on a TPU, such as 2 for num_cores_per_replica, are an error of a TPUEstimator with `use_tpu=True`.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: a value is not allowed.
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int | InputPipelineConfig = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | float | None = None
    input_partition_dims: Sequence[object] | Mapping[str, object] | None = None
    eval_training_input_configuration: int | InputPipelineConfig = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Callable[..., object] | None = None
    _: dataclasses.KW_ONLY
    computation_shape: Sequence[int] | None = None
    num_replicas: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.iterations_per_loop, str):  # A time; raises an error if it is not valid.
            _parse_duration(self.iterations_per_loop)
        else:
            steps = require_positive_int("TPUConfig", "iterations_per_loop", self.iterations_per_loop)
            object.__setattr__(self, "iterations_per_loop", steps)
        for name in ("num_shards", "num_cores_per_replica", "num_replicas"):
            object.__setattr__(self, name, require_positive_int("TPUConfig", name, getattr(self, name), or_none=True))
        require_positive_int(
            "TPUConfig", "experimental_host_call_every_n_steps", self.experimental_host_call_every_n_steps
        )
        name = "experimental_allow_per_host_v2_parallel_get_next"
        require_flag("TPUConfig", name, getattr(self, name))
        cores = self.num_cores_per_replica
        if cores is not None and cores & (cores - 1):  # More than one bit is set.
            raise ValueError(f"TPUConfig(num_cores_per_replica=...) must be a power of 2, got {format_value(cores)}.")
        if self.input_partition_dims is not None and cores is None:
            raise ValueError("TPUConfig(input_partition_dims=...) requires num_cores_per_replica. Pass it, too.")
        seconds = self.initial_infeed_sleep_secs
        require_seconds("TPUConfig", "initial_infeed_sleep_secs", seconds, or_none=True)
        is_finite = seconds is None or seconds < math.inf
        require("TPUConfig", "initial_infeed_sleep_secs", seconds, is_finite, "a finite number", ValueError)
        pipeline = self.per_host_input_for_training
        # As in TensorFlow's TPUConfig, a bool says whether there is a call for each host, not for each replica.
        if isinstance(pipeline, bool):
            pipeline = InputPipelineConfig.PER_HOST_V1 if pipeline else InputPipelineConfig.PER_SHARD_V1
        try:
            object.__setattr__(self, "per_host_input_for_training", InputPipelineConfig(pipeline))
        except ValueError:
            allowed = ", ".join(member.name for member in InputPipelineConfig)
            raise ValueError(
                f"TPUConfig(per_host_input_for_training=...) must be a bool or one of {allowed}, got {format_value(pipeline)}."
            ) from None
        name = "eval_training_input_configuration"
        eval_pipeline = self.eval_training_input_configuration
        is_allowed = eval_pipeline in (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED)
        require("TPUConfig", name, eval_pipeline, is_allowed, "PER_HOST_V1 or SLICED", ValueError)
        object.__setattr__(self, name, InputPipelineConfig(eval_pipeline))

    def check_for_tpu(self) -> None:
        """Check the restrictions that hold only on a TPU.

        Raises:
            ValueError: a value has no counterpart there.
        """
        shape = self.computation_shape or ()
        checks = (
            ("num_cores_per_replica", self.num_cores_per_replica in (None, 1), "a replica has one core. Omit it"),
            ("computation_shape", all(size == 1 for size in shape), "a replica has one core. Omit it"),
            ("input_partition_dims", self.input_partition_dims is None, "a replica gets whole rows. Omit it"),
            ("tpu_job_name", self.tpu_job_name in (None, "worker"), 'the job is named "worker". Omit it'),
            (
                "experimental_host_call_every_n_steps",
                self.experimental_host_call_every_n_steps == 1,
                "host_call runs at each step. Omit it, and skip steps in host_fn",
            ),
            ("experimental_feed_hook", self.experimental_feed_hook is None, "there is no infeed. Omit it"),
            ("num_replicas", self.num_replicas is None, "a TPU's replicas are its cores. Pass num_shards"),
        )
        for name, is_supported, reason in checks:
            if not is_supported:
                raise ValueError(
                    f"TPUConfig({name}={getattr(self, name)!r}) is not supported with use_tpu=True: {reason}."
                )

    @property
    def loop_seconds(self) -> int | None:
        """Seconds that a loop should take if iterations_per_loop is a time, otherwise None."""
        return _parse_duration(self.iterations_per_loop) if isinstance(self.iterations_per_loop, str) else None

    @property
    def steps_of_a_loop(self) -> int:
        """Number of steps of a loop to plan with: iterations_per_loop, or 100 if that is a time."""
        return _STEPS_OF_A_TIMED_LOOP if isinstance(self.iterations_per_loop, str) else self.iterations_per_loop


def _parse_duration(duration: str) -> int:
    """Return the number of seconds of a positive time such as "30s", "5m" or "1h"; raise ValueError for other strings."""
    match = re.fullmatch(r"(?P<count>[0-9]+)(?P<unit>[smh])", duration)
    if match is None or int(match["count"]) == 0:
        raise ValueError(
            f'TPUConfig(iterations_per_loop=...) must be a positive int or a time such as "30s", "5m" or "1h", got {duration!r}.'
        )
    return int(match["count"]) * _SECONDS_PER_UNIT[match["unit"]]
