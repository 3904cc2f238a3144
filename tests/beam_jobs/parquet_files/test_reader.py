"""Parquet files that are damaged, encrypted or larger than they look, as text and as images.

Tests of damage call the reading functions directly: they try some hundred files, of which each would end a conversion.
"""

from __future__ import annotations

import datetime
import decimal
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet
from pyarrow.parquet import encryption  # type: ignore[import-untyped]

import tpudata
from beam_jobs.text_files.document import TextFile
from beam_jobs.text_files.documents import document_blocks, text_parts
from beam_jobs.text_files.fields import TextField
from beam_jobs.text_files.options import TextOptions
from tests.beam_jobs.sources.inputs import jpeg, listed, opened
from tpudata.errors import BadRecordError, CorruptionError, SourceError, TpudataError, UsageError
from tpudata.format import open_dataset

TEXT = TextOptions(fields=(TextField("text"), TextField("label", "str")))


def _reject(error: BadRecordError) -> None:
    raise error


def convert_rows(path: Path, **options: Any) -> list[dict[str, list[Any]]]:
    """The records that a conversion makes of a file, in its order."""
    output = path.with_name(f"{path.name} {'-'.join(options)}")
    tpudata.convert_text(path, output, shuffle=False, **options)
    return [dict(example) for example in open_dataset(str(output)).examples("train")]


def six(path: Path, **options: Any) -> Path:
    """A file of three row groups of two rows."""
    columns = {"text": [f"text {n}" for n in range(6)], "label": ["a", "b"] * 3, "image": [jpeg(n) for n in range(6)]}
    parquet.write_table(pa.table(columns), path, row_group_size=2, **options)
    return path


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def read_text(path: Path) -> int:
    """The number of documents."""
    file = TextFile(str(path), path.name, path.stat().st_size)
    blocks = (block for part in text_parts([file], TEXT) for block in document_blocks(part, TEXT, _reject))
    return sum(len(block.spans.sizes) for block in blocks)


def read_images(path: Path) -> int:
    return len(listed(opened(path)))


# A count of 2 in a footer: the byte of an i64 field, and 4, which is 2 as zigzag.
COUNT = b"\x16\x04"


@pytest.mark.parametrize(
    ("read", "bits"),
    [
        # Bits of the counts for which pyarrow 25 gave 4 of 6 rows, and some of the other bits of the footer.
        pytest.param(read_text, (8, 10), id="text"),
        pytest.param(read_images, (8, 10), id="images"),
        pytest.param(read_text, range(16), id="text-all", marks=pytest.mark.matrix),
        pytest.param(read_images, range(16), id="images-all", marks=pytest.mark.matrix),
    ],
)
def test_no_flipped_bit_of_a_footer_loses_a_row(tmp_path: Path, read: Any, bits: Sequence[int]) -> None:
    # Every bit was tried by hand: 16,216, of which pyarrow lost rows for 40 and aborted for 33.
    whole = six(tmp_path / "a.parquet").read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    counts = [place for place in range(footer, len(whole)) if whole.startswith(COUNT, place)]
    tried = [8 * place + bit for place in counts for bit in bits]
    tried += range(8 * footer, 8 * len(whole), 53 if len(bits) == 16 else 599)
    path = tmp_path / "flipped.parquet"
    came = []
    for bit in tried:
        path.write_bytes(flipped(whole, bit))
        try:
            came.append(read(path))
        except TpudataError:
            continue
    assert len(came) > 20
    assert set(came) == {6}


def test_rejects_a_row_count_that_contradicts_the_row_groups(tmp_path: Path) -> None:
    path = six(tmp_path / "a.parquet")
    whole = path.read_bytes()
    # The last of the three row groups has two rows: field 3, an i64, of 4 as zigzag.
    place = whole.rindex(b"\x16\x04\x26")
    path.write_bytes(whole[: place + 1] + b"\x00" + whole[place + 2 :])
    with pytest.raises(CorruptionError, match="its row groups have 4 rows, and it counts 6"):
        read_text(path)


def test_reads_row_groups_without_rows(tmp_path: Path) -> None:
    rows = pa.table({"text": ["a", "b"], "label": ["c", "d"], "image": [jpeg(0), jpeg(1)]})
    path = tmp_path / "a.parquet"
    for options in ({}, {"use_dictionary": False}, {"version": "1.0", "compression": "none"}):
        with parquet.ParquetWriter(path, rows.schema, **options) as writer:
            for count in (0, 2, 0, 1, 0):
                writer.write_table(rows.slice(0, count))
        assert (read_text(path), read_images(path)) == (3, 3), options
        # Arrow writes the first page of such a column at byte 0.
        parquet.write_table(rows.slice(0, 0), path, **options)
        assert read_text(path) == 0


def test_a_file_without_columns_raises_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({}), path)
    with pytest.raises(UsageError):
        read_text(path)


def test_verifies_page_checksums(tmp_path: Path) -> None:
    # Without statistics, each value stands in its page alone.
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    path = six(tmp_path / "a.parquet", write_page_checksum=True, **plain)
    whole = path.read_bytes()
    assert (read_text(path), read_images(path)) == (6, 6)
    for read, column, value in ((read_text, "text", b"text 3"), (read_images, "image", jpeg(3)[-9:-2])):
        assert value in whole
        path.write_bytes(whole.replace(value, value[:-1] + bytes([value[-1] ^ 1])))
        with pytest.raises(CorruptionError, match=rf"column '{column}'.*CRC"):
            read(path)


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keys that are not wrapped."""

    def __init__(self, _config: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return key.hex().encode()

    def unwrap_key(self, key: bytes, _name: str) -> bytes:
        return bytes.fromhex(key.decode())


def encrypted(path: Path, columns: list[str], *, plaintext_footer: bool) -> Path:
    config = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"key": columns}, plaintext_footer=plaintext_footer
    )
    keys = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), config)
    table = pa.table({"text": ["one", "two"], "label": ["a", "b"], "secret": [1, 2]})
    with parquet.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)
    return path


def test_reports_encrypted_files_and_columns(tmp_path: Path) -> None:
    path = encrypted(tmp_path / "a.parquet", ["secret"], plaintext_footer=True)
    # A column that is not read may be encrypted.
    assert [example["label"] for example in convert_rows(path, fields={"text": "text", "label": "str"})] == [
        [b"a"],
        [b"b"],
    ]
    with pytest.raises(SourceError, match=r"a\.parquet: column 'secret' is encrypted\. Decrypt it"):
        convert_rows(path, fields={"text": "text", "secret": "int"}, dry_run=True)
    whole = encrypted(tmp_path / "b.parquet", ["text"], plaintext_footer=False)
    for convert in (tpudata.convert_text, tpudata.convert_images):
        with pytest.raises(SourceError, match=r"b\.parquet is an encrypted Parquet file\. Decrypt it"):
            convert(whole, tmp_path / "out")


def test_dates_times_and_decimals_become_text_or_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    moment = datetime.datetime(2020, 1, 31, 12, 34, 56, 123456)
    columns = {
        "text": ["a"],
        "date": [moment.date()],
        "time": [moment.time()],
        "at": pa.array([moment], pa.timestamp("us")),
        "zoned": pa.array([0], pa.timestamp("s", "Europe/Paris")),
        "price": [decimal.Decimal("12.50")],
        "wait": pa.array([5], pa.duration("ms")),
    }
    parquet.write_table(pa.table(columns), path)
    texts = {name: "str" for name in columns if name not in ("text", "wait")}
    (found,) = convert_rows(path, fields={"text": "text", **texts})
    assert found == {
        "text": [b"a"],
        "date": [b"2020-01-31"],
        "time": [b"12:34:56.123456"],
        "at": [b"2020-01-31T12:34:56.123456"],
        "zoned": [b"1970-01-01T00:00:00.000Z"],
        "price": [b"12.50"],
    }
    kinds = {"date": "int", "time": "int", "at": "int", "price": "float", "wait": "int"}
    day = (moment.date() - datetime.date(1970, 1, 1)).days
    inside = (12 * 3600 + 34 * 60 + 56) * 1_000_000 + 123456
    (found,) = convert_rows(path, fields={"text": "text", **kinds}, keep_key=False)
    assert found == {
        "text": [b"a"],
        "date": [day],
        "time": [inside],
        "at": [day * 86_400_000_000 + inside],
        "price": [12.5],
        "wait": [5],
    }


def test_replaces_invalid_utf8_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    column = pa.array([b"a\xffb", "é".encode()]).view(pa.string())
    parquet.write_table(pa.table({"text": column}), path)
    found = [example["text"] for example in convert_rows(path, replace_invalid=True)]
    assert found == [["a\ufffdb".encode()], ["é".encode()]]


# Reads a file under a limit of memory.
READ = """
import os, resource, sys
import tpudata
from beam_jobs.text_files.document import TextFile
from beam_jobs.text_files.documents import document_blocks, text_parts
from beam_jobs.text_files.options import TextOptions
from tpudata.errors import SourceError
resource.setrlimit(resource.RLIMIT_DATA, (400_000_000,) * 2)
for path in sys.argv[1:]:
    options = TextOptions(document_bytes=1 << 30)
    (part,) = text_parts([TextFile(path, path, os.path.getsize(path))], options)
    try:
        print(sum(int(block.spans.sizes.sum()) for block in document_blocks(part, options, print)))
    except SourceError as error:
        print(str(error).partition(" (got")[0].partition(": ")[2])
"""


@pytest.mark.subprocess
def test_a_small_file_of_large_values_takes_little_memory(tmp_path: Path) -> None:
    large = "x" * (1 << 23)
    repeated = pa.table({"text": pa.array([large] * 24).dictionary_encode()})
    # A page of one value.
    page = pa.table({"text": ["y" * (70 << 20)]})
    for name, table in (("repeated", repeated), ("page", page)):
        parquet.write_table(
            table,
            tmp_path / f"{name}.parquet",
            compression="zstd",
            write_statistics=False,
            use_dictionary=name == "repeated",
        )
    paths = [str(tmp_path / name) for name in ("repeated.parquet", "page.parquet")]
    done = subprocess.run(
        [sys.executable, "-c", READ, *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.stdout.split("\n"), done.stderr) == (
        [str(24 * (len(large) + len('{"text": ""}'))), "a page of column 'text' is too large", ""],
        "",
    )
