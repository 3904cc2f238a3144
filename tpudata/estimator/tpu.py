"""Names of `tf.compat.v1.estimator.tpu` and `tf.contrib.tpu`, for programs that only change their imports."""

from tpudata.estimator.api.spec import TPUEstimatorSpec
from tpudata.estimator.config.run_config import RunConfig
from tpudata.estimator.config.tpu_config import InputPipelineConfig, TPUConfig
from tpudata.estimator.tpu_estimator import TPUEstimator
from tpudata.estimator.tracing.optimizer import CrossShardOptimizer

__all__ = [
    "CrossShardOptimizer",
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
]
