"""Cost of hand-written parts of a conversion, next to the plain form that would replace each.

    python scripts/bench/micro.py [--conversion 58] [--rounds 5] [--folder DIR]

For an image of 110 kB, in CPU microseconds of user and system, the best of several rounds:

    Example codec    encode_example_parts, next to protobuf's own class for the same message, and joined
    CRC combine      checksums of a file and of its blocks of 16 records from those of the records, next to a pass over the bytes
                     for each of the three
    header parser    read_header, next to Pillow's lazy Image.open with size, mode and orientation
    O_DIRECT         100 MB written by UncachedFile, next to Python's buffered file; both wait for the disk

The last column is what the plain form would add to `--conversion` microseconds of CPU an image, which convert.py measures. Nothing
here passes or fails.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image

from tpudata.format.example.encode import encode_example_parts
from tpudata.format.tfrecord.record_writer import RecordWriter
from tpudata.images.header import read_header
from tpudata.images.image_format import JPEG
from tpudata.storage.local.uncached_file import UncachedFile, new_buffer

_FILE_BYTES = 100_000_000
_FIELD = descriptor_pb2.FieldDescriptorProto


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversion", type=float, default=58, help="CPU us of an image (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk to write to (default: a temporary one)")
    flags = parser.parse_args()
    data = picture()
    with tempfile.TemporaryDirectory(prefix="tpudata-bench-", dir=flags.folder) as name:
        pairs = {
            "Example codec": (codec(data, 2000), protobuf_codec(data, 2000)),
            "CRC combine": (combined(data), passes(data)),
            "header parser": (headers(data, 2000), pillow_headers(data, 2000)),
            "O_DIRECT": (uncached(Path(name), data), buffered(Path(name), data)),
        }
        print(f"{len(data):,} bytes an image{'ours':>18}{'plain':>10}{'of a conversion':>20}")
        for part, (ours, plain) in pairs.items():
            times = [min(cost(run) for _ in range(flags.rounds)) for run in (ours, plain)]
            share = (times[1] - times[0]) / flags.conversion
            print(f"{part:20}{times[0]:15.1f} us{times[1]:8.1f} us{share:19.0%}")


def picture() -> bytes:
    """Return a JPEG of about 110 kB, with noise as photographs have it."""
    noise = np.random.default_rng(0).normal(0, 22, (375, 500, 3))
    shade = np.linspace(40, 200, 500)[None, :, None]
    buffer = io.BytesIO()
    Image.fromarray(np.clip(noise + shade, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def cost(run: Callable[[], int]) -> float:
    """Return the CPU microseconds of each of the images that a run is of."""
    before = time.process_time()
    count = run()
    return (time.process_time() - before) / count * 1e6


def features(data: bytes) -> dict[str, Any]:
    """Return what a record of the layout imagenet holds."""
    return {
        "image/encoded": data,
        "image/format": b"JPEG",
        "image/height": 375,
        "image/width": 500,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/class/label": 7,
        "image/class/text": b"cat",
        "image/filename": b"cat/000.jpg",
    }


def codec(data: bytes, count: int) -> Callable[[], int]:
    """Return a run of our encoder, whose filenames differ as in a conversion."""

    def run() -> int:
        for number in range(count):
            encode_example_parts({**features(data), "image/filename": b"cat/%d.jpg" % number})
        return count

    return run


def protobuf_codec(data: bytes, count: int) -> Callable[[], int]:
    """Return a run of protobuf's own classes, made of the message's definition."""
    example = example_class()

    def run() -> int:
        for number in range(count):
            message = example()
            entries = message.features.feature
            for name, value in {**features(data), "image/filename": b"cat/%d.jpg" % number}.items():
                if isinstance(value, bytes):
                    entries[name].bytes_list.value.append(value)
                else:
                    entries[name].int64_list.value.append(value)
            message.SerializeToString(deterministic=True)
        return count

    return run


def example_class() -> Any:
    """Return a class for tf.train.Example, without TensorFlow."""
    file = descriptor_pb2.FileDescriptorProto(name="bench_example.proto", package="bench", syntax="proto3")
    for name, kind in (("BytesList", _FIELD.TYPE_BYTES), ("Int64List", _FIELD.TYPE_INT64)):
        file.message_type.add(name=name).field.add(name="value", number=1, label=3, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for name, number, kind in (("bytes_list", 1, "BytesList"), ("int64_list", 3, "Int64List")):
        feature.field.add(name=name, number=number, label=1, type=11, type_name=f".bench.{kind}", oneof_index=0)
    all_features = file.message_type.add(name="Features")
    entry = all_features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".bench.Feature")
    all_features.field.add(name="feature", number=1, label=3, type=11, type_name=".bench.Features.FeatureEntry")
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=11, type_name=".bench.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Example"))


def combined(data: bytes) -> Callable[[], int]:
    """Return a run that writes records into nothing; the checksum of the file is made from those of the records."""
    count = _FILE_BYTES // len(data)

    def run() -> int:
        with open(os.devnull, "wb") as file:
            writer = RecordWriter(file, 16)
            for _ in range(count):
                writer.write(data)
            writer.finish()
        return count

    return run


def passes(data: bytes) -> Callable[[], int]:
    """Return a run that frames records, and takes the checksum of each, of each block of them, and of the file."""
    count = _FILE_BYTES // len(data)

    def run() -> int:
        file = block = 0
        sizes = len(data).to_bytes(8, "little")
        with open(os.devnull, "wb") as out:
            for number in range(count):
                block = block if number % 16 else 0
                head = sizes + google_crc32c.value(sizes).to_bytes(4, "little")
                tail = google_crc32c.value(data).to_bytes(4, "little")
                for part in (head, data, tail):
                    file = google_crc32c.extend(file, part)
                    block = google_crc32c.extend(block, part)
                    out.write(part)
        return count

    return run


def headers(data: bytes, count: int) -> Callable[[], int]:
    """Return a run of our parser."""

    def run() -> int:
        for _ in range(count):
            read_header(data, JPEG)
        return count

    return run


def pillow_headers(data: bytes, count: int) -> Callable[[], int]:
    """Return a run of Pillow's, which decodes nothing before pixels are asked for."""

    def run() -> int:
        for _ in range(count):
            with Image.open(io.BytesIO(data)) as image:
                _ = image.size, image.mode, image.getexif().get(0x0112)
        return count

    return run


def uncached(folder: Path, data: bytes) -> Callable[[], int]:
    """Return a run that writes past the page cache."""
    count, buffer = _FILE_BYTES // len(data), new_buffer()

    def run() -> int:
        path = folder / "uncached"
        file = UncachedFile(path, buffer)
        for _ in range(count):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        path.unlink()
        return count

    return run


def buffered(folder: Path, data: bytes) -> Callable[[], int]:
    """Return a run that writes with a buffer as large."""
    count = _FILE_BYTES // len(data)

    def run() -> int:
        path = folder / "buffered"
        with path.open("xb", buffering=1 << 22) as file:
            for _ in range(count):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        return count

    return run


if __name__ == "__main__":
    main()
