"""Records of text in each layout: every token once, and rejections by name."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.beam_jobs.outcomes import convert_texts
from tests.beam_jobs.plugins import install
from tests.beam_jobs.texts import records
from tpudata.errors import FeatureError, UsageError
from tpudata.format import Feature, encode_example, open_dataset
from tpudata.tokenizers import ByteTokenizer, CharTokenizer, Ids, TokenizerIdentity
from tpudata.tokenizers.open_tokenizer import FileUse, TokenizerKind

TEXTS = ["One.", "", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.", "三", "x" * 40]
TOKENS: dict[str, Any] = {"tokenizer": "bytes", "shuffle": False}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    return path


def test_stores_fields_of_every_kind_next_to_text_or_tokens(tmp_path: Path) -> None:
    data = b'{"text": "a", "name": "b", "n": -1, "x": 0.5}\n{"text": "", "name": "", "n": 7, "x": 2}\n'
    for tokenizer in (None, "bytes"):
        texts = convert_texts(
            tmp_path / f"{tokenizer}",
            {"a.jsonl": data},
            fields=["text", "name:str", "n:int", "x:float"],
            tokenizer=tokenizer,
        )
        assert [texts.of("a.jsonl", name) for name in ("n", "x", "name")] == [[-1, 7], [0.5, 2.0], ["b", ""]]
        assert texts.manifest.counts["documents"] == 2
        if tokenizer is None:
            assert texts.of("a.jsonl") == ["a", ""]
            assert Feature("text", "bytes", "string", encoding="utf8") in texts.manifest.features
        else:
            assert texts.of("a.jsonl", "input_ids") == [97, []]
            assert texts.manifest.split("train").decoded_bytes >= 4


@pytest.mark.parametrize(("end_documents", "int64_lists"), [(True, False), (False, True)])
def test_decodes_a_stream_to_the_original_texts(
    end_documents: bool, int64_lists: bool, rows: Path, tmp_path: Path
) -> None:
    options = TOKENS | {"sequence_length": 16, "end_documents": end_documents, "int64_lists": int64_lists}
    manifest = tpudata.convert_text(rows, tmp_path / "out", num_shards=1, **options)
    kind = (
        Feature("input_ids", "int64", "int64", (16,))
        if int64_lists
        else Feature("input_ids", "bytes", "int32", (16,), "raw")
    )
    assert (manifest.layout, manifest.features) == ("sequences", (kind,))
    found = [record["input_ids"] for record in records(tmp_path / "out")]
    assert {len(row) for row in found} == {16}
    tokens = [*itertools.chain.from_iterable(found)]
    ends = len(TEXTS) * end_documents
    assert ByteTokenizer().decode(tokens) == "".join(TEXTS)
    assert tokens.count(256) == ends
    counts = manifest.counts
    assert counts["tokens"] == len("".join(TEXTS).encode()) + ends
    assert tokens[counts["tokens"] :] == [257] * counts.get("padding", 0)
    assert counts["documents"] == len(TEXTS)


@pytest.mark.parametrize(("long_documents", "int64_lists"), [("split", False), ("cut", True)])
def test_packs_every_token_of_each_document_once(
    long_documents: str, int64_lists: bool, rows: Path, tmp_path: Path
) -> None:
    options = TOKENS | {"sequence_length": 48, "pack": True, "long_documents": long_documents}
    manifest = tpudata.convert_text(rows, tmp_path / "out", num_shards=1, int64_lists=int64_lists, **options)
    assert manifest.layout == "packed"
    assert [feature.name for feature in manifest.features] == ["input_ids", "segment_ids", "positions"]
    assert {feature.kind for feature in manifest.features} == {"int64" if int64_lists else "bytes"}
    found, count = [], 0
    for record in records(tmp_path / "out"):
        ids, numbers, positions = (np.array(record[name]) for name in ("input_ids", "segment_ids", "positions"))
        assert len(ids) == len(numbers) == len(positions) == 48
        count += 1
        for number in range(1, numbers.max() + 1):
            assert positions[numbers == number].tolist() == list(range((numbers == number).sum()))
            found.append(ids[numbers == number].tolist())
    wanted = [[*text.encode(), 256] for text in TEXTS]
    pieces = [piece for ids in wanted for piece in (ids[:48], ids[48:])[: 1 if long_documents == "cut" else 2] if piece]
    assert sorted(found) == sorted(pieces)
    counts = manifest.counts
    assert counts.get("dropped", 0) == sum(map(len, wanted)) - counts["tokens"]
    assert counts["tokens"] + counts["padding"] == 48 * count


def test_rejects_documents_that_cannot_be_encoded_by_their_places(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes(CharTokenizer("ab").file_bytes)
    files = {"a.txt": b"ab\na\xff\n" + "é\nba\n".encode()}
    texts = convert_texts(tmp_path / "chars", files, tokenizer=f"chars:{tmp_path}/vocab.json")
    assert texts.of("a.txt", "input_ids") == [[0, 1], [1, 0]]
    assert texts.manifest.counts["documents"] == 2
    assert texts.rejects["a.txt", 4].startswith("not UTF-8: byte 0xff.")
    assert "U+00E9" in texts.rejects["a.txt", 6]


@pytest.mark.parametrize("length", [None, 4])
def test_rejects_documents_that_are_utf8_only_together(length: int | None, tmp_path: Path) -> None:
    files = {"a.txt": b"ab\nc\xc3\n\xa9d\n" + "é\n".encode()}
    keeps_key = {"keep_key": length is None}
    if length is not None:
        (tmp_path / "in.txt").write_bytes(files["a.txt"])
        options = TOKENS | {"on_bad_record": "skip", "max_bad_records": 2, "sequence_length": length}
        manifest = tpudata.convert_text(tmp_path / "in.txt", tmp_path / "out", **options)
        assert manifest.rejected == {"not UTF-8": 2}
        tokens = [token for record in records(tmp_path / "out") for token in record["input_ids"]]
        assert bytes(token for token in tokens if token < 256) == "abé".encode()
        return
    texts = convert_texts(tmp_path, files, tokenizer="bytes", **keeps_key)
    assert {place for _, place in texts.rejects} == {4, 6}
    assert texts.of("a.txt", "input_ids") == [[97, 98], [*"é".encode()]]


class Broken:
    """A tokenizer whose ids are beyond its vocabulary, or without an end of documents."""

    unknown_id = None
    file_bytes = b""

    def __init__(self, *_: Any) -> None:
        self.identity = TokenizerIdentity("broken", 258, None, 257)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.full(len(text), 300, np.int32) for text in texts]

    def encode_utf8(self, data: bytes) -> Ids:
        return np.full(len(data), 300, np.int32)

    def decode(self, ids: Any) -> str:
        return "x" * len([*ids])


def test_rejects_tokenizers_with_unknown_ids_or_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "tpudata.tokenizers", broken=TokenizerKind(FileUse.NONE, Broken))
    (tmp_path / "in.txt").write_text("a\n")
    where = (tmp_path / "in.txt", tmp_path / "out")
    with pytest.raises(FeatureError, match="id 300 is not in the vocabulary of broken, which has 258 ids"):
        tpudata.convert_text(*where, tokenizer="broken")
    words = r"no end of document, or several candidates\. Pass one of its tokens with eos"
    with pytest.raises(UsageError, match=words):
        tpudata.convert_text(*where, tokenizer="broken", sequence_length=8)
    # Without ends of documents nothing is missing.
    with pytest.raises(FeatureError, match="id 300"):
        tpudata.convert_text(*where, tokenizer="broken", sequence_length=8, end_documents=False, resume=True)


EDGES = [0, *(edge for bits in range(7, 63, 7) for edge in (2**bits - 1, 2**bits)), 2**63 - 1, -1, -(2**63)]


def test_writes_lists_of_integers_that_tensorflow_parses(tmp_path: Path) -> None:
    mixer = random.Random(0)
    # Lists of any length, and one longer than the blocks that are encoded at once.
    lists = [mixer.choices(EDGES, k=mixer.randrange(20)) for _ in range(500)]
    lists[100:100] = [[], [5], mixer.choices(range(1 << 20), k=100_000), [], EDGES]
    rows = [{"text": f"text {n}", "ids": ids, "n": mixer.choice(EDGES), "x": n / 2} for n, ids in enumerate(lists)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fields = ["text", "ids:ints", "n:int", "x:float"]
    manifest = tpudata.convert_text(tmp_path / "in.jsonl", tmp_path / "out", fields=fields, **TOKENS)
    paths = [str(tmp_path / "out" / shard.name) for shard in manifest.split("train").shards]
    for row, record in zip(rows, tf.data.TFRecordDataset(paths).as_numpy_iterator(), strict=True):
        feature = tf.train.Example.FromString(record).features.feature
        assert list(feature["ids"].int64_list.value) == row["ids"]
        assert list(feature["input_ids"].int64_list.value) == list(str(row["text"]).encode())
        assert (feature["n"].int64_list.value[0], feature["x"].float_list.value[0]) == (row["n"], row["x"])
        ids = np.frombuffer(str(row["text"]).encode(), np.uint8).astype(np.int64)
        values = {"ids": np.array(row["ids"], np.int64), "input_ids": ids, "n": row["n"], "x": row["x"]}
        assert record == encode_example(values)


def test_writes_rows_of_tokens_as_tensorflow_does(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{'word ' * (n % 90)}{n}\n" for n in range(600)))
    manifest = tpudata.convert_text(tmp_path / "in.txt", tmp_path / "out", sequence_length=31, pack=True, **TOKENS)
    paths = [str(tmp_path / "out" / shard.name) for shard in manifest.split("train").shards]
    for record in tf.data.TFRecordDataset(paths).as_numpy_iterator():
        example = tf.train.Example.FromString(record)
        assert record == example.SerializeToString(deterministic=True)
    assert len([*open_dataset(str(tmp_path / "out")).examples("train")]) == manifest.records
