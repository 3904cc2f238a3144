"""What an exported model takes and gives, as the original's `estimator.export` names it."""

from tpudata.estimator.api.export_outputs import ClassificationOutput, ExportOutput, PredictOutput, RegressionOutput
from tpudata.estimator.export.serving_input import (
    ServingInputReceiver,
    TensorServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)

__all__ = [
    "ClassificationOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]
