"""Random access to the records of a dataset, without TensorFlow: for PyTorch, grain and JAX.

`record_source` is the entry point; `shard_records` finds, reads and checks the bytes of records; `example_decoder` decodes them to
numpy arrays.
"""

from tpudata.source.example_decoder import ExampleDecoder
from tpudata.source.record_source import RecordSource

__all__ = ["ExampleDecoder", "RecordSource"]
