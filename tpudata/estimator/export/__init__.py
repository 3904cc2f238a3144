"""Inputs and outputs of an exported model, with the names of `tf.estimator.export`."""

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
