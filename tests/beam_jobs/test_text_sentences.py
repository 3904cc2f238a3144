"""Sentences of CoNLL files: words and tags as lists, for any division of the file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from beam_jobs import text
from tests.beam_jobs.pipelines import run_with_limits
from tests.beam_jobs.texts import convert, records
from tpudata import as_numpy, make_input_fn
from tpudata.errors import BadRecordError, UsageError
from tpudata.format import open_dataset

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
call NN I-NP O

# NN B-NP O
1 CD I-NP O

-DOCSTART- -X- -X- O

Peter\tNNP\tB-NP\tB-PER
Blackburn\tNNP\tI-NP\tI-PER
"""
CONLLU = """# newdoc id = n01

# sent_id = n01-1
# text = vámonos al mar
1-2\tvámonos\t_\tX
1\tvamos\tir\tVERB
2\tnos\tnosotros\tPRON
3\tal\ta\tADP
3.1\tmás\tmás\tADV
4\tmar\tmar\tNOUN

1\tsí\tsí\tINTJ
"""
WORDS = ["--field=0:strings", "--field=3:strings"]


def stored(output: Path, name: str) -> list[list[str]]:
    return [[word.decode() for word in record[name]] for record in records(output)]


@pytest.mark.parametrize("packed", [False, True])
def test_stores_words_and_tags_as_lists_in_order(tmp_path: Path, packed: bool) -> None:
    data = CONLL.replace("\n", "\r\n").encode()
    path = tmp_path / ("a.conll.gz" if packed else "a.conll")
    path.write_bytes(gzip.compress(data) if packed else data)
    convert(path, tmp_path / "out", *WORDS, "--no-shuffle")
    assert stored(tmp_path / "out", "0") == [["EU", "rejects", "German", "call"], ["#", "1"], ["Peter", "Blackburn"]]
    assert stored(tmp_path / "out", "3") == [["B-ORG", "O", "B-MISC", "O"], ["O", "O"], ["B-PER", "I-PER"]]


def test_skips_comments_and_multiword_lines_of_universal_dependencies(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU)
    convert(tmp_path / "a.conllu", tmp_path / "out", "--field=1:strings", "--field=3:strings", "--no-shuffle")
    assert stored(tmp_path / "out", "1") == [["vamos", "nos", "al", "mar"], ["sí"]]
    assert stored(tmp_path / "out", "3") == [["VERB", "PRON", "ADP", "NOUN"], ["INTJ"]]


def test_tokenizes_words_joined_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(CONLL)
    convert(tmp_path / "a.txt", tmp_path / "out", "--form=conll", "--field=0", "--tokenizer=bytes", "--no-shuffle")
    found = [bytes(row["input_ids"]).decode() for row in records(tmp_path / "out")]
    assert found == ["EU rejects German call", "# 1", "Peter Blackburn"]


def test_parts_of_a_file_give_each_sentence_once(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(CONLL * 3)
    argv = [f"--input={tmp_path}/a.conll", "--field=0:strings", "--keep-key", "--no-shuffle", "--num-shards=1"]
    for size in (1 << 20, 7):
        run_with_limits(text, [*argv, f"--output={tmp_path}/{size}"], range_bytes=size)
        assert len(stored(tmp_path / f"{size}", "0")) == 9
        assert [*records(tmp_path / f"{size}")] == [*records(tmp_path / f"{1 << 20}")]


def test_rejects_a_sentence_whose_words_differ_in_columns(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(CONLL.replace("rejects VBZ B-VP O", "rejects VBZ"))
    message = r"word 2 of the sentence has 2 columns \(expected 4, as the first\): 'rejects VBZ'"
    with pytest.raises(BadRecordError, match=message):
        convert(tmp_path / "a.conll", tmp_path / "out", *WORDS)
    flags = [*WORDS, "--on-bad-record=skip", "--max-bad-records=1"]
    convert(tmp_path / "a.conll", tmp_path / "out", *flags)
    assert len(stored(tmp_path / "out", "0")) == 2
    assert sum(open_dataset(str(tmp_path / "out")).manifest.rejected.values()) == 1


def test_error_without_fields_names_the_columns(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(CONLL)
    with pytest.raises((BadRecordError, UsageError), match=r"no field 'text': the row has '0', '1', '2', '3'"):
        convert(tmp_path / "a.conll", tmp_path / "out")


def test_feeds_words_and_tags_padded_to_the_longest_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(CONLL)
    convert(tmp_path / "a.conll", tmp_path / "out", *WORDS, "--no-shuffle")
    (features,) = as_numpy(make_input_fn(str(tmp_path / "out"), "train", training=False), 3)
    assert features["0"].tolist()[1:] == [[b"#", b"1", b"", b""], [b"Peter", b"Blackburn", b"", b""]]
    assert features["3"].shape == (3, 4)
    assert features["0/count"].tolist() == features["3/count"].tolist() == [4, 2, 2]
