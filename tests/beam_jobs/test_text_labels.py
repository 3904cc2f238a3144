"""Classes of documents, through the whole job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.beam_jobs.texts import convert, list_kinds, records
from tpudata import as_numpy, make_input_fn
from tpudata.errors import BadRecordError, OutputError, SourceError, UsageError
from tpudata.format import open_dataset

REVIEWS = [("a joy", "pos"), ("so, so", "neg"), ("great", "pos"), ("dull", "neg"), ("fine", "pos")]


def write_reviews(folder: Path, name: str = "reviews.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in REVIEWS))
    return path


def write_imdb(folder: Path) -> Path:
    """The folders of aclImdb, with its files next to them."""
    for split in ("train", "test"):
        for label, word in (("pos", "good"), ("neg", "bad")):
            (folder / split / label).mkdir(parents=True)
            for number in range(2):
                (folder / split / label / f"{number}_7.txt").write_text(f"{word} {split} {number}")
        (folder / split / "urls_pos.txt").write_text("http://example.com\n")
    (folder / "train/unsup").mkdir()
    (folder / "train/unsup/0_0.txt").write_text("unknown")
    (folder / "imdb.vocab").write_text("the\n")
    return folder


def labelled(output: Path) -> dict[str, int]:
    return {record["text"][0].decode(): record["label"][0] for record in records(output)}


def files_of(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.rglob("*") if path.is_file()}


def test_numbers_class_names_in_sorted_order(tmp_path: Path) -> None:
    assert convert(write_reviews(tmp_path), tmp_path / "out", "--label-field=label") == 0
    assert labelled(tmp_path / "out") == {text: int(label == "pos") for text, label in REVIEWS}
    dataset = open_dataset(str(tmp_path / "out"))
    assert dataset.labels() == ("neg", "pos")
    assert next(one for one in dataset.manifest.features if one.name == "label").num_classes == 2
    assert (tmp_path / "out/label.labels.txt").read_text() == "neg\npos\n"


def test_numbers_class_names_by_the_labels_file(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("pos\nneg\nmixed\n")
    flags = ["--label-field=label", f"--labels={tmp_path}/names"]
    assert convert(write_reviews(tmp_path), tmp_path / "out", *flags) == 0
    assert labelled(tmp_path / "out") == {text: int(label == "neg") for text, label in REVIEWS}
    assert open_dataset(str(tmp_path / "out")).labels() == ("pos", "neg", "mixed")


def test_rejects_a_class_that_the_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("pos\n")
    flags = ["--label-field=label", f"--labels={tmp_path}/names"]
    source = write_reviews(tmp_path)
    with pytest.raises(BadRecordError, match="unknown label: 'neg'"):
        convert(source, tmp_path / "out", *flags)
    assert convert(source, tmp_path / "out", *flags, "--resume", "--on-bad-record=skip", "--max-bad-records=2") == 0
    assert set(labelled(tmp_path / "out")) == {text for text, label in REVIEWS if label == "pos"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "x"}, "no field 'label'"),
        ({"text": "x", "label": None}, "is not a label"),
        ({"text": "x", "label": ""}, "is not a label"),
        ({"text": "x", "label": ["pos"]}, "list of labels"),
    ],
)
def test_rejects_a_document_without_a_valid_label(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    source = write_reviews(tmp_path)
    with source.open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(BadRecordError, match=reason):
        convert(source, tmp_path / "out", "--label-field=label")


def test_uses_whole_numbers_as_labels_even_in_text(tmp_path: Path) -> None:
    (tmp_path / "news.csv").write_text("class,text\n3,Oil\n1,War\n4,Chips\n3,Banks\n")
    assert convert(tmp_path / "news.csv", tmp_path / "out", "--label-field=class") == 0
    assert labelled(tmp_path / "out") == {"Oil": 3, "War": 1, "Chips": 4, "Banks": 3}
    assert open_dataset(str(tmp_path / "out")).manifest.labels == 5
    assert convert(tmp_path / "news.csv", tmp_path / "named", "--label-field=class", "--label-type=str") == 0
    assert labelled(tmp_path / "named") == {"Oil": 1, "War": 0, "Chips": 2, "Banks": 1}


def test_takes_class_names_from_parquet_metadata(tmp_path: Path) -> None:
    feature = {"names": ["negative", "positive"], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    table = pa.table({"sentence": ["good", "bad"], "label": pa.array([1, 0], pa.int64())})
    for split in ("train", "validation"):
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / f"{split}-00000-of-00001.parquet")
    flags = ["--field=sentence", "--label-field=label"]
    assert convert(tmp_path / "*.parquet", tmp_path / "out", *flags) == 0
    assert open_dataset(str(tmp_path / "out")).labels() == ("negative", "positive")
    found = [(record["sentence"][0], record["label"][0]) for record in records(tmp_path / "out")]
    assert sorted(found) == [(b"bad", 0), (b"bad", 0), (b"good", 1), (b"good", 1)]
    feature["names"] = ["positive", "negative"]
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "validation-00000-of-00001.parquet")
    with pytest.raises(SourceError, match="different class names"):
        convert(tmp_path / "*.parquet", tmp_path / "other", *flags)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_stores_several_classes_of_a_document(tmp_path: Path, form: str) -> None:
    if form == "csv":
        (tmp_path / "a.csv").write_text("text,label\nx,joy|fear\ny,\nz,joy\n")
    else:
        rows = [("x", ["joy", "fear"]), ("y", []), ("z", ["joy"])]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in rows))
    flags = ["--label-separator=|"] if form == "csv" else []
    assert convert(tmp_path / f"a.{form}", tmp_path / "out", "--label-field=label", *flags) == 0
    found = {record["text"][0]: list(record["label"]) for record in records(tmp_path / "out")}
    assert found == {b"x": [1, 0], b"y": [], b"z": [1]}
    assert list_kinds(tmp_path / "out", "label") == {"int64_list"}
    (batch,) = as_numpy(make_input_fn(str(tmp_path / "out"), "train", training=False), 3)
    fed = {bytes(text): label.tolist() for text, label in zip(batch[0]["text"], batch[1], strict=True)}
    assert fed == {b"x": [1, 1], b"y": [0, 0], b"z": [0, 1]}
    ids = tmp_path / "ids"
    assert convert(tmp_path / f"a.{form}", ids, "--label-field=label", *flags, "--tokenizer=bytes") == 0
    assert {bytes(record["input_ids"]): list(record["label"]) for record in records(ids)} == found


def test_rejects_a_list_of_classes_with_a_null(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": ["a"]}\n{"text": "y", "label": ["a", null]}\n')
    with pytest.raises(BadRecordError, match="null"):
        convert(tmp_path / "a.jsonl", tmp_path / "out", "--label-field=label")


def test_stores_labels_and_keys_next_to_tokens(tmp_path: Path) -> None:
    flags = ["--label-field=label", "--tokenizer=bytes", "--keep-key"]
    assert convert(write_reviews(tmp_path), tmp_path / "out", *flags) == 0
    found = {bytes(record["input_ids"]).decode(): record["label"][0] for record in records(tmp_path / "out")}
    assert found == {text: int(label == "pos") for text, label in REVIEWS}
    assert len({record["key"][0] for record in records(tmp_path / "out")}) == len(REVIEWS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--label-field=label", "--tokenizer=bytes", "--sequence-length=8"], "it has no single label"),
        (["--label-field=label", "--label-from=folder"], "--label-field and --label-from: choose one"),
        (["--label-from=folder"], "--label-from folder requires --form files"),
        (["--label-field=label", "--form=lines"], "documents of --form lines have no fields"),
        (["--label-field=label", "--field=text", "--field=label:int"], "label is the name of the class"),
        (["--label-type=int"], "--label-type requires --label-field or --label-from"),
        (["--keep-key", "--tokenizer=bytes", "--sequence-length=8"], "it has no single key"),
        (["--label-from=folder", "--form=files", "--label-separator=|"], "--label-separator is for --label-field"),
    ],
)
def test_rejects_flags_of_labels_that_exclude_each_other(tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(write_reviews(tmp_path), tmp_path / "out", *flags)


def test_takes_classes_from_the_folders_of_imdb(tmp_path: Path) -> None:
    imdb = write_imdb(tmp_path / "aclImdb")
    flags = ["--form=files", "--label-from=folder"]
    assert convert(f"{imdb}/*/[pn]*/*.txt", tmp_path / "out", *flags) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    assert dataset.labels() == ("neg", "pos")
    assert {name: split.records for name, split in dataset.manifest.splits.items()} == {"train": 4, "test": 4}
    assert all(number == text.startswith("good") for text, number in labelled(tmp_path / "out").items())


def test_rejects_a_file_in_no_folder_of_its_class(tmp_path: Path) -> None:
    imdb = write_imdb(tmp_path / "aclImdb")
    with pytest.raises(BadRecordError, match="lies in no folder of its class"):
        convert(f"{imdb}/*/**/*.txt", tmp_path / "out", "--form=files", "--label-from=folder")


def test_append_inherits_the_labels_and_numbers_new_ones_last(tmp_path: Path) -> None:
    source, out = write_reviews(tmp_path), tmp_path / "out"
    assert convert(source, out, "--label-field=label", "--keep-key") == 0
    with source.open("a") as file:
        file.write('{"text": "hm", "label": "mixed"}\n')
    assert convert(source, out, "--append") == 0
    assert open_dataset(str(out)).labels() == ("neg", "pos", "mixed")
    assert labelled(out) == {**{text: int(label == "pos") for text, label in REVIEWS}, "hm": 2}


def test_append_rejects_a_changed_label(tmp_path: Path) -> None:
    source, out = write_reviews(tmp_path), tmp_path / "out"
    assert convert(source, out, "--label-field=label") == 0
    source.write_text(source.read_text().replace("neg", "pos", 1))
    with pytest.raises((SourceError, OutputError), match=r"changed|not what"):
        convert(source, out, "--append", "--label-field=label")


def test_takes_keys_from_the_key_field(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n7,x\nab,y\n")
    assert convert(tmp_path / "a.csv", tmp_path / "out", "--key-field=id", "--keep-key") == 0
    found = {record["key"][0]: record["text"][0] for record in records(tmp_path / "out")}
    assert found == {b"7": b"x", b"ab": b"y"}
    # Rows may move as long as their keys stay.
    (tmp_path / "a.csv").write_text("id,text\nab,y\nnew,z\n7,x\n")
    assert convert(tmp_path / "a.csv", tmp_path / "out", "--append") == 0
    assert {record["key"][0] for record in records(tmp_path / "out")} == {b"7", b"ab", b"new"}


@pytest.mark.parametrize("order", ["--shuffle", "--no-shuffle"])
def test_rejects_two_documents_of_one_key(tmp_path: Path, order: str) -> None:
    (tmp_path / "a.csv").write_text("id,text\n7,x\n7,y\n")
    with pytest.raises(SourceError, match="same key '7'"):
        convert(tmp_path / "a.csv", tmp_path / "out", "--key-field=id", order)


@pytest.mark.parametrize("value", ["null", '""', "1.5", "[1]"])
def test_rejects_invalid_keys(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x", "id": {value}}}\n')
    with pytest.raises(BadRecordError, match="is not a key"):
        convert(tmp_path / "a.jsonl", tmp_path / "out", "--key-field=id")


@pytest.mark.parametrize(("name", "cut"), [("train.csv", ","), ("train.tsv", "\t")])
def test_reads_columns_by_number_without_a_header(tmp_path: Path, name: str, cut: str) -> None:
    rows = [("3", "Wall St.", "Oil is up"), ("1", "War", '"so, they say"'), ("4", "Chips", "new")]
    (tmp_path / name).write_text("".join(cut.join(row) + "\n" for row in rows))
    flags = ["--no-header", "--label-field=0", "--field=2", "--no-shuffle"]
    assert convert(tmp_path / name, tmp_path / "out", *flags) == 0
    found = [(record["2"][0].decode(), record["label"][0]) for record in records(tmp_path / "out")]
    assert found == [("Oil is up", 3), ("so, they say", 1), ("new", 4)]


def test_reads_the_collection_of_sms_spam(tmp_path: Path) -> None:
    (tmp_path / "SMSSpamCollection").write_text('ham\tGo until "jurong\nspam\tFree entry\n')
    flags = ["--form=raw-tsv", "--no-header", "--label-field=0", "--field=1", "--no-shuffle"]
    assert convert(tmp_path / "SMSSpamCollection", tmp_path / "out", *flags) == 0
    found = [(record["1"][0], record["label"][0]) for record in records(tmp_path / "out")]
    assert found == [(b'Go until "jurong', 0), (b"Free entry", 1)]


def test_stores_documents_between_separators(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\nmore\n<|endoftext|>\ntwo\n<|endoftext|>\n")
    flags = ["--form=separated", "--separator=<|endoftext|>", "--keep-key", "--no-shuffle"]
    assert convert(tmp_path / "a.txt", tmp_path / "out", *flags) == 0
    found = [(record["key"][0], record["text"][0]) for record in records(tmp_path / "out")]
    assert found == [(b"a.txt:0", b"one\n\nmore"), (b"a.txt:24", b"two")]


def test_accepts_line_ends_in_separators(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one --- still\n---\ntwo\n---\n")
    assert convert(tmp_path / "a.txt", tmp_path / "out", "--form=separated", r"--separator=\n---\n") == 0
    assert {record["text"][0] for record in records(tmp_path / "out")} == {b"one --- still", b"two"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--form=separated"], "--form separated requires --separator"),
        (["--separator=--"], "--separator requires --form separated"),
        (["--form=jsonl", "--no-header"], "--no-header is for CSV and TSV"),
        (["--form=separated", "--separator="], "--form separated requires --separator"),
    ],
)
def test_rejects_flags_of_forms_that_exclude_each_other(tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convert(write_reviews(tmp_path), tmp_path / "out", *flags)


def test_takes_names_for_lists_of_classes_from_parquet_metadata(tmp_path: Path) -> None:
    feature = {"feature": {"names": ["joy", "fear"], "_type": "ClassLabel"}, "_type": "Sequence"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"labels": feature}}})}
    table = pa.table({"text": ["x", "y"], "labels": [[1, 0], []]})
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    assert convert(tmp_path / "a.parquet", tmp_path / "out", "--label-field=labels", "--no-shuffle") == 0
    assert open_dataset(str(tmp_path / "out")).labels() == ("joy", "fear")
    assert [list(record["label"]) for record in records(tmp_path / "out")] == [[1, 0], []]
    table = pa.table({"text": ["x"], "labels": [[2]]})
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    with pytest.raises(BadRecordError, match=r"unknown label: '2'; .*a\.parquet has 2 names"):
        convert(tmp_path / "a.parquet", tmp_path / "other", "--label-field=labels")


@pytest.mark.parametrize("flags", [[], ["--label-separator=|"]])
def test_strips_blanks_around_labels(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,x\nb, x\nc,y \n")
    assert convert(tmp_path / "a.csv", tmp_path / "out", "--label-field=label", *flags) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    assert dataset.labels() == ("x", "y")
    assert "blanks around 2 labels were removed" in dataset.manifest.warnings["label_blanks"]


def test_rejects_a_blank_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,x\nb, \n")
    with pytest.raises(BadRecordError, match="field 'label' is not a label"):
        convert(tmp_path / "a.csv", tmp_path / "out", "--label-field=label")


def test_skips_a_first_document_with_an_invalid_label(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": {}}\n{"text": "y", "label": "b"}\n')
    flags = ["--label-field=label", "--on-bad-record=skip", "--max-bad-records=1"]
    assert convert(tmp_path / "a.jsonl", tmp_path / "out", *flags) == 0
    assert labelled(tmp_path / "out") == {"y": 0}


def test_resume_keeps_shards_with_the_same_labels(tmp_path: Path) -> None:
    source, out = write_reviews(tmp_path), tmp_path / "out"
    flags = ["--label-field=label", "--keep-key", "--num-shards=2"]
    assert convert(source, out, *flags) == 0
    before = files_of(out)
    (out / "manifest.json").unlink()
    (out / "train-00001-of-00002.tfrecord").unlink()
    kept = out / "train-00000-of-00002.tfrecord"
    written = kept.stat().st_mtime_ns
    assert convert(source, out, *flags, "--resume") == 0
    assert files_of(out) == before
    assert kept.stat().st_mtime_ns == written
