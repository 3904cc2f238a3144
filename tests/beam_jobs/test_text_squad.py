"""Questions of SQuAD's JSON as rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.beam_jobs.texts import convert, records
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import open_dataset

ONE = {
    "id": "5733be284776f41900661182",
    "question": "Where is Paris? é",
    "answers": [{"text": "France", "answer_start": 9}],
}
TWO = {
    "id": "56ddde6b9a695914005b9628",
    "question": "When?",
    "answers": [],
    "is_impossible": True,
    "plausible_answers": [{"text": "now", "answer_start": 1}],
}
SQUAD = {
    "version": "v2.0",
    "data": [
        {"title": "Paris", "paragraphs": [{"context": "Paris in France", "qas": [ONE]}]},
        {"title": "Time", "paragraphs": [{"context": "nothing", "qas": []}, {"context": "It goes", "qas": [TWO]}]},
    ],
}
FLAGS = [
    *("--field=id:str", "--field=title:str", "--field=context", "--field=question", "--field=answer:str"),
    *("--field=answers:strings", "--field=answer_starts:ints", "--field=is_impossible:int", "--no-shuffle"),
]


def write(path: Path, content: Any) -> Path:
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["train-v2.0.json", "train.json.gz"])
def test_reads_each_question_as_a_row_with_its_context(tmp_path: Path, name: str) -> None:
    convert(write(tmp_path / name, SQUAD), tmp_path / "out", *FLAGS, "--key-field=id", "--keep-key")
    one, two = records(tmp_path / "out")
    assert one["context"] == [b"Paris in France"]
    assert one["question"] == ["Where is Paris? é".encode()]
    assert (one["answers"], one["answer_starts"], one["answer"]) == ([b"France"], [9], [b"France"])
    assert (two["answers"], two["answer_starts"], two["answer"]) == ([], [], [b""])
    assert [row["is_impossible"] for row in (one, two)] == [[0], [1]]
    assert [row["key"] for row in (one, two)] == [[ONE["id"].encode()], [TWO["id"].encode()]]  # type: ignore[attr-defined]
    assert [row["title"] for row in (one, two)] == [[b"Paris"], [b"Time"]]


def test_rejects_damaged_questions(tmp_path: Path) -> None:
    bad = {"version": "1.1", "data": [*SQUAD["data"], {"paragraphs": [{"qas": [ONE]}]}, {"title": "x"}, 5]}
    source = write(tmp_path / "a.json", bad)
    with pytest.raises(
        BadRecordError, match=r"a\.json:2 in .*no question of SQuAD: KeyError 'context' \(article at byte \d+\)"
    ):
        convert(source, tmp_path / "out", *FLAGS)
    convert(source, tmp_path / "out", *FLAGS, "--on-bad-record=skip", "--max-bad-records=3")
    assert len(list(records(tmp_path / "out"))) == 2
    assert sum(open_dataset(str(tmp_path / "out")).manifest.rejected.values()) == 3


@pytest.mark.parametrize("answer", ["yes", "1", 2, 0.5, None, [True]])
def test_rejects_a_question_whose_is_impossible_is_not_true_or_false(tmp_path: Path, answer: Any) -> None:
    paragraph = {"context": "It goes", "qas": [ONE, {**TWO, "is_impossible": answer}]}
    source = write(tmp_path / "a.json", {"version": "v2.0", "data": [{"title": "x", "paragraphs": [paragraph]}]})
    with pytest.raises(BadRecordError, match=r"a\.json:1 in .*no question of SQuAD: "):
        convert(source, tmp_path / "out", *FLAGS)


def test_names_the_byte_of_a_truncated_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", SQUAD)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"a\.json at byte \d+: .*cut"):
        convert(path, tmp_path / "out", *FLAGS)
