"""Names of TensorFlow 1, and their current names.

Keys are paths below `tensorflow` or `tensorflow.compat.v1`. Values contain `{est}` for the module tpudata.estimator, `{v1}` for
tensorflow.compat.v1, `{tf}` for tensorflow, `{tf2}` for tensorflow.compat.v2 and `{slim}` for the package tf_slim.

Long collections are written as unpacked tuples, since the formatter puts each element of a collection in a separate line.
"""

from __future__ import annotations

TPU_NAMES = frozenset(
    {"CrossShardOptimizer", "InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec"}
)
# A test compares these names with the names in tpudata.estimator.
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
# Functions of tf.contrib.layers that tpudata.estimator.contrib has.
_LAYERS = ("flatten", "l1_regularizer", "l2_regularizer", "layer_norm")
_CHECKPOINTS = ("init_from_checkpoint", "list_variables", "load_checkpoint", "load_variable")
_SUMMARIES = ("audio", "create_file_writer", "flush", "histogram", "image", "scalar", "text")

RENAMED: dict[str, str] = {
    **{f"{module}.{name}": f"{{est}}.tpu.{name}" for module in ("contrib.tpu", "estimator.tpu") for name in TPU_NAMES},
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
    **{f"contrib.layers.{name}": f"{{est}}.contrib.{name}" for name in _LAYERS},
    **{
        f"contrib.stateless.stateless_{old}": f"{{v1}}.random.stateless_{new}"
        for old, new in (
            *(("random_uniform", "uniform"), ("random_normal", "normal"), ("truncated_normal", "truncated_normal")),
            ("multinomial", "multinomial"),
        )
    },
    "contrib.layers.xavier_initializer": "{v1}.glorot_uniform_initializer",
    "contrib.layers.xavier_initializer_conv2d": "{v1}.glorot_uniform_initializer",
    "contrib.framework.get_or_create_global_step": "{v1}.train.get_or_create_global_step",
    "contrib.framework.get_global_step": "{v1}.train.get_global_step",
    "contrib.framework.nest": "{v1}.nest",
    **{f"contrib.framework.{name}": f"{{v1}}.train.{name}" for name in _CHECKPOINTS},
    **{
        f"contrib.framework.{name}": f"{{slim}}.{name}"
        for name in ("add_arg_scope", "arg_scope", "arg_scoped_arguments")
    },
    "contrib.training.checkpoints_iterator": "{v1}.train.checkpoints_iterator",
}
# Functions whose calls are removed: tpudata.estimator works with TensorFlow 2's behaviour.
REMOVED = frozenset(
    {"disable_v2_behavior", "disable_eager_execution", "enable_eager_execution", "disable_control_flow_v2"}
)
# What to use instead of a name or a part that has no counterpart; notes quote it.
HINTS = {
    "contrib.tpu.python.tpu.tpu_function": 'params["context"].num_replicas in model_fn, and 1 if params has no context',
    "contrib.training.HParams": "a dict, or your own dataclass",
    "contrib.layers.optimize_loss": "an optimizer's minimize, with tpudata.estimator.CrossShardOptimizer",
    "contrib.layers.variance_scaling_initializer": "tf.variance_scaling_initializer: other defaults",
    "contrib.layers.batch_norm": "tf.layers.batch_normalization, and its UPDATE_OPS in train_op",
    "contrib.layers": "the function of this name in tf_slim.layers (pip install tf_slim), or tf.layers, with other defaults",
    "contrib.slim.batch_norm": "tf.layers.batch_normalization: tf_slim's fails with TensorFlow 2.20 and later",
    "contrib.slim.nets": "an import of the network, such as `from tf_slim.nets import resnet_v2`",
    "contrib.metrics": "tf.metrics",
    "contrib.lookup": "tf.lookup",
    "contrib.rnn": "tf.nn.rnn_cell",
    "contrib.seq2seq": "the package tensorflow-addons",
    "contrib.opt": "an optimizer of tf.train or tf.keras",
    "contrib.cloud": "nothing: Bigtable and BigQuery have packages",
    "estimator.experimental": "your own SessionRunHook",
    "keras.estimator": "a model_fn that calls the model, in tpudata.estimator.Estimator",
    "estimator.inputs.pandas_input_fn": "numpy_input_fn of the columns",
    "estimator.DNNClassifier": "an Estimator with a model_fn",
    "estimator.LinearClassifier": "an Estimator with a model_fn",
    "estimator": "an Estimator with a model_fn",
    # Names of TensorFlow before 1.0.
    **{
        old: f"tf.{new}"
        for old, new in (
            *(("mul", "multiply"), ("sub", "subtract"), ("neg", "negative"), ("pack", "stack"), ("unpack", "unstack")),
            *(("batch_matmul", "matmul"), ("select", "where"), ("listdiff", "setdiff1d"), ("complex_abs", "abs")),
            *(("histogram_summary", "summary.histogram"), ("scalar_summary", "summary.scalar")),
            *(("merge_all_summaries", "summary.merge_all"), ("train.SummaryWriter", "summary.FileWriter")),
        )
    },
}
# Parts of tf.contrib.slim that the package tf_slim does not have as its attributes, or that fail today.
SLIM_GONE = frozenset({"batch_norm", "nets"})
# Functions that give different values in each API, and the note on a file without a name that only one release has.
UNSURE_VALUES = {
    "image.resize": "tf.image.resize takes other pixels in TensorFlow 1 than in 2, and nothing here shows which is meant. Write"
    " tf.compat.v1.image.resize or tf.compat.v2.image.resize.",
}
# Functions with arguments that mean something else in each API: how many may be given by position, and the note on a
# call with more.
UNSURE_ARGUMENTS = {
    "nn.dropout": (
        1,
        "tf.nn.dropout's second argument was the share to keep in TensorFlow 1 and is the share to drop in TensorFlow 2, and"
        " nothing here shows which is meant. Write keep_prob= or rate=, and migrate all files of the program together.",
    ),
}
