"""Every command of docs/convert/text_datasets.md, as it stands there, on a few documents in the layout of the dataset."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from beam_jobs.text import run
from tests.helpers.markdown import ROOT
from tpudata.format import open_dataset, verify

PAGE = ROOT / "docs" / "convert" / "text_datasets.md"


class Miniature(NamedTuple):
    """A dataset.

    Attributes:
        files: the content of each file, by path.
        splits: number of records by split.
        record: values of one record.
        classes: lines of labels.txt.
    """

    files: dict[str, bytes | str | Callable[[Path], None]]
    splits: dict[str, int]
    record: dict[str, list[Any]]
    classes: tuple[str, ...] = ()


def parquet(**columns: list[Any]) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path)


def hugging_face(names: list[str], **columns: list[Any]) -> Callable[[Path], None]:
    """As the package `datasets` writes it, with the names of classes."""
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    return lambda path: pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)


def rows(*values: tuple[Any, ...]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(values)
    return out.getvalue()


def squad(number: int) -> str:
    answers = [{"text": "France", "answer_start": 9}]
    question = {"id": f"q{number}", "question": "Where is Paris?", "answers": answers}
    paragraph = {"context": "Paris in France", "qas": [question]}
    return json.dumps({"data": [{"title": "Paris", "paragraphs": [paragraph]}], "version": "1.1"})


def chat(key: str, role: str, content: str, user: str, assistant: str) -> dict[str, Any]:
    return {"id": "x", key: [{role: user, content: "Hi"}, {role: assistant, content: "Hello."}]}


MESSAGES = {"messages": [b'[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]']}
UD = "# sent_id = 1\n# text = From it\n1\tFrom\tfrom\tADP\n2\tit\tit\tPRON\n\n"
MINIATURES = {
    "IMDB": Miniature(
        {
            "aclImdb/train/pos/0_9.txt": "Good.",
            "aclImdb/train/neg/0_3.txt": "Bad.",
            "aclImdb/test/pos/0_10.txt": "Great.<br />Yes.",
            "aclImdb/train/unsup/0_0.txt": "Unknown.",
            "aclImdb/imdb.vocab": "the\nand\n",
        },
        {"train": 2, "test": 1},
        {"text": [b"Great.<br />Yes."], "label": [1]},
        ("neg", "pos"),
    ),
    "AG News": Miniature(
        {
            "ag_news_csv/train.csv": rows((3, "Oil", 'It "rises"'), (1, "War", "It ends"), (4, "Chips", "New")),
            "ag_news_csv/test.csv": rows((2, "Goal", "They won")),
        },
        {"train": 3, "test": 1},
        {"2": [b"They won"], "label": [2]},
        ("0", "1", "2", "3", "4"),
    ),
    "SST-2": Miniature(
        {
            "SST-2/train.tsv": 'sentence\tlabel\nhide new secretions \t0\nthe "best\t1\n',
            "SST-2/dev.tsv": "sentence\tlabel\nit 's a charm \t1\n",
        },
        {"train": 2, "validation": 1},
        {"sentence": [b"it 's a charm "], "label": [1]},
        ("0", "1"),
    ),
    "SMS Spam": Miniature(
        {
            "smsspamcollection/SMSSpamCollection": "".join(
                f'{("ham", "spam")[n % 2]}\tCall "me {n}\n' for n in range(40)
            )
        },
        {"train": 35, "test": 5},
        {"1": [b'Call "me 7'], "label": [1]},
        ("ham", "spam"),
    ),
    "Emotion": Miniature(
        {
            "emotion/train-00000-of-00001.parquet": hugging_face(
                ["sadness", "joy"], text=["i feel", "so"], label=[1, 0]
            ),
            "emotion/test-00000-of-00001.parquet": hugging_face(["sadness", "joy"], text=["glad"], label=[1]),
        },
        {"train": 2, "test": 1},
        {"text": [b"glad"], "label": [1]},
        ("sadness", "joy"),
    ),
    "WMT": Miniature(
        {"wmt/train.en": "Good day\nYes\n", "wmt/train.de": "Guten Tag\nJa\n"},
        {"train": 2},
        {"inputs": [b"Good day"], "targets": [b"Guten Tag"]},
    ),
    "WMT of Hugging Face": Miniature(
        {
            "wmt16/train-00000-of-00001.parquet": parquet(translation=[{"de": "Ja", "en": "Yes"}]),
            "wmt16/validation-00000-of-00001.parquet": parquet(translation=[{"de": "Nein", "en": "No"}]),
        },
        {"train": 1, "validation": 1},
        {"inputs": [b"Yes"], "targets": [b"Ja"]},
    ),
    "SQuAD": Miniature(
        {"squad/train-v1.1.json": squad(1), "squad/dev-v1.1.json": squad(2)},
        {"train": 1, "validation": 1},
        {
            "question": [b"Where is Paris?"],
            "context": [b"Paris in France"],
            "answer": [b"France"],
            "answers": [b"France"],
            "answer_starts": [9],
            "key": [b"q2"],
        },
    ),
    "Alpaca": Miniature(
        {"alpaca_data.json": json.dumps([{"instruction": "Translate.", "input": "Red", "output": "Rot"}], indent=4)},
        {"train": 1},
        {"inputs": [b"Translate.\n\nRed"], "targets": [b"Rot"]},
    ),
    "ShareGPT": Miniature(
        {"sharegpt.json": json.dumps([chat("conversations", "from", "value", "human", "gpt")])}, {"train": 1}, MESSAGES
    ),
    "UltraChat": Miniature(
        {"ultrachat/train.jsonl": json.dumps(chat("messages", "role", "content", "user", "assistant")) + "\n"},
        {"train": 1},
        MESSAGES,
    ),
    "CoNLL-2003": Miniature(
        {
            "conll2003/train.txt": "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n",
            "conll2003/valid.txt": "-DOCSTART- -X- -X- O\n\nCRICKET NNP B-NP O\n",
        },
        {"train": 1, "validation": 1},
        {"0": [b"EU", b"rejects"], "3": [b"B-ORG", b"O"]},
    ),
    "Universal Dependencies": Miniature(
        {
            "UD_English-EWT/en_ewt-ud-train.conllu": UD,
            "UD_English-EWT/en_ewt-ud-dev.conllu": UD,
            "UD_English-EWT/LICENSE.txt": "CC BY-SA",
        },
        {"train": 1, "validation": 1},
        {"1": [b"From", b"it"], "3": [b"ADP", b"PRON"]},
    ),
    "WikiText": Miniature(
        {"wikitext-103/wiki.train.tokens": " \n = Title = \n \n", "wikitext-103/wiki.valid.tokens": " A line . \n"},
        {"train": 1, "validation": 1},
        {"text": [b" A line . "]},
    ),
    "FineWeb": Miniature(
        {"fineweb/000_00000.parquet": parquet(text=["A page.\nTwo lines."], id=["<urn>"], token_count=[5])},
        {"train": 1},
        {"text": [b"A page.\nTwo lines."]},
    ),
}


def sections() -> dict[str, str]:
    parts = re.split(r"^### (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    return {name: text.partition("\n## ")[0] for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_every_dataset_of_the_page_has_a_miniature() -> None:
    assert list(sections()) == list(MINIATURES)


@pytest.mark.parametrize("heading", MINIATURES)
def test_the_command_of_the_page_converts_the_dataset(
    heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, miniature = sections()[heading], MINIATURES[heading]
    for name, content in miniature.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (command,) = re.findall(r"^    tpudata convert text (.*)$", text, flags=re.MULTILINE)
    layout = text[: text.index("    tpudata convert")]
    assert set(layout.split()) <= set(miniature.files)
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(command)) == 0
    assert not list(verify("out"))
    dataset = open_dataset("out")
    found = {split: list(dataset.examples(split)) for split in dataset.manifest.splits}
    assert {split: len(records) for split, records in found.items()} == miniature.splits
    assert miniature.record in [record for records in found.values() for record in records]
    labels = tmp_path / "out" / "labels.txt"
    assert (tuple(labels.read_text().splitlines()) if labels.exists() else ()) == miniature.classes
    # The page names every feature.
    said = set(re.findall(r"`([\w]+)`", text.replace("\n", " ")))
    assert set(miniature.record) <= said
