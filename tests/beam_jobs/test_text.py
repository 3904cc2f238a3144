"""The text job from end to end, on real files: `python -m beam_jobs.text`."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pytest
import zstandard
from pyarrow import parquet

import tpudata
from beam_jobs import text
from tests.beam_jobs.pipelines import run_with_limits
from tests.beam_jobs.texts import (
    PLAY,
    SPEECHES,
    byte_pairs,
    convert,
    in_segments,
    records,
    sentencepiece_model,
    texts,
    tokens,
)
from tests.helpers.pictures import digests
from tests.helpers.stores import serve_gs
from tpudata.cli import main
from tpudata.errors import DatasetError, OutputError, SourceError, UsageError
from tpudata.format import open_dataset, verify
from tpudata.tokenizers import SentencePieceTokenizer, dataset_tokenizer


@pytest.fixture
def play(tmp_path: Path) -> Path:
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    return path


@pytest.mark.parametrize("shuffle", [True, False])
def test_stores_each_line_once(play: Path, tmp_path: Path, shuffle: bool) -> None:
    assert convert(play, tmp_path / "out", "--shard-size", "8kB", *([] if shuffle else ["--no-shuffle"])) == 0
    lines = [line for line in PLAY.split("\n") if line]
    found = texts(tmp_path / "out")
    assert (sorted(found), found == lines) == (sorted(lines), not shuffle)
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert (manifest.layout, manifest.labels, manifest.counts) == ("text", None, {"documents": len(lines)})
    sizes = [shard.bytes for shard in manifest.split("train").shards]
    assert len(sizes) > 5
    assert all(abs(size - 8000) < 1200 for size in sizes)
    with pytest.raises(DatasetError, match="without a tokenizer"):
        dataset_tokenizer(str(tmp_path / "out"))


@pytest.mark.parametrize(("form", "size"), [("lines", 37), ("paragraphs", 100)])
def test_parts_of_files_and_runs_of_documents_change_no_byte(play: Path, tmp_path: Path, form: str, size: int) -> None:
    flags = ["--form", form, "--num-shards", "5", "--tokenizer", "bytes"]
    convert(play, tmp_path / "whole", *flags)
    argv = [f"--input={play}", f"--output={tmp_path}/parts", *flags]
    run_with_limits(text, argv, range_bytes=size * 10, max_run_documents=size // 20, small_bytes=size)
    assert digests(tmp_path / "whole") == digests(tmp_path / "parts")


# In order, images are split alike: test_no_shuffle.py.
@pytest.mark.parametrize("order", ["--shuffle", pytest.param("--no-shuffle", marks=pytest.mark.matrix)])
def test_writes_the_same_bytes_on_1_and_2_workers(tmp_path: Path, order: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.txt").write_text(PLAY.replace("Citizen", f"Citizen {number} "))
    flags = ["--form", "paragraphs", "--tokenizer", "chars", "--sequence-length", "64", "--num-shards", "6"]
    for workers in "12":
        convert(source, tmp_path / workers, *flags, order, "--workers", workers)
    found = digests(tmp_path / "1")
    assert digests(tmp_path / "2") == found
    assert not [name for name in found if ".tpudata-" in name]


def test_decodes_a_stream_of_characters_to_the_original_text(play: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(play, out, "--form", "files", "--tokenizer", "chars", "--sequence-length", "100")
    tokenizer = dataset_tokenizer(str(out))
    assert json.loads((out / "vocab.json").read_bytes())["characters"] == sorted(set(PLAY))
    manifest = open_dataset(str(out)).manifest
    assert manifest.options["tokenizer"] == tokenizer.identity.to_json()
    assert manifest.counts["tokens"] == len(PLAY) + 1
    assert manifest.counts["tokens"] + manifest.counts["padding"] == 100 * manifest.records
    assert tokenizer.decode(tokens(out)) == PLAY
    # And through the reader, batch for batch, in evaluation's order.
    input_fn = tpudata.make_input_fn(str(out), "train", training=False)
    rows = []
    for features, labels in input_fn({"batch_size": 32}):
        assert (features["input_ids"].shape, labels.shape) == ((32, 100), (32, 100))
        ids, weights = features["input_ids"].numpy(), features["token_weights"].numpy()
        assert (labels.numpy()[:, :-1] == ids[:, 1:])[weights[:, :-1] > 0].all()
        rows.append(ids[features["weights"].numpy() > 0])
    assert tokenizer.decode(np.concatenate(rows).ravel()) == PLAY


@pytest.mark.parametrize("lists", [False, True])
def test_input_fn_feeds_packed_documents_whole(play: Path, tmp_path: Path, lists: bool) -> None:
    out = tmp_path / "out"
    flags = ["--form", "paragraphs", "--tokenizer", "bytes", "--sequence-length", "128", "--pack", "--num-shards", "3"]
    convert(play, out, *flags, *(["--int64-lists"] if lists else []))
    assert sorted(in_segments(out)) == sorted(SPEECHES)
    counts = open_dataset(str(out)).manifest.counts
    assert counts["tokens"] == sum(len(speech.encode()) + 1 for speech in SPEECHES)
    assert counts["documents"] == len(SPEECHES)
    fed: list[str] = []
    for features, _ in tpudata.make_input_fn(str(out), "train", training=False)({"batch_size": 16}):
        ids, segments = features["input_ids"].numpy(), features["segment_ids"].numpy()
        real = features["weights"].numpy() > 0
        for row, numbers in zip(ids[real], segments[real], strict=True):
            fed += [bytes(row[numbers == n][:-1].astype(np.uint8)).decode() for n in range(1, numbers.max() + 1)]
    assert sorted(fed) == sorted(SPEECHES)


def test_stores_the_tokens_of_each_document(play: Path, tmp_path: Path) -> None:
    convert(play, tmp_path / "out", "--form", "paragraphs", "--tokenizer", "bytes", "--shard-size", "9kB")
    assert dataset_tokenizer(str(tmp_path / "out")).identity.name == "bytes"
    found = sorted(bytes(record["input_ids"]).decode() for record in records(tmp_path / "out"))
    assert found == sorted(SPEECHES)
    sizes = [shard.bytes for shard in open_dataset(str(tmp_path / "out")).manifest.split("train").shards]
    assert all(abs(size - 9000) < 1350 for size in sizes)


def rows_of(path: Path, kind: str) -> None:
    """Writes each speech with its number, in some form."""
    rows = [{"n": number, "text": speech} for number, speech in enumerate(SPEECHES)]
    if kind.startswith("parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=50)
        return
    if kind.startswith("jsonl"):
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    else:
        with path.open("w", newline="") as file:
            if kind.startswith("csv"):
                writer = csv.DictWriter(file, ["n", "text"])
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.write("n\ttext\n" + "".join(f"{row['n']}\t{row['text']}\n".replace(":\n", ": ") for row in rows))
        data = path.read_bytes()
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "zst": zstandard.ZstdCompressor().compress,
    }
    packer = packers.get(kind.partition(".")[2])
    path.write_bytes(packer(data) if packer else data)


@pytest.mark.parametrize(
    "kind",
    [
        # tests/beam_jobs/contract converts each form by itself.
        *("jsonl.zst", "parquet"),
        *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("csv.bz2", "tsv.gz")),
    ],
)
def test_stores_each_row_of_compressed_and_parquet_files(tmp_path: Path, kind: str) -> None:
    rows_of(tmp_path / f"a.{kind}", kind)
    fields = ["--field", "text", "--field", "n:int"]
    convert(tmp_path / f"a.{kind}", tmp_path / "out", *fields, "--num-shards", "3")
    found = {record["n"][0]: record["text"][0].decode() for record in records(tmp_path / "out")}
    wanted = [speech.replace(":\n", ": ") if kind.startswith("tsv") else speech for speech in SPEECHES]
    assert found == dict(enumerate(wanted))


def test_compressing_the_input_changes_no_shard(play: Path, tmp_path: Path) -> None:
    packed = tmp_path / "play.txt.zst"
    packed.write_bytes(zstandard.ZstdCompressor().compress(PLAY.encode()))
    one, two = tmp_path / "one", tmp_path / "two"
    for source, out in ((play, one), (packed, two)):
        convert(source, out, "--num-shards", "4", "--split", "train=0.8,test=0.2")
    shards = sorted(path.name for path in one.glob("*.tfrecord"))
    assert [(one / name).read_bytes() for name in shards] == [(two / name).read_bytes() for name in shards]


def test_stores_whole_files_and_ignores_hidden_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in"
    (source / "more").mkdir(parents=True)
    (source / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n")
    (source / "more" / "b.txt").write_text("two")
    (source / "empty.txt").write_text("")
    (source / ".hidden").write_text("no")
    convert(source, tmp_path / "out", "--form", "files")
    assert sorted(texts(tmp_path / "out")) == ["one\r\n\n", "two"]
    assert "ignored     1 by its name" in capsys.readouterr().out
    convert(f"{source}/**/b*", tmp_path / "some", "--form", "files")
    assert texts(tmp_path / "some") == ["two"]


def test_omits_and_counts_duplicates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "b.txt").write_text(PLAY)
    (source / "a.txt").write_text(f"{PLAY}\n\nnew")
    flags = ["--form", "paragraphs", "--split", "train=0.5,test=0.5", "--shard-size", "4kB"]
    convert(source, tmp_path / "out", *flags, "--dedup")
    assert f"documents   {len(SPEECHES) + 1}; {len(SPEECHES)} duplicates omitted" in capsys.readouterr().out
    assert sorted(texts(tmp_path / "out")) == sorted([*SPEECHES, "new"])
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert manifest.counts == {"documents": len(SPEECHES) + 1, "duplicates": len(SPEECHES)}
    assert manifest.source.files == 2 * len(SPEECHES) + 1
    # The one that stays is that of the smallest name, in the split that it would have anyway.
    (source / "b.txt").unlink()
    convert(source, tmp_path / "one", *flags)
    both = [
        Counter(example["text"][0] for example in open_dataset(str(tmp_path / name)).examples("test"))
        for name in ("one", "out")
    ]
    assert both[0] == both[1]
    # Shards are planned without the duplicates.
    assert all(2500 < shard.bytes < 5500 for split in manifest.splits.values() for shard in split.shards)
    with pytest.raises(UsageError, match="--dedup and --append"):
        convert(source, tmp_path / "out", *flags, "--dedup", "--append")


@pytest.mark.parametrize("kind", ["sentencepiece", "hf"])
def test_keeps_the_file_of_a_tokenizer_and_rejects_another(play: Path, tmp_path: Path, kind: str) -> None:
    lines = PLAY.splitlines()
    if kind == "sentencepiece":
        data = sentencepiece_model(lines)
        (tmp_path / "t").write_bytes(data)
    else:
        (tmp_path / "t").write_bytes(data := byte_pairs(lines))
    out = tmp_path / "out"
    flags = ["--form", "paragraphs", "--tokenizer", f"{kind}:{tmp_path / 't'}", "--sequence-length", "32"]
    convert(play, out, *flags, "--no-shuffle")
    options = open_dataset(str(out)).manifest.options["tokenizer"]
    assert options["sha256"] == hashlib.sha256(data).hexdigest()
    assert (out / options["file"]).read_bytes() == data
    assert dataset_tokenizer(str(out)).identity.to_json() == options
    if kind == "sentencepiece":
        tokenizer = SentencePieceTokenizer(data, "t")
        wanted = [number for speech in SPEECHES for number in (*tokenizer.encode_batch([speech])[0], options["eos_id"])]
        assert tokens(out)[: len(wanted)] == wanted
    # Another tokenizer is another dataset, and a changed file is found.
    (tmp_path / "t").write_bytes(data + b" \n" if kind == "hf" else sentencepiece_model(lines[:50]))
    with pytest.raises(OutputError, match="was made with tokenizer ="):
        convert(play, out, *flags, "--no-shuffle", "--resume")
    (out / options["file"]).write_bytes(b"")
    with pytest.raises(SourceError, match=r"is another|is no"):
        dataset_tokenizer(str(out))
    assert [defect.reason for defect in verify(str(out))] == [
        "the SHA-256 of the tokenizer's file differs from the manifest's"
    ]


@pytest.mark.parametrize("tokenizer", [pytest.param("", marks=pytest.mark.matrix), "chars"])
def test_resume_ends_with_the_same_bytes(play: Path, tmp_path: Path, tokenizer: str) -> None:
    flags = ["--num-shards", "6"]
    flags += ["--tokenizer", tokenizer, "--sequence-length", "32", "--pack"] if tokenizer else []
    convert(play, tmp_path / "whole", *flags)
    wanted = digests(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for name in ("manifest.json", "train-00002-of-00006.tfrecord", "index/train-00004-of-00006.index"):
        (tmp_path / "killed" / name).unlink()
    kept = (tmp_path / "killed" / "train-00000-of-00006.tfrecord").stat().st_mtime_ns
    convert(play, tmp_path / "killed", *flags, "--resume")
    assert digests(tmp_path / "killed") == wanted
    assert (tmp_path / "killed" / "train-00000-of-00006.tfrecord").stat().st_mtime_ns == kept
    # A complete one is left unchanged if nothing else was asked for.
    convert(play, tmp_path / "killed", *flags, "--resume")
    assert digests(tmp_path / "killed") == wanted
    with pytest.raises(OutputError, match="holds a complete dataset"):
        convert(play, tmp_path / "killed", *flags, "--form", "paragraphs", "--resume")
    convert(play, tmp_path / "killed", "--overwrite")
    assert not (tmp_path / "killed" / "vocab.json").exists()


def test_takes_splits_from_names_of_files_and_folders(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "test").mkdir(parents=True)
    (source / "train-00000.txt").write_text("a\nb\n")
    (source / "train-00001.txt").write_text("c\n")
    (source / "test" / "x.txt").write_text("d\n")
    convert(source, tmp_path / "out")
    dataset = open_dataset(str(tmp_path / "out"))
    found = {name: sorted(example["text"][0] for example in dataset.examples(name)) for name in dataset.manifest.splits}
    assert found == {"test": [b"d"], "train": [b"a", b"b", b"c"]}
    with pytest.raises(UsageError, match="has splits already"):
        convert(source, tmp_path / "other", "--split", "train=0.5,test=0.5")
    (source / "README.md").write_text("read me")
    with pytest.raises(SourceError, match=r"next to README\.md, which does not"):
        convert(source, tmp_path / "other")
    # If only one kind of name looks like a split, it is not taken for one.
    (source / "README.md").rename(source / "b.txt")
    shutil.rmtree(source / "test")
    convert(source, tmp_path / "other", "--split", "train=0.5,test=0.5", "--seed", "3")
    assert sorted(texts(tmp_path / "other")) == ["a", "b", "c", "read me"]


def test_a_plan_writes_nothing(play: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--form", "paragraphs", "--tokenizer", "chars", "--sequence-length", "32", "--shard-size", "5kB"]
    assert convert(play, tmp_path / "out", *flags, "--dry-run") == 0
    head, names, row = capsys.readouterr().out.splitlines()
    assert head.startswith("400 documents, ")
    assert names.split() == ["split", "documents", "shards", "bytes", "about", "each"]
    assert not (tmp_path / "out").exists()
    convert(play, tmp_path / "out", *flags)
    assert len(list((tmp_path / "out").glob("*.tfrecord"))) == int(row.split()[2])


def test_the_command_converts_and_inspect_counts_documents(
    play: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "text", "--input", str(play), "--output", str(tmp_path / "out"), "--form=paragraphs"]) == 0
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "documents 400" in " ".join(capsys.readouterr().out.split())
    assert main(["convert", "text", "--help"]) == 0
    assert "--sequence-length" in capsys.readouterr().out


def test_writes_the_same_bytes_to_gs_as_to_disk(play: Path, tmp_path: Path) -> None:
    flags = ["--form", "paragraphs", "--tokenizer", "chars", "--sequence-length", "64", "--pack", "--num-shards", "4"]
    limits = {"range_bytes": 1500, "small_bytes": 60}
    play.write_text("\n\n".join(SPEECHES[:60]))
    run_with_limits(text, [f"--input={play}", f"--output={tmp_path}/local", *flags, "--dedup"], **limits)
    with serve_gs(page=50) as server:
        server.put("b", "in/play.txt", play.read_bytes())
        run_with_limits(text, ["--input=gs://b/in/*.txt", "--output=gs://b/out", *flags, "--dedup"], **limits)
        there = {name: item.data for name, item in server.buckets["b"].items() if name.startswith("out/")}
    local = {
        f"out/{path.relative_to(tmp_path / 'local')}": path.read_bytes() for path in (tmp_path / "local").rglob("*.*")
    }
    assert there.keys() == local.keys()
    assert {name for name in local if local[name] != there[name]} == {"out/manifest.json"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokenizer", "byte"], "did you mean bytes"),
        (["--eos", "x"], "--eos requires --tokenizer"),
        (["--no-eos"], "--no-eos requires --sequence-length"),
        (["--tokenizer=bytes", "--sequence-length=8", "--no-eos", "--eos=<eos>"], "exclude each other"),
        (["--long-documents", "cut"], "--long-documents requires --pack"),
        (["--int64-lists"], "--int64-lists requires --sequence-length"),
        (["--replace-unknown"], "requires --tokenizer"),
        (["--tokenizer=bytes", "--sequence-length=0"], "whole number of 1 or more"),
        (["--field", "a", "--field", "b"], "have no fields"),
        (["--document-bytes", "2GiB"], "expected 1 to 1 GiB"),
        (["--label-offset", "1"], "unknown flag --label-offset"),
    ],
)
def test_rejects_invalid_and_conflicting_flags(play: Path, tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(play, tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()
