"""Names of special tokens in texts: these tokens or ordinary text, the same with both packages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers

from tests.beam_jobs.texts import byte_pairs, convert, records, sentencepiece_model
from tests.helpers.pictures import digests
from tpudata.errors import OutputError, UsageError
from tpudata.format import open_dataset
from tpudata.tokenizers import TokenizerSpec, dataset_tokenizer, open_tokenizer

LINES = ["a cat sat on a mat", "the cat ate", "dogs < cats > eels", "ends & begins / again"] * 20
NAMES = {"sentencepiece": "</s>", "hf": "<eos>"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers")
    (folder / "sentencepiece").write_bytes(sentencepiece_model(LINES))
    (folder / "hf").write_bytes(byte_pairs(LINES))
    return folder


def encode(files: Path, kind: str, text: str, special_tokens: str | None) -> list[int]:
    spec = TokenizerSpec.parse(f"{kind}:{files / kind}", special_tokens=special_tokens)
    (ids,) = open_tokenizer(spec).encode_batch([text])
    assert ids.dtype == np.int32
    return list(map(int, ids))


@pytest.mark.parametrize("kind", NAMES)
def test_both_packages_follow_the_special_tokens_rule(files: Path, kind: str) -> None:
    name = NAMES[kind]
    spec = TokenizerSpec.parse(f"{kind}:{files / kind}")
    end = open_tokenizer(spec).identity.eos_id
    text = f"a cat{name}the cat{name}{name}"
    cat, the = (encode(files, kind, part, None) for part in ("a cat", "the cat"))
    assert encode(files, kind, text, "token") == [*cat, end, *the, end, end]
    plain = encode(files, kind, text, "text")
    assert end not in plain
    assert len(plain) > len(cat) + len(the) + 3


@pytest.mark.parametrize("kind", NAMES)
def test_text_without_special_tokens_is_the_same_with_both_rules(files: Path, kind: str) -> None:
    for text in ("a cat sat", "", " ", "</ s>", "<eos"):
        assert encode(files, kind, text, "token") == encode(files, kind, text, "text")


def test_encodes_as_the_package_does_without_a_rule(files: Path) -> None:
    text = "a cat </s><eos> sat"
    own = sentencepiece.SentencePieceProcessor(model_file=str(files / "sentencepiece"))
    assert encode(files, "sentencepiece", text, None) == own.encode(text)
    theirs = tokenizers.Tokenizer.from_file(str(files / "hf"))
    assert encode(files, "hf", text, None) == theirs.encode(text, add_special_tokens=False).ids


def test_datasets_and_appends_keep_the_rule(files: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cat</s>the cat\n")
    flags = [f"--tokenizer=sentencepiece:{files / 'sentencepiece'}", "--special-tokens=token"]
    convert(tmp_path / "a.txt", tmp_path / "out", *flags)
    (record,) = records(tmp_path / "out")
    end = dataset_tokenizer(str(tmp_path / "out")).identity.eos_id
    assert record["input_ids"].count(end) == 1
    assert open_dataset(str(tmp_path / "out")).manifest.options["special_tokens"] == "token"
    assert dataset_tokenizer(str(tmp_path / "out")).encode_batch(["</s>"])[0].tolist() == [end]
    # An append takes the rule from there; another one is an error.
    (tmp_path / "b.txt").write_text("the</s>mat\n")
    convert(tmp_path / "b.txt", tmp_path / "out", "--append")
    assert [row["input_ids"].count(end) for row in records(tmp_path / "out")] == [1, 1]
    with pytest.raises(OutputError, match="special_tokens"):
        convert(tmp_path / "b.txt", tmp_path / "out", "--append", "--special-tokens=text")


def test_resume_replaces_shards_written_with_another_rule(files: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cat</s>the cat\n")
    flags = [f"--tokenizer=sentencepiece:{files / 'sentencepiece'}", "--num-shards=1"]
    convert(tmp_path / "a.txt", tmp_path / "token", *flags, "--special-tokens=token")
    convert(tmp_path / "a.txt", tmp_path / "out", *flags)
    (tmp_path / "out" / "manifest.json").unlink()
    convert(tmp_path / "a.txt", tmp_path / "out", *flags, "--special-tokens=token", "--resume")
    assert digests(tmp_path / "out") == digests(tmp_path / "token")


def test_encodes_special_tokens_of_a_chat_template_as_tokens(files: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m['content'] }}</s>{% endfor %}")
    messages = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "sat"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    flags = ["--chat=messages", f"--chat-template={tmp_path / 'chat.jinja'}"]
    tokenizer = f"--tokenizer=sentencepiece:{files / 'sentencepiece'}"
    convert(tmp_path / "a.jsonl", tmp_path / "out", *flags, tokenizer)
    (record,) = records(tmp_path / "out")
    end = dataset_tokenizer(str(tmp_path / "out")).identity.eos_id
    assert record["input_ids"].count(end) == 2
    with pytest.raises(UsageError, match="the template's own special tokens would be text"):
        convert(tmp_path / "a.jsonl", tmp_path / "other", *flags, tokenizer, "--special-tokens=text")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--special-tokens=text"], "--special-tokens requires --tokenizer"),
        (["--special-tokens=text", "--tokenizer=bytes"], "the tokenizer bytes has none that a text can name"),
    ],
)
def test_rejects_the_rule_for_tokenizers_without_special_tokens(tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(UsageError, match=message):
        convert(tmp_path / "a.txt", tmp_path / "out", *flags)
