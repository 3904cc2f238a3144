"""Reads a dataset with one library's own reader: `python _conformance_readers.py READER FOLDER KIND` prints a JSON object a record.

Each function only uses its library, not tpudata, which need not be installed. A record has the features of the KIND of dataset: the
SHA-256 of `image/encoded`, and other features as numbers, text and lists of numbers.
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

# Silent, and on the CPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

IMAGE = "image/encoded"
TEXTS = ("image/format", "image/colorspace", "image/class/text", "image/filename")
NUMBERS = ("image/height", "image/width", "image/channels", "image/class/label")
IDS = ("input_ids", "segment_ids", "positions")
LENGTH = 64
INTEGER, BYTES, INTEGERS, ROW = "integer", "bytes", "any number of integers", "a row of integers"
FLOATS, STRINGS = "any number of floats", "any number of strings"
OBJECTS = {
    **{f"image/object/bbox/{edge}": FLOATS for edge in ("ymin", "ymax", "xmin", "xmax")},
    "image/object/area": FLOATS,
    "image/object/class/label": INTEGERS,
    "image/object/class/text": STRINGS,
    "image/object/is_crowd": INTEGERS,
}
# By kind of dataset, what each feature is stored as. Packed ids are the bytes of a row of int32, or the row as int64.
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


def record_of(values: Mapping[str, Any], kind: str) -> Record:
    """Return the compared part of a record, from bytes and numbers by feature name, single or in a list.

    Of a float the first five digits are compared, which those of 32 bits have.
    """
    out: Record = {}
    for name, value in values.items():
        if name not in KINDS[kind]:
            continue
        if hasattr(value, "tolist"):
            value = value.tolist()
        if name in OBJECTS:
            value = [one.decode() if isinstance(one, bytes) else one for one in value]
            out[name] = [float(f"{one:.5g}") for one in value] if OBJECTS[name] == FLOATS else value
            continue
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


def _index(shard: str) -> str:
    """Return the path of a shard's DALI index."""
    path = Path(shard)
    return str(path.parent / "index" / f"{path.stem}.idx")


def _description(tf: Any, kind: str) -> dict[str, Any]:
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
    """Parse records by protobuf, with TensorFlow's own classes."""
    import tensorflow as tf

    for record in records:
        features = tf.train.Example.FromString(record).features.feature
        # An empty list may have no kind.
        lists = {name: getattr(of, of.WhichOneof("kind") or "int64_list").value for name, of in features.items()}
        yield record_of({name: list(values) for name, values in lists.items()}, kind)


def tf_data(folder: str, kind: str) -> Iterator[Record]:
    """tf.data: TFRecordDataset, parse_example on whole batches, and every image decoded."""
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(_shards(folder), compression_type="GZIP" if "gzip" in kind else None).batch(7)
    for batch in dataset.map(lambda rows: tf.io.parse_example(rows, _description(tf, kind))):
        count = next(iter(batch.values())).shape[0]
        for row in range(count):
            record = {name: values[row].numpy() for name, values in batch.items()}
            if kind == "images":
                pixels = tf.io.decode_image(record[IMAGE])
                shape = tuple(int(record[f"image/{part}"]) for part in ("height", "width", "channels"))
                if pixels.shape != shape:
                    raise ValueError(f"{record['image/filename']!r} decodes to {pixels.shape}, not {shape}")
            yield record_of(record, kind)


def tfds(folder: str, kind: str) -> Iterator[Record]:
    """TFDS: load by name, from a folder of datasets; class names and supervised keys too."""
    import tensorflow_datasets

    decoders = _decoders(kind)
    data_dir = str(Path(folder).parent.parent)
    dataset, info = tensorflow_datasets.load(kind, data_dir=data_dir, split="train", decoders=decoders, with_info=True)
    if kind == "images" and info.supervised_keys != (IMAGE, "image/class/label"):
        raise ValueError(f"supervised_keys is {info.supervised_keys}")
    for example in dataset.as_numpy_iterator():
        record = record_of(example, kind)
        # Classes are known by their numbers: TFDS has the names.
        if kind == "images":
            record["image/class/text"] = info.features["image/class/label"].int2str(record["image/class/label"])
        elif kind == "boxes":
            names = info.features["image/object/class/label"].feature
            record["image/object/class/text"] = [names.int2str(one) for one in record["image/object/class/label"]]
        yield record


def beam(folder: str, kind: str) -> Iterator[Record]:
    """Beam's ReadFromTFRecord, into a text file."""
    import tempfile

    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

    with tempfile.TemporaryDirectory() as aside:
        pipeline = apache_beam.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"]))
        records = pipeline | apache_beam.io.ReadFromTFRecord(f"{folder}/train-*")
        _ = records | apache_beam.Map(bytes.hex) | apache_beam.io.WriteToText(f"{aside}/records")
        pipeline.run().wait_until_finish()
        texts = [path.read_text() for path in sorted(Path(aside).glob("records-*"))]
    return _from_protos((bytes.fromhex(line) for text in texts for line in text.splitlines()), kind)


def grain(folder: str, kind: str) -> Iterator[Record]:
    """Grain's TFRecordIterDataset, which knows the framing; TensorFlow's protobuf classes parse."""
    from grain.experimental import TFRecordIterDataset

    return _from_protos((record for path in _shards(folder) for record in TFRecordIterDataset(path)), kind)


def tfrecord(folder: str, kind: str) -> Iterator[Record]:
    """Read with the tfrecord package by its index. Its protobuf classes clash with TensorFlow's in the same process."""
    from tfrecord.reader import tfrecord_loader

    # It knows no list of strings.
    stored = {name: of for name, of in KINDS[kind].items() if of != STRINGS}
    names = {BYTES: "byte", FLOATS: "float"}
    description = {name: names.get(of, "int") for name, of in stored.items()}
    compression = "gzip" if "gzip" in kind else None
    for path in _shards(folder):
        # The index divides a file; there is none of compressed ones.
        parts = [(None, None)] if compression else [(_index(path), (number, 2)) for number in range(2)]
        examples = (tfrecord_loader(path, index, description, part, None, compression) for index, part in parts)
        for example in itertools.chain.from_iterable(examples):
            values = {name: bytes(of) if stored[name] == BYTES else of for name, of in example.items()}
            yield record_of(values, kind)


def seqio(folder: str, kind: str) -> Iterator[Record]:
    """SeqIO's TFExampleDataSource."""
    import seqio as library
    import tensorflow as tf

    source = library.TFExampleDataSource({"train": f"{folder}/train-*"}, _description(tf, kind))
    for example in source.get_dataset("train", shuffle=False).as_numpy_iterator():
        yield record_of(example, kind)


def seqio_tfds(folder: str, kind: str) -> Iterator[Record]:
    """SeqIO's TfdsDataSource."""
    import seqio as library

    place = Path(folder)
    source = library.TfdsDataSource(
        f"{kind}:{place.name}", tfds_data_dir=str(place.parent.parent), decoders=_decoders(kind)
    )
    for example in source.get_dataset("train", shuffle=False).as_numpy_iterator():
        yield record_of(example, kind)


def _decoders(kind: str) -> Any:
    import tensorflow_datasets

    return {IMAGE: tensorflow_datasets.decode.SkipDecoding()} if kind in ("images", "boxes") else None


def dali(folder: str, kind: str) -> Iterator[Record]:
    """NVIDIA DALI's tfrecord reader by its index, on the CPU."""
    import nvidia.dali.tfrecord as stored_as
    from nvidia.dali import fn, pipeline_def

    # A list of strings can only be one string to it.
    shards, stored = _shards(folder), {name: of for name, of in KINDS[kind].items() if of != STRINGS}
    features = {
        INTEGER: stored_as.FixedLenFeature([1], stored_as.int64, -1),
        BYTES: stored_as.FixedLenFeature((), stored_as.string, ""),
        INTEGERS: stored_as.VarLenFeature(stored_as.int64, -1),
        ROW: stored_as.FixedLenFeature([LENGTH], stored_as.int64, -1),
        FLOATS: stored_as.VarLenFeature(stored_as.float32, -1.0),
    }

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        paths = [_index(path) for path in shards]
        described = {name: features[of] for name, of in stored.items()}
        return tuple(fn.readers.tfrecord(path=shards, index_path=paths, features=described, name="records").values())

    pipe = pipeline()
    pipe.build()
    for _ in range(pipe.epoch_size("records")):
        values = {name: output.at(0) for name, output in zip(stored, pipe.run(), strict=True)}
        yield record_of({name: of.tobytes() if stored[name] == BYTES else of for name, of in values.items()}, kind)


def tf_models(folder: str, kind: str) -> Iterator[Record]:
    """tf-models-official's InputReader with its decoders for classification, which keep the image and the label, and detection."""
    from official.core.config_definitions import DataConfig
    from official.core.input_reader import InputReader
    from official.vision.dataloaders.classification_input import Decoder
    from official.vision.dataloaders.tf_example_decoder import TfExampleDecoder

    decoder = {"images": lambda: Decoder(IMAGE, "image/class/label"), "boxes": TfExampleDecoder}[kind]()
    config = DataConfig(input_path=f"{folder}/train-*", is_training=False, global_batch_size=1, drop_remainder=False)
    reader = InputReader(config, decoder_fn=decoder.decode, parser_fn=lambda decoded: decoded)
    for example in reader.read().as_numpy_iterator():
        yield record_of(example if kind == "images" else _objects(example), kind)


def _objects(decoded: Mapping[str, Any]) -> dict[str, Any]:
    """Return by the names of features what tf-models' decoder for detection has made of a batch of one record."""
    decoded = {name: value[0] for name, value in decoded.items()}
    boxes = decoded["groundtruth_boxes"].T
    return {
        "image/source_id": decoded["source_id"],
        "image/height": decoded["height"],
        "image/width": decoded["width"],
        **{
            f"image/object/bbox/{edge}": ends
            for edge, ends in zip(("ymin", "xmin", "ymax", "xmax"), boxes, strict=True)
        },
        "image/object/area": decoded["groundtruth_area"],
        "image/object/class/label": decoded["groundtruth_classes"],
        "image/object/is_crowd": decoded["groundtruth_is_crowd"].astype(int),
    }


READERS: dict[str, Callable[[str, str], Iterator[Record]]] = {
    reader.__name__: reader for reader in (tf_data, tfds, beam, grain, tfrecord, seqio, seqio_tfds, dali, tf_models)
}

if __name__ == "__main__":
    for one in READERS[sys.argv[1]](*sys.argv[2:]):
        print(json.dumps(one))
