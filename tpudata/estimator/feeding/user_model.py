"""The user's functions, and the arguments that they get."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpudata.estimator.api.spec import ModelSpec
from tpudata.estimator.api.user_functions import InputFunction, ModelFunction
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.feeding.deployment import Call, Deployment
from tpudata.estimator.feeding.signature import call_input_fn, call_model_fn
from tpudata.estimator.feeding.sparse_parts import join_sparse
from tpudata.tensor_types import Tensors


@dataclasses.dataclass(frozen=True)
class UserModel:
    """The user's functions and parameters in an estimator.

    Attributes:
        model_fn: function that describes the model.
        model_dir: folder of checkpoints and event files.
        config: the RunConfig.
        params: params of model_fn and input_fn, each of which gets a copy.
        batch_sizes: for each mode its global batch size, or None.
        batch_axis: axis of the rows for each tensor of (features, labels); None for axis 0.
        is_for_plain_estimator: whether it belongs to an Estimator, which adds nothing to params and does not require input_fn to
            take them.
    """

    model_fn: ModelFunction
    model_dir: str
    config: RunConfig
    params: Mapping[str, object]
    batch_sizes: Mapping[str, int | None]
    batch_axis: Sequence[int] | None = None
    is_for_plain_estimator: bool = False

    def call_model(self, features: Tensors, labels: Tensors, deployment: Deployment) -> ModelSpec:
        """Call model_fn for a mode, and return its result."""
        params = self._make_params(deployment)
        if not self.is_for_plain_estimator:
            params["use_tpu"] = deployment.topology.is_tpu
        # Without AutoGraph, as in TensorFlow's Estimator: Python's conditions and loops in model_fn run while it is traced.
        call = tf.autograph.experimental.do_not_convert(call_model_fn)
        # Sparse tensors are passed as their parts until here, since the loops and the steps only handle dense tensors.
        features, labels = join_sparse(features), join_sparse(labels)
        spec: ModelSpec = call(self.model_fn, features, labels, deployment.mode, params, self.config)
        return spec

    def call_input(
        self, input_fn: InputFunction, deployment: Deployment, call: Call, start_step: int = 0
    ) -> tf.data.Dataset:
        """Call input_fn for some replicas, and return its dataset.

        Args:
            input_fn: the function.
            deployment: deployment of the mode.
            call: the call, one of the deployment's `list_calls`.
            start_step: number of steps done.
        """
        is_per_replica = deployment.pipeline is InputPipelineConfig.PER_HOST_V2
        return call_input_fn(
            input_fn,
            deployment.mode,
            self._make_params(deployment, call),
            self.config,
            call.make_input_context(call.num_replicas if is_per_replica else 1),
            start_step,
            needs_dataset=is_per_replica and deployment.topology.is_sharded,
            needs_params=not self.is_for_plain_estimator,
            takes_sparse=not deployment.topology.is_sharded and not deployment.topology.is_tpu,
        )

    def _make_params(self, deployment: Deployment, call: Call | None = None) -> dict[str, object]:
        """Return a copy of the params, with those that the estimator adds for a call of input_fn, or (`call` None) for model_fn."""
        params = copy.deepcopy(dict(self.params))
        # An Estimator adds nothing, except in a rehearsal, which adds the batch size that the call would have on a TPU.
        if not self.is_for_plain_estimator or deployment.global_batch_size is not None:
            params |= deployment.make_params(call)
        return params
