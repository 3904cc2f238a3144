"""The devices of a run, as its RunConfig describes them."""

from tpudata.devices.processes import topology
from tpudata.devices.processes.topology import Topology, require_own_tpu
from tpudata.errors import UsageError
from tpudata.estimator.config.run_config import RunConfig, get_task
from tpudata.estimator.config.tpu_config import InputPipelineConfig


def join_cluster(config: RunConfig) -> Topology:
    """Join the cluster that a config describes, and return `num_replicas` devices of each of its processes (by default one).

    Raises:
        ClusterError: not all processes joined in time, or one ended.
        UsageError: a job or an option is not supported in a cluster, the processes have different numbers of devices, or jax has
            already started.
        MissingExtraError: jax is not installed.
    """
    _require_separate_rows(config)
    timeout_seconds = config.session_creation_timeout_secs
    return topology.join_cluster(get_task(config), config.tpu_config.num_replicas, timeout_seconds)


def connect_tpu(config: RunConfig) -> Topology:
    """Connect to the TPU of this machine, or of the pod that it belongs to, and return its devices.

    Raises:
        TPUConnectionError: jax finds no TPU here, or the config names another machine's TPU.
        ClusterError: not all machines joined in time, or one ended.
        UsageError: an option is not supported on a pod, or jax has already started there.
    """
    if config.cluster is not None:
        # The cluster takes the place of master; tpu_name is only used in the error message.
        require_own_tpu({"RunConfig(cluster=...)": config.cluster.master()}, config.tpu_name)
    else:
        names = {"RunConfig(master=...)": config.master, "RunConfig(tpu_name=...)": config.tpu_name}
        require_own_tpu(names, config.tpu_name)
    group = topology.find_tpu_group(get_task(config))  # None if this machine has the whole TPU.
    if group is not None:
        _require_separate_rows(config)
    return topology.connect_tpu(group, config.session_creation_timeout_secs)


def _require_separate_rows(config: RunConfig) -> None:
    """Raise UsageError if the config asks for the same rows in all processes."""
    if config.tpu_config.per_host_input_for_training is InputPipelineConfig.BROADCAST:
        raise UsageError(
            "TPUConfig(per_host_input_for_training=BROADCAST): each process of a cluster or a TPU pod reads separate rows (got "
            "BROADCAST, expected PER_HOST_V1, PER_HOST_V2 or PER_SHARD_V1). Use PER_HOST_V1."
        )
