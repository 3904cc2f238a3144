"""Records of text, in each layout: read back with TensorFlow, and whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.text_files.document_form import PLAIN_TEXT, RowForm
from beam_jobs.text_files.fields import TextField
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_records.records import Block, TextRecords
from beam_jobs.text_records.schema import text_features, text_layout
from beam_jobs.text_records.summary import TextSummary
from tpudata.errors import BadRecordError, FeatureError, UsageError
from tpudata.format import Feature
from tpudata.tokenizers import (
    ByteTokenizer,
    CharacterSet,
    CharTokenizer,
    Ids,
    Tokenizer,
    TokenizerIdentity,
    TokenizerSpec,
)

BYTES = TokenizerSpec("bytes")
TEXTS = ["One.", "", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.", "三", "x" * 40]
ROW_FIELDS = (TextField("source"), TextField("target"), TextField("n", "int"))


def blocks_of(data: Sequence[bytes], form: RowForm = PLAIN_TEXT, size: int = 3, **said: Any) -> list[Block]:
    """Documents as a worker reads them, `size` at a time."""
    references = [
        Reference(f"a.txt:{n}", "train", (), "in/a.txt", 100 * n, len(some), form, **said)
        for n, some in enumerate(data)
    ]
    return [
        block_of(references[start : start + size], data[start : start + size]) for start in range(0, len(data), size)
    ]


def block_of(references: Sequence[Reference], data: Sequence[bytes]) -> Block:
    return Pack.of(references, np.zeros(len(references), np.uint64)), b"".join(data)


def convert(
    blocks: Sequence[Block], options: TextOptions, tokenizer: Tokenizer | None = None
) -> tuple[list[bytes], TextSummary, list[BadRecordError]]:
    errors: list[BadRecordError] = []
    summary = TextSummary()
    converter = TextRecords(options, tokenizer.identity if tokenizer else None)
    records = list(converter.records(blocks, tokenizer, summary, lambda _, error: errors.append(error)))
    for record in records:
        # What the schema says is what is there.
        found = tf.train.Example.FromString(record).features.feature
        assert sorted(found) == sorted(feature.name for feature in text_features(options))
    return records, summary, errors


def ints(record: bytes, name: str) -> list[int]:
    feature = tf.train.Example.FromString(record).features.feature[name]
    if feature.HasField("bytes_list"):
        (data,) = feature.bytes_list.value
        return [int(value) for value in tf.io.decode_raw(data, tf.int32).numpy()]
    return list(feature.int64_list.value)


def encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def test_text_is_stored_as_it_is() -> None:
    records, summary, _ = convert(blocks_of(encoded(TEXTS)), TextOptions())
    features = [tf.train.Example.FromString(record).features.feature for record in records]
    assert [one["text"].bytes_list.value[0].decode() for one in features] == TEXTS
    assert (summary.documents, summary.tokens, summary.real_share) == (5, 0, 1)
    assert text_features(TextOptions()) == (Feature("text", "bytes", "string", encoding="utf8"),)


def test_stores_fields_of_every_kind() -> None:
    fields = (TextField("text"), TextField("name", "str"), TextField("n", "int"), TextField("x", "float"))
    rows = [b'{"text": "a", "name": "b", "n": -1, "x": 0.5}', b'{"text": "c", "name": "", "n": 7, "x": 2}']
    for tokenizer in (None, ByteTokenizer()):
        options = TextOptions(fields=fields, tokenizer=BYTES if tokenizer else None)
        records, _, _ = convert(blocks_of(rows, RowForm("json")), options, tokenizer)
        one, two = (tf.train.Example.FromString(record).features.feature for record in records)
        assert (one["n"].int64_list.value[0], two["n"].int64_list.value[0]) == (-1, 7)
        assert (one["x"].float_list.value[0], two["x"].float_list.value[0]) == (0.5, 2.0)
        assert (one["name"].bytes_list.value[0], two["name"].bytes_list.value[0]) == (b"b", b"")
        if tokenizer:
            assert (ints(records[0], "input_ids"), ints(records[1], "input_ids")) == ([97], [99])


def test_stores_tokens_of_several_fields() -> None:
    rows = [b'{"source": "ab", "target": "", "n": 1}', b'{"source": "", "target": "cde", "n": 2}']
    options = TextOptions(fields=ROW_FIELDS, tokenizer=BYTES)
    records, summary, _ = convert(blocks_of(rows, RowForm("json")), options, ByteTokenizer())
    assert [ints(record, "source_ids") for record in records] == [[97, 98], []]
    assert [ints(record, "target_ids") for record in records] == [[], [99, 100, 101]]
    assert [ints(record, "n") for record in records] == [[1], [2]]
    assert (summary.documents, summary.tokens, summary.decoded_bytes) == (2, 5, 4 * (5 + 2))


@pytest.mark.parametrize("end_documents", [True, False])
def test_a_stream_comes_back_whole(end_documents: bool) -> None:
    options = TextOptions(tokenizer=BYTES, sequence_length=16, end_documents=end_documents)
    records, summary, _ = convert(blocks_of(encoded(TEXTS)), options, ByteTokenizer())
    rows = [ints(record, "input_ids") for record in records]
    assert {len(row) for row in rows} == {16}
    tokens = [token for row in rows for token in row]
    assert ByteTokenizer().decode(tokens) == "".join(TEXTS)
    ends = len(TEXTS) * end_documents
    assert tokens.count(256) == ends
    assert tokens[summary.tokens :] == [257] * summary.padding
    assert summary.tokens == len("".join(TEXTS).encode()) + ends
    assert summary.documents == len(TEXTS)


@pytest.mark.parametrize("long_documents", ["split", "cut"])
def test_packed_documents_come_back_whole(long_documents: str) -> None:
    options = TextOptions(tokenizer=BYTES, sequence_length=48, pack=True, long_documents=long_documents)
    records, summary, _ = convert(blocks_of(encoded(TEXTS)), options, ByteTokenizer())
    found = []
    for record in records:
        ids, numbers, positions = (np.array(ints(record, name)) for name in ("input_ids", "segment_ids", "positions"))
        assert len(ids) == len(numbers) == len(positions) == 48
        for number in range(1, numbers.max() + 1):
            assert positions[numbers == number].tolist() == list(range((numbers == number).sum()))
            found.append(ids[numbers == number].tolist())
    wanted = [[*text.encode(), 256] for text in TEXTS]
    pieces = [piece for ids in wanted for piece in (ids[:48], ids[48:])[: 1 if long_documents == "cut" else 2] if piece]
    assert sorted(found) == sorted(pieces)
    assert summary.dropped == sum(map(len, wanted)) - summary.tokens
    assert summary.tokens + summary.padding == 48 * len(records)


def test_a_whole_text_comes_back_from_its_characters() -> None:
    text = "\n\n".join(f"Citizen {n}:\nSpeak, {'speak ' * (n % 7)}é!" for n in range(500))
    seen = CharacterSet()
    seen.add(text)
    tokenizer = CharTokenizer(seen.characters)
    options = TextOptions(form="files", tokenizer=TokenizerSpec("chars"), sequence_length=100)
    reference = Reference("a.txt", "train", (), "a.txt", WHOLE_FILE, len(text.encode()), RowForm("file"))
    records, summary, _ = convert([block_of([reference], [text.encode()])], options, tokenizer)
    assert "".join(tokenizer.decode(ints(record, "input_ids")) for record in records) == text
    assert (summary.documents, summary.tokens) == (1, len(text) + 1)


def test_the_same_documents_give_the_same_records() -> None:
    random = np.random.default_rng(0)
    texts = ["x" * int(size) for size in random.integers(0, 90, 3000)]
    options = TextOptions(tokenizer=BYTES, sequence_length=64, pack=True)
    one, counted, _ = convert(blocks_of(encoded(texts), size=3000), options, ByteTokenizer())
    # How many documents are tokenized at once does not matter.
    two, again, _ = convert(blocks_of(encoded(texts), size=7), options, ByteTokenizer())
    assert one == two
    assert counted == again
    assert counted.real_share > 0.98


def test_rejected_documents_are_left_out_and_named() -> None:
    data = [b"ab", b"a\xff", "é".encode(), b"ba"]
    options = TextOptions(tokenizer=TokenizerSpec("chars"))
    records, summary, errors = convert(blocks_of(data), options, CharTokenizer("ab"))
    assert [ints(record, "input_ids") for record in records] == [[0, 1], [1, 0]]
    assert summary.documents == 2
    assert [(error.source, error.offset) for error in errors] == [("in/a.txt", 101), ("in/a.txt", 200)]
    assert "not UTF-8: byte 0xff" in str(errors[0])
    assert "U+00E9" in str(errors[1])
    # Of a compressed file, the place in it is the key's.
    _, _, errors = convert(blocks_of(data[1:2], spool="out/.spool"), options, CharTokenizer("ab"))
    assert str(errors[0]).startswith("a.txt:0 in in/a.txt: rejected: not UTF-8: byte 0xff.")
    assert str(errors[0]).endswith("(byte 1 of the document)")


def test_documents_that_are_utf8_only_together_are_rejected() -> None:
    data = [b"ab", b"c\xc3", b"\xa9d", "é".encode()]
    for length in (None, 4):
        options = TextOptions(tokenizer=BYTES, sequence_length=length)
        records, summary, errors = convert(blocks_of(data, size=4), options, ByteTokenizer())
        assert summary.documents == 2
        assert [error.offset for error in errors] == [101, 200]
        tokens = [token for record in records for token in ints(record, "input_ids") if token < 256]
        assert bytes(tokens) == "abé".encode()


def test_rejecting_may_raise() -> None:
    def reject(_: Reference, error: BadRecordError) -> None:
        raise error

    converter = TextRecords(TextOptions())
    with pytest.raises(BadRecordError, match=r"in/a\.txt at byte 0: rejected: not UTF-8"):
        list(converter.records(blocks_of([b"\xff"]), None, TextSummary(), reject))


class Broken(ByteTokenizer):
    def encode_utf8(self, data: bytes) -> Ids:
        return np.full(len(data), 300, np.int32)


def test_rejects_tokenizers_that_do_not_fit() -> None:
    with pytest.raises(FeatureError, match="id 300 is not in the vocabulary of bytes, which has 258 ids"):
        convert(blocks_of([b"a"]), TextOptions(tokenizer=BYTES), Broken())
    converter = TextRecords(TextOptions(tokenizer=TokenizerSpec("chars")), CharTokenizer("ab").identity)
    with pytest.raises(UsageError, match="wrong tokenizer"):
        converter.records([], CharTokenizer("abc"), TextSummary(), print)
    with pytest.raises(UsageError, match="requires its identity"):
        TextRecords(TextOptions(), ByteTokenizer.identity)


def test_sequences_need_an_end_of_document() -> None:
    identity = TokenizerIdentity("hf", 10, None, 0)
    said: dict[str, Any] = {"tokenizer": TokenizerSpec("hf", "a.json"), "sequence_length": 8}
    with pytest.raises(
        UsageError, match=r"no end of document, or several candidates\. Pass one of its tokens with --eos"
    ):
        TextRecords(TextOptions(**said), identity)
    TextRecords(TextOptions(**said, end_documents=False), identity)


def test_options_decide_layout_and_schema() -> None:
    said: list[dict[str, Any]] = [{}, {"sequence_length": 8}, {"sequence_length": 8, "pack": True}]
    options = [TextOptions(tokenizer=BYTES, **some) for some in said]
    assert list(map(text_layout, options)) == ["tokens", "sequences", "packed"]
    assert [[feature.name for feature in text_features(some)] for some in options] == [
        ["input_ids"],
        ["input_ids"],
        ["input_ids", "segment_ids", "positions"],
    ]
    assert {(feature.dtype, feature.encoding, feature.shape) for feature in text_features(options[2])} == {
        ("int32", "raw", (8,))
    }
    assert text_features(options[0])[0] == Feature("input_ids", "int64", "int64", (None,))


@pytest.mark.parametrize("pack", [False, True])
def test_sequences_as_lists_hold_the_same_ids(pack: bool) -> None:
    found = []
    for int64_lists in (False, True):
        options = TextOptions(tokenizer=BYTES, sequence_length=16, pack=pack, int64_lists=int64_lists)
        records, _, _ = convert(blocks_of(encoded(TEXTS)), options, ByteTokenizer())
        assert {feature.kind for feature in text_features(options)} == {"int64" if int64_lists else "bytes"}
        found.append([ints(record, feature.name) for record in records for feature in text_features(options)])
    assert found[0] == found[1]


def test_memory_holds_a_window_and_not_a_shard() -> None:
    taken = 0

    def blocks() -> Iterator[Block]:
        nonlocal taken
        for n in range(0, 100_000, 10):
            taken += 10
            yield block_of(
                [Reference(f"a:{n + m}", "train", (), "a", n, 8, PLAIN_TEXT) for m in range(10)], [b"x" * 80]
            )

    for pack in (False, True):
        taken = 0
        options = TextOptions(tokenizer=BYTES, sequence_length=512, pack=pack)
        converter = TextRecords(options, ByteTokenizer.identity)
        records = converter.records(blocks(), ByteTokenizer(), TextSummary(), print)
        next(records)
        assert taken < (1 << 14) + 10
        # 56 documents of 9 tokens go into a packed sequence.
        assert len(list(records)) >= 100_000 * 9 // 512 - 1
        assert taken == 100_000
