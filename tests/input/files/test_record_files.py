"""Descriptions of files without a manifest: their checks, and the files they find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpudata import (
    DatasetError,
    FeatureError,
    FixedLengthRecordFiles,
    TextLineFiles,
    TFRecordFiles,
    UsageError,
    make_input_fn,
)
from tpudata.format import Feature

LABEL = Feature("label", "int64", "int64")


@pytest.mark.parametrize(
    "kind", [TFRecordFiles, TextLineFiles, lambda files: FixedLengthRecordFiles(files, [("a", "u1")])]
)
@pytest.mark.parametrize("files", [None, 5, "", b"bytes", [], ["a", 5], {"a"}, [""]])
def test_rejects_files_that_are_not_paths(kind: Any, files: Any) -> None:
    with pytest.raises(UsageError, match=r"files=.*: pass a path, a pattern"):
        kind(files)


@pytest.mark.parametrize("integer", [np.int8, np.uint64])
def test_header_and_footer_accept_integers_of_numpy(tmp_path: Path, integer: Any) -> None:
    (tmp_path / "numbers.bin").write_bytes(bytes(100) + bytes(range(1, 201)) + bytes(100))
    files = FixedLengthRecordFiles(str(tmp_path / "numbers.bin"), [("a", "u1")], integer(100), integer(100))
    batches = make_input_fn(files, training=False)({"batch_size": 50})
    assert np.concatenate([batch["a"] for batch in batches.as_numpy_iterator()]).tolist() == list(range(1, 201))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"features": "label"}, UsageError, r"not a sequence of tpudata.format.Feature \(got str\)"),
        ({"features": [LABEL, "x"]}, UsageError, r"not a sequence of tpudata.format.Feature \(got list\)"),
        ({"features": [LABEL, LABEL]}, FeatureError, "two have the same name: label, label"),
        ({"features": [LABEL], "label": "y"}, FeatureError, "label='y': the records have label"),
        ({"label": "y"}, FeatureError, "label='y': the records have no features"),
    ],
)
def test_tfrecord_files_reject_wrong_arguments(arguments: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        TFRecordFiles("a", **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"record": "u1"}, UsageError, "has no named parts"),
        ({"record": None}, UsageError, "record=None"),
        ({"record": [("a", "zz")]}, UsageError, r"Pass \(name, dtype, shape\)"),
        ({"record": [("a", "u1"), ("a", "u1")]}, UsageError, r"Pass \(name, dtype, shape\)"),
        ({"record": [("a", "u4")]}, FeatureError, r"unsupported dtype of 'a' \(got uint32, expected uint8"),
        ({"record": [("a", "S3")]}, FeatureError, "unsupported dtype of 'a'"),
        ({"record": [("a", "u1", (0,))]}, FeatureError, "unsupported dtype of 'a'"),
        ({"record": [("a", [("b", "u1")])]}, FeatureError, "unsupported dtype of 'a'"),
        ({"record": [("label", "u1", (2,))]}, FeatureError, "expected one integer"),
        ({"record": [("label", "f4")]}, FeatureError, "expected one integer"),
        ({"record": [("a", "u1")], "label": "b"}, FeatureError, "label='b': the records have a"),
        ({"record": [("a", "u1")], "header_bytes": -1}, UsageError, "header_bytes: .*got -1"),
        ({"record": [("a", "u1")], "header_bytes": True}, UsageError, "header_bytes: .*got True"),
        ({"record": [("a", "u1")], "footer_bytes": 1.5}, UsageError, "footer_bytes: .*got 1.5"),
    ],
)
def test_fixed_length_record_files_reject_wrong_arguments(arguments: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        FixedLengthRecordFiles("a", **arguments)


def test_skip_lines_must_be_a_number() -> None:
    assert TextLineFiles("a", np.int64(2)).skip_lines == 2  # type: ignore[arg-type]
    for wrong in (-1, "1", None, True):
        with pytest.raises(UsageError, match="skip_lines: "):
            TextLineFiles("a", wrong)  # type: ignore[arg-type]


def test_parts_become_features() -> None:
    files = FixedLengthRecordFiles("a", [("label", ">u2"), ("image", "u1", (2, 3)), ("x", ">f4")])
    assert files.features == (
        Feature("label", "int64", "int64"),
        Feature("image", "bytes", "uint8", (2, 3), "raw"),
        Feature("x", "bytes", "float32", (), "raw"),
    )
    other = FixedLengthRecordFiles("a", [("label", "u1"), ("y", "u1")], label="y")
    assert [feature.kind for feature in other.features] == ["bytes", "int64"]


def names(files: Any) -> list[str]:
    """The lines of files, each of which has its name."""
    dataset = make_input_fn(TextLineFiles(files), training=False)({"batch_size": 1})
    return [batch["text"][0].decode() for batch in dataset.as_numpy_iterator()]


def test_patterns_and_paths_find_files_in_order(tmp_path: Path) -> None:
    for name in ("b1", "b0", "a", "c[1]", ".b2"):
        (tmp_path / name).write_text(name)
    (tmp_path / "b9").mkdir()
    assert names(f"{tmp_path}/b*") == ["b0", "b1"]
    assert names([tmp_path / "b1", f"{tmp_path}/a"]) == ["b1", "a"]
    assert names([f"{tmp_path}/b*", f"{tmp_path}/a*"]) == ["b0", "b1", "a"]
    # A file of that name takes precedence over the pattern.
    assert names(f"{tmp_path}/c[1]") == ["c[1]"]


def test_rejects_missing_and_repeated_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(DatasetError, match=rf"files='{tmp_path}/x\*' matches no file"):
        names(f"{tmp_path}/x*")
    with pytest.raises(DatasetError, match=rf"files: {tmp_path}/x does not exist"):
        names([f"{tmp_path}/a", f"{tmp_path}/x"])
    with pytest.raises(DatasetError, match=rf"files: {tmp_path} is a folder. Name its files, such as {tmp_path}/\*"):
        names(tmp_path)
    with pytest.raises(UsageError, match=rf"files: {tmp_path}/a comes twice"):
        names([f"{tmp_path}/a", f"{tmp_path}/*"])
