"""The records of a dataset, without TensorFlow: for PyTorch, grain and JAX.

`record_source` is the entry point. `shard_records` finds, reads and checks single records and batches of them. `record_stream`
reads all records in order, and `shuffled_records` in the order of `chunk_order`: both in chunks (`chunk`), by threads (`readers`).
`example_decoder` decodes records to numpy arrays.
"""

from tpudata.source.example_decoder import ExampleDecoder
from tpudata.source.record_source import RecordSource
from tpudata.source.shuffled_records import ShuffledRecords

__all__ = ["ExampleDecoder", "RecordSource", "ShuffledRecords"]
