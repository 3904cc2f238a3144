"""Tokenizers: ids as their own packages give them, text that comes back, and identities that tell them apart."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import sentencepiece
import tokenizers as hugging_face
from hypothesis import given
from hypothesis import strategies as st

from tpudata.errors import FeatureError, MissingExtraError, SourceError, TpudataError, UsageError
from tpudata.tokenizers import (
    ByteTokenizer,
    CharacterSet,
    CharTokenizer,
    Tokenizer,
    TokenizerIdentity,
    TokenizerSpec,
    check_ids,
    open_tokenizer,
)

LINES = ["First Citizen: speak, speak.", "You are all resolved rather to die", "than to famish?", "", "Resolved."]
CORPUS = LINES * 30
characters = st.characters(exclude_categories=["Cs"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each package, trained on a few lines."""
    folder = tmp_path_factory.mktemp("tokenizers")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    (folder / "a.model").write_bytes(model.getvalue())
    save_json(folder / "a.json", ["<|endoftext|>", "<pad>"])
    save_json(folder / "plain.json", [])
    save_json(folder / "two.json", ["<|endoftext|>", "</s>"])
    (folder / "empty.model").write_bytes(b"")
    words = hugging_face.Tokenizer(hugging_face.models.WordLevel({"resolved": 0}))
    words.save(str(folder / "words.json"))
    (folder / "vocab.json").write_text(json.dumps({"kind": "chars", "characters": sorted(set("".join(CORPUS)))}))
    return folder


def save_json(path: Path, special: Sequence[str]) -> None:
    tokenizer = hugging_face.Tokenizer(hugging_face.models.BPE())
    tokenizer.pre_tokenizer = hugging_face.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = hugging_face.decoders.ByteLevel()
    trainer = hugging_face.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(special),
        show_progress=False,
        initial_alphabet=hugging_face.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # What people leave in their files, and what must not cut or fill up documents.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))


@given(st.lists(st.text(characters), max_size=6))
def test_decodes_bytes_to_the_original_text(texts: list[str]) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode_batch(texts)
    assert [one.tobytes() for one in ids] == [np.array(list(text.encode()), np.int32).tobytes() for text in texts]
    assert [tokenizer.decode([*one, 256, 257]) for one in ids] == texts


def test_decodes_an_incomplete_character_to_a_replacement() -> None:
    assert ByteTokenizer().decode([0xC3]) == "\ufffd"
    with pytest.raises(ValueError, match="surrogates"):
        ByteTokenizer().encode_batch(["\ud800"])


@given(st.lists(st.text(characters), min_size=1, max_size=6).filter(any))
def test_decodes_characters_to_the_original_text(texts: list[str]) -> None:
    seen, rest = CharacterSet(), CharacterSet()
    for number, text in enumerate(texts):
        (seen, rest)[number % 2].add(text)
    seen.merge(rest.characters)
    assert seen.characters == "".join(sorted(set("".join(texts))))
    tokenizer = CharTokenizer(seen.characters)
    ids = tokenizer.encode_batch(texts)
    assert [[seen.characters.index(c) for c in text] for text in texts] == [one.tolist() for one in ids]
    count = len(seen.characters)
    assert [tokenizer.decode([*one, count, count + 1]) for one in ids] == texts
    again = CharTokenizer.from_bytes(tokenizer.file_bytes, "vocab.json")
    assert again.identity == tokenizer.identity
    assert json.loads(tokenizer.file_bytes)["characters"] == list(seen.characters)


def test_rejects_or_replaces_unknown_characters() -> None:
    tokenizer = CharTokenizer("abc")
    with pytest.raises(ValueError, match=r"not in the vocabulary of 3: 'é', U\+00E9"):
        tokenizer.encode_batch(["a", "cé"])
    replacing = CharTokenizer("ace", replace_unknown=True)
    (ids,) = replacing.encode_batch(["aébc😀"])
    assert ids.tolist() == [0, 5, 5, 1, 5]
    assert replacing.decode(ids) == "a\ufffd\ufffdc\ufffd"


def test_sentencepiece_gives_the_ids_of_its_package(files: Path) -> None:
    tokenizer = open_tokenizer(TokenizerSpec.parse(f"sentencepiece:{files}/a.model"))
    own = sentencepiece.SentencePieceProcessor(model_file=str(files / "a.model"))
    ids = tokenizer.encode_batch(LINES)
    assert [one.tolist() for one in ids] == own.encode(LINES, out_type=int)
    assert all(one.dtype == np.int32 for one in ids)
    assert [tokenizer.decode([*one, own.eos_id()]) for one in ids] == LINES
    assert tokenizer.identity.vocab_size == own.get_piece_size()
    assert (tokenizer.identity.eos_id, tokenizer.identity.pad_id) == (2, 2)
    named = open_tokenizer(TokenizerSpec.parse(f"sentencepiece:{files}/a.model", eos="<s>"))
    assert named.identity.eos_id == own.bos_id()


def test_hugging_face_gives_the_ids_of_its_package(files: Path) -> None:
    tokenizer = open_tokenizer(TokenizerSpec.parse(f"hf:{files}/a.json"))
    own = hugging_face.Tokenizer.from_file(str(files / "a.json"))
    own.no_truncation()
    own.no_padding()
    ids = tokenizer.encode_batch(LINES)
    assert [one.tolist() for one in ids] == [own.encode(line).ids for line in LINES]
    assert max(map(len, ids)) > 5
    assert [tokenizer.decode(one) for one in ids] == LINES
    identity = tokenizer.identity
    assert (identity.eos_id, identity.pad_id) == (0, 1)
    assert identity.vocab_size == own.get_vocab_size()
    plain = open_tokenizer(TokenizerSpec.parse(f"hf:{files}/plain.json")).identity
    assert (plain.eos_id, plain.pad_id) == (None, 0)
    several = open_tokenizer(TokenizerSpec.parse(f"hf:{files}/two.json")).identity
    assert (several.eos_id, several.pad_id) == (None, 0)
    named = open_tokenizer(TokenizerSpec.parse(f"hf:{files}/two.json", eos="</s>")).identity
    assert named.eos_id == 1


@pytest.mark.parametrize(
    ("text", "eos", "error", "message"),
    [
        ("byte", None, UsageError, "did you mean bytes"),
        ("bytes:x", None, UsageError, "takes no file"),
        ("bytes", "</s>", UsageError, "has <eos>"),
        ("chars", "</s>", UsageError, "the tokenizer chars has <eos>"),
        ("sentencepiece", None, UsageError, "Pass sentencepiece:FILE"),
        ("hf:{}/none.json", None, SourceError, "no such file"),
        ("hf:{}/a.model", None, SourceError, "a.model is not a tokenizer.json"),
        ("hf:{}/a.json", "<end>", UsageError, "has no token"),
        ("sentencepiece:{}/a.json", None, SourceError, "a.json is not a SentencePiece model"),
        ("sentencepiece:{}/empty.model", None, SourceError, "empty.model is not a SentencePiece model: it is empty"),
        ("sentencepiece:{}/a.model", "<end>", UsageError, "has no piece"),
        ("chars:{}/a.json", None, SourceError, "a.json is not a vocabulary of characters"),
        ("chars:{}/vocab.json", "</s>", UsageError, "has <eos>"),
    ],
)
def test_rejects_invalid_specs_and_files(
    files: Path, text: str, eos: str | None, error: type[TpudataError], message: str
) -> None:
    with pytest.raises(error, match=message.replace("|", r"\|")):
        open_tokenizer(TokenizerSpec.parse(text.format(files), eos))


def test_takes_the_unknown_token_of_the_package(files: Path, tmp_path: Path) -> None:
    unigram = hugging_face.Tokenizer(hugging_face.models.Unigram([("a", -1.0), ("?", -5.0)], unk_id=1))
    unigram.save(str(tmp_path / "unigram.json"))
    words = hugging_face.Tokenizer(hugging_face.models.WordLevel({"resolved": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.save(str(tmp_path / "words.json"))
    for spec, text in (
        (f"sentencepiece:{files / 'a.model'}", "speak 鱼 speak"),
        (f"hf:{tmp_path / 'unigram.json'}", "aa鱼"),
        (f"hf:{tmp_path / 'words.json'}", "鱼"),
    ):
        tokenizer = open_tokenizer(TokenizerSpec.parse(spec, None))
        assert tokenizer.unknown_id is not None
        assert tokenizer.encode_batch([text])[0].tolist().count(tokenizer.unknown_id) == 1
    replacing = TokenizerSpec.parse(f"chars:{files / 'vocab.json'}", None, replace_unknown=True)
    assert open_tokenizer(replacing).encode_batch(["鱼"])[0].tolist() == [open_tokenizer(replacing).unknown_id]
    # These have none.
    for spec in ("bytes", f"chars:{files / 'vocab.json'}", f"hf:{files / 'a.json'}"):
        assert open_tokenizer(TokenizerSpec.parse(spec, None)).unknown_id is None


def test_decodes_a_token_that_is_also_the_padding(files: Path) -> None:
    words = open_tokenizer(TokenizerSpec.parse(f"hf:{files}/words.json"))
    assert (words.identity.eos_id, words.identity.pad_id) == (None, 0)
    assert words.decode(words.encode_batch(["resolved"])[0]) == "resolved"
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        bos_id=-1,
        eos_id=-1,
    )
    (files / "endless.model").write_bytes(model.getvalue())
    pieces = open_tokenizer(TokenizerSpec.parse(f"sentencepiece:{files}/endless.model"))
    assert (pieces.identity.eos_id, pieces.identity.pad_id) == (None, 0)
    # 0 is what stands for unknown pieces.
    ids = pieces.encode_batch(["you 三"])[0].tolist()
    own = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert 0 in ids
    assert pieces.decode(ids) == own.decode(ids)


def test_raises_value_error_for_text_that_hugging_face_cannot_encode(files: Path) -> None:
    tokenizer = open_tokenizer(TokenizerSpec.parse(f"hf:{files}/words.json"))
    assert tokenizer.encode_batch(["resolved"])[0].tolist() == [0]
    with pytest.raises(ValueError, match=r"Missing \[UNK\] token"):
        tokenizer.encode_batch(["resolved", "other"])


def test_replace_unknown_requires_a_given_vocabulary(files: Path) -> None:
    with pytest.raises(UsageError, match="--replace-unknown requires --tokenizer chars:FILE"):
        TokenizerSpec.parse("chars", replace_unknown=True)
    spec = TokenizerSpec.parse(f"chars:{files}/vocab.json", replace_unknown=True)
    tokenizer = open_tokenizer(spec)
    assert tokenizer.encode_batch(["😀"])[0].tolist() == [tokenizer.identity.vocab_size - 1]


def test_collects_characters_of_the_data() -> None:
    spec = TokenizerSpec.parse("chars")
    assert spec.collects_characters
    assert open_tokenizer(spec, "ab").encode_batch(["ba"])[0].tolist() == [1, 0]
    with pytest.raises(SourceError, match="the text has no characters"):
        open_tokenizer(spec)


def openers(files: Path) -> list[Callable[[], Tokenizer]]:
    specs = ("bytes", f"chars:{files}/vocab.json", f"sentencepiece:{files}/a.model", f"hf:{files}/a.json")
    return [lambda spec=spec: open_tokenizer(TokenizerSpec.parse(spec)) for spec in specs]  # type: ignore[misc]


def test_identities_tell_tokenizers_apart(files: Path) -> None:
    identities = [opened().identity for opened in openers(files)]
    assert len(set(identities)) == 4
    assert [opened().identity for opened in openers(files)] == identities
    for identity in identities:
        assert TokenizerIdentity.from_json(json.loads(json.dumps(identity.to_json()))) == identity
    spec = TokenizerSpec.parse(f"hf:{files}/a.json")
    open_tokenizer(spec, sha256=identities[3].sha256)
    with pytest.raises(SourceError, match="another hf tokenizer than before"):
        open_tokenizer(spec, sha256="0" * 64)


def test_rejects_ids_outside_the_vocabulary(files: Path) -> None:
    for opened in openers(files):
        tokenizer = opened()
        size = tokenizer.identity.vocab_size
        for wrong in (size, -1, 2**31 - 1):
            with pytest.raises(FeatureError, match=f"id {wrong} is not in the vocabulary of .*{size:,} ids"):
                tokenizer.decode([0, wrong])
        check_ids(np.array([[0, size - 1]], np.int32), tokenizer.identity)


@pytest.mark.parametrize(("kind", "package"), [("sentencepiece", "sentencepiece"), ("hf", "tokenizers")])
def test_a_missing_package_names_the_extra(files: Path, kind: str, package: str) -> None:
    spec = TokenizerSpec.parse(f"{kind}:{files}/a.json")
    with (
        mock.patch.dict(sys.modules, {package: None}),
        pytest.raises(MissingExtraError, match=r"Run: pip install -e '\S+\[text\]'$"),
    ):
        open_tokenizer(spec)


def test_import_loads_no_tokenizer_package() -> None:
    code = "import sys, tpudata.tokenizers; print({'sentencepiece', 'tokenizers', 'tensorflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def word_level(path: Path, **parts: object) -> TokenizerSpec:
    """A tokenizer.json with these parts in place of those of a model of two words."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts}))
    return TokenizerSpec("hf", str(path))


def test_reports_panics_of_the_package_as_errors(tmp_path: Path) -> None:
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(SourceError, match=r"a\.json is not a tokenizer\.json of Hugging Face: Precompiled: "):
        open_tokenizer(word_level(tmp_path / "a.json", normalizer=charsmap))
    pieces = open_tokenizer(word_level(tmp_path / "a.json", pre_tokenizer={"type": "FixedLength", "length": 0}))
    with pytest.raises(ValueError, match="the tokenizer cannot encode it: chunk size must be non-zero"):
        pieces.encode_batch(["a"])
    strips = open_tokenizer(
        word_level(tmp_path / "a.json", decoder={"type": "Strip", "content": "a", "start": 9, "stop": 9})
    )
    with pytest.raises(FeatureError, match=r"the tokenizer cannot decode ids: .*\. Copy it again"):
        strips.decode([0])


def test_rejects_ids_beyond_int32_and_files_that_are_too_large(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 2**32 - 1}, "unk_token": "a"}
    with pytest.raises(SourceError, match=r"a\.json has the id 4,294,967,295 \(expected at most 2,147,483,647\)"):
        open_tokenizer(word_level(tmp_path / "a.json", model=model))
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 40)
    for kind in ("hf", "sentencepiece", "chars"):
        with pytest.raises(SourceError, match=r"large\.json: the file is too large \(got 1,099,511,627,776 bytes"):
            open_tokenizer(TokenizerSpec(kind, str(tmp_path / "large.json")))
