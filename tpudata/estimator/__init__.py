"""The bundled trainer: TPUEstimator and its relatives, on `tf.distribute` and `tf.function`."""

from tpudata._tensorflow import require_tensorflow

require_tensorflow("tpudata.estimator")

from tpudata.estimator._config import InputPipelineConfig, RunConfig, TPUConfig  # noqa: E402
from tpudata.estimator._errors import CheckpointError, ModelFnError, NonFiniteError  # noqa: E402
from tpudata.estimator._mode_keys import ModeKeys  # noqa: E402
from tpudata.estimator._optimizer import CrossShardOptimizer  # noqa: E402
from tpudata.estimator._spec import EstimatorSpec, TPUEstimatorSpec  # noqa: E402
from tpudata.estimator._tpu_estimator import TPUEstimator  # noqa: E402

__all__ = [
    "CheckpointError",
    "CrossShardOptimizer",
    "EstimatorSpec",
    "InputPipelineConfig",
    "ModeKeys",
    "ModelFnError",
    "NonFiniteError",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
]
