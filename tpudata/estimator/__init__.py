"""The bundled trainer: TPUEstimator and its relatives, on TensorFlow, and on jax for several devices."""

from tpudata._tensorflow import require_tensorflow

require_tensorflow("tpudata.estimator")

from tpudata.devices.errors import ClusterError, ModelFnError, TPUConnectionError  # noqa: E402
from tpudata.devices.processes.slurm import cluster_from_slurm  # noqa: E402
from tpudata.devices.system import TPUSystem, tpu_system  # noqa: E402
from tpudata.devices.tpu_compiler.step_cost import StepCost  # noqa: E402
from tpudata.estimator import contrib, export, inputs, tpu  # noqa: E402
from tpudata.estimator.api.errors import CheckpointError, NonFiniteError, RehearsalError  # noqa: E402
from tpudata.estimator.api.findings import Finding  # noqa: E402
from tpudata.estimator.api.mode_keys import ModeKeys  # noqa: E402
from tpudata.estimator.api.spec import EstimatorSpec, TPUEstimatorSpec  # noqa: E402
from tpudata.estimator.config.run_config import RunConfig  # noqa: E402
from tpudata.estimator.config.tpu_config import InputPipelineConfig, TPUConfig  # noqa: E402
from tpudata.estimator.estimator import Estimator, load_global_step  # noqa: E402
from tpudata.estimator.export.exporters import BestExporter, Exporter, FinalExporter, LatestExporter  # noqa: E402
from tpudata.estimator.hooks.names import (  # noqa: E402
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from tpudata.estimator.hooks.profiler import ProfilerHook  # noqa: E402
from tpudata.estimator.state.warm_start import WarmStartSettings  # noqa: E402
from tpudata.estimator.tpu_check.result import Findings  # noqa: E402
from tpudata.estimator.tpu_compatibility import check_tpu_compatibility  # noqa: E402
from tpudata.estimator.tpu_estimator import TPUEstimator  # noqa: E402
from tpudata.estimator.tracing.optimizer import CrossShardOptimizer  # noqa: E402
from tpudata.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate  # noqa: E402

# The name that programs import from estimator.py of TensorFlow's Estimator.
_load_global_step_from_checkpoint_dir = load_global_step

__all__ = [
    "BestExporter",
    "CheckpointError",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "ClusterError",
    "CrossShardOptimizer",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "Finding",
    "Findings",
    "GlobalStepWaiterHook",
    "InputPipelineConfig",
    "LatestExporter",
    "LoggingTensorHook",
    "ModeKeys",
    "ModelFnError",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "NonFiniteError",
    "ProfilerHook",
    "RehearsalError",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCost",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TPUConfig",
    "TPUConnectionError",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "TPUSystem",
    "TrainSpec",
    "WarmStartSettings",
    "check_tpu_compatibility",
    "cluster_from_slurm",
    "contrib",
    "export",
    "inputs",
    "tpu",
    "tpu_system",
    "train_and_evaluate",
]
