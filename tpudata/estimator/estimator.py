"""Estimator of TensorFlow 1, for programs that are not written for TPUs."""

import logging
import os
from collections.abc import Mapping

import tensorflow as tf

from tpudata.devices.processes.topology import make_local_topology
from tpudata.error_text.lines import first_line
from tpudata.estimator.api.mode_keys import MODES
from tpudata.estimator.api.user_functions import ModelFunction
from tpudata.estimator.base_estimator import BaseEstimator
from tpudata.estimator.config.arguments import check_plain_config, check_v2_behaviour, choose_model_dir, copy_params
from tpudata.estimator.config.run_config import RunConfig, get_task
from tpudata.estimator.config.run_devices import join_cluster
from tpudata.estimator.config.session_config import apply_session_config
from tpudata.estimator.engine import Engine
from tpudata.estimator.feeding.signature import check_model_fn
from tpudata.estimator.feeding.user_model import UserModel
from tpudata.estimator.loops.runtime import Runtime
from tpudata.estimator.state.warm_start import WarmStartSettings, make_warm_start_settings

_log = logging.getLogger("tpudata")


class Estimator(BaseEstimator):
    """Trainer of the model that a model_fn describes, on one device of this machine; also evaluates and predicts.

    model_fn takes `features` and any of `labels`, `mode`, `params`, `config` and returns an EstimatorSpec. input_fn takes any of
    `params`, `config`, `mode`, `input_context` and `start_step`, or nothing, and returns a `tf.data.Dataset` of features or of
    (features, labels), batched, or their tensors. Both get `params` unchanged. Everything else is as in TPUEstimator with
    `use_tpu=False`: training runs in loops of the TPUConfig's `iterations_per_loop`. In a TF_CONFIG cluster, each process trains on
    the batches of its input_fn, whose share of the data `input_context` describes.

    Args:
        model_fn: function that describes the model.
        model_dir: folder of checkpoints and event files, local or gs://; None for the RunConfig's, or for
            a new temporary one if the RunConfig has none.
        config: a RunConfig.
        params: a dict for model_fn and input_fn, each of which gets a copy.
        warm_start_from: as in TPUEstimator.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: config has the wrong type or names a TPU or several replicas; model_fn has no argument `features`, or has
            unknown ones; or model_dir differs from the RunConfig's.
        UsageError: TensorFlow 2 behaviour is disabled; or, in a TF_CONFIG cluster, a job or an option is not supported, or jax has
            already started.
        ClusterError: not all processes of a TF_CONFIG cluster joined in time, or one ended.
        MissingExtraError: there is a TF_CONFIG cluster, and jax is not installed.
    """

    def __init__(
        self,
        model_fn: ModelFunction,
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, object] | None = None,
        warm_start_from: str | WarmStartSettings | None = None,
    ) -> None:
        check_model_fn(model_fn)
        config = check_plain_config(config)
        check_v2_behaviour("Estimator")
        warm_start = make_warm_start_settings(warm_start_from)
        folder = choose_model_dir(None if model_dir is None else os.fspath(model_dir), config, "Estimator")
        apply_session_config(config.session_config)
        topology = join_cluster(config) if get_task(config).is_in_cluster else make_local_topology(num_replicas=None)
        user_model = UserModel(
            model_fn,
            folder,
            config.replace(model_dir=folder),
            copy_params(params, "Estimator"),
            batch_sizes=dict.fromkeys(MODES),
            is_for_plain_estimator=True,
        )
        super().__init__(Engine(Runtime(user_model, lambda: topology, warm_start)))


def load_global_step(checkpoint_dir: str) -> int:
    """Return the global step of the newest checkpoint in a folder; 0 without a checkpoint, or if the step cannot be read."""
    try:
        reader = tf.train.load_checkpoint(checkpoint_dir)
        return int(reader.get_tensor(tf.compat.v1.GraphKeys.GLOBAL_STEP))
    except (ValueError, tf.errors.OpError) as error:
        _log.info("There is no global step in %s: %s", checkpoint_dir, first_line(error))
        return 0
