"""Records of files without an index, compared with TensorFlow's readers.

Offsets of lines are private: a file would have many megabytes to be read in two parts.
"""

from __future__ import annotations

import gzip
import itertools
import tempfile
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata import CorruptionError, FixedLengthRecordFiles, TextLineFiles, make_input_fn
from tpudata.input.files.text_line_files import find_line_offsets
from tpudata.storage import storage_for


def test_rejects_compressed_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    with pytest.raises(CorruptionError, match="the file is compressed, and has no lines"):
        make_input_fn(TextLineFiles(path), training=True)


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("a\nbä "), max_size=200),
    skip=st.integers(0, 5),
    read_bytes=st.sampled_from([1, 7, 1 << 22]),
)
def test_lines_equal_those_of_text_line_dataset(text: str, skip: int, read_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        entry = storage_for(str(path)).stat(str(path))
        assert entry is not None
        offsets = find_line_offsets(entry, skip, read_bytes).tolist()
        data = path.read_bytes()
        found = [data[a:b].removesuffix(b"\n") for a, b in itertools.pairwise(offsets)]
        assert found == list(tf.data.TextLineDataset(str(path)).skip(skip).as_numpy_iterator())


@pytest.mark.parametrize(("header", "footer", "over"), [(0, 0, 1), (3, 0, 9), (3, 4, 5)])
def test_records_of_one_length_must_fit_the_file(tmp_path: Path, header: int, footer: int, over: int) -> None:
    path = str(tmp_path / "a.bin")
    files = FixedLengthRecordFiles(path, [("x", "u1", (10,))], header, footer)
    Path(path).write_bytes(bytes(range(header + 10 * 7 + footer)))
    (batch,) = make_input_fn(files, training=False)({"batch_size": 7}).as_numpy_iterator()
    assert batch["x"].ravel().tolist() == list(range(header, header + 70))
    Path(path).write_bytes(bytes(header + 10 * 7 + over + footer))
    with pytest.raises(
        CorruptionError,
        match=rf"{path} at byte {header + 70}: the file has {header + 70 + over + footer} bytes: .* 7 records of 10 leave {over}",
    ):
        make_input_fn(files, training=False)
    # TensorFlow's reader rejects it, too.
    with pytest.raises(tf.errors.InvalidArgumentError, match="not an exact multiple of the record length"):
        list(tf.data.FixedLengthRecordDataset(path, 10, header, footer))


def test_skips_files_without_records_but_not_those_without_their_header(tmp_path: Path) -> None:
    for name, data in (("a", bytes(16)), ("b", bytes(16) + b"123"), ("c", bytes(16))):
        (tmp_path / name).write_bytes(data)
    files = FixedLengthRecordFiles(str(tmp_path / "*"), [("x", "u1")], header_bytes=12, footer_bytes=4)
    (batch,) = make_input_fn(files, training=False)({"batch_size": 3}).as_numpy_iterator()
    assert batch["weights"].tolist() == [1, 1, 1]
    for size in (0, 15):
        (tmp_path / "c").write_bytes(bytes(size))
        with pytest.raises(
            CorruptionError, match=rf"c at byte {size}: the file has {size} bytes, fewer than its header"
        ):
            make_input_fn(files, training=False)
    # Without a header, a file of 0 bytes is one without records.
    (tmp_path / "c").write_bytes(b"")
    files = FixedLengthRecordFiles([tmp_path / "a", tmp_path / "c"], [("x", "u1")])
    (batch,) = make_input_fn(files, training=False)({"batch_size": 16}).as_numpy_iterator()
    assert batch["weights"].tolist() == [1] * 16
