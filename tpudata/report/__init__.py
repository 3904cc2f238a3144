"""A page about a dataset: samples, classes, sizes, rejects. No TensorFlow."""

from tpudata.report.page import report_page
from tpudata.report.sample import sample_dataset

__all__ = ["report_page", "sample_dataset"]
