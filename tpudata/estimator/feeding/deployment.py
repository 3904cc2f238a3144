"""Calls of input_fn: how many, for which replicas, and with which batch size."""

import dataclasses

import tensorflow as tf

from tpudata.devices.processes.topology import Topology
from tpudata.estimator.api.errors import BatchSizeError
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.config.tpu_config import InputPipelineConfig, TPUConfig

BATCH_SIZE_NAMES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}
# TensorFlow's name of the CPU that reads a host's data; each host's process gives its CPU this name.
_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of input_fn.

    Attributes:
        index: index of the call, from 0.
        total: number of calls on all hosts.
        host_index: index of the host that the call is for.
        num_replicas: number of replicas that its data feeds, each with a batch or, depending on the input mode, with a part of one.
    """

    index: int
    total: int
    host_index: int
    num_replicas: int

    def make_input_context(self, num_batches: int) -> tf.distribute.InputContext:
        """Return the `tf.distribute.InputContext` of this call, whose dataset yields `num_batches` batches for each step.

        An input_fn may compute its batch size from the context: the global batch size, divided by num_replicas_in_sync.
        """
        return tf.distribute.InputContext(
            num_input_pipelines=self.total, input_pipeline_id=self.index, num_replicas_in_sync=self.total * num_batches
        )


class TPUContext:
    """Context of input_fn and model_fn in `params["context"]`, if batches are split over replicas.

    Args:
        topology: the replicas and hosts.
        call: the call of input_fn that the context is for; None in model_fn.
    """

    def __init__(self, topology: Topology, call: Call | None = None) -> None:
        self._topology = topology
        self._call = call

    def __deepcopy__(self, memo: object) -> "TPUContext":
        return self  # Programs copy their params, and devices cannot be copied.

    @property
    def num_hosts(self) -> int:
        """Number of hosts that feed the replicas."""
        return self._topology.num_hosts

    @property
    def num_replicas(self) -> int:
        """Number of replicas of the model on all hosts."""
        return self._topology.num_replicas

    @property
    def num_of_replicas_per_host(self) -> int:
        """Number of replicas of the model that one host feeds."""
        return self._topology.num_local_replicas

    @property
    def current_host(self) -> int:
        """Index of the host that this call of input_fn is for, from 0.

        Raises:
            RuntimeError: it is read in model_fn, which is traced for all hosts.
        """
        return self._require_call("current_host").host_index

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Return the host's device, this call's index, the number of calls, and the number of replicas that the call feeds.

        Raises:
            RuntimeError: it is called in model_fn, which is traced for all hosts.
        """
        call = self._require_call("current_input_fn_deployment()")
        return _HOST, call.index, call.total, call.num_replicas

    def _require_call(self, attribute: str) -> Call:
        """Return the call of input_fn; raise RuntimeError in model_fn, where `attribute` was read."""
        if self._call is None:
            raise RuntimeError(
                f"params['context'].{attribute} is for input_fn: model_fn is traced once for all replicas. Use num_hosts and "
                "num_replicas there."
            )
        return self._call


def check_batch_size(mode: str, topology: Topology, config: TPUConfig, batch_size: int | None) -> None:
    """Raise BatchSizeError if a mode's global batch size cannot be split over the replicas.

    Args:
        mode: a value of ModeKeys.
        topology: devices that run the steps.
        config: the TPUConfig.
        batch_size: the global batch size, or None.

    Raises:
        BatchSizeError: batch_size is None; or it is not a multiple of the number of replicas, and not all of them get the whole
            batch, as they do with BROADCAST.
    """
    num_replicas = topology.num_replicas
    name = BATCH_SIZE_NAMES[mode]
    if batch_size is None:
        raise BatchSizeError(
            f"TPUEstimator({name}=None): {num_replicas} replicas need a batch size (got None, expected a multiple of "
            f"{num_replicas}). Pass it."
        )
    if _choose_pipeline(mode, config) is not InputPipelineConfig.BROADCAST and batch_size % num_replicas:
        raise BatchSizeError(
            f"TPUEstimator({name}={batch_size}) cannot be split over {num_replicas} replicas: it must be a multiple of "
            f"{num_replicas}, or per_host_input_for_training must be BROADCAST, which gives each replica the whole batch."
        )


def _choose_pipeline(mode: str, config: TPUConfig) -> InputPipelineConfig:
    """Return the InputPipelineConfig by which `mode` is fed.

    Evaluation and prediction are fed as training is, with two exceptions: SLICED if eval_training_input_configuration is SLICED,
    and PER_HOST_V1 instead of PER_SHARD_V1, which they do not support.
    """
    pipeline = config.per_host_input_for_training
    assert isinstance(pipeline, InputPipelineConfig)  # TPUConfig has converted it.
    if mode != ModeKeys.TRAIN:
        if config.eval_training_input_configuration is InputPipelineConfig.SLICED:
            return InputPipelineConfig.SLICED
        if pipeline is InputPipelineConfig.PER_SHARD_V1:
            return InputPipelineConfig.PER_HOST_V1
    return pipeline


@dataclasses.dataclass(frozen=True)
class Deployment:
    """Calls of input_fn that feed the replicas in one mode, and the batch sizes of the mode.

    Attributes:
        mode: a value of ModeKeys.
        topology: the replicas and hosts.
        config: TPUConfig with num_shards and the input modes.
        global_batch_size: number of rows in a step, or None.

    Raises:
        ValueError: num_shards is not the number of a TPU's cores; the batch size cannot be split, or is None on a TPU or with
            several replicas in a process; or the input mode does not support this mode.
    """

    mode: str
    topology: Topology
    config: TPUConfig
    global_batch_size: int | None

    def __post_init__(self) -> None:
        num_replicas = self.topology.num_replicas
        if not self.topology.is_sharded:
            return
        if self.topology.is_tpu and self.config.num_shards not in (None, num_replicas):
            raise ValueError(
                f"TPUConfig(num_shards={self.config.num_shards}), but the TPU system has {num_replicas} replicas. Omit num_shards, "
                "or name a TPU with as many cores."
            )
        # Without a batch size, a process with one replica takes the batches of its dataset unsplit.
        if self.global_batch_size is not None or self.topology.num_local_replicas > 1 or self.topology.is_tpu:
            check_batch_size(self.mode, self.topology, self.config, self.global_batch_size)
        if self.pipeline is InputPipelineConfig.SLICED and self.mode == ModeKeys.TRAIN:
            raise ValueError(
                "TPUConfig(per_host_input_for_training=SLICED) is for evaluation and prediction. Use PER_HOST_V1 or PER_HOST_V2, "
                "and eval_training_input_configuration=SLICED."
            )

    @property
    def pipeline(self) -> InputPipelineConfig:
        """The InputPipelineConfig that applies to this mode."""
        return _choose_pipeline(self.mode, self.config)

    @property
    def has_replica_batches(self) -> bool:
        """Whether each element of an input_fn's dataset is for one replica; otherwise it is split, or repeated for all replicas."""
        return self.pipeline in (InputPipelineConfig.PER_HOST_V2, InputPipelineConfig.PER_SHARD_V1)

    @property
    def has_one_call(self) -> bool:
        """Whether the input mode has one call of input_fn, for any number of replicas and hosts."""
        return self.pipeline in (InputPipelineConfig.BROADCAST, InputPipelineConfig.SLICED)

    @property
    def batch_size(self) -> int | None:
        """`params["batch_size"]` in input_fn: rows of one element of its dataset; None without a batch size."""
        size = self.global_batch_size
        if size is None or not self.topology.is_sharded or self.has_one_call:
            return size
        if self.pipeline is InputPipelineConfig.PER_HOST_V1:
            return size // self.topology.num_hosts
        return size // self.topology.num_replicas  # PER_HOST_V2 and PER_SHARD_V1: an element is for one replica.

    @property
    def model_batch_size(self) -> int | None:
        """`params["batch_size"]` in model_fn: rows that one replica gets; None without a batch size."""
        size = self.global_batch_size
        if size is None or not self.topology.is_sharded or self.pipeline is InputPipelineConfig.BROADCAST:
            return size
        return size // self.topology.num_replicas

    def list_calls(self) -> list[Call]:
        """Return the calls of input_fn for all hosts, in the order of the replicas that they feed."""
        topology = self.topology
        num_hosts, num_replicas = topology.num_hosts, topology.num_replicas
        replicas_per_host = topology.num_local_replicas
        if self.has_one_call:
            return [Call(index=0, total=1, host_index=0, num_replicas=num_replicas)]
        if self.pipeline is InputPipelineConfig.PER_SHARD_V1:
            return [
                Call(index=replica, total=num_replicas, host_index=replica // replicas_per_host, num_replicas=1)
                for replica in range(num_replicas)
            ]
        return [
            Call(index=host_index, total=num_hosts, host_index=host_index, num_replicas=replicas_per_host)
            for host_index in range(num_hosts)
        ]

    def make_params(self, call: Call | None) -> dict[str, object]:
        """Return the params that the estimator adds for a call of input_fn, or for model_fn if `call` is None."""
        size = self.model_batch_size if call is None else self.batch_size
        params: dict[str, object] = {} if size is None else {"batch_size": size}
        if self.topology.is_sharded:
            params["context"] = TPUContext(self.topology, call)
        return params
