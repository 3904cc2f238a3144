"""A model on devices, which train, evaluate and predict share."""

import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from tpudata.devices.processes.peers import Peers
from tpudata.devices.processes.topology import Topology
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.spec import ModelSpec
from tpudata.estimator.api.user_functions import InputFunction
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.feeding.deployment import Deployment
from tpudata.estimator.feeding.signature import split_element
from tpudata.estimator.feeding.user_model import UserModel
from tpudata.estimator.loops.feed import Feed, make_feed
from tpudata.estimator.state.host_copies import HostCopies, OnlyOnHost
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.state.warm_start import WarmStartSettings
from tpudata.estimator.steps.eval_step import EvalStep
from tpudata.estimator.steps.plain_train_step import PlainTrainStep
from tpudata.estimator.steps.predict_step import PredictStep
from tpudata.estimator.steps.train_step import TrainStep
from tpudata.estimator.tracing.optimizer import DENSE_GRADIENTS
from tpudata.estimator.tracing.traced_model import trace_model
from tpudata.tensor_types import Specs, Tensors

_SEED_BYTES = 3  # Enough for a different seed in each run.
ModeStep: TypeAlias = TrainStep | EvalStep | PredictStep
# Class of steps, or a partial of one; called with the arguments of Step.
_StepClass: TypeAlias = Callable[..., ModeStep]
_PLAIN_STEPS: Mapping[str, _StepClass] = {
    ModeKeys.TRAIN: PlainTrainStep,
    ModeKeys.EVAL: EvalStep,
    ModeKeys.PREDICT: PredictStep,
}


class Runtime:
    """A model on devices: its variables, and the steps compiled so far.

    Attributes:
        user_model: functions and parameters of the user.
        usage_lock: lock that trainings, evaluations and check_model hold while they use the steps and the variables.
        is_training: whether training holds `usage_lock`, so that running predictions may not use the variables.
        lock: lock held while a step is compiled, and while variables are loaded for a batch and the batch runs.

    Args:
        user_model: functions and parameters of the user.
        find_topology: function that returns the topology, and may connect to it; called at the first use.
        warm_start: source of initial values, or None.
    """

    def __init__(
        self,
        user_model: UserModel,
        find_topology: Callable[[], Topology],
        warm_start: WarmStartSettings | None = None,
    ) -> None:
        self.user_model = user_model
        self.usage_lock = threading.Lock()
        self.is_training = False
        self.lock = threading.RLock()
        self._find_topology = find_topology
        self._warm_start = warm_start
        # (mode, specs of (features, labels), step); a list, as structures of specs cannot be keys.
        self._steps: list[tuple[str, tuple[Specs, Specs], ModeStep]] = []

    @property
    def config(self) -> RunConfig:
        """The RunConfig."""
        return self.user_model.config

    @property
    def model_dir(self) -> str:
        """The folder of checkpoints and event files."""
        return self.user_model.model_dir

    @functools.cached_property
    def topology(self) -> Topology:
        """Devices on which the steps run."""
        return self._find_topology()

    @property
    def peers(self) -> Peers:
        """The processes that train together."""
        return self.topology.peers

    @functools.cached_property
    def seed(self) -> int | None:
        """Seed of initial values and random operations; on devices, a random seed of the chief instead of None."""
        seed = self.config.tf_random_seed
        if seed is None and self.topology.devices:
            seed = self.peers.broadcast_number(int.from_bytes(os.urandom(_SEED_BYTES), "little"))
        return seed

    @functools.cached_property
    def store(self) -> VariableStore:
        """The variables that the modes share."""
        variables: dict[str, tf.Variable] = {}
        return VariableStore(variables, _choose_host_copies(self.topology, variables), self.peers, self._warm_start)

    def clone_on(self, find_topology: Callable[[], Topology]) -> "Runtime":
        """Return a runtime of the same model on other devices, with separate steps and variables."""
        return Runtime(self.user_model, find_topology, self._warm_start)

    def clone(self) -> "Runtime":
        """Return a runtime of the same model on the same devices, with separate steps and variables."""
        return self.clone_on(lambda: self.topology)

    def make_deployment(self, mode: str) -> Deployment:
        """Return the deployment that describes how `mode` is fed."""
        user_model = self.user_model
        return Deployment(mode, self.topology, user_model.config.tpu_config, user_model.batch_sizes[mode])

    def make_feed(self, input_fn: InputFunction, mode: str, start_step: int = 0) -> Feed:
        """Call input_fn for the replicas of `mode`, and return the data.

        An input_fn that takes `start_step` gets the number of steps done.
        """
        deployment = self.make_deployment(mode)
        call = functools.partial(self.user_model.call_input, input_fn, deployment, start_step=start_step)
        return make_feed(call, deployment, self.user_model.batch_axis)

    def get_step(self, mode: str, element_spec: Specs) -> ModeStep:
        """Return the cached step of `mode` for elements with these specs; the first call for them traces model_fn."""
        specs = split_element(element_spec)
        with self.lock:
            for cached_mode, cached_specs, step in self._steps:
                if cached_mode == mode and cached_specs == specs:
                    return step
            step = self._make_step(mode, specs)
            self._steps.append((mode, specs, step))
            return step

    def _make_step(self, mode: str, specs: tuple[Specs, Specs]) -> ModeStep:
        """Trace model_fn, and return the step of a mode for the elements with these specs."""
        deployment = self.make_deployment(mode)
        topology = self.topology

        def call_model(features: Tensors, labels: Tensors) -> ModelSpec:
            if topology.is_tpu:  # Several replicas sum dense gradients anyway; a single core must compute like them.
                tf.compat.v1.get_default_graph().add_to_collection(DENSE_GRADIENTS, True)
            return self.user_model.call_model(features, labels, deployment)

        # tf.summary writes only in training, and only in the chief, since all processes share model_dir.
        summaries_dir = self.model_dir if mode == ModeKeys.TRAIN and self.peers.is_chief else None
        num_replicas = topology.num_replicas if topology.devices else None
        traced = trace_model(call_model, mode, specs, self.seed, summaries_dir, num_replicas)
        step_classes = _import_device_steps() if topology.devices else _PLAIN_STEPS
        is_broadcast = deployment.pipeline is InputPipelineConfig.BROADCAST
        return step_classes[mode](traced, topology, self.store, is_broadcast=is_broadcast)


def _choose_host_copies(topology: Topology, variables: dict[str, tf.Variable]) -> HostCopies:
    """Return the object that copies the devices' values to the host's variables when asked; this function copies nothing.

    Args:
        topology: devices that run the steps.
        variables: the host's `tf.Variable`s by name; the store adds them later.

    Returns:
        With jax's devices, a DeviceVariables, which holds the devices' values and knows which ones are newer than the host's.
        Otherwise an OnlyOnHost, which does nothing, since TensorFlow's steps use the variables themselves.
    """
    if not topology.devices:
        return OnlyOnHost()
    from tpudata.devices.spmd.mesh import make_mesh
    from tpudata.devices.spmd.variables import DeviceVariables

    return DeviceVariables(make_mesh(topology.devices), variables)


def _import_device_steps() -> Mapping[str, _StepClass]:
    """Import jax, and return the class of each mode's steps on devices."""
    from tpudata.estimator.steps.device_calls import DeviceCallBuilder
    from tpudata.estimator.steps.device_train_step import DeviceTrainStep

    return {
        ModeKeys.TRAIN: DeviceTrainStep,
        ModeKeys.EVAL: functools.partial(EvalStep, builder_class=DeviceCallBuilder),
        ModeKeys.PREDICT: functools.partial(PredictStep, builder_class=DeviceCallBuilder),
    }
