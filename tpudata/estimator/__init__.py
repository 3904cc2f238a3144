"""The bundled trainer: TPUEstimator and its relatives, on `tf.distribute` and `tf.function`."""

from tpudata._tensorflow import require_tensorflow

require_tensorflow("tpudata.estimator")

from tpudata.estimator import export  # noqa: E402
from tpudata.estimator.api.config import InputPipelineConfig, RunConfig, TPUConfig  # noqa: E402
from tpudata.estimator.api.errors import (  # noqa: E402
    CheckpointError,
    ModelFnError,
    NonFiniteError,
    RehearsalError,
    TPUConnectionError,
)
from tpudata.estimator.api.findings import Finding  # noqa: E402
from tpudata.estimator.api.mode_keys import ModeKeys  # noqa: E402
from tpudata.estimator.api.spec import EstimatorSpec, TPUEstimatorSpec  # noqa: E402
from tpudata.estimator.devices.tpu_system import tpu_system  # noqa: E402
from tpudata.estimator.export.exporters import BestExporter, Exporter, FinalExporter, LatestExporter  # noqa: E402
from tpudata.estimator.state.warm_start import WarmStartSettings  # noqa: E402
from tpudata.estimator.tpu_estimator import TPUEstimator  # noqa: E402
from tpudata.estimator.tracing.optimizer import CrossShardOptimizer  # noqa: E402
from tpudata.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate  # noqa: E402

__all__ = [
    "BestExporter",
    "CheckpointError",
    "CrossShardOptimizer",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "Finding",
    "InputPipelineConfig",
    "LatestExporter",
    "ModeKeys",
    "ModelFnError",
    "NonFiniteError",
    "RehearsalError",
    "RunConfig",
    "TPUConfig",
    "TPUConnectionError",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "TrainSpec",
    "WarmStartSettings",
    "export",
    "tpu_system",
    "train_and_evaluate",
]
