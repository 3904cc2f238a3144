"""Datasets whose inputs have payloads and features of every kind keep the bytes of earlier versions.

Their files include the keys, by which an append recognizes an input, and the digests of inputs, by which a resumed run recognizes
a shard.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from beam_jobs import WriteTFRecordShards, images, reshard, text
from beam_jobs.sources import Reject, Source, make_reference, raise_rejection
from tests.beam_jobs.golden import dataset_digest, one_pixel_png
from tests.beam_jobs.sources.inputs import write_files
from tests.helpers.frames import add_frame
from tpudata.format import Feature, encode_example
from tpudata.storage import files_below, folder_ranges

# The first 16 digits of SHA-256 over the names and bytes of all files.
GOLDEN = {
    "imagenet": "ca08bafc106d43f7",
    "plug-in": "cc682a9c520a39d3",
    "list": "01c62b44e6ba36bc",
    "jsonl": "5af477cc091f11d9",
    "csv": "fc53b034a7ba2990",
    "files": "92431a33d90af20d",
    "lines": "7abfae334cf25441",
    "examples": "5c4152b23cad1fd3",
    "keyed examples": "7a8ec45f0364e30b",
    "reshard": "c9a666806e222c7b",
    "other files": "9ada0792d9f0fb9e",
}
COUNT = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noted(Source):
    """Pictures with features of several kinds."""

    options: Any

    @property
    def features(self) -> tuple[Feature, ...]:
        return (
            Feature("box", "float", "float32", (4,)),
            Feature("points", "int64", "int64", (None,)),
            Feature("matrix", "float", "float32", (2, 2)),
            Feature("words", "bytes", "string", (2,), encoding="utf8"),
            Feature("text", "bytes", "string", encoding="utf8"),
            Feature("number", "int64", "int64"),
            Feature("share", "float", "float32"),
        )

    def parts(self) -> list[str]:
        return [self.options.input]

    def units(self, part: str, ignored: list[str]) -> Iterator[Any]:
        del ignored
        return folder_ranges(part, deep=True)

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored, reject
        for number, (entry, below) in enumerate(files_below(unit, skip=lambda _: False)):
            features = {
                "box": np.array([0, 0.1, 0.5, number], np.float32),
                "points": list(range(number)),
                "matrix": [[1, 2], (3, 4.5)],
                "words": ["é", below],
                "text": f"Größe {number % 2}",
                "number": np.int64(number),
                "share": number / 3,
            }
            yield make_reference(self.options, below, path=entry.path, size=entry.size, features=features)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    rows = [{"text": f"é {n}", "n": n, "f": n / 4} for n in range(COUNT)]
    records = [encode_example({"image": one_pixel_png(n), "name": f"n{n}".encode(), "x": n}) for n in range(COUNT)]
    write_files(
        folder,
        {
            **{f"imagenet/train/n{n % 3:08d}/n{n % 3:08d}_{n}.JPEG": one_pixel_png(n) for n in range(COUNT)},
            **{f"pictures/{n}.png": one_pixel_png(n) for n in range(COUNT)},
            "list.csv": b"path,label,note,n,f\n"
            + "".join(f"pictures/{n}.png,c{n % 2},ü{n},{n},{n / 7}\n" for n in range(COUNT)).encode(),
            "rows.jsonl": "\n".join(map(json.dumps, rows)).encode(),
            "rows.csv": b"text,n\n" + "".join(f'"é, {n}",{n}\n' for n in range(COUNT)).encode(),
            **{f"texts/{n}.txt": f"text {n}\nof two lines".encode() for n in range(COUNT)},
            "lines.txt": "".join(f"line {n}\n" for n in range(COUNT)).encode(),
        },
    )
    frames = list(map(add_frame, records))
    write_files(folder, {f"stored/x-{number}.tfrecord": b"".join(frames[number::2]) for number in range(2)})
    return folder


def write_examples(output: Path, *, keyed: bool) -> None:
    examples = [{"x": n % 5, "name": f"é{n}", "values": np.arange(3, dtype=np.float32) * n} for n in range(COUNT)]
    elements: list[Any] = [(f"k{n}", example) for n, example in enumerate(examples)] if keyed else examples
    with beam.Pipeline() as pipeline:
        pipeline | beam.Create(elements) | WriteTFRecordShards(str(output), num_shards=2)  # type: ignore[unused-ignore]


def convert(name: str, output: Path) -> None:
    flags = ["--output", str(output)]
    if name == "imagenet":
        assert images.run(["--input=imagenet", "--source=imagenet", "--num-shards=2", *flags]) == 0
    elif name == "plug-in":
        assert images.run(["--input=pictures", "--source=noted", "--num-shards=2", *flags]) == 0
    elif name == "list":
        assert images.run(["--input=list.csv", "--num-shards=2", *flags]) == 0
    elif name == "jsonl":
        fields = ["--field=text", "--field=n:int", "--field=f:float"]
        assert text.run(["--input=rows.jsonl", *fields, "--num-shards=2", *flags]) == 0
    elif name == "csv":
        assert text.run(["--input=rows.csv", "--field=text", "--field=n:int", "--no-shuffle", *flags]) == 0
    elif name == "files":
        assert text.run(["--input=texts", "--form=files", "--num-shards=2", *flags]) == 0
    elif name == "lines":
        assert text.run(["--input=lines.txt", "--tokenizer=bytes", "--sequence-length=16", *flags]) == 0
    elif name in ("examples", "keyed examples"):
        write_examples(output, keyed=name == "keyed examples")
    elif name == "reshard":
        whole = ["--input=list.csv", "--num-shards=3", "--output=whole"]
        assert images.run(whole) == 0
        assert reshard.run(["whole", "--num-shards=2", "--split=a=0.6,b=0.4", *flags]) == 0
    else:
        assert reshard.run(["stored/*", "--num-shards=2", *flags]) == 0


@pytest.mark.parametrize("name", GOLDEN)
def test_datasets_keep_the_bytes_of_earlier_versions(
    name: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The manifest has the paths of the input.
    monkeypatch.chdir(inputs)
    point = importlib.metadata.EntryPoint("noted", f"{__name__}:Noted", "tpudata.sources")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == "tpudata.sources" else [])
    convert(name, tmp_path / "out")
    assert dataset_digest(tmp_path / "out") == GOLDEN[name]
