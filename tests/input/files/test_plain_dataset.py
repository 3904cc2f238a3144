"""Files without a manifest through make_input_fn: they equal TensorFlow's readers, and keep all promises of datasets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import encode_image, write_dataset
from tests.input.flat_options import grouped
from tpudata import (
    CorruptionError,
    DatasetError,
    FeatureError,
    FixedLengthRecordFiles,
    Reading,
    TextLineFiles,
    TFRecordFiles,
    TpudataError,
    UsageError,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature, encode_example, read_records

FEATURES = [Feature("image_raw", "bytes", "uint8", (2,), "raw"), Feature("label", "int64", "int64")]
RECORD = [("label", "u1"), ("image", "u1", (2,))]
RECORDS = 500
# Uneven files, one of them empty.
SIZES = (130, 0, 300, 70)


def image(number: int) -> bytes:
    return number.to_bytes(2, "little")


def numbers(features: Any) -> list[int]:
    if "text" in features:
        return [int(line.split(b",")[0]) for line in features["text"]]
    return [int(value) for value in features["image"].view("<u2")[:, 0]]


def written(folder: Path, kind: str) -> Any:
    """The numbers 0 to 499 in four files."""
    start = 0
    for part, count in enumerate(SIZES):
        mine = range(start, start + count)
        start += count
        path = folder / f"part{part}"
        if kind == "tfrecord":
            with tf.io.TFRecordWriter(str(path)) as writer:
                for i in mine:
                    writer.write(encode_example({"image_raw": image(i), "label": i % 7}))
        elif kind == "fixed":
            path.write_bytes(b"head" + b"".join(bytes([i % 7]) + image(i) for i in mine) + b"end")
        else:
            path.write_text("number,class\n" + "".join(f"{i},{i % 7}{'.' * (i % 9)}\n" for i in mine))
    return opened(folder, kind)


def opened(folder: Path, kind: str) -> Any:
    files = f"{folder}/part*"
    if kind == "tfrecord":
        return TFRecordFiles(files, FEATURES)
    return FixedLengthRecordFiles(files, RECORD, 4, 3) if kind == "fixed" else TextLineFiles(files, skip_lines=1)


KINDS = ("tfrecord", "fixed", "lines")


# All kinds share the code of batches: hosts, starts and caches are tested with one kind or two.
SOME_TRAINING = [pytest.param("fixed", marks=pytest.mark.matrix), "lines", "tfrecord"]
SOME_CACHED = ["fixed", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("lines", "tfrecord"))]


@pytest.fixture(scope="module")
def files(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return written(tmp_path_factory.mktemp(request.param), request.param)


def host_batches(input_fn: Any, total: int, hosts: int, steps: int | None, start: int = 0) -> list[list[Any]]:
    found = []
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, hosts)
        dataset = input_fn({"batch_size": total // hosts}, context, start_step=start)
        found.append(list((dataset if steps is None else dataset.take(steps)).as_numpy_iterator()))
    return found


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("files", "hosts", "batch_size"),
    [
        *(("tfrecord", 1, 100), ("fixed", 2, 7), ("lines", 2, 300)),
        *(
            pytest.param(kind, *case, marks=pytest.mark.matrix)
            for kind in KINDS
            for case in ((1, 64), (1, 100), (2, 7), (2, 125), (2, 300), (3, 33), (8, 10), (8, 300))
        ),
    ],
    indirect=["files"],
)
def test_evaluation_feeds_each_record_once_on_any_hosts(files: Any, hosts: int, batch_size: int) -> None:
    found = host_batches(make_input_fn(files, training=False), batch_size * hosts, hosts, None)
    assert {len(batches) for batches in found} == {-(-RECORDS // (batch_size * hosts))}
    seen = []
    for step in zip(*found, strict=True):
        for batch in step:
            features, labels = batch if isinstance(batch, tuple) else (batch, None)
            rows = numbers(features)
            if labels is not None:
                assert labels.dtype == np.int32
                assert labels.tolist() == [n % 7 for n in rows]
            seen += [n for n, weight in zip(rows, features["weights"], strict=True) if weight]
    assert seen == list(range(RECORDS))


@pytest.mark.cases(1)
@pytest.mark.parametrize("files", SOME_TRAINING, indirect=True)
# Without a number the window holds all records, which tests/input/test_epochs.py tests.
@pytest.mark.parametrize("buffer", [60, pytest.param(None, marks=pytest.mark.matrix)])
def test_global_batches_do_not_depend_on_hosts_and_restarts(files: Any, buffer: int | None) -> None:
    # A chunk of one record or a few, as in files of real size.
    input_fn = make_input_fn(files, training=True, seed=3, shuffle=buffer, reading=Reading(chunk_bytes=400))

    def batches(hosts: int, start: int = 0) -> list[list[int]]:
        by_host = host_batches(input_fn, 48, hosts, 25 - start, start)
        return [
            [n for batch in step for n in numbers(batch[0] if isinstance(batch, tuple) else batch)]
            for step in zip(*by_host, strict=True)
        ]

    whole = batches(1)
    # Also from a step in the second epoch, inside a block of the shuffle.
    assert batches(2, 17) == whole[17:]
    flat = [n for batch in whole for n in batch]
    assert len(set(flat[:480])) == 480  # Of the first epoch.
    assert flat[:480] != list(range(480))


@pytest.mark.parametrize("files", SOME_CACHED, indirect=True)
@pytest.mark.parametrize("cache", [True, pytest.param("auto", marks=pytest.mark.matrix)])
def test_a_cache_in_memory_does_not_change_batches(files: Any, cache: Any) -> None:
    def batches(cache: Any) -> list[list[int]]:
        dataset = make_input_fn(files, training=True, seed=3, cache=cache)({"batch_size": 48}).take(12)
        return [numbers(b[0] if isinstance(b, tuple) else b) for b in dataset.as_numpy_iterator()]

    assert batches(cache) == batches(False)


def test_examples_equal_those_of_parse_example(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = [
        Feature("image/encoded", "bytes", "uint8", (6, 5, 3), "image"),
        Feature("score", "float", "float32", (2,)),
        Feature("words", "bytes", "string", (3,)),
        Feature("kind", "int64", "int64"),
    ]
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(20):
            pixels = rng.integers(0, 256, (6, 5, 3), np.uint8)
            record = {"score": rng.random(2).tolist(), "words": ["a", "b" * i, "ä"], "kind": i % 3 - 1}
            writer.write(encode_example({"image/encoded": encode_image(pixels), "other": [1, 2, 3], **record}))
    input_fn = make_input_fn(TFRecordFiles(path, features, label="kind"), training=False)
    ((found, labels),) = input_fn({"batch_size": 20}).as_numpy_iterator()
    spec = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "score": tf.io.FixedLenFeature((2,), tf.float32),
        "words": tf.io.FixedLenFeature((3,), tf.string),
        "kind": tf.io.FixedLenFeature((), tf.int64),
    }
    want = tf.io.parse_example(list(tf.data.TFRecordDataset(path).as_numpy_iterator()), spec)
    images = [tf.io.decode_png(encoded).numpy() for encoded in want["image/encoded"].numpy()]
    np.testing.assert_array_equal(found["image"], images)
    np.testing.assert_array_equal(found["score"], want["score"])
    np.testing.assert_array_equal(found["words"], want["words"])
    assert sorted(found) == ["image", "score", "weights", "words"]
    assert labels.tolist() == want["kind"].numpy().tolist()


def test_fixed_length_parts_equal_those_of_decode_raw(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    data = os.urandom(26 * 40)
    path.write_bytes(data)
    record = [("a", ">i4", (2,)), ("b", "<i2"), ("label", ">i8"), ("c", "u1", (2, 3)), ("d", ">u2")]
    input_fn = make_input_fn(FixedLengthRecordFiles(path, record), training=False, transform=None, cache=True)
    small = bytearray(data)
    for i in range(40):  # Values within int32.
        small[26 * i + 10 : 26 * i + 14] = bytes(4)
        small[26 * i + 14] &= 0x7F
    path.write_bytes(bytes(small))
    ((found, labels),) = input_fn({"batch_size": 40}).as_numpy_iterator()
    raw = list(tf.data.FixedLengthRecordDataset(str(path), 26).as_numpy_iterator())

    def decoded(begin: int, end: int, dtype: Any, *, little: bool) -> Any:
        return tf.io.decode_raw([r[begin:end] for r in raw], dtype, little_endian=little).numpy()

    np.testing.assert_array_equal(found["a"], decoded(0, 8, tf.int32, little=False))
    np.testing.assert_array_equal(found["b"], decoded(8, 10, tf.int16, little=True)[:, 0])
    np.testing.assert_array_equal(labels, decoded(10, 18, tf.int64, little=False)[:, 0])
    np.testing.assert_array_equal(found["c"].reshape(40, 6), decoded(18, 24, tf.uint8, little=True))
    np.testing.assert_array_equal(found["d"], decoded(24, 26, tf.uint16, little=False)[:, 0])
    assert (found["b"].dtype, found["d"].dtype, labels.dtype) == (np.int16, np.uint16, np.int32)


def test_lines_equal_those_of_text_line_dataset(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one\r\n\nthree ä\r\n \n\n\nlast".encode())
    (found,) = make_input_fn(TextLineFiles(path), training=False)({"batch_size": 7}).as_numpy_iterator()
    assert found["text"].tolist() == list(tf.data.TextLineDataset(str(path)).as_numpy_iterator())
    bare = make_input_fn(TextLineFiles(path), training=True, features="text")({"batch_size": 7})
    assert bare.element_spec == tf.TensorSpec([7], tf.string)


def test_applies_transform_and_dtype_as_to_datasets(tmp_path: Path) -> None:
    written(tmp_path, "fixed")
    files = FixedLengthRecordFiles(f"{tmp_path}/part*", [("label", "u1"), ("image", "u1", (1, 2, 1))], 4, 3)
    batch, labels = next(
        make_input_fn(
            files,
            training=False,
            images=tpudata.Images(dtype="float32"),
            transform=lambda x, y: ({"half": x["image"] / 2}, tf.one_hot(y, 7)),
        )({"batch_size": 9}).as_numpy_iterator()
    )
    np.testing.assert_allclose(batch["half"][:, 0, 0, 0], np.arange(9) / 255 / 2, rtol=1e-6)
    assert labels.argmax(1).tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]


@pytest.mark.parametrize("place", ["data", "footer"])
def test_names_the_file_and_offset_of_a_damaged_record(tmp_path: Path, place: str) -> None:
    files = written(tmp_path, "tfrecord")
    path = tmp_path / "part2"
    offsets = [offset for offset, _ in read_records(str(path))]
    data = bytearray(path.read_bytes())
    data[offsets[18] - (2 if place == "footer" else 9)] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=rf"{path} at byte {offsets[17]}: the record is damaged or cut\. Restore"):
        list(as_numpy(make_input_fn(files, training=False), 100))


def test_names_damage_when_the_input_fn_is_made(tmp_path: Path) -> None:
    files = written(tmp_path, "tfrecord")
    path = tmp_path / "part2"
    whole = path.read_bytes()
    _, second, *_, last = [offset for offset, _ in read_records(str(path))]
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptionError, match=rf"{path} at byte {last}: the file ends inside a record") as caught:
        make_input_fn(files, training=True)
    assert (caught.value.path, caught.value.offset) == (str(path), last)
    path.write_bytes(whole[: second + 1] + b"\1" + whole[second + 2 :])
    with pytest.raises(CorruptionError, match=rf"{path} at byte {second}: the checksum of a record's length"):
        make_input_fn(files, training=True)


@pytest.mark.parametrize("kind", KINDS)
def test_reports_a_file_cut_after_the_start(tmp_path: Path, kind: str) -> None:
    input_fn = make_input_fn(written(tmp_path, kind), training=False)
    path = tmp_path / "part2"
    path.write_bytes(path.read_bytes()[:200])
    if kind == "tfrecord":
        with pytest.raises(CorruptionError, match=rf"{path} at byte \d+: the record is damaged or cut"):
            list(as_numpy(input_fn, 50))
    else:
        with pytest.raises(TpudataError, match=r"a file: it has changed since it was opened\. Make the input_fn again"):
            list(as_numpy(input_fn, 50))


@pytest.mark.parametrize("kind", KINDS)
def test_ignores_or_rejects_records_appended_later(tmp_path: Path, kind: str) -> None:
    files = written(tmp_path, kind)
    input_fn = make_input_fn(files, training=False)
    extra = {"tfrecord": None, "fixed": bytes(6), "lines": b"900,1\n901,2\n"}[kind]
    path = tmp_path / "part3"
    path.write_bytes(path.read_bytes() + (path.read_bytes() if extra is None else extra))
    if kind == "lines":
        with pytest.raises(TpudataError, match="a file: it has changed since it was opened"):
            list(as_numpy(input_fn, 125))
    else:
        found = [b[0] if isinstance(b, tuple) else b for b in as_numpy(input_fn, 125)]
        assert [n for features in found for n in numbers(features)] == list(range(RECORDS))
    again = make_input_fn(files, training=False)({"batch_size": 125})
    assert len(again) == {"tfrecord": 5, "fixed": 5, "lines": 5}[kind]


def test_rejects_files_without_records(tmp_path: Path) -> None:
    for name, data in (("part0", b""), ("part1", b"")):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DatasetError, match=r"part\*'.*no records in 2 files"):
        make_input_fn(opened(tmp_path, "tfrecord"), training=True)
    (tmp_path / "part0").write_bytes(b"only a header\n")
    with pytest.raises(DatasetError, match="no records in 2 files"):
        make_input_fn(opened(tmp_path, "lines"), training=True)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("tfrecord", {"split": "train"}, "split='train': files without a manifest have no splits"),
        ("tfrecord", {"cache": "folder"}, r"cache='folder': without a manifest.*cache=True"),
        ("lines", {"extra_features": ("x",)}, "a line is the feature text and no more"),
        ("lines", {"size": (3, 3)}, "a line is the feature text and no more"),
        ("lines", {"dtype": "float32"}, "features have none"),
        ("lines", {"weights": "sample_weight"}, "needs labels"),
    ],
)
def test_rejects_options_that_need_a_manifest_or_labels(
    tmp_path: Path, kind: str, options: dict[str, Any], message: str
) -> None:
    files = written(tmp_path, kind)
    with pytest.raises(UsageError, match=message):
        make_input_fn(files, **{"training": False, **grouped(options)})


def test_examples_require_features_or_parse(tmp_path: Path) -> None:
    files = TFRecordFiles(written(tmp_path, "tfrecord").files)
    with pytest.raises(UsageError, match=r"the features of the records are unknown. Pass features=.*or parse="):
        make_input_fn(files, training=True)


IMAGE = Feature("image", "bytes", "uint8", (None, None, 3), "image")
LABEL = Feature("label", "int64", "int64")
STORED: dict[str, Any] = {
    "image": encode_image(np.zeros((4, 4, 3), np.uint8)),
    "label": 3,
    "box": [0.5, 1.5],
    "name": b"a b",
}


def tfrecord(path: Path, *records: bytes) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Feature("img", "bytes", "uint8", (None, None, 3), "image"), "feature 'img' is not in the record."),
        (Feature("box", "int64", "int64", (2,)), "feature 'box' has 2 values of kind float, and not of kind int64."),
        (Feature("box", "float", "float32", (4,)), "feature 'box' has 2 values, and not the 4 of shape (4,)."),
        (
            Feature("name", "bytes", "uint8", (2,), "raw"),
            "feature 'name' has 3 bytes, and not the 2 of (2,) uint8 values.",
        ),
        (
            Feature("box", "bytes", "uint8", (8,), "raw"),
            "feature 'box' has 2 values of kind float, and not of kind bytes.",
        ),
        (Feature("none", "int64", "int64"), "feature 'none' has no values."),
    ],
)
@pytest.mark.parametrize("beside_image", [True, False])
def test_reports_other_features_of_the_first_record_at_the_call(
    tmp_path: Path, wrong: Feature, message: str, beside_image: bool
) -> None:
    path = tfrecord(tmp_path / "a", encode_example({**STORED, "none": []}))
    features = [wrong, LABEL, *([IMAGE] if beside_image else [])]
    has_image = beside_image or wrong.encoding == "image"
    with pytest.raises(FeatureError) as raised:
        make_input_fn(
            TFRecordFiles(path, features), training=True, images=tpudata.Images(size=(4, 4) if has_image else None)
        )
    size = len(STORED["image"])
    assert str(raised.value) == (
        f"{path} at byte 0: {message} The record has box (float, 2 values), image (bytes, {size} bytes), label (int64, 1 value),"
        " name (bytes, 3 bytes), none (no values). Correct features= of TFRecordFiles, or pass parse= to make_input_fn."
    )


@pytest.mark.parametrize(
    ("record", "features"),
    [
        pytest.param(record, features, marks=() if is_image is (number != 1) else pytest.mark.matrix)
        for number, record in enumerate((b"\x0a\xc3(some line \xff", b"some line", bytes([0xDF, 0x6A, 0xF1]) * 9))
        for is_image, features in ((True, [IMAGE, LABEL]), (False, [LABEL, Feature("x", "int64", "int64")]))
    ],
)
def test_reports_a_first_record_that_is_not_an_example_at_the_call(
    tmp_path: Path, record: bytes, features: list[Feature]
) -> None:
    path = tfrecord(tmp_path / "a", record)
    with pytest.raises(
        CorruptionError, match=r"is not a tf\.train\.Example: .*\. Pass parse= to make_input_fn"
    ) as raised:
        make_input_fn(
            TFRecordFiles(path, features),
            training=True,
            images=tpudata.Images(size=(4, 4) if IMAGE in features else None),
        )
    assert (raised.value.path, raised.value.offset) == (str(path), 0)
    read = make_input_fn(TFRecordFiles(path), training=False, parse=lambda records: {"text": records})
    (batch,) = as_numpy(read, 1)
    assert batch["text"].tolist() == [record]


def test_compares_the_first_record_only_with_the_features_read(tmp_path: Path) -> None:
    path = tfrecord(tmp_path / "a", encode_example({**STORED, "ids": []}), encode_example({**STORED, "ids": [1, 2]}))
    features = [IMAGE, LABEL, Feature("ids", "int64", "int64", (None,)), Feature("box", "float", "float32", (2,))]
    options: Any = {"training": False, "images": tpudata.Images(size=(4, 4))}
    # A sequence of any length may be empty.
    ((found, labels),) = as_numpy(
        make_input_fn(TFRecordFiles(path, features), tokens=tpudata.Tokens(sequence_length=3), **options), 2
    )
    assert found["ids"].tolist() == [[0, 0, 0], [1, 2, 0]]
    assert (found["box"].tolist(), labels.tolist()) == ([[0.5, 1.5]] * 2, [3, 3])
    # It may be absent from the first record, but not from all.
    more = [Feature("more", "int64", "int64", (None,))]
    with pytest.raises(FeatureError, match=rf"{path}: feature 'more' is in none of the first 2 records\. Correct feat"):
        make_input_fn(TFRecordFiles(path, features + more), tokens=tpudata.Tokens(sequence_length=3), **options)
    path = tfrecord(tmp_path / "b", encode_example(STORED), encode_example({**STORED, "ids": [1, 2]}))
    ((found, _),) = as_numpy(
        make_input_fn(TFRecordFiles(path, features), tokens=tpudata.Tokens(sequence_length=3), **options), 2
    )
    assert found["ids"].tolist() == [[0, 0, 0], [1, 2, 0]]
    # Features that are not read may be absent.
    odd = [IMAGE, Feature("odd", "int64", "int64")]
    (image,) = as_numpy(make_input_fn(TFRecordFiles(path, odd), features="image", **options), 2)
    assert image.shape == (2, 4, 4, 3)


def test_accepts_a_first_record_of_raw_values(tmp_path: Path) -> None:
    arrays = {
        dtype: np.arange(6).astype(dtype).reshape(2, 3)
        for dtype in ("uint8", "uint16", "int64", "float16", "float32", "float64")
    }
    stored = {dtype: values.tobytes() for dtype, values in arrays.items()}
    path = tfrecord(tmp_path / "a", encode_example({**STORED, **stored}))
    features = [IMAGE, *(Feature(dtype, "bytes", dtype, (2, 3), "raw") for dtype in arrays)]
    (found,) = as_numpy(
        make_input_fn(TFRecordFiles(path, features), training=False, images=tpudata.Images(size=(4, 4))), 1
    )
    for dtype, values in arrays.items():
        np.testing.assert_array_equal(found[dtype], values[None])


ODD = [
    ({"x": None}, "feature 'x' is not in the record."),
    ({"x": bytes(5)}, "feature 'x' does not have the 6 bytes of (6,) uint8 values."),
    ({"label": [1, 2]}, "feature 'label' has 2 values, and not those of shape []."),
]
ODD_SEQUENCES = [
    ({"ids": b"ab"}, "feature 'ids' has values of a different kind."),
    ({"mask": [1, 2]}, "feature 'mask' has 2 values, and not those of shape [3]."),
    ({"score": [0.5]}, "feature 'score' has 1 value, and not those of shape [2]."),
]


@pytest.mark.parametrize(
    ("odd", "message", "is_plain"),
    [
        *((*odd, True) for odd in ODD + ODD_SEQUENCES),
        *((*odd, False) for odd in (ODD[0], ODD_SEQUENCES[0])),
        *(pytest.param(*odd, False, marks=pytest.mark.matrix) for odd in ODD[1:] + ODD_SEQUENCES[1:]),
    ],
)
def test_names_a_later_record_of_other_features_with_the_fix(
    tmp_path: Path, odd: dict[str, Any], message: str, is_plain: bool
) -> None:
    label = Feature("label", "int64", "int64")
    if (odd, message) in ODD:
        features = [Feature("x", "bytes", "uint8", (6,), "raw"), label]
        good: dict[str, Any] = {"x": bytes(6), "label": 1}
    else:
        ids, mask = Feature("ids", "int64", "int64", (None,)), Feature("mask", "int64", "int64", (3,))
        features = [ids, mask, Feature("score", "float", "float32", (2,)), label]
        good = {"ids": [1, 2, 300], "mask": [1, 2, 3], "score": [0.5, 1.5], "label": 1}
    bad = {name: value for name, value in {**good, **odd}.items() if value is not None}
    options: Any = {"training": False, "tokens": tpudata.Tokens(sequence_length=4 if "ids" in good else None)}
    if is_plain:
        path = tfrecord(tmp_path / "a", encode_example(good), encode_example(bad))
        input_fn = make_input_fn(TFRecordFiles(path, features), **options)
    else:
        folder = write_dataset(str(tmp_path), {"train": [good, bad]}, features, layout="", shards=1)
        input_fn = make_input_fn(folder, "train", **options)
        path = next(tmp_path.glob("train-*.tfrecord"))
    with pytest.raises(FeatureError) as raised:
        list(as_numpy(input_fn, 2))
    fix = (
        "Correct features= of TFRecordFiles, or pass parse= to make_input_fn."
        if is_plain
        else "Convert the dataset again."
    )
    offset = len(encode_example(good)) + 16
    assert str(raised.value) == f"{path} at byte {offset}: {message} {fix}"


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (Feature("image", "bytes", "uint8", (4, 4, 2), "image"), "2 channels; images decode to 1, 3 or 4"),
        (Feature("box", "float", "float32", (4, None)), "varies between .* Omit it, or give all records one size"),
    ],
)
def test_advises_to_correct_features_that_cannot_be_fed(tmp_path: Path, feature: Feature, message: str) -> None:
    path = tfrecord(tmp_path / "a", encode_example(STORED))
    with pytest.raises(
        FeatureError, match=rf"{message}\. Correct features= of TFRecordFiles, or pass parse= to make_inp"
    ):
        make_input_fn(TFRecordFiles(path, [feature, LABEL]), training=True)
    folder = write_dataset(str(tmp_path / "d"), {"train": [STORED]}, [feature, LABEL], layout="", shards=1)
    with pytest.raises(FeatureError, match=rf"{message}\. Pass parse= to make_input_fn"):
        make_input_fn(folder, "train", training=True)


def test_names_a_damaged_first_record(tmp_path: Path) -> None:
    path = tfrecord(tmp_path / "a", *[encode_example({**STORED, "label": label}) for label in range(3)])
    data = bytearray(path.read_bytes())
    data[-len(data) // 3 * 3 + 30] ^= 1
    path.write_bytes(data)
    input_fn = make_input_fn(TFRecordFiles(path, [IMAGE, LABEL]), training=False, images=tpudata.Images(size=(4, 4)))
    with pytest.raises(CorruptionError, match=rf"^{path} at byte 0: the record is damaged"):
        list(as_numpy(input_fn, 3))
