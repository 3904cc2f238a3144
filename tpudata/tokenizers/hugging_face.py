"""Tokenizers of Hugging Face (`tokenizer.json` files), through the package `tokenizers`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpudata.error_text.lines import one_line
from tpudata.errors import FeatureError, MissingExtraError, SourceError, UsageError
from tpudata.json_values import parse_input_json
from tpudata.tokenizers.tokenizer import COPY_AGAIN, MAX_IDS, PLAIN, Ids, TokenizerIdentity, content_ids, sha256

NAME = "hf"
FILE = "tokenizer.json"
# The file names neither the token that ends a document nor the one for padding; these are usual names.
_USUAL_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")
_USUAL_PAD = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")
# Errors that are not the package's: it raises plain Exceptions, and a panic of its Rust code is a BaseException.
_PYTHON_ERRORS = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)


class HuggingFaceTokenizer:
    """A tokenizer of Hugging Face. The special tokens that its template would add, its truncation and its padding are ignored.

    The end of document is the token that `eos` names or, without `eos`, the only token of `</s>`, `<|endoftext|>`,
    `<|end_of_text|>`, `<eos>` and `[SEP]` that the vocabulary has; if it has several of them, there is none. Padding is
    `<pad>`, `[PAD]`, `<|pad|>` or `<|padding|>`; if there is none of these, the end of document; if that does not exist, 0.

    Args:
        data: content of the file.
        path: path of the file, for messages.
        eos: token that ends a document; None to look for a usual one.
        special_tokens: what the name of a special token in a text becomes: with `"text"` ordinary text; with `"token"` or None that
            token.

    Raises:
        MissingExtraError: the package is not installed.
        SourceError: it is not a tokenizer.json.
        UsageError: it has no token `eos`.
    """

    def __init__(self, data: bytes, path: str, eos: str | None = None, *, special_tokens: str | None = None) -> None:
        self.file_bytes = data
        self._tokenizer = _load_tokenizer(data, path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # If this is true, the package encodes the name of a special token as ordinary text.
        self._tokenizer.encode_special_tokens = special_tokens == PLAIN
        # The largest id decides, since ids may have gaps; 0 without tokens.
        size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if size == 0:
            raise SourceError(f"{path} has no tokens. Pass a trained tokenizer.")
        if size > MAX_IDS:
            raise SourceError(f"{path} has the id {size - 1:,} (expected at most {MAX_IDS - 1:,}). {COPY_AGAIN}")
        eos_id = self._find_eos_id(eos, path)
        pad_id = next(iter(self._list_ids(_USUAL_PAD)), eos_id)
        # Without an id for padding, padding is 0, which also stands for an ordinary token: `decode` keeps it.
        self._has_pad_id = pad_id is not None
        self.unknown_id = self._find_unknown_id()
        self.identity = TokenizerIdentity(
            NAME, vocab_size=size, eos_id=eos_id, pad_id=pad_id or 0, file=FILE, sha256=sha256(data)
        )

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text; ValueError for a text that the package cannot encode.

        An example is a text outside of a vocabulary without an unknown token.
        """
        encodings = _encode(self._tokenizer.encode_batch_fast, texts)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Return the ids of a text, int32 [tokens], and the start and end of each token in characters, int64 [tokens, 2].

        Raises:
            ValueError: the package cannot encode the text.
        """
        (encoding,) = _encode(self._tokenizer.encode_batch, [text])
        # Without tokens, numpy would make an array of one dimension.
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, joined by the tokenizer's decoder; what its normalizer changed is not restored.

        Raises:
            FeatureError: the tokenizer cannot decode the ids.
        """
        content = content_ids(ids, self.identity, has_pad=self._has_pad_id).tolist()
        try:
            text: str = self._tokenizer.decode(content, skip_special_tokens=False)
        except _PYTHON_ERRORS:
            raise
        except BaseException as error:  # A panic of Rust code is not an Exception.
            raise FeatureError(f"the tokenizer cannot decode ids: {one_line(error)}. {COPY_AGAIN}") from None
        return text

    def _find_unknown_id(self) -> int | None:
        """Return the id of text outside of the vocabulary; None if the model has none."""
        # The file itself is not parsed: the package reads some files that Python's JSON parser rejects.
        model = parse_input_json(self._tokenizer.to_str())["model"]
        # A Unigram model has the id, other models have the token.
        unknown_id: int | None = model.get("unk_id")
        token: str | None = model.get("unk_token")
        if unknown_id is None and token is not None:
            unknown_id = self._tokenizer.token_to_id(token)
        return unknown_id

    def _find_eos_id(self, eos: str | None, path: str) -> int | None:
        """Return the id of the token that ends a document: `eos`, or the only usual token that the vocabulary has.

        None if `eos` is None and the vocabulary has no usual token or several; UsageError if it lacks `eos`.
        """
        if eos is not None:
            eos_ids = self._list_ids([eos])
            if not eos_ids:
                raise UsageError(f"--eos: {path} has no token {eos!r}. Pass one of its tokens.")
        else:
            eos_ids = self._list_ids(_USUAL_EOS)
        return eos_ids[0] if len(eos_ids) == 1 else None

    def _list_ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of some tokens, without tokens that the vocabulary does not have."""
        return [token_id for token in tokens if (token_id := self._tokenizer.token_to_id(token)) is not None]


def _encode(encode_batch: Callable[..., list[Any]], texts: Sequence[str]) -> list[Any]:
    """Return the package's encodings of texts; ValueError if the package cannot encode one.

    Args:
        encode_batch: the method of the package's tokenizer to call.
        texts: the texts.
    """
    try:
        return encode_batch(list(texts), add_special_tokens=False)
    except _PYTHON_ERRORS:
        raise
    except BaseException as error:  # A panic of Rust code is not an Exception.
        raise ValueError(f"the tokenizer cannot encode it: {one_line(error)}") from None


def _load_tokenizer(data: bytes, path: str) -> Any:
    """Return the package's tokenizer of a file.

    Args:
        data: content of the file.
        path: path of the file, for messages.

    Raises:
        MissingExtraError: the package is not installed.
        SourceError: the file is not a tokenizer.json.
    """
    try:
        package = importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        if error.name != "tokenizers":
            raise
        raise MissingExtraError("--tokenizer hf", "text") from error
    try:
        return package.Tokenizer.from_str(data.decode())
    except _PYTHON_ERRORS:
        raise
    except BaseException as error:  # A panic of Rust code is not an Exception.
        raise SourceError(f"{path} is not a tokenizer.json of Hugging Face: {one_line(error)}. {COPY_AGAIN}") from None
