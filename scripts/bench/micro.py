"""Cost of hand-written parts of a conversion, next to the plain form that would replace each.

    python scripts/bench/micro.py [--conversion 58] [--rounds 5] [--folder DIR]

For an image of 110 kB, CPU microseconds of user and system, the best of several rounds:

    Example codec    encode_example_parts, next to protobuf's own class for the same message, and joined
    CRC combine      checksums of a file and of its blocks of 16 records from the records' checksums, next to a pass over the bytes
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
    data = draw_picture()
    with tempfile.TemporaryDirectory(prefix="tpudata-bench-", dir=flags.folder) as name:
        # Ours, and the plain form.
        runs = {
            "Example codec": (run_our_codec(data, 2000), run_protobuf(data, 2000)),
            "CRC combine": (run_combined_checksums(data), run_separate_checksums(data)),
            "header parser": (run_our_parser(data, 2000), run_pillow(data, 2000)),
            "O_DIRECT": (run_uncached_writes(Path(name), data), run_buffered_writes(Path(name), data)),
        }
        print(f"{len(data):,} bytes an image{'ours':>18}{'plain':>10}{'of a conversion':>20}")
        for part, (ours, plain) in runs.items():
            our_us, plain_us = (min(measure(run) for _ in range(flags.rounds)) for run in (ours, plain))
            share = (plain_us - our_us) / flags.conversion
            print(f"{part:20}{our_us:15.1f} us{plain_us:8.1f} us{share:19.0%}")


def draw_picture() -> bytes:
    """Return a JPEG of about 110 kB, with noise as in a photograph."""
    noise = np.random.default_rng(0).normal(0, 22, (375, 500, 3))
    shade = np.linspace(40, 200, 500)[None, :, None]
    buffer = io.BytesIO()
    Image.fromarray(np.clip(noise + shade, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def measure(run: Callable[[], int]) -> float:
    """Return the CPU time of an image in microseconds; `run` processes images, and returns their number."""
    begin = time.process_time()
    count = run()
    return (time.process_time() - begin) / count * 1e6


def make_features(data: bytes, number: int) -> dict[str, Any]:
    """Return the features of a record of the layout imagenet; filenames differ by the number, as in a conversion."""
    return {
        "image/encoded": data,
        "image/format": b"JPEG",
        "image/height": 375,
        "image/width": 500,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/class/label": 7,
        "image/class/text": b"cat",
        "image/filename": b"cat/%d.jpg" % number,
    }


def run_our_codec(data: bytes, count: int) -> Callable[[], int]:
    """Return a function that encodes `count` Examples with our encoder, and returns their number."""

    def run() -> int:
        for number in range(count):
            encode_example_parts(make_features(data, number))
        return count

    return run


def run_protobuf(data: bytes, count: int) -> Callable[[], int]:
    """Return a function that encodes `count` Examples with a protobuf class, and returns their number."""
    example_class = make_example_class()

    def run() -> int:
        for number in range(count):
            message = example_class()
            entries = message.features.feature
            for name, value in make_features(data, number).items():
                if isinstance(value, bytes):
                    entries[name].bytes_list.value.append(value)
                else:
                    entries[name].int64_list.value.append(value)
            message.SerializeToString(deterministic=True)
        return count

    return run


def make_example_class() -> Any:
    """Make a protobuf class for tf.train.Example, without TensorFlow."""
    optional, repeated = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
    text, message = _FIELD.TYPE_STRING, _FIELD.TYPE_MESSAGE
    file = descriptor_pb2.FileDescriptorProto(name="bench_example.proto", package="bench", syntax="proto3")
    for name, kind in (("BytesList", _FIELD.TYPE_BYTES), ("Int64List", _FIELD.TYPE_INT64)):
        file.message_type.add(name=name).field.add(name="value", number=1, label=repeated, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for name, number, kind in (("bytes_list", 1, "BytesList"), ("int64_list", 3, "Int64List")):
        feature.field.add(
            name=name, number=number, label=optional, type=message, type_name=f".bench.{kind}", oneof_index=0
        )
    all_features = file.message_type.add(name="Features")
    entry = all_features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=optional, type=text)
    entry.field.add(name="value", number=2, label=optional, type=message, type_name=".bench.Feature")
    entry_type = ".bench.Features.FeatureEntry"
    all_features.field.add(name="feature", number=1, label=repeated, type=message, type_name=entry_type)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=optional, type=message, type_name=".bench.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Example"))


def run_combined_checksums(data: bytes) -> Callable[[], int]:
    """Return a function that writes 100 MB of records to /dev/null, and returns their number.

    The checksums of blocks and of the file are combined from the checksums of the records.
    """
    count = _FILE_BYTES // len(data)

    def run() -> int:
        with open(os.devnull, "wb") as file:
            writer = RecordWriter(file, block_records=16)
            for _ in range(count):
                writer.write(data)
            writer.finish()
        return count

    return run


def run_separate_checksums(data: bytes) -> Callable[[], int]:
    """Return a function that writes 100 MB of framed records to /dev/null, and returns their number.

    It computes the checksums of each record, of blocks of 16 and of the file, each from the bytes.
    """
    count = _FILE_BYTES // len(data)

    def run() -> int:
        file_crc = block_crc = 0
        length = len(data).to_bytes(8, "little")
        with open(os.devnull, "wb") as file:
            for number in range(count):
                if number % 16 == 0:
                    block_crc = 0
                head = length + google_crc32c.value(length).to_bytes(4, "little")
                tail = google_crc32c.value(data).to_bytes(4, "little")
                for part in (head, data, tail):
                    file_crc = google_crc32c.extend(file_crc, part)
                    block_crc = google_crc32c.extend(block_crc, part)
                    file.write(part)
        return count

    return run


def run_our_parser(data: bytes, count: int) -> Callable[[], int]:
    """Return a function that parses the header of a JPEG `count` times with our parser, and returns `count`."""

    def run() -> int:
        for _ in range(count):
            read_header(data, JPEG)
        return count

    return run


def run_pillow(data: bytes, count: int) -> Callable[[], int]:
    """Return a function that reads size, mode and orientation `count` times with Pillow, and returns `count`."""

    def run() -> int:
        for _ in range(count):
            # Opening an image decodes no pixels.
            with Image.open(io.BytesIO(data)) as image:
                orientation_tag = 0x0112
                _ = image.size, image.mode, image.getexif().get(orientation_tag)
        return count

    return run


def run_uncached_writes(folder: Path, data: bytes) -> Callable[[], int]:
    """Return a function that writes 100 MB to a file past the page cache, removes it, and returns the number of records."""
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


def run_buffered_writes(folder: Path, data: bytes) -> Callable[[], int]:
    """Return a function that writes 100 MB to a file through the page cache, with a buffer as large as UncachedFile's, 4 MiB.

    It removes the file, and returns the number of records.
    """
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
