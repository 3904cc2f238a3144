"""What train, evaluate and predict of one estimator share."""

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.devices.peers import Peers
from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.feeding.deployment import Call, Deployment
from tpudata.estimator.feeding.feed import Feed, make_feed
from tpudata.estimator.feeding.signature import call_input_fn, call_model_fn, split_element
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.state.warm_start import WarmStartSettings
from tpudata.estimator.tracing.metrics import EvalProgram
from tpudata.estimator.tracing.program import PredictProgram, Program
from tpudata.estimator.tracing.train_program import TrainProgram

_PROGRAMS: Mapping[str, type[Program]] = {
    ModeKeys.TRAIN: TrainProgram,
    ModeKeys.EVAL: EvalProgram,
    ModeKeys.PREDICT: PredictProgram,
}


@dataclasses.dataclass
class Runtime:
    """The model, its variables and the programs built so far.

    Attributes:
        model_fn: the user's.
        model_dir: folder of checkpoints and event files.
        config: the RunConfig.
        params: the user's params.
        batch_sizes: the global batch size by mode, or None.
        find_topology: returns what the steps run on; it is called when that is needed, as it may have to connect to it.
        warm_start: where first values come from, or None.
        peers: the processes that train together.
        is_plain: whether model_fn and input_fn get the user's params alone, and input_fn need not take any: of an Estimator.
        batch_axis: of each tensor of (features, labels), the axis along which its rows lie; None: 0.
        in_use: held while training or an evaluation has the programs and the variables.
        trains: whether that is training, which keeps predictions under way from the variables.
        lock: held while a program is built, and while the variables are loaded for a batch and the batch is run.
    """

    model_fn: Callable[..., Any]
    model_dir: str
    config: RunConfig
    params: Mapping[str, Any]
    batch_sizes: Mapping[str, int | None]
    find_topology: Callable[[], Topology]
    warm_start: WarmStartSettings | None = None
    batch_axis: Sequence[int] | None = None
    is_plain: bool = False
    peers: Peers = dataclasses.field(default_factory=Peers)

    def __post_init__(self) -> None:
        self._programs: list[tuple[str, Any, Program]] = []
        self.in_use = threading.Lock()
        self.trains = False
        self.lock = threading.RLock()

    @functools.cached_property
    def topology(self) -> Topology:
        """What the steps run on."""
        return self.find_topology()

    def alone(self, find_topology: Callable[[], Topology]) -> "Runtime":
        """Return a runtime on devices of this process alone."""
        return dataclasses.replace(self, find_topology=find_topology, peers=Peers())

    def clone(self) -> "Runtime":
        """Return a runtime on the same devices, with separate programs and variables."""
        return dataclasses.replace(self, find_topology=lambda: self.topology)

    @functools.cached_property
    def store(self) -> VariableStore:
        """The variables that the modes share."""
        return VariableStore(self.topology, self.warm_start)

    def feed(self, input_fn: Any, mode: str, start_step: int = 0) -> Feed:
        """Call input_fn for `mode`, as often as its replicas need; returns the data.

        An input_fn that takes `start_step` is told how many steps are done already.
        """
        deployment = self.deployment(mode)

        def call_for(call: Call) -> Any:
            return self._call_input_fn(input_fn, deployment, call, start_step)

        return make_feed(call_for, deployment, self.batch_axis)

    def first_dataset(self, input_fn: Any, mode: str) -> Any:
        """Return what the first of input_fn's calls for `mode` gives, as it is."""
        deployment = self.deployment(mode)
        return self._call_input_fn(input_fn, deployment, deployment.calls()[0], 0)

    def _call_input_fn(self, input_fn: Any, deployment: Deployment, call: Call, start_step: int) -> Any:
        per_replica = deployment.pipeline is InputPipelineConfig.PER_HOST_V2
        return call_input_fn(
            input_fn,
            deployment.mode,
            self._params(deployment, call),
            self.config,
            call.input_context(call.replicas if per_replica else 1),
            start_step,
            datasets_alone=per_replica and self.topology.is_sharded,
            needs_params=not self.is_plain,
        )

    def program(self, mode: str, element_spec: Any) -> Any:
        """Return the program of `mode` for such elements; it is built at the first call."""
        with self.lock:
            return self._program(mode, split_element(element_spec))

    def _program(self, mode: str, specs: tuple[Any, Any]) -> Any:
        for known_mode, known_specs, program in self._programs:
            if known_mode == mode and known_specs == specs:
                return program
        writes = mode == ModeKeys.TRAIN and self.peers.is_chief
        own = {"summaries_dir": self.model_dir} if writes else {}
        program = _PROGRAMS[mode](
            call_model=self.call_model,
            mode=mode,
            specs=specs,
            topology=self.topology,
            broadcast=self.deployment(mode).pipeline is InputPipelineConfig.BROADCAST,
            store=self.store,
            seed=self.config.tf_random_seed,
            **own,
        )
        self._programs.append((mode, specs, program))
        return program

    def deployment(self, mode: str) -> Deployment:
        """Return how `mode` is fed."""
        return Deployment(mode, self.topology, self.config.tpu_config, self.batch_sizes[mode])

    def _params(self, deployment: Deployment, call: Call | None = None) -> dict[str, Any]:
        # An Estimator adds nothing to its params; a rehearsal of one gives it the batch size that a TPU's program has.
        adds = not self.is_plain or deployment.global_batch_size is not None
        return {**copy.deepcopy(dict(self.params)), **(deployment.params(call) if adds else {})}

    def call_model(self, features: Any, labels: Any, mode: str) -> Any:
        """Call model_fn."""
        params = self._params(self.deployment(mode))
        if not self.is_plain:
            params["use_tpu"] = self.topology.is_tpu
        call = tf.autograph.experimental.do_not_convert(call_model_fn)
        return call(self.model_fn, features, labels, mode, params, self.config)
