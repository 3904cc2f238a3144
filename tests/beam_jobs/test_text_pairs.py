"""Pairs of texts, through the whole job."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from beam_jobs.text import run
from tests.beam_jobs.texts import convert, records
from tpudata.errors import BadRecordError, CorruptionError, SourceError, UsageError
from tpudata.format import open_dataset

EOS, PAD = 256, 257
WMT = [(f"sentence {n}{' and more' * (n % 4)}", f"Satz {n}é{' und mehr' * (n % 5)}") for n in range(300)]
SIDES = ("--inputs=en", "--targets=de")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def wmt(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "wmt.jsonl", ({"en": en, "de": de} for en, de in WMT))


def text_of(ids: Iterable[Any]) -> str:
    return bytes(map(int, ids)).decode()


def packed_pairs(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of a row, once its segments, positions and weights are those of a plain loop."""
    pairs: list[tuple[str, str]] = []
    at = 0
    columns = [record[name] for name in ("input_ids", "loss_weights", "segment_ids", "positions")]
    ids, weights, segments, positions = columns
    while at < len(ids) and segments[at]:
        stop = at
        while stop < len(ids) and segments[stop] == len(pairs) + 1:
            stop += 1
        assert positions[at:stop] == list(range(stop - at))
        sides = weights[at:stop]
        first = sides.index(1)
        assert sides == [0] * first + [1] * (stop - at - first)
        assert ids[stop - 1] == EOS
        pairs.append((text_of(ids[at : at + first]), text_of(ids[at + first : stop - 1])))
        at = stop
    assert set(ids[at:]) <= {PAD}
    assert not any(weights[at:] + segments[at:] + positions[at:])
    return pairs


def test_stores_pairs_under_the_names_of_seqio(wmt: Path, tmp_path: Path) -> None:
    assert convert(wmt, tmp_path / "text", *SIDES) == 0
    assert convert(wmt, tmp_path / "tokens", *SIDES, "--tokenizer=bytes") == 0
    found = [(one["inputs"][0].decode(), one["targets"][0].decode()) for one in records(tmp_path / "text")]
    assert sorted(found) == sorted(WMT)
    found = [(text_of(one["inputs"]), text_of(one["targets"])) for one in records(tmp_path / "tokens")]
    assert sorted(found) == sorted(WMT)


def test_joins_several_inputs(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"instruction": "a", "input": "b", "output": "c", "id": 0},
        {"instruction": "a", "input": " ", "output": "c", "id": 1},
        {"instruction": "a", "output": "c", "id": 2},
        {"instruction": "a", "input": None, "output": "c", "id": 3},
    ]
    flags = ["--inputs=instruction,input", "--targets=output", "--no-shuffle"]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert convert(path, tmp_path / "text", *flags, "--field=id:int") == 0
    assert [(one["inputs"], one["targets"], one["id"]) for one in records(tmp_path / "text")] == [
        ([b"a\n\nb" if number == 0 else b"a"], [b"c"], [number]) for number in range(4)
    ]
    lengths = ["--tokenizer=bytes", "--inputs-length=8", "--targets-length=4", "--pack", "--long-documents=cut"]
    assert convert(path, tmp_path / "packed", *flags, *lengths) == 0
    write_rows(path, [{"instruction": "", "input": "", "output": "c"}])
    with pytest.raises(BadRecordError, match="one side of the pair is blank: field 'instruction', 'input'"):
        convert(path, tmp_path / "blank", *flags)


def test_reads_pairs_of_csv_and_parquet(wmt: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("de,id,en\n" + "".join(f"{de},{n},{en}\n" for n, (en, de) in enumerate(WMT)))
    table = pa.table({"de": [de for _, de in WMT], "en": [en for en, _ in WMT]})
    pq.write_table(table, tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        assert convert(tmp_path / name, tmp_path / f"{name}.out", *SIDES, "--no-shuffle") == 0
        found = [(one["inputs"][0].decode(), one["targets"][0].decode()) for one in records(tmp_path / f"{name}.out")]
        assert found == WMT


def test_stores_other_fields_next_to_pairs(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"q": "Who?", "a": "Me", "id": 7}])
    assert convert(source, tmp_path / "out", "--inputs=q", "--targets=a", "--field=id:int", "--tokenizer=bytes") == 0
    (record,) = records(tmp_path / "out")
    assert (text_of(record["inputs"]), text_of(record["targets"]), list(record["id"])) == ("Who?", "Me", [7])


def test_packs_whole_pairs_with_weights_of_the_targets(wmt: Path, tmp_path: Path) -> None:
    flags = [*SIDES, "--tokenizer=bytes", "--sequence-length=128", "--pack"]
    assert convert(wmt, tmp_path / "out", *flags) == 0
    rows = list(records(tmp_path / "out"))
    assert sorted(pair for row in rows for pair in packed_pairs(row)) == sorted(WMT)
    counts = open_dataset(str(tmp_path / "out")).manifest.counts
    assert counts["tokens"] == sum(len((en + de).encode()) + 1 for en, de in WMT)
    assert convert(wmt, tmp_path / "lists", *flags, "--int64-lists") == 0
    assert [{name: list(values) for name, values in row.items()} for row in records(tmp_path / "lists")] == rows


def test_a_stream_of_pairs_has_weights_of_the_targets(wmt: Path, tmp_path: Path) -> None:
    flags = [*SIDES, "--tokenizer=bytes", "--sequence-length=100", "--no-shuffle", "--num-shards=1"]
    assert convert(wmt, tmp_path / "out", *flags) == 0
    assert convert(wmt, tmp_path / "all", *flags, "--train-on-inputs") == 0
    rows, trained = list(records(tmp_path / "out")), list(records(tmp_path / "all"))
    ids = [number for row in rows for number in row["input_ids"]]
    weights = [number for row in rows for number in row["loss_weights"]]
    expected = [(byte, 0) if side == 0 else (byte, 1) for pair in WMT for side in (0, 1) for byte in _bytes(pair, side)]
    expected += [(PAD, 0)] * (len(ids) - len(expected))
    assert list(zip(ids, weights, strict=True)) == expected
    assert [row["input_ids"] for row in trained] == [row["input_ids"] for row in rows]
    assert [number for row in trained for number in row["loss_weights"]] == [int(one != PAD) for one in ids]


def _bytes(pair: tuple[str, str], side: int) -> list[int]:
    return [*pair[side].encode(), *([EOS] if side else [])]


def test_cuts_or_rejects_long_pairs(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"en": "ab", "de": "cd"}, {"en": "abcd", "de": "efgh"}])
    flags = [*SIDES, "--tokenizer=bytes", "--sequence-length=6", "--pack"]
    assert convert(source, tmp_path / "cut", *flags, "--long-documents=cut") == 0
    assert sorted(row["input_ids"] for row in records(tmp_path / "cut")) == [
        [*b"abcdef"],
        [*b"abcd", EOS, PAD],
    ]
    with pytest.raises(BadRecordError, match=r"longer than --sequence-length \(got 9 tokens, expected at most 6\)"):
        convert(source, tmp_path / "rejected", *flags, "--long-documents=reject")
    skip = ["--on-bad-record=skip", "--max-bad-records=1", "--resume"]
    assert convert(source, tmp_path / "rejected", *flags, "--long-documents=reject", *skip) == 0
    assert [row["input_ids"] for row in records(tmp_path / "rejected")] == [[*b"abcd", EOS, PAD]]


def test_rejects_long_plain_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc\nabcdefgh\n")
    flags = ["--tokenizer=bytes", "--sequence-length=6", "--pack", "--long-documents=reject"]
    assert convert(tmp_path / "a.txt", tmp_path / "out", *flags, "--on-bad-record=skip", "--max-bad-records=1") == 0
    assert [row["input_ids"] for row in records(tmp_path / "out")] == [[*b"abc", EOS, PAD, PAD]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"en": "a"}, "no field 'de'"),
        ({"en": "a", "de": None}, "field 'de' has no value"),
        ({"en": " ", "de": "b"}, "one side of the pair is blank: field 'en'"),
        ({"en": "a", "de": 3}, "field 'de' is not a string"),
    ],
)
def test_rejects_pairs_with_a_missing_side(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"en": "x", "de": "y"}, row])
    with pytest.raises(BadRecordError, match=reason):
        convert(source, tmp_path / "out", *SIDES)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ("inputs", "targets")),
        (["--tokenizer=bytes"], ("inputs", "targets")),
        (["--chat=en,de"], ("messages",)),
    ],
)
def test_stores_classes_and_keys_of_pairs_and_chats(
    flags: list[str], names: tuple[str, ...], wmt: Path, tmp_path: Path
) -> None:
    rows = [{"en": en, "de": de, "by": f"person {n % 2}", "id": f"p{n}"} for n, (en, de) in enumerate(WMT)]
    source = write_rows(tmp_path / "labelled.jsonl", rows)
    sides = () if "messages" in names else SIDES
    labels = ("--label-field=by", "--key-field=id", "--keep-key")
    assert convert(wmt, tmp_path / "plain", *sides, *flags, "--no-shuffle") == 0
    assert convert(source, tmp_path / "out", *sides, *flags, *labels, "--no-shuffle") == 0
    plain, found = list(records(tmp_path / "plain")), list(records(tmp_path / "out"))
    assert [{name: row[name] for name in names} for row in found] == plain
    assert [(row["label"], row["key"]) for row in found] == [([n % 2], [f"p{n}".encode()]) for n in range(len(WMT))]
    assert (tmp_path / "out" / "labels.txt").read_text().split("\n")[:2] == ["person 0", "person 1"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--targets-file=b.de", "--label-field=by"], "--label-field by: documents of --targets-file have no fields"),
        ([*SIDES, "--tokenizer=bytes", "--sequence-length=9", "--keep-key"], "--sequence-length: a sequence joins"),
        (
            [*SIDES, "--tokenizer=bytes", "--inputs-length=9", "--targets-length=9", "--pack", "--label-field=by"],
            "--inputs-length: a sequence joins",
        ),
        (["--inputs=en"], "--inputs requires --targets"),
        (["--targets=en"], "--targets requires --inputs"),
        (["--inputs=en", "--targets=en"], "appears twice"),
        ([*SIDES, "--field=fr"], "--field fr"),
        ([*SIDES, "--form=lines"], "--inputs: documents of --form lines have no fields"),
        ([*SIDES, "--train-on-inputs"], "--train-on-inputs requires"),
        ([*SIDES, "--field=n:int", "--tokenizer=bytes", "--sequence-length=9"], "got n"),
    ],
)
def test_rejects_flags_that_do_not_fit_pairs(flags: list[str], words: str, wmt: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        convert(wmt, tmp_path / "out", *flags)


TWO_LENGTHS = (*SIDES, "--tokenizer=bytes", "--inputs-length=64", "--targets-length=96", "--pack")


def two_sided_pairs(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of a row of two parts, once their segments and positions are those of a plain loop."""
    sides = []
    for side in ("inputs", "targets"):
        ids, segments, positions = (record[f"{side}{end}"] for end in ("", "_segment_ids", "_positions"))
        count = max(segments)
        texts = []
        for number in range(1, count + 1):
            places = [at for at, segment in enumerate(segments) if segment == number]
            assert places == list(range(places[0], places[-1] + 1))
            assert [positions[at] for at in places] == list(range(len(places)))
            assert ids[places[-1]] == EOS
            texts.append(text_of(ids[at] for at in places[:-1]))
        real = sum(map(bool, segments))
        assert segments == sorted(segments[:real]) + [0] * (len(ids) - real)
        assert ids[real:] == [PAD] * (len(ids) - real)
        assert not any(positions[real:])
        sides.append(texts)
    return list(zip(*sides, strict=True))


def test_packs_both_sides_of_a_pair_into_one_row(wmt: Path, tmp_path: Path) -> None:
    assert convert(wmt, tmp_path / "out", *TWO_LENGTHS, "--long-documents=reject", "--num-shards=2") == 0
    rows = list(records(tmp_path / "out"))
    assert {(len(row["inputs"]), len(row["targets"])) for row in rows} == {(64, 96)}
    assert sorted(pair for row in rows for pair in two_sided_pairs(row)) == sorted(WMT)
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert manifest.layout == "packed_pairs"
    assert manifest.counts["tokens"] == sum(len((en + de).encode()) + 2 for en, de in WMT)
    assert manifest.counts["tokens"] / (len(rows) * 160) > 0.7


def test_cuts_or_rejects_long_sides(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"en": "ab", "de": "c"}, {"en": "abcd", "de": "efgh"}])
    flags = [*SIDES, "--tokenizer=bytes", "--inputs-length=3", "--targets-length=4", "--pack", "--int64-lists"]
    assert convert(source, tmp_path / "cut", *flags, "--long-documents=cut") == 0
    found = sorted((list(row["inputs"]), list(row["targets"])) for row in records(tmp_path / "cut"))
    assert found == [([*b"abc"], [*b"efgh"]), ([*b"ab", EOS], [*b"c", EOS, PAD, PAD])]
    with pytest.raises(BadRecordError, match=r"longer than --inputs-length \(got 5 tokens, expected at most 3\)"):
        convert(source, tmp_path / "rejected", *flags, "--long-documents=reject")
    with pytest.raises(UsageError, match="cannot be split"):
        convert(source, tmp_path / "split", *flags)


@pytest.fixture
def parallel(tmp_path: Path) -> Path:
    folder = tmp_path / "parallel"
    folder.mkdir()
    for number, pairs in enumerate((WMT[:200], WMT[200:])):
        (folder / f"part{number}.en").write_text("".join(f"{en}\n" for en, _ in pairs))
        data = "\r\n".join(de for _, de in pairs).encode()
        (folder / f"part{number}.de").write_bytes(gzip.compress(data) if number else b"\xef\xbb\xbf" + data)
    return folder


def test_reads_lines_of_parallel_files_as_pairs(parallel: Path, tmp_path: Path) -> None:
    flags = [f"--targets-file={parallel}/*.de", "--no-shuffle"]
    assert convert(f"{parallel}/*.en", tmp_path / "out", *flags) == 0
    assert [(one["inputs"][0].decode(), one["targets"][0].decode()) for one in records(tmp_path / "out")] == WMT
    packed = ["--tokenizer=bytes", "--sequence-length=128", "--pack", f"--targets-file={parallel}/part1.de"]
    assert convert(parallel / "part1.en", tmp_path / "packed", *packed) == 0
    assert sorted(pair for row in records(tmp_path / "packed") for pair in packed_pairs(row)) == sorted(WMT[200:])


def test_blank_lines_keep_parallel_files_aligned(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n\ntwo\n")
    (tmp_path / "a.de").write_text("eins\n \nzwei\n")
    flags = [f"--targets-file={tmp_path}/a.de", "--no-shuffle"]
    assert convert(tmp_path / "a.en", tmp_path / "out", *flags) == 0
    found = [(one["inputs"][0], one["targets"][0]) for one in records(tmp_path / "out")]
    assert found == [(b"one", b"eins"), (b"two", b"zwei")]
    (tmp_path / "a.de").write_text("eins\nleer\nzwei\n")
    with pytest.raises(BadRecordError, match="one side of the pair is blank: field 'inputs'"):
        convert(tmp_path / "a.en", tmp_path / "bad", *flags)


def test_names_the_byte_of_a_bad_character_after_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n")
    (tmp_path / "a.de").write_bytes(b"\xef\xbb\xbfa\xff\n")
    with pytest.raises(BadRecordError, match=r"not UTF-8: byte 0xff at byte 4 of .*a\.de"):
        convert(tmp_path / "a.en", tmp_path / "out", f"--targets-file={tmp_path}/a.de")


def test_appends_new_lines_of_parallel_files(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n")
    (tmp_path / "a.de").write_text("eins\n")
    flags = [f"--targets-file={tmp_path}/a.de", "--no-shuffle"]
    assert convert(tmp_path / "a.en", tmp_path / "out", *flags) == 0
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    assert convert(tmp_path / "a.en", tmp_path / "out", flags[0], "--append") == 0
    assert [one["targets"][0] for one in records(tmp_path / "out")] == [b"eins", b"zwei"]


def test_rejects_files_that_are_not_parallel(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\n")
    (tmp_path / "b.en").write_text("three\n")
    with pytest.raises(SourceError, match=r"a\.en and .*a\.de .*\(got 2 and 1\)"):
        convert(tmp_path / "a.en", tmp_path / "out", f"--targets-file={tmp_path}/a.de")
    with pytest.raises(SourceError, match=r"--targets-file .*no\.de: no such file"):
        convert(tmp_path / "a.en", tmp_path / "out", "--resume", f"--targets-file={tmp_path}/no.de")
    with pytest.raises(UsageError, match="one file for several inputs"):
        convert(f"{tmp_path}/*.en", tmp_path / "out", "--resume", f"--targets-file={tmp_path}/a.de")
    pq.write_table(pa.table({"inputs": ["one"], "targets": ["eins"]}), tmp_path / "c.parquet")
    with pytest.raises(UsageError, match=r"--targets-file is for lines, and .*c\.parquet is a Parquet file"):
        convert(tmp_path / "c.parquet", tmp_path / "out", "--resume", f"--targets-file={tmp_path}/a.de")
    with pytest.raises(UsageError, match="--targets-file and --inputs exclude each other"):
        convert(tmp_path / "a.en", tmp_path / "out", *SIDES, f"--targets-file={tmp_path}/a.de")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("eins\n".encode("utf-16"), "is UTF-16.* Save it as UTF-8"),
        (b"PK\x03\x04eins\n", "is a zip archive"),
        (b"eins\0\n", "is not text: byte 4 is zero"),
        (gzip.compress("eins\n".encode("utf-16"), mtime=0), "is UTF-16"),
    ],
)
def test_rejects_targets_that_are_not_text(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n")
    (tmp_path / "a.de").write_bytes(data)
    with pytest.raises(BadRecordError, match=rf"a\.en: rejected: .*a\.de {reason}"):
        convert(tmp_path / "a.en", tmp_path / "out", f"--targets-file={tmp_path}/a.de")


def test_skips_pairs_whose_compressed_targets_are_damaged(parallel: Path, tmp_path: Path) -> None:
    path = parallel / "part1.de"
    path.write_bytes(path.read_bytes()[:-20])
    flags = [f"--targets-file={parallel}/*.de", "--no-shuffle"]
    with pytest.raises(CorruptionError, match=r"part1\.de"):
        convert(f"{parallel}/*.en", tmp_path / "out", *flags)
    skip = ["--on-bad-record=skip", "--max-bad-records=1", "--resume"]
    assert convert(f"{parallel}/*.en", tmp_path / "out", *flags, *skip) == 0
    found = [(one["inputs"][0].decode(), one["targets"][0].decode()) for one in records(tmp_path / "out")]
    assert found == WMT[:200]
    (reject,) = (tmp_path / "out" / "rejects").glob("*.jsonl")
    assert "part1.de" in reject.read_text()


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.tfrecord")}


@pytest.mark.matrix
@pytest.mark.pipeline
@pytest.mark.parametrize("kind", ["two lengths", "parallel files"])
def test_two_workers_write_the_same_bytes(kind: str, wmt: Path, parallel: Path, tmp_path: Path) -> None:
    source, flags = wmt, [*TWO_LENGTHS, "--long-documents=reject"]
    if kind == "parallel files":
        source = parallel / "part1.en"
        flags = ["--tokenizer=bytes", "--sequence-length=128", "--pack", f"--targets-file={parallel}/part1.de"]
    for workers in (1, 2):
        assert convert(source, tmp_path / f"out{workers}", *flags, "--num-shards=2", f"--workers={workers}") == 0
    assert shards(tmp_path / "out1") == shards(tmp_path / "out2")


@pytest.mark.matrix
@pytest.mark.pipeline
def test_two_workers_write_the_same_bytes_and_an_append_adds_pairs(wmt: Path, tmp_path: Path) -> None:
    flags = [*SIDES, "--tokenizer=bytes", "--sequence-length=128", "--pack", "--num-shards=3"]
    for workers in (1, 2):
        assert convert(wmt, tmp_path / f"out{workers}", *flags, f"--workers={workers}") == 0
    assert shards(tmp_path / "out1") == shards(tmp_path / "out2")
    with wmt.open("a") as file:
        file.write(json.dumps({"en": "new", "de": "neu"}) + "\n")
    assert run([f"--input={wmt}", f"--output={tmp_path}/out1", "--append"]) == 0
    found = [pair for row in records(tmp_path / "out1") for pair in packed_pairs(row)]
    assert sorted(found) == sorted([*WMT, ("new", "neu")])
    assert np.sum([row["loss_weights"] for row in records(tmp_path / "out1")]) > 0


NESTED: list[dict[str, Any]] = [{"translation": {"de": de, "en": en}, "id": 1} for en, de in WMT[:5]]
NESTED_SIDES = ("--inputs=translation.en", "--targets=translation.de")


def write_nested(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    return write_rows(path, rows)


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl"])
def test_names_with_dots_select_fields_of_objects(tmp_path: Path, name: str) -> None:
    path = write_nested(tmp_path / name, NESTED)
    assert convert(path, tmp_path / "out", *NESTED_SIDES, "--field=id:int", "--no-shuffle") == 0
    found = [(row["inputs"][0].decode(), row["targets"][0].decode()) for row in records(tmp_path / "out")]
    assert found == WMT[:5]
    assert not open_dataset(str(tmp_path / "out")).manifest.options.get("notes")


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl"])
def test_rejects_an_object_without_a_field(tmp_path: Path, name: str) -> None:
    path = write_nested(tmp_path / name, [*NESTED, {"translation": None, "id": 1}])
    with pytest.raises(BadRecordError, match=r"translation\.en"):
        convert(path, tmp_path / "out", *NESTED_SIDES)
    with pytest.raises((BadRecordError, UsageError), match=r"translation\.fr"):
        convert(path, tmp_path / "out", "--inputs=translation.en", "--targets=translation.fr")


def test_prefers_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    rows = [{"a.b": "column", "a": {"b": "field"}, "c": "target"}]
    for name in ("train.parquet", "train.jsonl"):
        path, out = write_nested(tmp_path / name, rows), tmp_path / f"{name}.out"
        assert convert(path, out, "--inputs=a.b", "--targets=c") == 0
        (row,) = records(out)
        assert row["inputs"] == [b"column"]
