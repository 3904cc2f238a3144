"""RunConfig: settings of a run's state and checkpoints. Frozen, and checked at construction."""

import dataclasses
import enum
import os
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import tensorflow as tf

from tpudata.checks import require, require_flag, require_positive_int, require_seconds, require_type
from tpudata.devices.processes.cluster_task import ClusterTask
from tpudata.devices.processes.topology import JOIN_TIMEOUT_SECONDS
from tpudata.estimator.api.errors import ArgumentTypeError
from tpudata.estimator.config.tpu_config import TPUConfig

_DEFAULT_CHECKPOINT_SECS = 600


class Default(enum.Enum):
    """Marker of an omitted argument, as opposed to None."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default.DEFAULT


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Settings of a run: the folder of its checkpoints and summaries, and the intervals at which they are written.

    Attributes:
        tpu_config: a TPUConfig.
        evaluation_master: "" or the value of `master`, since an estimator has one TPU; None for `master`. With `use_tpu=False`,
            "local" is also allowed.
        master: "", "local" or None for the TPU of this machine, on which the program runs. The address of another machine's TPU is
            an error; with `use_tpu=False`, so is the address of any TPU.
        cluster: a `tf.distribute.cluster_resolver.TPUClusterResolver` of this machine's TPU, in place of `master`.
        tpu_name: "local", None, or the name of this machine's TPU in the environment variable TPU_NAME.
        zone, project: accepted for ported programs; they have no effect.
        model_dir: folder (local or gs://) of checkpoints and event files.
        tf_random_seed: seed of initial values and random ops; None for a random one.
        save_summary_steps: steps between TensorBoard summaries; None writes no summaries.
        save_checkpoints_steps, save_checkpoints_secs: interval of checkpoints, at most one of the two; by default 600 seconds.
            None in both writes no checkpoint, as in TensorFlow: the trained values are lost when `train` returns.
        session_config: a `tf.compat.v1.ConfigProto`; its fields with a counterpart in TensorFlow 2 are applied.
        keep_checkpoint_max: number of checkpoints to keep; None or 0 for all.
        keep_checkpoint_every_n_hours: interval in hours at which one more checkpoint is kept.
        log_step_count_steps: steps between log lines; None writes no log lines.
        profile_steps: (first, last) training step, counted from 1, of a profile for TensorBoard, which is written to model_dir;
            loops end before the first step and after the last one. TensorFlow's RunConfig has no counterpart.
        exit_on_sigterm: whether SIGTERM ends training with a checkpoint and the exit code 75, if the program has no handler for it;
            False leaves the signal to the program. TensorFlow's RunConfig has no counterpart.
        tf_config: the cluster and the task of this process, as a dict in the form of TF_CONFIG (`cluster_from_slurm()` returns
            one); None reads TF_CONFIG. TensorFlow's RunConfig has no counterpart.
        coordinator_address, num_processes, process_id: HOST:PORT of the first of several processes that train together, their
            number, and the number of this one from 0, in place of TF_CONFIG; all three or none. TensorFlow's
            RunConfig has no counterpart.
        train_distribute, eval_distribute, experimental_distribute, device_fn, experimental_max_worker_delay_secs: None. Replicas
            are TPUConfig's num_replicas, or a TPU's cores.
        protocol: None or "grpc".
        session_creation_timeout_secs: maximum number of seconds that a process of a cluster waits for all to start.
        checkpoint_save_graph_def: a bool, which has no effect: checkpoints contain no graph (.meta file).

    The properties `cluster_spec`, `task_type`, `task_id`, `is_chief`, `num_worker_replicas`, `num_ps_replicas`,
    `global_id_in_cluster` and `service` describe the cluster and the task of this process, from the arguments or TF_CONFIG.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is not allowed, or there are both checkpoint intervals.
    """

    tpu_config: TPUConfig = dataclasses.field(default_factory=TPUConfig)
    evaluation_master: str | None = None
    master: str | None = None
    cluster: tf.distribute.cluster_resolver.ClusterResolver | None = None
    _: dataclasses.KW_ONLY
    tpu_name: str | None = None
    zone: str | None = None
    project: str | None = None
    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: int | float | Default | None = DEFAULT
    session_config: tf.compat.v1.ConfigProto | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: int | float = 10000
    log_step_count_steps: int | None = 100
    profile_steps: tuple[int, int] | None = None
    exit_on_sigterm: bool = True
    tf_config: Mapping[str, object] | None = None
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    train_distribute: object = None
    eval_distribute: object = None
    experimental_distribute: object = None
    device_fn: object = None
    protocol: str | None = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: int = JOIN_TIMEOUT_SECONDS
    checkpoint_save_graph_def: bool = True
    _task: ClusterTask = dataclasses.field(default_factory=ClusterTask, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tf_config: object = self.tf_config  # Of any type until it is checked, like the others here.
        require_type("RunConfig(tf_config=...)", tf_config, isinstance(tf_config, Mapping | None), "a dict or None")
        object.__setattr__(self, "_task", self._find_task())
        tpu_config: object = self.tpu_config
        if tpu_config is None:  # Programs pass None for the default.
            object.__setattr__(self, "tpu_config", TPUConfig())
        else:
            fix = "Pass the folder as model_dir=." if isinstance(tpu_config, str | os.PathLike) else ""
            is_config = isinstance(tpu_config, TPUConfig)
            require_type("RunConfig(tpu_config=...)", tpu_config, is_config, "a TPUConfig", fix=fix)
        for name in ("evaluation_master", "master", "tpu_name", "zone", "project"):
            name_or_none = getattr(self, name)
            require_type(f"RunConfig({name}=...)", name_or_none, isinstance(name_or_none, str | None), "a str or None")
        # As in TensorFlow's RunConfig, "" stands for this machine.
        object.__setattr__(self, "master", self.master or "")
        if self.evaluation_master is None:
            object.__setattr__(self, "evaluation_master", self.master)
        is_resolver = self.cluster is None or callable(getattr(self.cluster, "master", None))
        require_type("RunConfig(cluster=...)", self.cluster, is_resolver, "a TPUClusterResolver")
        if self.model_dir is not None:
            object.__setattr__(self, "model_dir", str(self.model_dir))
            if not self.model_dir:
                raise ValueError("RunConfig(model_dir='') names no folder. Pass a path, or None for a temporary one.")
        for name in ("save_summary_steps", "save_checkpoints_steps", "log_step_count_steps"):
            object.__setattr__(self, name, require_positive_int("RunConfig", name, getattr(self, name), or_none=True))
        if self.keep_checkpoint_max != 0:  # 0 keeps all, like None.
            kept = require_positive_int("RunConfig", "keep_checkpoint_max", self.keep_checkpoint_max, or_none=True)
            object.__setattr__(self, "keep_checkpoint_max", kept)
        seed: object = self.tf_random_seed
        is_seed = isinstance(seed, Integral | None) and not isinstance(seed, bool)
        require("RunConfig", "tf_random_seed", seed, is_seed, "an int or None", ArgumentTypeError)
        if isinstance(seed, Integral):
            object.__setattr__(self, "tf_random_seed", int(seed))
        hours = self.keep_checkpoint_every_n_hours
        require_seconds("RunConfig", "keep_checkpoint_every_n_hours", hours, rejects_zero=True)
        timeout = require_positive_int("RunConfig", "session_creation_timeout_secs", self.session_creation_timeout_secs)
        object.__setattr__(self, "session_creation_timeout_secs", timeout)
        for name in ("exit_on_sigterm", "checkpoint_save_graph_def"):
            require_flag("RunConfig", name, getattr(self, name))
        self._check_profile_steps()
        self._check_checkpoint_interval()
        self._check_unsupported()

    def _find_task(self) -> ClusterTask:
        """Return the task of this process, from the arguments or the environment.

        Raises:
            ValueError: tf_config is passed together with another argument that describes the cluster, or the arguments or the
                environment do not describe a task (a ClusterConfigError).
        """
        process_arguments = (self.coordinator_address, self.num_processes, self.process_id)
        if self.tf_config is None:
            return ClusterTask.resolve("RunConfig", *process_arguments)
        if process_arguments != (None, None, None):
            raise ValueError(
                "RunConfig(tf_config=..., coordinator_address=..., num_processes=..., process_id=...): both describe the "
                "cluster. Pass tf_config or the other three."
            )
        return ClusterTask.from_config(self.tf_config)

    def _check_unsupported(self) -> None:
        """Raise ValueError for a value of an argument of TensorFlow's RunConfig that is not supported."""
        for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"RunConfig({name}=...) is not supported, got {type(getattr(self, name)).__name__}: the estimator makes the "
                    "strategy. Pass tpu_config=TPUConfig(num_replicas=N) for N GPUs, and use a CrossShardOptimizer."
                )
        for name in ("device_fn", "experimental_max_worker_delay_secs"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"RunConfig({name}=...) is for parameter servers, which are not supported, got {getattr(self, name)!r}. "
                    "Omit it."
                )
        require("RunConfig", "protocol", self.protocol, self.protocol in (None, "grpc"), "'grpc' or None", ValueError)

    def _check_profile_steps(self) -> None:
        """Check profile_steps, and replace a list by a tuple.

        Raises:
            TypeError: profile_steps is not a pair of ints.
            ValueError: the first step is below 1 or after the last one.
        """
        steps = self.profile_steps
        if steps is None:
            return
        is_pair = isinstance(steps, tuple | list) and len(steps) == 2 and all(type(step) is int for step in steps)
        require("RunConfig", "profile_steps", steps, is_pair, "(first, last) or None")
        first, last = steps
        if not 1 <= first <= last:
            raise ValueError(
                f"RunConfig(profile_steps={steps!r}): steps count from 1, and the last is not before the first."
            )
        object.__setattr__(self, "profile_steps", tuple(steps))

    def _check_checkpoint_interval(self) -> None:
        """Check save_checkpoints_secs, and replace its default by 600 seconds, or by None if there is an interval in steps.

        Raises:
            TypeError: save_checkpoints_secs is not a number.
            ValueError: save_checkpoints_secs is not above 0, or there is also an interval in steps.
        """
        seconds = self.save_checkpoints_secs
        if seconds is DEFAULT:
            seconds = _DEFAULT_CHECKPOINT_SECS if self.save_checkpoints_steps is None else None
            object.__setattr__(self, "save_checkpoints_secs", seconds)
        elif seconds is not None:
            if self.save_checkpoints_steps is not None:
                raise ValueError(
                    f"RunConfig(save_checkpoints_steps={self.save_checkpoints_steps}, save_checkpoints_secs={seconds}):"
                    " pass one of them."
                )
            require_seconds("RunConfig", "save_checkpoints_secs", seconds, rejects_zero=True, or_none=True)

    def replace(self, **changes: Any) -> "RunConfig":
        """Return a copy with `changes`; a new checkpoint interval replaces the other one, and a new master the evaluation_master.

        Raises:
            TypeError: a value has the wrong type.
            ValueError: a field is unknown, or a value is not allowed.
        """
        names = [field.name for field in dataclasses.fields(self) if not field.name.startswith("_")]
        unknown = sorted(changes.keys() - set(names))
        if unknown:
            raise ValueError(f"RunConfig.replace got {unknown} (expected some of {', '.join(names)}).")
        # The old evaluation_master belongs to the old master.
        if "master" in changes:
            changes.setdefault("evaluation_master", None)
        if changes.get("save_checkpoints_steps") is not None:
            changes.setdefault("save_checkpoints_secs", None)
        if changes.get("save_checkpoints_secs") is not None:
            changes.setdefault("save_checkpoints_steps", None)
        return dataclasses.replace(self, **changes)

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster of tf_config or TF_CONFIG; empty if they have none, and in an evaluator."""
        return tf.train.ClusterSpec({job: list(tasks) for job, tasks in self._task.cluster.items()})

    @property
    def task_type(self) -> str:
        """Job of this process; "worker" without a cluster."""
        return self._task.task_type

    @property
    def task_id(self) -> int:
        """Index of this process within its job."""
        return self._task.task_id

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and summaries."""
        return self._task.is_chief

    @property
    def num_worker_replicas(self) -> int:
        """Number of processes that train, including the chief."""
        return self._task.num_workers

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers in the cluster."""
        return self._task.num_parameter_servers

    @property
    def global_id_in_cluster(self) -> int | None:
        """Index of this process among all processes of the cluster; None for an evaluator."""
        return self._task.global_id

    @property
    def service(self) -> Mapping[str, object] | None:
        """Value of TF_CONFIG's "service"; None if it has none."""
        return self._task.service


def get_task(config: RunConfig) -> ClusterTask:
    """Return the task of this process in the cluster that a config describes."""
    return config._task  # noqa: SLF001 (private to users, not to this package)
