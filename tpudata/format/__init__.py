"""The dataset format on disk: Example codec, TFRecord framing, index, manifest, features. Never imports TensorFlow."""

from tpudata.format.dataset import Dataset, open_dataset
from tpudata.format.example.decode import decode_example
from tpudata.format.example.encode import encode_entry, encode_example, encode_example_parts
from tpudata.format.layout import index_name, shard_name
from tpudata.format.manifest.features import Feature
from tpudata.format.manifest.manifest import Manifest, Shard, Source, Split
from tpudata.format.metadata import write_metadata
from tpudata.format.shards.index import ShardIndex
from tpudata.format.shards.write_shard import write_shard
from tpudata.format.tfrecord.framing import read_records
from tpudata.format.tfrecord.record_writer import RecordWriter
from tpudata.format.verification.verify import Defect, verify

__all__ = [
    "Dataset",
    "Defect",
    "Feature",
    "Manifest",
    "RecordWriter",
    "Shard",
    "ShardIndex",
    "Source",
    "Split",
    "decode_example",
    "encode_entry",
    "encode_example",
    "encode_example_parts",
    "index_name",
    "open_dataset",
    "read_records",
    "shard_name",
    "verify",
    "write_metadata",
    "write_shard",
]
