"""Reads a dataset with one library's own reader: `python _conformance_readers.py READER FOLDER KIND` prints a JSON object a record.

Each function only uses its library, not tpudata, which need not be installed. A record has the features of the KIND of dataset: the
SHA-256 of `image/encoded`, and other features as numbers, strings and lists of numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# TensorFlow logs only errors, and runs on the CPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

IMAGE = "image/encoded"
TEXTS = ("image/format", "image/colorspace", "image/class/text", "image/filename")
NUMBERS = ("image/height", "image/width", "image/channels", "image/class/label")
IDS = ("input_ids", "segment_ids", "positions")
LENGTH = 64
# What a feature is stored as; a row has LENGTH integers.
INTEGER, BYTES, INTEGERS, ROW = "integer", "bytes", "any number of integers", "a row of integers"
FLOATS, STRINGS = "any number of floats", "any number of strings"
OBJECTS = {
    **{f"image/object/bbox/{edge}": FLOATS for edge in ("ymin", "ymax", "xmin", "xmax")},
    "image/object/area": FLOATS,
    "image/object/class/label": INTEGERS,
    "image/object/class/text": STRINGS,
    "image/object/is_crowd": INTEGERS,
}
# What each feature is stored as, by kind of dataset. Packed ids are the bytes of a row of int32, or the row as int64.
KINDS: dict[str, dict[str, str]] = {
    "images": {**dict.fromkeys((IMAGE, *TEXTS), BYTES), **dict.fromkeys(NUMBERS, INTEGER)},
    "boxes": {
        **dict.fromkeys((IMAGE, "image/filename", "image/format", "image/source_id"), BYTES),
        **dict.fromkeys(("image/height", "image/width"), INTEGER),
        **OBJECTS,
    },
    "text": {"text": BYTES, "n": INTEGER},
    "text_gzip": {"text": BYTES, "n": INTEGER},
    "labels": {"text": BYTES, "n": INTEGER, "label": INTEGER},
    "tokens": {"input_ids": INTEGERS, "n": INTEGER},
    "packed": dict.fromkeys(IDS, BYTES),
    "packed_int64": dict.fromkeys(IDS, ROW),
}
Record = dict[str, Any]


def normalize_record(values: Mapping[str, Any], kind: str) -> Record:
    """Return the features of a record that are compared, in the same form for all readers.

    Floats are rounded to five digits: 32 bits hold no more than seven.

    Args:
        values: values of the features by name, as a library returns them: bytes and numbers, single, in a list or in an array.
        kind: kind of dataset.
    """
    record: Record = {}
    for name, value in values.items():
        if name not in KINDS[kind]:
            continue
        if hasattr(value, "tolist"):
            value = value.tolist()
        if name in OBJECTS:
            items = [item.decode() if isinstance(item, bytes) else item for item in value]
            record[name] = [float(f"{item:.5g}") for item in items] if OBJECTS[name] == FLOATS else items
            continue
        if name in IDS:
            record[name] = _unpack_ids(value)
            continue
        if isinstance(value, list):
            (value,) = value
        if name == IMAGE:
            record[name] = hashlib.sha256(value).hexdigest()
        else:
            record[name] = value.decode() if isinstance(value, bytes) else value
    return record


def _unpack_ids(value: Any) -> list[int]:
    """Return a list of integers, which may be stored as the bytes of int32."""
    # Some readers return a list even of a single value.
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        (value,) = value
    if isinstance(value, bytes):
        return list(struct.unpack(f"<{len(value) // 4}i", value))
    return list(value)


def _list_shards(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("train-*"))


def _find_index(shard: str) -> str:
    """Return the path of a shard's DALI index."""
    path = Path(shard)
    return str(path.parent / "index" / f"{path.stem}.idx")


def _make_parsing_spec(tf: Any, kind: str) -> dict[str, Any]:
    """Return the features of a kind of dataset as `tf.io.parse_example` takes them."""
    features = {
        INTEGER: tf.io.FixedLenFeature([], tf.int64),
        BYTES: tf.io.FixedLenFeature([], tf.string),
        INTEGERS: tf.io.RaggedFeature(tf.int64),
        ROW: tf.io.FixedLenFeature([LENGTH], tf.int64),
        FLOATS: tf.io.RaggedFeature(tf.float32),
        STRINGS: tf.io.RaggedFeature(tf.string),
    }
    return {name: features[stored] for name, stored in KINDS[kind].items()}


def _from_protos(records: Iterable[bytes], kind: str) -> Iterator[Record]:
    """Yield serialized records, parsed by protobuf with TensorFlow's classes."""
    import tensorflow as tf

    for record in records:
        features = tf.train.Example.FromString(record).features.feature
        values = {}
        for name, feature in features.items():
            # An empty list may have no kind.
            values[name] = list(getattr(feature, feature.WhichOneof("kind") or "int64_list").value)
        yield normalize_record(values, kind)


def tf_data(folder: str, kind: str) -> Iterator[Record]:
    """Read with tf.data: TFRecordDataset and parse_example on whole batches; decode every image and compare its shape."""
    import tensorflow as tf

    # Batches of 7 records; the last is smaller.
    dataset = tf.data.TFRecordDataset(_list_shards(folder), compression_type="GZIP" if "gzip" in kind else None).batch(
        7
    )
    for batch in dataset.map(lambda rows: tf.io.parse_example(rows, _make_parsing_spec(tf, kind))):
        count = next(iter(batch.values())).shape[0]
        for row in range(count):
            record = {name: values[row].numpy() for name, values in batch.items()}
            if kind == "images":
                pixels = tf.io.decode_image(record[IMAGE])
                shape = tuple(int(record[f"image/{part}"]) for part in ("height", "width", "channels"))
                if pixels.shape != shape:
                    raise ValueError(f"{record['image/filename']!r} decodes to {pixels.shape}, not {shape}")
            yield normalize_record(record, kind)


def tfds(folder: str, kind: str) -> Iterator[Record]:
    """Read with TFDS, which loads the dataset by its name from a folder; also check class names and supervised keys."""
    import tensorflow_datasets

    decoders = _skip_decoding(kind)
    data_dir = str(Path(folder).parent.parent)
    dataset, info = tensorflow_datasets.load(kind, data_dir=data_dir, split="train", decoders=decoders, with_info=True)
    if kind == "images" and info.supervised_keys != (IMAGE, "image/class/label"):
        raise ValueError(f"supervised_keys is {info.supervised_keys}")
    for example in dataset.as_numpy_iterator():
        record = normalize_record(example, kind)
        # TFDS returns the numbers of classes, and their names separately.
        if kind == "images":
            record["image/class/text"] = info.features["image/class/label"].int2str(record["image/class/label"])
        elif kind == "boxes":
            names = info.features["image/object/class/label"].feature
            record["image/object/class/text"] = [names.int2str(label) for label in record["image/object/class/label"]]
        yield record


def beam(folder: str, kind: str) -> Iterator[Record]:
    """Read with Beam's ReadFromTFRecord, in a pipeline that writes the records into text files as hexadecimal digits."""
    import tempfile

    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

    with tempfile.TemporaryDirectory() as temporary:
        pipeline = apache_beam.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"]))
        records = pipeline | apache_beam.io.ReadFromTFRecord(f"{folder}/train-*")
        _ = records | apache_beam.Map(bytes.hex) | apache_beam.io.WriteToText(f"{temporary}/records")
        pipeline.run().wait_until_finish()
        texts = [path.read_text() for path in sorted(Path(temporary).glob("records-*"))]
    return _from_protos((bytes.fromhex(line) for text in texts for line in text.splitlines()), kind)


def grain(folder: str, kind: str) -> Iterator[Record]:
    """Read with Grain's TFRecordIterDataset, which returns serialized records; TensorFlow's protobuf classes parse them."""
    from grain.experimental import TFRecordIterDataset

    return _from_protos((record for path in _list_shards(folder) for record in TFRecordIterDataset(path)), kind)


def tfrecord(folder: str, kind: str) -> Iterator[Record]:
    """Read with the tfrecord package by its index. Its protobuf classes clash with TensorFlow's in the same process."""
    from tfrecord.reader import tfrecord_loader

    # The package does not support lists of strings.
    features = {name: stored_as for name, stored_as in KINDS[kind].items() if stored_as != STRINGS}
    type_names = {BYTES: "byte", FLOATS: "float"}
    description = {name: type_names.get(stored_as, "int") for name, stored_as in features.items()}
    compression = "gzip" if "gzip" in kind else None
    for path in _list_shards(folder):
        # With the index, read a file in two halves; compressed files have none.
        parts = [(None, None)] if compression else [(_find_index(path), (number, 2)) for number in range(2)]
        examples = (tfrecord_loader(path, index, description, part, None, compression) for index, part in parts)
        for example in itertools.chain.from_iterable(examples):
            values = {name: bytes(value) if features[name] == BYTES else value for name, value in example.items()}
            yield normalize_record(values, kind)


def seqio(folder: str, kind: str) -> Iterator[Record]:
    """Read with SeqIO's TFExampleDataSource."""
    import seqio as library
    import tensorflow as tf

    source = library.TFExampleDataSource({"train": f"{folder}/train-*"}, _make_parsing_spec(tf, kind))
    for example in source.get_dataset("train", shuffle=False).as_numpy_iterator():
        yield normalize_record(example, kind)


def seqio_tfds(folder: str, kind: str) -> Iterator[Record]:
    """Read with SeqIO's TfdsDataSource."""
    import seqio as library

    path = Path(folder)
    source = library.TfdsDataSource(
        f"{kind}:{path.name}", tfds_data_dir=str(path.parent.parent), decoders=_skip_decoding(kind)
    )
    for example in source.get_dataset("train", shuffle=False).as_numpy_iterator():
        yield normalize_record(example, kind)


def _skip_decoding(kind: str) -> Any:
    """Return the argument `decoders` of TFDS that leaves images encoded; None for a dataset without images."""
    import tensorflow_datasets

    return {IMAGE: tensorflow_datasets.decode.SkipDecoding()} if kind in ("images", "boxes") else None


def dali(folder: str, kind: str) -> Iterator[Record]:
    """Read with NVIDIA DALI's tfrecord reader by its index, on the CPU."""
    import nvidia.dali.tfrecord as dali_tfrecord
    from nvidia.dali import fn, pipeline_def

    # DALI reads no lists of strings.
    features = {name: stored_as for name, stored_as in KINDS[kind].items() if stored_as != STRINGS}
    specs = {
        INTEGER: dali_tfrecord.FixedLenFeature([1], dali_tfrecord.int64, -1),
        BYTES: dali_tfrecord.FixedLenFeature((), dali_tfrecord.string, ""),
        INTEGERS: dali_tfrecord.VarLenFeature(dali_tfrecord.int64, -1),
        ROW: dali_tfrecord.FixedLenFeature([LENGTH], dali_tfrecord.int64, -1),
        FLOATS: dali_tfrecord.VarLenFeature(dali_tfrecord.float32, -1.0),
    }

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def make_pipeline() -> Any:
        shards = _list_shards(folder)
        outputs = fn.readers.tfrecord(
            path=shards,
            index_path=[_find_index(path) for path in shards],
            features={name: specs[stored_as] for name, stored_as in features.items()},
            name="records",
        )
        return tuple(outputs.values())

    pipeline = make_pipeline()
    pipeline.build()
    for _ in range(pipeline.epoch_size("records")):
        values = {}
        for (name, stored_as), output in zip(features.items(), pipeline.run(), strict=True):
            value = output.at(0)
            values[name] = value.tobytes() if stored_as == BYTES else value
        yield normalize_record(values, kind)


def tf_models(folder: str, kind: str) -> Iterator[Record]:
    """Read with tf-models-official's InputReader and its decoders for classification (only image and label) and detection."""
    from official.core.config_definitions import DataConfig
    from official.core.input_reader import InputReader
    from official.vision.dataloaders.classification_input import Decoder
    from official.vision.dataloaders.tf_example_decoder import TfExampleDecoder

    decoder = {"images": lambda: Decoder(IMAGE, "image/class/label"), "boxes": TfExampleDecoder}[kind]()
    config = DataConfig(input_path=f"{folder}/train-*", is_training=False, global_batch_size=1, drop_remainder=False)
    reader = InputReader(config, decoder_fn=decoder.decode, parser_fn=lambda decoded: decoded)
    for example in reader.read().as_numpy_iterator():
        yield normalize_record(example if kind == "images" else _rename_objects(example), kind)


def _rename_objects(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a batch of one record from tf-models' decoder for detection, by the names of features."""
    record = {name: values[0] for name, values in batch.items()}
    ymin, xmin, ymax, xmax = record["groundtruth_boxes"].T
    return {
        "image/source_id": record["source_id"],
        "image/height": record["height"],
        "image/width": record["width"],
        "image/object/bbox/ymin": ymin,
        "image/object/bbox/xmin": xmin,
        "image/object/bbox/ymax": ymax,
        "image/object/bbox/xmax": xmax,
        "image/object/area": record["groundtruth_area"],
        "image/object/class/label": record["groundtruth_classes"],
        "image/object/is_crowd": record["groundtruth_is_crowd"].astype(int),
    }


READERS: dict[str, Callable[[str, str], Iterator[Record]]] = {
    reader.__name__: reader for reader in (tf_data, tfds, beam, grain, tfrecord, seqio, seqio_tfds, dali, tf_models)
}

if __name__ == "__main__":
    for record in READERS[sys.argv[1]](*sys.argv[2:]):
        print(json.dumps(record))
