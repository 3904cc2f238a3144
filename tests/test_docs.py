"""The Python blocks of the docs run unchanged, each document's blocks in order, on small data."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from scripts._error_index import main as error_index
from tests.helpers.datasets import encode_image, write_dataset, write_images
from tests.helpers.digits import write_digits
from tests.helpers.markdown import ROOT, python_blocks, run_python
from tests.helpers.pictures import make_pictures
from tests.helpers.sequences import write_sequences
from tpudata.format import Feature, encode_example

# Numbers of blocks, by document, that are parts of a reader's program: they are only parsed.
PARTS = {
    "docs/convert/python.md": (1,),
    "docs/feed/jax.md": (2, 3),
    "docs/feed/many_hosts.md": (0, 1, 2),
    "docs/feed/pytorch.md": (0, 1, 2, 3),
    "docs/dataset/other_readers.md": (0, 1, 2, 3, 4),
    "docs/train/rehearsal.md": (0,),
    "docs/train/command.md": (0,),
}
# Run by tests/beam_jobs/examples/test_write_examples.py, tests/beam_jobs/test_extending.py,
# tests/test_tutorials.py and tests/test_ecosystem.py.
ELSEWHERE = (
    "docs/convert/write_tfrecord_shards.md",
    "docs/convert/extending.md",
    "docs/feed/ecosystem.md",
    "docs/tutorials/boxes.md",
    "docs/tutorials/language_model.md",
    "docs/tutorials/porting.md",
    "docs/tutorials/text_classes.md",
)


def _gzip(folder: Path) -> dict[str, str]:
    images = list(np.zeros((6500, 2, 2, 1), np.uint8))
    path = str(folder / "dataset")
    write_images(
        path, {"test": images}, {"test": [1] * 6500}, shape=(2, 2, 1), layout="raw", shards=1, compression="gzip"
    )
    return {}


def _quickstart(folder: Path) -> dict[str, str]:
    write_digits(folder / "quickstart" / "dataset", {"train": 200, "validation": 90})
    return {"steps_per_epoch=100, epochs=3": "steps_per_epoch=3, epochs=1"}


def _files(folder: Path) -> dict[str, str]:
    (folder / "data").mkdir()
    (folder / "cifar").mkdir()
    encoded = encode_image(np.zeros((28, 28, 1), np.uint8))
    with tf.io.TFRecordWriter(str(folder / "data" / "train-0")) as writer:
        writer.write(encode_example({"image/encoded": encoded, "class": 3}))
    (folder / "cifar" / "data_batch_1.bin").write_bytes(bytes(3073 * 2))
    (folder / "t10k-images-idx3-ubyte").write_bytes(bytes(16 + 784))
    (folder / "table-0.csv").write_text("a,b\n1,2\n")
    with tf.io.TFRecordWriter(str(folder / "damaged.tfrecord")) as writer:
        writer.write(b"whole")
        writer.write(b"damaged")
    data = bytearray((folder / "damaged.tfrecord").read_bytes())
    data[-1] ^= 1
    (folder / "damaged.tfrecord").write_bytes(data)
    image = np.zeros((28, 28, 1), np.uint8)
    write_images(str(folder / "DIR"), {"train": [image]}, {"train": [1]}, shape=(28, 28, 1), layout="raw", shards=1)
    return {}


def _pictures(folder: Path) -> dict[str, str]:
    pictures = [np.zeros((20 + number, 30, 3), np.uint8) for number in range(4)]
    images = {"train": pictures, "validation": pictures}
    labels = {"train": [0, 1, 2, 3], "validation": [0, 1, 2, 3]}
    write_images(str(folder / "DIR"), images, labels, shape=(None, None, 3), shards=1)
    return {}


def _objects(folder: Path) -> dict[str, str]:
    corners = [f"image/object/bbox/{corner}" for corner in ("ymin", "xmin", "ymax", "xmax")]
    records = [
        {
            "image/encoded": encode_image(np.zeros((90, 80 + number, 3), np.uint8)),
            **{name: [0.25 + place // 2 / 2] * number for place, name in enumerate(corners)},
            "image/object/class/label": [number] * number,
            "image/caption": ["a caption"] * (2 * number),
            "scene": list(range(1, 1 + number)),
            **({"importance": 0.5} if number % 2 else {}),
        }
        for number in range(5)
    ]
    features = [
        Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"),
        *(Feature(name, "float", "float32", (None,)) for name in corners),
        Feature("image/object/class/label", "int64", "int64", (None,)),
        Feature("image/caption", "bytes", "string", (None,), "utf8"),
        Feature("scene", "int64", "int64", (None,), num_classes=4, label_offset=1),
        Feature("importance", "float", "float32"),
    ]
    splits = {"train": records, "validation": records}
    write_dataset(str(folder / "DIR"), splits, features, layout="imagenet", shards=1)
    return {}


def _characters(folder: Path) -> dict[str, str]:
    write_sequences(folder / "DIR", {"train": 24, "validation": 6})
    return {'"hidden_units": 512': '"hidden_units": 8', "max_steps=1800": "max_steps=2"}


def _digits(folder: Path) -> dict[str, str]:
    write_digits(folder / "quickstart" / "dataset", {"train": 200, "validation": 90})
    return {"max_steps=500": "max_steps=20"}


def _digits_in_dir(folder: Path) -> dict[str, str]:
    write_digits(folder / "DIR", {"train": 200, "validation": 90})
    return {}


def _rows(folder: Path) -> dict[str, str]:
    write_sequences(folder / "DIR", {"train": 24, "validation": 6})
    return {}


def _sound(folder: Path) -> dict[str, str]:
    image = np.zeros((8, 8, 1), np.uint8)
    write_images(str(folder / "imagenet"), {"train": [image]}, {"train": [1]}, shape=(8, 8, 1), shards=1)
    return {"/data/imagenet": str(folder / "imagenet"), "workers=4": "workers=1"}


def _inputs(folder: Path) -> dict[str, str]:
    make_pictures(folder / "pictures", 24)
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.txt").write_text("one line\nanother line\n" * 40)
    return {"workers=4": "workers=1"}


# Functions that write the data of a document's programs, and return replacements that make them faster.
DATA: dict[str, Callable[[Path], dict[str, str]]] = {
    "docs/convert/python.md": _inputs,
    "docs/dataset/compression.md": _gzip,
    "docs/feed/keras.md": _quickstart,
    "docs/feed/files.md": _files,
    "docs/feed/images.md": _pictures,
    "docs/feed/jax.md": _digits_in_dir,
    "docs/feed/lists.md": _objects,
    "docs/feed/text.md": _rows,
    "docs/train/estimator.md": _digits,
    "docs/reference/models.md": _characters,
    "docs/dataset/verify.md": _sound,
    "docs/train/tpu_system.md": lambda _: {},
}


def test_every_python_block_runs_here_or_is_listed_as_skipped() -> None:
    documents = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))]
    found = {document: len(blocks) for document in documents if (blocks := python_blocks(document))}
    assert found.keys() == {*DATA, *PARTS, *ELSEWHERE}
    for document, parts in PARTS.items():
        for number in parts:
            ast.parse(python_blocks(document)[number])
        assert document in DATA or len(parts) == found[document]


def test_pages_named_in_code_exist() -> None:
    folders = ("tpudata", "beam_jobs", "scripts", "configs", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in ("", ".py", ".yaml")]
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in files
        if path.is_file()
        for page in re.findall(r"\bdocs/[\w/]+\.(?:md|svg|png|ipynb)\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert [(path, page) for path, page in sorted(named) if not (ROOT / page).is_file()] == []


def test_the_table_of_commands_agrees_with_the_dataset_pages() -> None:
    table = html.unescape((ROOT / "docs/convert/which_command.md").read_text(encoding="utf-8"))
    found = re.findall(r"^\| \[(.*?)\]\(.*?\) \| .*? \| (?:`|<code>)(.*)(?:`|</code>) \|$", table, re.MULTILINE)
    expected = []
    for page, kind in (("datasets", "images"), ("text_datasets", "text")):
        text = (ROOT / f"docs/convert/{page}.md").read_text(encoding="utf-8")
        for name, section in re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL):
            (command,) = re.findall(rf"^    tpudata convert {kind} (.*)", section, re.MULTILINE)
            expected.append((name, command.replace(" --output out", "")))
    assert found == expected


def test_the_index_of_errors_is_up_to_date() -> None:
    assert error_index(["--check"]) == 0, "run .venv/bin/python scripts/_error_index.py"
    entries = re.findall(r"^- ", (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(entries) > 1000


@pytest.mark.parametrize("document", DATA)
def test_blocks_run_in_order(document: str, tmp_path: Path) -> None:
    smaller = DATA[document](tmp_path)
    blocks = [block for number, block in enumerate(python_blocks(document)) if number not in PARTS.get(document, ())]
    out = run_python("\n".join(blocks), tmp_path, smaller)
    if document == "docs/convert/python.md":
        assert out == "24 {} {}\n"
    if document == "docs/feed/keras.md":
        assert out.splitlines()[-1] == "90"
    if document == "docs/feed/files.md":
        assert "damaged.tfrecord at byte 21" in out
        assert [record.numpy() for record in tf.data.TFRecordDataset(str(tmp_path / "whole.tfrecord"))] == [b"whole"]
    if document == "docs/feed/lists.md":
        page = (ROOT / document).read_text(encoding="utf-8")
        shapes = re.findall(r"^    (image\S* \w+ \(.*\))$", page, re.MULTILINE)
        assert out.splitlines()[: len(shapes)] == shapes
        assert out.splitlines()[len(shapes) : len(shapes) + 2] == ["[[0. 0. 0. 0.]", " [1. 0. 0. 0.]"]
    if document == "docs/train/estimator.md":
        assert re.fullmatch(r"\{'accuracy': np\.float32\(0\.\d+\), .*'global_step': np\.int64\(20\)\}\n", out)
    if document == "docs/train/tpu_system.md":
        assert out == "4 cpu\n(4,)\n[1. 2. 3.]\n"
    if document == "docs/dataset/verify.md":
        assert out == ""
