"""Reads a dataset with one library's own reader: `python _conformance_readers.py READER FOLDER KIND` prints a JSON object a record.

Each function knows its library and nothing of tpudata, which need not be installed. A record is what the reader made of the
features of the KIND of dataset: of `image/encoded` the SHA-256 of the bytes, others as numbers, text and lists of numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Silent, and on the CPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

IMAGE = "image/encoded"
TEXTS = ("image/format", "image/colorspace", "image/class/text", "image/filename")
NUMBERS = ("image/height", "image/width", "image/channels", "image/class/label")
IDS = ("input_ids", "segment_ids", "positions")
LENGTH = 64
INTEGER, BYTES, INTEGERS, ROW = "integer", "bytes", "any number of integers", "a row of integers"
# By kind of dataset, what each feature is stored as. Packed ids are the bytes of a row of int32, or the row as int64.
KINDS: dict[str, dict[str, str]] = {
    "images": {**dict.fromkeys((IMAGE, *TEXTS), BYTES), **dict.fromkeys(NUMBERS, INTEGER)},
    "text": {"text": BYTES, "n": INTEGER},
    "tokens": {"input_ids": INTEGERS, "n": INTEGER},
    "packed": dict.fromkeys(IDS, BYTES),
    "packed_int64": dict.fromkeys(IDS, ROW),
}
Record = dict[str, Any]


def record_of(values: Mapping[str, Any]) -> Record:
    """What is compared of a record, from bytes and integers by feature name, each alone or in a list."""
    out: Record = {}
    for name, value in values.items():
        if hasattr(value, "tolist"):
            value = value.tolist()
        if name in IDS:
            out[name] = _ids(value)
            continue
        if isinstance(value, list):
            (value,) = value
        if name == IMAGE:
            out[name] = hashlib.sha256(value).hexdigest()
        else:
            out[name] = value.decode() if isinstance(value, bytes) else value
    return out


def _ids(value: Any) -> list[int]:
    """Integers, from the bytes of int32 or as they are."""
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        (value,) = value
    if isinstance(value, bytes):
        return list(struct.unpack(f"<{len(value) // 4}i", value))
    return list(value)


def _shards(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("train-*"))


def _description(tf: Any, kind: str) -> dict[str, Any]:
    features = {
        INTEGER: tf.io.FixedLenFeature([], tf.int64),
        BYTES: tf.io.FixedLenFeature([], tf.string),
        INTEGERS: tf.io.RaggedFeature(tf.int64),
        ROW: tf.io.FixedLenFeature([LENGTH], tf.int64),
    }
    return {name: features[stored] for name, stored in KINDS[kind].items()}


def _from_protos(records: Iterable[bytes]) -> Iterator[Record]:
    """Records parsed by protobuf, with TensorFlow's own classes."""
    import tensorflow as tf

    for record in records:
        features = tf.train.Example.FromString(record).features.feature
        yield record_of({name: list(getattr(of, of.WhichOneof("kind")).value) for name, of in features.items()})


def tf_data(folder: str, kind: str) -> Iterator[Record]:
    """tf.data: TFRecordDataset, parse_example on whole batches, and every image decoded."""
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(_shards(folder)).batch(7)
    for batch in dataset.map(lambda rows: tf.io.parse_example(rows, _description(tf, kind))):
        count = next(iter(batch.values())).shape[0]
        for row in range(count):
            record = {name: values[row].numpy() for name, values in batch.items()}
            if kind == "images":
                pixels = tf.io.decode_image(record[IMAGE])
                shape = tuple(int(record[f"image/{part}"]) for part in ("height", "width", "channels"))
                if pixels.shape != shape:
                    raise ValueError(f"{record['image/filename']!r} decodes to {pixels.shape}, not {shape}")
            yield record_of(record)


def tfds(folder: str, kind: str) -> Iterator[Record]:
    """TFDS: builder_from_directory."""
    import tensorflow_datasets

    decoders = {IMAGE: tensorflow_datasets.decode.SkipDecoding()} if kind == "images" else None
    builder = tensorflow_datasets.builder_from_directory(folder)
    for example in builder.as_dataset(split="train", decoders=decoders).as_numpy_iterator():
        yield record_of(example)


def beam(folder: str, kind: str) -> Iterator[Record]:
    """Beam's ReadFromTFRecord, into a text file."""
    del kind
    import tempfile

    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

    with tempfile.TemporaryDirectory() as aside:
        pipeline = apache_beam.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"]))
        records = pipeline | apache_beam.io.ReadFromTFRecord(f"{folder}/train-*")
        _ = records | apache_beam.Map(bytes.hex) | apache_beam.io.WriteToText(f"{aside}/records")
        pipeline.run().wait_until_finish()
        texts = [path.read_text() for path in sorted(Path(aside).glob("records-*"))]
    return _from_protos(bytes.fromhex(line) for text in texts for line in text.splitlines())


def grain(folder: str, kind: str) -> Iterator[Record]:
    """Grain's TFRecordIterDataset, which knows the framing; TensorFlow's protobuf classes parse."""
    from grain.experimental import TFRecordIterDataset

    del kind
    return _from_protos(record for path in _shards(folder) for record in TFRecordIterDataset(path))


def tfrecord(folder: str, kind: str) -> Iterator[Record]:
    """The tfrecord package, with its own protobuf classes: never in a process that has TensorFlow's."""
    from tfrecord.reader import tfrecord_loader

    stored = KINDS[kind]
    description = {name: "byte" if of == BYTES else "int" for name, of in stored.items()}
    for path in _shards(folder):
        for example in tfrecord_loader(path, None, description):
            yield record_of({name: bytes(of) if stored[name] == BYTES else of for name, of in example.items()})


def seqio(folder: str, kind: str) -> Iterator[Record]:
    """SeqIO's TFExampleDataSource."""
    import seqio as library
    import tensorflow as tf

    source = library.TFExampleDataSource({"train": f"{folder}/train-*"}, _description(tf, kind))
    for example in source.get_dataset("train", shuffle=False).as_numpy_iterator():
        yield record_of(example)


def tf_models(folder: str, kind: str) -> Iterator[Record]:
    """tf-models-official's InputReader with its decoder for image classification, which keeps the image and the label."""
    if kind != "images":
        raise ValueError(f"no decoder for {kind}")
    from official.core.config_definitions import DataConfig
    from official.core.input_reader import InputReader
    from official.vision.dataloaders.classification_input import Decoder

    config = DataConfig(input_path=f"{folder}/train-*", is_training=False, global_batch_size=1, drop_remainder=False)
    decoder = Decoder(IMAGE, "image/class/label")
    reader = InputReader(config, decoder_fn=decoder.decode, parser_fn=lambda decoded: decoded)
    for example in reader.read().as_numpy_iterator():
        yield record_of(example)


READERS: dict[str, Callable[[str, str], Iterator[Record]]] = {
    reader.__name__: reader for reader in (tf_data, tfds, beam, grain, tfrecord, seqio, tf_models)
}

if __name__ == "__main__":
    for one in READERS[sys.argv[1]](*sys.argv[2:]):
        print(json.dumps(one))
