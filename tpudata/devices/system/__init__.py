"""Functions of TensorFlow on the chips of a TPU, without an estimator."""

from tpudata._tensorflow import require_tensorflow

require_tensorflow("tpudata.tpu_system")

from tpudata.devices.system.tpu_system import TPUSystem, tpu_system  # noqa: E402

__all__ = ["TPUSystem", "tpu_system"]
