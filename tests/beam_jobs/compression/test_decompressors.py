"""Files of a few kB that unpack to GB, read by every kind of input under a limit of memory.

No command shows the sizes of unpacked pieces or the memory they take, so tests call the decompressors directly.
"""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import zstandard

from beam_jobs.compression.decompressors import decompress, decompress_member
from beam_jobs.compression.files import decompress_file
from tests.beam_jobs.compression.test_files import PACKERS
from tests.beam_jobs.sources.inputs import jpeg, listed, listed_and_rejected, opened
from tpudata.errors import CorruptionError, SourceError

# Of address space, for a process that has loaded what converts text and images.
LIMIT = 800_000_000
# Unpacks the first bytes and then all of a file, as text and as a tar; prints the bytes that came.
READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from beam_jobs.compression.files import decompress_file, read_head
from beam_jobs.text_files.spans.blocks import find_line_blocks
for path, compression in zip(sys.argv[2::2], sys.argv[3::2]):
    total = len(read_head(path, 512))
    chunks = decompress_file(path, compression)
    for block in find_line_blocks(chunks, 0, 1 << 20):
        total += int(block.sizes.sum())
    print(total)
"""


@pytest.mark.subprocess
def test_a_small_file_that_unpacks_to_270_megabytes_takes_little_memory(tmp_path: Path) -> None:
    # A stream of 45 MB takes 44 bytes of bzip2, so all are within what is read at once; joined, they would take twice their size.
    size = 45 << 20
    (tmp_path / "a.bz2").write_bytes(bz2.compress(bytes(size)) * 6)
    (tmp_path / "a.zst").write_bytes(zstandard.ZstdCompressor(level=1).compress(bytes(1 << 28)))
    names = [str(tmp_path / "a.bz2"), "bzip2", str(tmp_path / "a.zst"), "zstd"]
    done = subprocess.run(
        [sys.executable, "-c", READ, str(LIMIT), *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.stdout.split(), done.stderr) == ([str(512 + 6 * size), str(512 + (1 << 28))], "")


def test_unpacks_a_bomb_in_pieces_of_at_most_64_mebibytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28)))
    sizes = [len(chunk) for chunk in decompress_file(str(path), "zstd")]
    assert sum(sizes) == 1 << 28
    assert max(sizes) <= 1 << 26


@pytest.mark.parametrize("compression", PACKERS)
def test_pieces_have_at_most_8_mebibytes(compression: str) -> None:
    packed = PACKERS[compression](bytes(1 << 26))
    sizes = [len(piece) for piece in decompress([packed], compression)]
    assert sum(sizes) == 1 << 26
    assert max(sizes) <= 1 << 23


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 3 << 20])
def test_chunks_of_any_size_give_the_same_bytes(compression: str, size: int) -> None:
    data = bytes(itertools.islice(itertools.cycle(range(251)), size))
    packed = PACKERS[compression](data) + PACKERS[compression](b"end")
    for step in (1, 1000, 1 << 30) if len(packed) < 20_000 else (1000, 1 << 30):
        chunks = [packed[start : start + step] for start in range(0, len(packed), step)]
        assert b"".join(decompress(chunks, compression)) == data + b"end"


def test_rejects_a_dictionary_beyond_memory(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"a" * 100, filters=filters))
    settings = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    (tmp_path / "a.zst").write_bytes(packer.compress(b"a" * 100) + packer.flush())
    for name, compression in (("a.xz", "xz"), ("a.zst", "zstd")):
        with pytest.raises(CorruptionError, match=rf"the {compression} stream needs too much memory to be unpacked"):
            list(decompress_file(str(tmp_path / name), compression))
    header = struct.pack("<2xHBI", 5, 93, 1 << 31)
    with pytest.raises(lzma.LZMAError, match="dictionary is too large"):
        list(decompress_member([header + b"\0" * 9], zipfile.ZIP_LZMA))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_member_is_not_unpacked_beyond_its_listed_size(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("cat/0.jpg", bytes(1 << 25))
        archive.writestr("cat/1.jpg", jpeg(1))
    data = bytearray(path.read_bytes())
    # The size in the central directory, in place of 32 MiB.
    place = data.index(b"PK\x01\x02") + 24
    assert data[place : place + 4] == struct.pack("<I", 1 << 25)
    data[place : place + 4] = struct.pack("<I", 1000)
    path.write_bytes(data)
    found, (error,) = listed_and_rejected(opened(path))
    assert [reference.data for reference in found] == [jpeg(1)]
    assert error.reason == "damaged in the archive: it has more than the 1,000 bytes that the archive lists"


def idx_gz(path: Path, sizes: tuple[int, ...], body: bytes) -> None:
    header = bytes((0, 0, 8, len(sizes))) + struct.pack(f">{len(sizes)}I", *sizes)
    path.write_bytes(gzip.compress(header + body, 1))


@pytest.mark.parametrize("shape", [(40_000, 40_000), (2**32 - 1, 2**32 - 1), (0, 0), (28, 28, 2)])
def test_rejects_unsupported_image_sizes_in_an_idx_header(tmp_path: Path, shape: tuple[int, ...]) -> None:
    idx_gz(tmp_path / "train-images-idx3-ubyte.gz", (2, *shape), b"")
    idx_gz(tmp_path / "train-labels-idx1-ubyte.gz", (2,), b"ab")
    with pytest.raises(SourceError, match=r"images-idx3-ubyte\.gz: unsupported size of images \(got \d+ x \d+"):
        opened(tmp_path)


def test_rejects_an_idx_header_with_more_images_than_the_file(tmp_path: Path) -> None:
    most = 2**32 - 1
    idx_gz(tmp_path / "train-images-idx3-ubyte.gz", (most, 4, 4), bytes(64))
    idx_gz(tmp_path / "train-labels-idx1-ubyte.gz", (most,), bytes(5))
    with pytest.raises(CorruptionError, match="the file ends before the last record"):
        listed(opened(tmp_path))
    idx_gz(tmp_path / "train-labels-idx1-ubyte.gz", (most,), bytes(1 << 16))
    with pytest.raises(CorruptionError, match=r"images.*the file ends before the last record"):
        listed(opened(tmp_path))
