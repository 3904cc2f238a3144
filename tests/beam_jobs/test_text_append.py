"""Appending text to a dataset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.beam_jobs.texts import (
    PLAY,
    SPEECHES,
    byte_pairs,
    convert,
    records,
    sentencepiece_model,
)
from tests.helpers.pictures import digests
from tpudata.errors import BadRecordError, OutputError, SourceError
from tpudata.format import open_dataset, verify


def test_appends_documents_with_the_same_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text(PLAY)
    flags = ["--form", "paragraphs", "--tokenizer", "chars", "--sequence-length", "64", "--pack", "--num-shards", "3"]
    convert(source, tmp_path / "out", *flags)
    before = digests(tmp_path / "out")
    capsys.readouterr()
    convert(source, tmp_path / "out", *flags, "--append")
    assert "nothing new" in capsys.readouterr().out
    assert digests(tmp_path / "out") == before
    # A file that has grown, and a new one.
    with (source / "a.txt").open("a") as file:
        file.write("\nspeak, eak\n")
    (source / "b.txt").write_text("Speak, speak!\n")
    flags[-1] = "1"
    convert(source, tmp_path / "out", *flags, "--append")
    assert "documents   2" in capsys.readouterr().out
    after = digests(tmp_path / "out")
    assert all(
        after[name] == digest for name, digest in before.items() if name.endswith((".tfrecord", ".index", "vocab.json"))
    )
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert manifest.counts["documents"] == len(SPEECHES) + 2
    assert not list(verify(str(tmp_path / "out")))
    (source / "c.txt").write_text("$")
    with pytest.raises(BadRecordError, match=r"not in the vocabulary of \d+: '\$'"):
        convert(source, tmp_path / "out", *flags, "--append")
    (source / "a.txt").write_text(f"{PLAY[:20]}!{PLAY[21:]}")
    (source / "c.txt").unlink()
    with pytest.raises(OutputError, match="seed = 0, and now it is 1"):
        convert(source, tmp_path / "out", *flags, "--append", "--seed", "1")
    vocabulary = tmp_path / "out" / "vocab.json"
    vocabulary.write_text('{"kind": "chars", "characters": ["a"]}')
    with pytest.raises(SourceError, match=r"vocab\.json is another chars tokenizer than before"):
        convert(source, tmp_path / "out", *flags, "--append")
    vocabulary.unlink()
    with pytest.raises(SourceError, match=r"vocab\.json: no such file"):
        convert(source, tmp_path / "out", *flags, "--append")


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "tokenizer",
    ["sentencepiece", "none", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("bytes", "chars", "hf"))],
)
def test_append_inherits_options_of_the_dataset(tokenizer: str, tmp_path: Path) -> None:
    source, model = tmp_path / "in", tmp_path / "model"
    source.mkdir()
    lines = PLAY.splitlines()[:300]
    rows = [json.dumps({"said": line, "note": line.upper(), "n": number}) for number, line in enumerate(lines)]
    (source / "a.jsonl").write_text("\n".join(rows))
    flags = ["--form=jsonl", "--field=said", "--split=test=0.5,a=0.5", "--seed=2", "--document-bytes=1MB"]
    if tokenizer == "none":
        flags += ["--field=n:int", "--compression=gzip"]
    else:
        flags += ["--sequence-length=16", "--pack", "--long-documents=cut", "--no-eos", "--int64-lists"]
        if tokenizer in ("sentencepiece", "hf"):
            model.write_bytes(sentencepiece_model(lines) if tokenizer == "sentencepiece" else byte_pairs(lines))
        flags += [f"--tokenizer={tokenizer}:{model}" if model.exists() else f"--tokenizer={tokenizer}"]
    convert(source, tmp_path / "out", *flags)
    (source / "b.jsonl").write_text("\n".join(rows[::2]))
    shutil.copytree(tmp_path / "out", tmp_path / "repeated")
    convert(source, tmp_path / "repeated", *flags, "--append")
    # The dataset has the tokenizer's file.
    model.unlink(missing_ok=True)
    convert(source, tmp_path / "out", "--append")
    appended, repeated = (open_dataset(str(tmp_path / name)).manifest for name in ("out", "repeated"))
    # An index has a digest of the tokenizer's path, too.
    assert appended.splits == repeated.splits
    assert (appended.options, appended.features) == (repeated.options, repeated.features)
    assert appended.appends == 1
    with pytest.raises(OutputError, match="fields = "):
        convert(source, tmp_path / "out", "--append", "--field=note")


def test_append_inherits_defaults_of_missing_fields(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text('{"text": "a", "id": 1}\n{"text": "b"}\n')
    convert(source, out, "--field=text", "--field=id:int=-7")
    with source.open("a") as file:
        file.write('{"text": "c"}\n')
    convert(source, out, "--append")
    assert sorted(record["id"] for record in records(out)) == [[-7], [-7], [1]]


def test_appends_with_fields_in_another_order(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    rows = ['{"a": "some text", "n": 1}', '{"a": "more text", "n": 2}']
    source.write_text(rows[0])
    fields = ["--field=a", "--field=n:int"]
    convert(source, out, *fields, "--tokenizer=bytes")
    before = open_dataset(str(out)).manifest.features
    source.write_text("\n".join(rows))
    convert(source, out, *reversed(fields), "--append")
    assert open_dataset(str(out)).manifest.features == before
    assert sorted(record["n"] for record in records(out)) == [[1], [2]]


def test_rejects_a_bad_document_after_many_new_ones(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    rows = [json.dumps({"text": f"text {number}", "label": number % 2}) for number in range(200_000)]
    (source / "a.jsonl").write_text("\n".join(rows[:2]))
    convert(source, tmp_path / "out", "--label-field", "label")
    # Inputs are compared with those of the dataset in batches of tens of thousands.
    (source / "b.jsonl").write_text("\n".join([*rows, json.dumps({"text": "without a label"})]))
    with pytest.raises(BadRecordError, match="label"):
        convert(source, tmp_path / "out", "--label-field", "label", "--append")
