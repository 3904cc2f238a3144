"""A cluster of TF_CONFIG: a process for each machine, with replicas of the model on the devices of that machine.

TensorFlow's MultiWorkerMirroredStrategy runs the steps: all processes run the same steps at the same time and exchange gradients in
them. So all must make the same decisions: the number of steps in a loop, when to save, when to stop, and the checkpoint to begin
with. `ClusterPeers` lets them agree.
"""

import contextlib
import dataclasses
import functools
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tpudata.errors import UsageError
from tpudata.estimator.api.errors import ClusterError, reason
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.devices.peers import Peers
from tpudata.estimator.devices.rendezvous import meet
from tpudata.estimator.devices.topology import Topology

_JOBS = ("chief", "worker")
# Errors of collectives in the remaining processes, after one has ended.
_LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.NotFoundError,
    tf.errors.UnknownError,
)
_STARTED = (
    "TF_CONFIG: TensorFlow has started before this process joined the cluster. Make the estimator before the first TensorFlow "
    "operation of the program."
)
_ABORTED = "Collective ops is aborted by:"


def is_in_cluster(config: RunConfig) -> bool:
    """Return whether the process of a config trains together with others."""
    return config.num_worker_replicas > 1 or config.num_ps_replicas > 0


def cluster_topology(config: RunConfig) -> Topology:
    """Join the cluster, wait until all processes have joined, and return its devices.

    Raises:
        ClusterError: not all processes joined in time.
        UsageError: a job or an option is not supported in a cluster, or TensorFlow has already started.
    """
    jobs = {job: list(tasks) for job, tasks in config.cluster_spec.as_dict().items() if job != "evaluator"}
    other = sorted(jobs.keys() - {*_JOBS})
    if other:
        hint = (
            "Parameter servers are not supported: make all tasks workers" if other == ["ps"] else "Rename it to chief"
        )
        raise UsageError(f"TF_CONFIG: got the job {other[0]!r} (expected {' and '.join(_JOBS)}). {hint}.")
    if config.tpu_config.per_host_input_for_training is InputPipelineConfig.BROADCAST:
        raise UsageError(
            "TPUConfig(per_host_input_for_training=BROADCAST): each process of a cluster reads separate rows (got BROADCAST, "
            "expected PER_HOST_V1, PER_HOST_V2 or PER_SHARD_V1). Use PER_HOST_V1."
        )
    wanted = config.tpu_config.num_replicas or 1
    gpus = len(tf.config.list_physical_devices("GPU"))
    if wanted > max(1, gpus):
        raise UsageError(
            f"TPUConfig(num_replicas={wanted}): in a cluster, this is the number of GPUs of each process (got {gpus} GPUs). Use "
            "more processes instead of more replicas."
        )
    spec = tuple((job, tuple(jobs[job])) for job in _JOBS if job in jobs)
    strategy = _joined(
        _Task(spec, config.task_type, config.task_id, min(wanted, gpus), config.session_creation_timeout_secs)
    )
    index = config.global_id_in_cluster
    assert index is not None
    peers = ClusterPeers(strategy, index, config.num_worker_replicas, f"{config.task_type} {config.task_id}")
    return Topology(strategy, num_hosts=config.num_worker_replicas, peers=peers)


def _cause(error: tf.errors.OpError) -> str:
    """Return the line with the reason from the error of an exchange."""
    lines = [line.partition(_ABORTED)[2].strip() for line in error.message.splitlines() if _ABORTED in line]
    return (lines[0] if lines and lines[0] else reason(error)).rstrip(".:")


@dataclasses.dataclass(frozen=True)
class _Task:
    """Task of this process in a cluster.

    Attributes:
        spec: addresses of each job.
        job: job of the task.
        index: number of the task within the job.
        gpus: number of GPUs to use.
        limit: largest number of seconds to wait for the other tasks.
    """

    spec: tuple[tuple[str, tuple[str, ...]], ...]
    job: str
    index: int
    gpus: int
    limit: float = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


# TensorFlow lets a process join one cluster only, and once.
@functools.cache
def _joined(task: _Task) -> Any:
    """Return the strategy of this process's task."""
    if context.context()._initialized:
        raise UsageError(_STARTED)
    addresses = {f"{job} {index}": address for job, tasks in task.spec for index, address in enumerate(tasks)}
    meet(str(task), addresses, task.limit)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: list(tasks) for job, tasks in task.spec}),
        task_type=task.job,
        task_id=task.index,
        num_accelerators={"GPU": task.gpus} if task.gpus else {},
        rpc_layer="grpc",
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise UsageError(_STARTED) from error
    except tf.errors.OpError as error:
        raise ClusterError(
            f"TF_CONFIG: {task} could not join the cluster: {reason(error)}. Start all tasks, and check that their "
            "addresses can be reached."
        ) from error


class ClusterPeers(Peers):
    """The processes of a cluster.

    Args:
        strategy: the MultiWorkerMirroredStrategy.
        index: number of this process.
        count: number of processes.
        name: name of this process, for messages.
    """

    def __init__(self, strategy: Any, index: int, count: int, name: str) -> None:
        self.index = index
        self.count = count
        self._name = name

        def total(values: Any) -> Any:
            return strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)

        self._sum = tf.function(total, input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)

    def summed(self, numbers: Sequence[int]) -> list[int]:
        """Return the sums of the numbers over the processes, each of which must call this."""
        found: list[int] = self._sum(tf.constant(numbers, tf.int64)).numpy().tolist()
        return found

    def chiefs_bytes(self, data: bytes) -> bytes:
        """Return the chief's bytes."""
        size = self.chiefs(len(data))
        words = np.zeros(-(-size // 8), np.int64)
        if self.is_chief:
            words = np.frombuffer(data.ljust(len(words) * 8, b"\0"), np.int64)
        found = self._sum(tf.constant(words)).numpy() if size else words
        return bytes(found.tobytes()[:size])

    def chiefs_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chief's values of tensors, of the same shapes and dtypes everywhere."""
        return {name: self._chiefs_value(value) for name, value in values.items()}

    def _chiefs_value(self, value: Any) -> Any:
        tensor = tf.convert_to_tensor(value)
        array = tensor.numpy()
        if tensor.dtype == tf.string:  # Exchanges do not support strings, which are equal in the same program.
            return value
        data = self.chiefs_bytes(np.ascontiguousarray(array).tobytes())
        return tf.constant(np.frombuffer(data, array.dtype).reshape(array.shape))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise errors that follow from the end of another process as a ClusterError."""
        try:
            yield
        except _LOSSES as error:
            if "ollective" not in error.message:  # Storage raises such errors, too.
                raise
            # The frames refer to the data's iterator. If the interpreter deletes it at exit, it waits for ever for Python in the
            # input.
            traceback.clear_frames(error.__traceback__)
            raise ClusterError(
                f"TF_CONFIG: {self._name} lost another process of the cluster, which ended or cannot be reached: {_cause(error)}. "
                "Check the log of that process, and start all processes again: training continues from the newest checkpoint."
            ) from None
