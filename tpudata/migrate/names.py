"""Names of TensorFlow 1, and their current names.

Keys are paths below `tensorflow` or `tensorflow.compat.v1`. Values contain `{est}` for the module tpudata.estimator, `{v1}` for
tensorflow.compat.v1, `{tf}` for tensorflow and `{tf2}` for tensorflow.compat.v2.
"""

from __future__ import annotations

TPU_NAMES = frozenset(
    {"CrossShardOptimizer", "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec"}
)
# A test compares them with the names of tpudata.estimator.
ESTIMATOR_NAMES = frozenset(
    {
        *("BestExporter", "CheckpointSaverHook", "CheckpointSaverListener", "Estimator", "EstimatorSpec", "EvalSpec"),
        *("Exporter", "FeedFnHook", "FinalExporter", "FinalOpsHook", "GlobalStepWaiterHook", "LatestExporter"),
        *("LoggingTensorHook", "ModeKeys", "NanLossDuringTrainingError", "NanTensorHook", "ProfilerHook", "RunConfig"),
        *("SecondOrStepTimer", "SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues"),
        *("StepCounterHook", "StopAtStepHook", "SummarySaverHook", "TrainSpec", "WarmStartSettings"),
        *("train_and_evaluate", "_load_global_step_from_checkpoint_dir"),
    }
)
EXPORT_NAMES = frozenset(
    {
        *("ClassificationOutput", "ExportOutput", "PredictOutput", "RegressionOutput", "ServingInputReceiver"),
        *("TensorServingInputReceiver", "build_parsing_serving_input_receiver_fn"),
        "build_raw_serving_input_receiver_fn",
    }
)
# Names of tf.contrib.data that are in tf.data.experimental.
_DATA_NAMES = (
    *("AUTOTUNE", "Counter", "bucket_by_sequence_length", "choose_from_datasets", "copy_to_device"),
    *("enumerate_dataset", "get_single_element", "group_by_reducer", "group_by_window", "ignore_errors"),
    *("make_batched_features_dataset", "make_csv_dataset", "map_and_batch", "parallel_interleave"),
    *("prefetch_to_device", "rejection_resample", "sample_from_datasets", "scan", "shuffle_and_repeat", "unbatch"),
)
_TPU_FUNCTIONS = (
    *("bfloat16_scope", "batch_parallel", "core", "cross_replica_sum", "initialize_system", "outside_compilation"),
    *("replicate", "rewrite", "shard", "shutdown_system"),
)
_RESOLVERS = (
    *("KubernetesClusterResolver", "SimpleClusterResolver", "SlurmClusterResolver"),
    *("TFConfigClusterResolver", "TPUClusterResolver", "UnionResolver"),
)
_SUMMARIES = ("audio", "create_file_writer", "flush", "histogram", "image", "scalar", "text")

RENAMED: dict[str, str] = {
    **{f"{room}.{name}": f"{{est}}.tpu.{name}" for room in ("contrib.tpu", "estimator.tpu") for name in TPU_NAMES},
    **{f"estimator.{name}": f"{{est}}.{name}" for name in ESTIMATOR_NAMES},
    **{f"estimator.export.{name}": f"{{est}}.export.{name}" for name in EXPORT_NAMES},
    "estimator.inputs.numpy_input_fn": "{est}.inputs.numpy_input_fn",
    "train.ProfilerHook": "{est}.ProfilerHook",
    "tpu.CrossShardOptimizer": "{est}.CrossShardOptimizer",
    **{f"contrib.tpu.{name}": f"{{v1}}.tpu.{name}" for name in _TPU_FUNCTIONS},
    **{f"contrib.cluster_resolver.{name}": f"{{tf}}.distribute.cluster_resolver.{name}" for name in _RESOLVERS},
    "contrib.cluster_resolver.GceClusterResolver": "{tf}.distribute.cluster_resolver.GCEClusterResolver",
    **{f"contrib.data.{name}": f"{{v1}}.data.experimental.{name}" for name in _DATA_NAMES},
    **{f"contrib.summary.{name}": f"{{tf2}}.summary.{name}" for name in _SUMMARIES},
    "contrib.summary.all_summary_ops": "{v1}.summary.all_v2_summary_ops",
    "contrib.layers.layer_norm": "{est}.contrib.layer_norm",
    "contrib.layers.xavier_initializer": "{v1}.glorot_uniform_initializer",
    "contrib.layers.xavier_initializer_conv2d": "{v1}.glorot_uniform_initializer",
    "contrib.layers.l1_regularizer": "{v1}.keras.regularizers.l1",
    "contrib.layers.flatten": "{v1}.layers.flatten",
    "contrib.framework.get_or_create_global_step": "{v1}.train.get_or_create_global_step",
    "contrib.framework.get_global_step": "{v1}.train.get_global_step",
    "contrib.framework.nest": "{v1}.nest",
    "contrib.framework.list_variables": "{v1}.train.list_variables",
    "contrib.framework.load_variable": "{v1}.train.load_variable",
    "contrib.training.checkpoints_iterator": "{v1}.train.checkpoints_iterator",
}
# Statements that are removed: tpudata.estimator works with TensorFlow 2's behaviour.
REMOVED = frozenset(
    {"disable_v2_behavior", "disable_eager_execution", "enable_eager_execution", "disable_control_flow_v2"}
)
HINTS = {
    "contrib.training.HParams": "a dict, or your own dataclass",
    "contrib.layers.optimize_loss": "an optimizer's minimize, with tpudata.estimator.CrossShardOptimizer",
    "contrib.layers.l2_regularizer": "tf.keras.regularizers.l2(scale / 2): contrib's has a factor of 0.5",
    "contrib.layers.variance_scaling_initializer": "tf.variance_scaling_initializer: other defaults",
    "contrib.layers.batch_norm": "tf.layers.batch_normalization, and its UPDATE_OPS in train_op",
    "contrib.layers": "tf.layers",
    "contrib.metrics": "tf.metrics",
    "contrib.lookup": "tf.lookup",
    "contrib.rnn": "tf.nn.rnn_cell",
    "contrib.seq2seq": "the package tensorflow-addons",
    "contrib.opt": "an optimizer of tf.train or tf.keras",
    "contrib.cloud": "nothing: Bigtable and BigQuery have packages",
    "estimator.experimental": "your own SessionRunHook",
    "estimator.inputs.pandas_input_fn": "numpy_input_fn of the columns",
    "estimator.DNNClassifier": "an Estimator with a model_fn",
    "estimator.LinearClassifier": "an Estimator with a model_fn",
}
# Names that only TensorFlow 1 has: a program that uses one is written for it.
V1_NAMES = frozenset(
    {
        *("AUTO_REUSE", "ConfigProto", "FixedLenFeature", "GPUOptions", "GraphKeys", "InteractiveSession", "Session"),
        *("VarLenFeature", "add_to_collection", "all_variables", "app", "assign", "assign_add", "contrib"),
        *("decode_raw", "div", "estimator", "flags", "get_collection", "get_default_graph", "get_variable", "gfile"),
        *("glorot_uniform_initializer", "global_variables", "global_variables_initializer", "layers", "log"),
        *("local_variables_initializer", "logging", "parse_example", "parse_single_example", "placeholder"),
        *("placeholder_with_default", "py_func", "python_io", "random_normal", "random_uniform", "read_file"),
        *("reset_default_graph", "resource_loader", "set_random_seed", "sparse_to_dense", "string_to_number"),
        *("summary.merge_all", "tables_initializer", "to_float", "to_int32", "to_int64", "trainable_variables"),
        *("truncated_normal", "truncated_normal_initializer", "variable_scope", "variance_scaling_initializer"),
    }
)
V1_TRAIN_NAMES = ("Optimizer", "get_global_step", "get_or_create_global_step", "Saver", "Scaffold", "exponential_decay")
