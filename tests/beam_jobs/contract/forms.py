"""Kinds of inputs, each written from the same items, and what of them arrives in a dataset."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import zstandard

from beam_jobs import images, reshard, text
from tests.beam_jobs.golden import one_pixel_png
from tests.beam_jobs.sources.inputs import tar_bytes
from tests.helpers.frames import add_frame
from tpudata.format import encode_example, open_dataset, verify

# Of files and of folders of classes; lists and archives that quote or escape meet what they have to.
ODD_NAMES = ("a b", "é", "#1", "100%", "%41", "x'y", 'q"z', "c,d", "日本", "a=b", "[0]", "v1.2")
END = "<|end|>"


class Item(NamedTuple):
    """One thing to convert: a picture or a text.

    Attributes:
        number: its number, which no other one has.
        name: name of its file, where it has one.
        is_bad: whether it is damaged.
    """

    number: int
    name: str
    is_bad: bool = False

    @property
    def group(self) -> str:
        """Name of its class."""
        return f"class {self.number % 3}"

    @property
    def picture(self) -> bytes:
        """A picture, or bytes that are none."""
        return b"no picture" if self.is_bad else one_pixel_png(self.number)

    @property
    def text(self) -> str:
        """A text of a line, with letters of several bytes."""
        return f"text {self.number}, é三"

    @property
    def line(self) -> bytes:
        """The text's bytes, which are not UTF-8 if it is damaged."""
        return b"\xff damaged" if self.is_bad else self.text.encode()


def items(count: int, *, bad: Sequence[int] = (), names: Sequence[str] = ()) -> list[Item]:
    """Some items, with plain names if no others are given."""
    return [
        Item(number, names[number] if number < len(names) else f"n{number}", number in bad) for number in range(count)
    ]


class Form(NamedTuple):
    """A kind of input.

    Attributes:
        name: what it is.
        run: the job that converts it.
        write: function that writes items to a folder and returns the flags that name them.
        field: the feature that holds an item.
        names_items: whether items have names.
        can_be_bad: whether one item can be damaged.
        can_be_empty: whether it can be written without items.
        grows: whether the input can have further items later.
        takes_split: whether its items go to splits by their names; otherwise it has splits, or its items have no names.
        rank: 0 for a form by itself, 1 for one that differs from another in little, 2 for one that is two others at once: of higher
            ranks most cases are for the matrix.
        read: function that returns the items in a record of a dataset; None for the value of `field`.
        is_installed: whether it is of the package of docs/convert/extending.md.
    """

    name: str
    run: Callable[[list[str]], int]
    write: Callable[[Path, Sequence[Item]], list[str]]
    field: str
    names_items: bool = False
    can_be_bad: bool = True
    can_be_empty: bool = True
    grows: bool = True
    takes_split: bool = True
    rank: int = 0
    read: Callable[[Path, Mapping[str, Any]], Iterable[bytes]] | None = None
    is_installed: bool = False

    def convert(self, folder: Path, written: Sequence[Item], output: Path, *flags: str) -> int:
        """Write items and convert them."""
        return self.run([*self.write(folder, written), *self.output(output), *flags])

    def output(self, output: Path) -> list[str]:
        """Return the flags that name the output."""
        return ["--output", str(output)]

    def contents(self, written: Sequence[Item]) -> Counter[bytes]:
        """Return what a dataset of the items holds, as `stored` does."""
        is_picture = self.field.startswith("image")
        return Counter(item.picture if is_picture else item.text.encode() for item in written if not item.is_bad)

    def read_stored(self, output: Path | str, *splits: str) -> Counter[bytes]:
        """Return the contents of the records of some splits or all, once nothing in the dataset is found to be wrong."""
        assert not list(verify(str(output)))
        dataset = open_dataset(str(output))
        found: Counter[bytes] = Counter()
        for split in splits or dataset.manifest.splits:
            for example in dataset.examples(split):
                values = example[self.field] if self.read is None else self.read(Path(output), example)
                assert self.read is not None or len(example[self.field]) == 1
                found.update(values)  # type: ignore[arg-type]
        return found


def _write(path: Path, data: bytes) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return ["--input", str(path)]


def class_folders(folder: Path, written: Sequence[Item]) -> list[str]:
    folder.mkdir(exist_ok=True)
    for item in written:
        _write(folder / item.group / f"{item.name}.png", item.picture)
    return ["--input", str(folder)]


def _unlabelled(folder: Path, written: Sequence[Item]) -> list[str]:
    return [*class_folders(folder, written), "--unlabelled"]


def _pattern(folder: Path, written: Sequence[Item]) -> list[str]:
    class_folders(folder, written)
    return ["--input", f"{folder}/**/*.png"]


def _imagenet(folder: Path, written: Sequence[Item]) -> list[str]:
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for item in written:
        group = f"n{item.number % 3:08d}"
        _write(folder / "train" / group / f"{group}_{item.number}.JPEG", item.picture)
    return ["--input", str(folder)]


def _csv(rows: Sequence[Sequence[Any]], delimiter: str = ",") -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


def _csv_list(folder: Path, written: Sequence[Item]) -> list[str]:
    for item in written:
        _write(folder / "pictures" / f"{item.name}.png", item.picture)
    rows = [("path", "label"), *((f"pictures/{item.name}.png", item.group) for item in written)]
    return _write(folder / "list.csv", _csv(rows))


def _json_list(folder: Path, written: Sequence[Item]) -> list[str]:
    for item in written:
        _write(folder / "pictures" / f"{item.name}.png", item.picture)
    rows = [{"path": f"pictures/{item.name}.png", "label": item.group} for item in written]
    return _write(folder / "list.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def _members(written: Sequence[Item]) -> list[tuple[str, bytes]]:
    return [(f"{item.group}/{item.name}.png", item.picture) for item in written]


def _tar(folder: Path, written: Sequence[Item]) -> list[str]:
    return _write(folder / "data.tar", tar_bytes(_members(written)))


def _tar_gz(folder: Path, written: Sequence[Item]) -> list[str]:
    return _write(folder / "data.tar.gz", gzip.compress(tar_bytes(_members(written)), mtime=0))


def _webdataset(folder: Path, written: Sequence[Item]) -> list[str]:
    files: list[tuple[str, bytes]] = []
    for item in written:
        files += [(f"{item.number:04d}.png", item.picture), (f"{item.number:04d}.cls", str(item.number % 3).encode())]
    return _write(folder / "data.tar", tar_bytes(files))


def _zip(folder: Path, written: Sequence[Item]) -> list[str]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in _members(written):
            archive.writestr(zipfile.ZipInfo(name), data)
    return _write(folder / "data.zip", buffer.getvalue())


def _parquet_images(folder: Path, written: Sequence[Item]) -> list[str]:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": item.picture, "path": f"{item.name}.png"} for item in written]
    columns = {"image": pa.array(rows, kind), "label": pa.array([item.group for item in written], pa.string())}
    return _parquet(folder / "data.parquet", columns)


def _parquet(path: Path, columns: dict[str, Any]) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=5)
    return ["--input", str(path)]


def _coco(folder: Path, written: Sequence[Item]) -> list[str]:
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for item in written:
        _write(pictures / f"{item.name}.png", item.picture)
    rows = [{"id": item.number, "file_name": f"{item.name}.png", "width": 1, "height": 1} for item in written]
    boxes = [{"id": item.number, "image_id": item.number, "category_id": 1, "bbox": [0, 0, 1, 1]} for item in written]
    content = {"images": rows, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "instances.json").write_text(json.dumps(content))
    return ["--input", str(pictures), "--annotations", str(folder / "instances.json")]


def _records(written: Sequence[Item]) -> bytes:
    frames = [add_frame(encode_example({"image/encoded": item.picture, "number": item.number})) for item in written]
    # A record whose checksum is wrong; what lies after it is found by its length.
    return b"".join(
        bytes([*frame[:-1], frame[-1] ^ 1]) if item.is_bad else frame
        for item, frame in zip(written, frames, strict=True)
    )


def _tfrecords(folder: Path, written: Sequence[Item]) -> list[str]:
    return _write(folder / "data.tfrecord", _records(written))[1:]


def _tfrecords_gz(folder: Path, written: Sequence[Item]) -> list[str]:
    return _write(folder / "data.tfrecord.gz", gzip.compress(_records(written), mtime=0))[1:]


IMAGE = "image/encoded"
IMAGE_FORMS = [
    Form("class folders", images.run, class_folders, IMAGE, names_items=True),
    Form("unlabelled files", images.run, _unlabelled, IMAGE, names_items=True, rank=1),
    Form("pattern", images.run, _pattern, IMAGE, names_items=True, rank=1),
    Form("imagenet", images.run, _imagenet, IMAGE, takes_split=False),
    Form("csv list", images.run, _csv_list, IMAGE, names_items=True),
    Form("jsonl list", images.run, _json_list, IMAGE, names_items=True, rank=1),
    Form("tar", images.run, _tar, IMAGE, names_items=True),
    Form("tar.gz", images.run, _tar_gz, IMAGE, names_items=True, rank=1),
    Form("webdataset", images.run, _webdataset, IMAGE),
    Form("zip", images.run, _zip, IMAGE, names_items=True),
    Form("parquet of images", images.run, _parquet_images, IMAGE),
    Form("coco", images.run, _coco, IMAGE, names_items=True),
    Form("tfrecords", reshard.run, _tfrecords, IMAGE, grows=False, takes_split=False),
    Form(
        "tfrecords.gz",
        reshard.run,
        _tfrecords_gz,
        IMAGE,
        can_be_bad=False,
        grows=False,
        takes_split=False,
        rank=1,
    ),
]


def lines(folder: Path, written: Sequence[Item]) -> list[str]:
    return _write(folder / "data.txt", b"".join(item.line + b"\n" for item in written))


def _packed_lines(suffix: str, pack: Callable[[bytes], bytes]) -> Callable[[Path, Sequence[Item]], list[str]]:
    def write(folder: Path, written: Sequence[Item]) -> list[str]:
        return _write(folder / f"data.txt.{suffix}", pack(b"".join(item.line + b"\n" for item in written)))

    return write


def _paragraphs(folder: Path, written: Sequence[Item]) -> list[str]:
    flags = _write(folder / "data.txt", b"".join(item.line + b"\n\n" for item in written))
    return [*flags, "--form=paragraphs"]


def _separated(folder: Path, written: Sequence[Item]) -> list[str]:
    flags = _write(folder / "data.txt", b"".join(item.line + END.encode() for item in written))
    return [*flags, "--form=separated", f"--separator={END}"]


def _files(folder: Path, written: Sequence[Item]) -> list[str]:
    folder.mkdir(exist_ok=True)
    for item in written:
        _write(folder / f"{item.name}.txt", item.line)
    return ["--input", str(folder), "--form=files"]


def _text_folders(folder: Path, written: Sequence[Item]) -> list[str]:
    folder.mkdir(exist_ok=True)
    for item in written:
        _write(folder / item.group / f"{item.name}.txt", item.line)
    return ["--input", str(folder), "--form=files", "--label-from=folder"]


def _json_rows(written: Sequence[Item]) -> list[str]:
    rows = [{"text": item.text, "label": item.group, "id": f"row {item.number}"} for item in written]
    return ["5" if item.is_bad else json.dumps(row) for item, row in zip(written, rows, strict=True)]


def _jsonl(folder: Path, written: Sequence[Item]) -> list[str]:
    return _write(folder / "data.jsonl", "".join(f"{row}\n" for row in _json_rows(written)).encode())


def _json_array(folder: Path, written: Sequence[Item]) -> list[str]:
    return _write(folder / "data.json", f"[{', '.join(_json_rows(written))}]".encode())


def _labelled_rows(folder: Path, written: Sequence[Item]) -> list[str]:
    return [*_jsonl(folder, written), "--label-field=label"]


def _keyed_rows(folder: Path, written: Sequence[Item]) -> list[str]:
    return [*_jsonl(folder, written), "--key-field=id", "--keep-key"]


def _cells(suffix: str, delimiter: str) -> Callable[[Path, Sequence[Item]], list[str]]:
    def write(folder: Path, written: Sequence[Item]) -> list[str]:
        rows = [(item.text,) if item.is_bad else (item.text, item.number) for item in written]
        return _write(folder / f"data.{suffix}", _csv([("text", "number"), *rows], delimiter))

    return write


def _raw_tsv(folder: Path, written: Sequence[Item]) -> list[str]:
    return [*_cells("tsv", "\t")(folder, written), "--form=raw-tsv"]


def _headerless(folder: Path, written: Sequence[Item]) -> list[str]:
    rows = [(item.text,) if item.is_bad else (item.number, item.text) for item in written]
    return [*_write(folder / "data.csv", _csv(rows)), "--no-header", "--field=1"]


def _sentences(folder: Path, written: Sequence[Item]) -> list[str]:
    ends = [b"one\tO\ntwo" if item.is_bad else b"" for item in written]
    words = ["\n".join(f"{word}\tO" for word in item.text.split()).encode() for item in written]
    data = b"".join(b"%s\n%s\n\n" % both for both in zip(words, ends, strict=True)).replace(b"\n\n\n", b"\n\n")
    return [*_write(folder / "data.conll", data), "--field=0"]


def _squad(folder: Path, written: Sequence[Item]) -> list[str]:
    articles = [
        {"title": "t", "paragraphs": [{"context": "c", "qas": [_question(item) for item in written[at : at + 5]]}]}
        for at in range(0, len(written), 5)
    ]
    data = {"version": "1.1", "data": articles} if articles else {"data": [{"paragraphs": []}]}
    return [*_write(folder / "data.json", json.dumps(data).encode()), "--field=question"]


def _question(item: Item) -> dict[str, Any]:
    answers = [{"text": "a", "answer_start": 0}]
    return {"id": f"q{item.number}", "answers": answers} | ({} if item.is_bad else {"question": item.text})


def _parquet_text(folder: Path, written: Sequence[Item]) -> list[str]:
    texts = [None if item.is_bad else item.text for item in written]
    return _parquet(folder / "data.parquet", {"text": pa.array(texts, pa.string())})


def _pairs(folder: Path, written: Sequence[Item]) -> list[str]:
    _write(folder / "data.de", "".join("\n" if item.is_bad else f"nummer {item.number}\n" for item in written).encode())
    flags = _write(folder / "data.en", "".join(f"{item.text}\n" for item in written).encode())
    return [*flags, "--targets-file", str(folder / "data.de")]


TEXT_FORMS = [
    Form("lines", text.run, lines, "text"),
    Form("lines.gz", text.run, _packed_lines("gz", lambda data: gzip.compress(data, mtime=0)), "text"),
    Form("lines.bz2", text.run, _packed_lines("bz2", bz2.compress), "text", rank=1),
    Form("lines.zst", text.run, _packed_lines("zst", zstandard.ZstdCompressor().compress), "text", rank=1),
    Form("paragraphs", text.run, _paragraphs, "text"),
    Form("separated", text.run, _separated, "text"),
    Form("text files", text.run, _files, "text", names_items=True),
    Form("text folders", text.run, _text_folders, "text", names_items=True, rank=1),
    Form("jsonl", text.run, _jsonl, "text"),
    Form("json array", text.run, _json_array, "text"),
    Form("labelled rows", text.run, _labelled_rows, "text"),
    Form("keyed rows", text.run, _keyed_rows, "text", rank=1),
    Form("csv", text.run, _cells("csv", ","), "text"),
    Form("tsv", text.run, _cells("tsv", "\t"), "text", rank=1),
    Form("raw tsv", text.run, _raw_tsv, "text", rank=1),
    Form("headerless csv", text.run, _headerless, "1"),
    Form("sentences", text.run, _sentences, "0"),
    Form("squad", text.run, _squad, "question"),
    Form("parquet of text", text.run, _parquet_text, "text"),
    Form("parallel files", text.run, _pairs, "inputs"),
]
