"""TPUEstimator: trains, evaluates and predicts on any device."""

from collections.abc import Mapping, Sequence

from tpudata.checks import require_positive_int, require_type
from tpudata.devices.processes.topology import make_local_topology
from tpudata.estimator.api.findings import Finding
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.api.user_functions import InputFunction, ModelFunction
from tpudata.estimator.base_estimator import BaseEstimator
from tpudata.estimator.config.arguments import (
    check_batch_axis,
    check_export,
    check_params,
    check_v2_behaviour,
    choose_model_dir,
)
from tpudata.estimator.config.run_config import RunConfig, get_task
from tpudata.estimator.config.run_devices import connect_tpu, join_cluster
from tpudata.estimator.config.session_config import apply_session_config
from tpudata.estimator.config.tpu_config import TPUConfig
from tpudata.estimator.engine import Engine
from tpudata.estimator.feeding.deployment import BATCH_SIZE_NAMES
from tpudata.estimator.feeding.signature import check_model_fn
from tpudata.estimator.feeding.user_model import UserModel
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state.warm_start import WarmStartSettings, make_warm_start_settings
from tpudata.estimator.tpu_compatibility import check_tpu_compatibility


class TPUEstimator(BaseEstimator):
    """Trainer of the model that a model_fn describes, on a CPU, on GPUs or on a TPU; also evaluates and predicts.

    model_fn takes `features` and any of `labels`, `mode`, `params`, `config` and returns a TPUEstimatorSpec (or an EstimatorSpec).
    It may use `tf.compat.v1` (get_variable, optimizers, metrics) and Keras layers that it makes. It is traced instead of called at
    every step, and must create the same variables in every trace. A training step always runs Keras' updates and, when summaries
    are due, `tf.summary` writes; it runs other ops that change state only if train_op, the loss, host_call or a hook's fetch
    depends on them. The other modes run ops that change state only if the loss, the metrics, host_call, the predictions or a
    hook's fetch depends on them.

    input_fn takes `params` and any of `config`, `mode`, `input_context`, `start_step`, and returns a `tf.data.Dataset` of
    features or of (features, labels), batched, or their tensors, as v1 programs do. `params["batch_size"]` is the batch size of the
    mode, and absent if the mode has none; model_fn also gets it, and `params["use_tpu"]`.

    On several replicas (a TPU, or TPUConfig's num_replicas) batches are split among them: input_fn is called as the TPUConfig's
    input mode says, with that mode's part of the batch size in `params["batch_size"]`; model_fn is called with one replica's
    rows, and their number there. Both get a `params["context"]` with `num_replicas` and `num_hosts`, and for input_fn
    `current_host` and `current_input_fn_deployment()`. Shapes must be static. With the optimizer in a CrossShardOptimizer, and a
    loss that is a mean over rows, N replicas train as one replica would. If replicas assign different values to a variable, it gets
    the first replica's value, or with the aggregation MEAN or SUM the mean or sum of the values. Batch normalization sees only its
    replica's rows, and its moving averages are the first replica's.

    In a TF_CONFIG cluster, the chief and the workers train one model: each makes the estimator, which waits for the others, and
    calls `train`; its input_fn is called for its share of the rows. Only the chief writes to model_dir. Evaluation, prediction and
    export run in the calling process, on one device.

    Args:
        model_fn: function that describes the model.
        model_dir: folder of checkpoints and event files, local or gs://; None for the RunConfig's, or for
            a new temporary one if the RunConfig has none.
        config: a RunConfig.
        params: a dict for model_fn and input_fn; each gets a copy.
        use_tpu: whether to run on a TPU; the first call that needs it connects to it.
        train_batch_size: rows per training step, of all replicas together.
        eval_batch_size: rows per evaluation step, of all replicas together.
        predict_batch_size: rows per prediction step, of all replicas together.
        batch_axis: axis of the rows for each tensor of (features, labels), in the order of `tf.nest.flatten`, such as 3 for images
            [height, width, channels, rows]; None for axis 0. For PER_HOST_V1, and SLICED in evaluation and prediction.
        eval_on_tpu: whether to evaluate on the TPU; False evaluates on one device of this machine.
        export_to_tpu: a bool, which has no effect: a SavedModel is for CPUs and GPUs.
        export_to_cpu: True.
        warm_start_from: source of initial values while model_dir has no checkpoint: WarmStartSettings, or a path for all trainable
            variables.
        embedding_config_spec: None.
        export_saved_model_api_version: 1 (V1).
        rehearse: whether to look for what a TPU would reject instead of using one: `train`, `evaluate`, `predict` and
            train_and_evaluate call `rehearse` and run nothing. Without findings they return as on empty data, with metrics of
            NaN, and do not write to model_dir.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: config has the wrong type; params have a reserved key; a batch size is not positive, or use_tpu has no
            train_batch_size; model_fn has no argument `features`, or has unknown ones; model_dir differs from the RunConfig's; or
            an argument or an option of the RunConfig is not supported.
        UsageError: TensorFlow 2 behaviour is disabled; jax has already started with fewer CPU devices than num_replicas; or, in a
            TF_CONFIG cluster, a job or an option is not supported, or jax has already started.
        ClusterError: not all processes of a TF_CONFIG cluster joined in time, or one ended.
        MissingExtraError: there is a TF_CONFIG cluster or num_replicas is above 1, and jax is not installed.
    """

    def __init__(
        self,
        model_fn: ModelFunction,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, object] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Sequence[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: str | WarmStartSettings | None = None,
        embedding_config_spec: None = None,
        export_saved_model_api_version: object = 1,
        *,
        rehearse: bool = False,
    ) -> None:
        check_model_fn(model_fn)
        config = RunConfig() if config is None else config
        is_config = isinstance(config, RunConfig) and isinstance(config.tpu_config, TPUConfig)
        require_type("TPUEstimator(config=...)", config, is_config, "a tpudata RunConfig", ValueError)
        sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        for mode, size in sizes.items():
            sizes[mode] = require_positive_int("TPUEstimator", BATCH_SIZE_NAMES[mode], size, or_none=True)
        if use_tpu and train_batch_size is None:
            raise ValueError("TPUEstimator(use_tpu=True) requires train_batch_size. Pass it.")
        for name in ("master", "evaluation_master"):
            address = getattr(config, name)
            if not use_tpu and address not in (None, "", "local"):
                raise ValueError(
                    f"RunConfig({name}={address!r}) names a TPU, and TPUEstimator(use_tpu=False) runs on this machine. Omit one of "
                    "them."
                )
        if use_tpu and eval_on_tpu and config.evaluation_master not in ("", config.master):
            raise ValueError(
                f"RunConfig(evaluation_master={config.evaluation_master!r}) differs from master={config.master!r}, and an "
                "estimator has one TPU. Omit it, or evaluate in another process with that address as master."
            )
        if use_tpu or rehearse:
            config.tpu_config.check_for_tpu()
        check_export(export_to_tpu, export_to_cpu, export_saved_model_api_version)
        if embedding_config_spec is not None:
            raise ValueError(
                "TPUEstimator(embedding_config_spec=...) is not supported: embeddings are variables of model_fn. Omit it, and look "
                "them up with tf.nn.embedding_lookup."
            )
        check_v2_behaviour("TPUEstimator")
        warm_start = make_warm_start_settings(warm_start_from)
        params_copy = check_params(params)
        folder = choose_model_dir(model_dir, config)
        apply_session_config(config.session_config)
        # CPU devices must be made before jax starts; a TPU is connected at the first call that needs it. A rehearsal runs nothing,
        # so it joins no cluster, and one device is enough.
        topology = None
        if not use_tpu and get_task(config).is_in_cluster and not rehearse:
            topology = join_cluster(config)
        elif not use_tpu:
            topology = make_local_topology(None if rehearse else config.tpu_config.num_replicas)
        user_model = UserModel(
            model_fn,
            folder,
            config.replace(model_dir=folder),
            params_copy,
            batch_sizes=sizes,
            batch_axis=check_batch_axis(batch_axis, config.tpu_config),
        )
        runtime = Runtime(user_model, lambda: topology or connect_tpu(config), warm_start)
        evaluating_runtime = None
        if not eval_on_tpu:
            evaluating_runtime = runtime.clone_on(lambda: make_local_topology(num_replicas=None))
        super().__init__(Engine(runtime, evaluating_runtime, rehearses=rehearse))

    def rehearse(self, input_fns: Mapping[str, InputFunction], tpu: str | None = None) -> tuple[Finding, ...]:
        """Return the findings of `check_tpu_compatibility`."""
        return tuple(check_tpu_compatibility(self, input_fns, tpu=tpu))
