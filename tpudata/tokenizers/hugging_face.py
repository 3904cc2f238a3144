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
from tpudata.tokenizers.tokenizer import COPY_AGAIN, MOST_IDS, PLAIN, Ids, TokenizerIdentity, content_ids, sha256

NAME = "hf"
FILE = "tokenizer.json"
# The file does not name the token that ends a document; these are usual names.
_USUAL_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")
# The package raises nothing narrower than Exception, and a panic of its Rust code is not even that. These errors
# are of Python.
_NOT_OF_PACKAGE = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)
_USUAL_PAD = ("<pad>", "[PAD]", "<|pad|>", "<|padding|>")


class HuggingFaceTokenizer:
    """A tokenizer of Hugging Face. The special tokens that its template would add, its truncation and its padding are ignored.

    The end of document is the token that `eos` names, or else the one among `</s>`, `<|endoftext|>`, `<|end_of_text|>`, `<eos>`
    and `[SEP]` that it has, and none if it has several of them. Padding is `<pad>`, `[PAD]`, `<|pad|>` or
    `<|padding|>`, or else the end of document, or else 0.

    Args:
        data: content of the file.
        path: path of the file, for messages.
        eos: token that ends a document, or None.
        special_tokens: what the name of a special token in a text becomes: `"text"`, or that token, as with None.

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
        self._tokenizer.encode_special_tokens = special_tokens == PLAIN
        size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if size == 0:
            raise SourceError(f"{path} has no tokens. Pass a trained tokenizer.")
        if size > MOST_IDS:
            raise SourceError(f"{path} has the id {size - 1:,} (expected at most {MOST_IDS - 1:,}). {COPY_AGAIN}")
        eos_id = self._find_eos_id(eos, path)
        pads = [number for token in _USUAL_PAD if (number := self._tokenizer.token_to_id(token)) is not None]
        if eos_id is not None:
            pads.append(eos_id)
        # Without any, 0 is an ordinary token.
        self._has_pad = bool(pads)
        pad_id = pads[0] if pads else 0
        self.unknown_id = self._find_unknown_id()
        self.identity = TokenizerIdentity(NAME, size, eos_id, pad_id, FILE, sha256(data))

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text; ValueError for text outside a vocabulary without an unknown token."""
        encoded = _encode(self._tokenizer.encode_batch_fast, texts)
        return [np.array(encoding.ids, np.int32) for encoding in encoded]

    def encode_with_places(self, text: str) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Return the ids of a text and the characters of each; ValueError as in `encode_batch`."""
        (encoded,) = _encode(self._tokenizer.encode_batch, [text])
        return np.array(encoded.ids, np.int32), np.array(encoded.offsets, np.int64).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, joined by the tokenizer's decoder; changes of its normaliser remain."""
        content = content_ids(ids, self.identity, has_pad=self._has_pad).tolist()
        try:
            text: str = self._tokenizer.decode(content, skip_special_tokens=False)
        except _NOT_OF_PACKAGE:
            raise
        except BaseException as error:  # See _NOT_OF_PACKAGE.
            raise FeatureError(f"the tokenizer cannot decode ids: {one_line(error)}. {COPY_AGAIN}") from None
        return text

    def _find_unknown_id(self) -> int | None:
        # As the package writes it: it reads some files that Python's parser of JSON does not.
        model = parse_input_json(self._tokenizer.to_str())["model"]
        # Unigram has its number, other models have the token.
        number: int | None = model.get("unk_id")
        token: str | None = model.get("unk_token")
        return self._tokenizer.token_to_id(token) if number is None and token is not None else number

    def _find_eos_id(self, eos: str | None, path: str) -> int | None:
        """Return the id of the end of document, given by name or by the usual ones; None without exactly one."""
        if eos is not None:
            number: int | None = self._tokenizer.token_to_id(eos)
            if number is None:
                raise UsageError(f"--eos: {path} has no token {eos!r}. Pass one of its tokens.")
            return number
        eos_ids = [number for token in _USUAL_EOS if (number := self._tokenizer.token_to_id(token)) is not None]
        # With several candidates, --eos has to select one.
        return eos_ids[0] if len(eos_ids) == 1 else None


def _encode(encode_batch: Callable[..., list[Any]], texts: Sequence[str]) -> list[Any]:
    try:
        return encode_batch(list(texts), add_special_tokens=False)
    except _NOT_OF_PACKAGE:
        raise
    except BaseException as error:  # See _NOT_OF_PACKAGE.
        raise ValueError(f"the tokenizer cannot encode it: {one_line(error)}") from None


def _load_tokenizer(data: bytes, path: str) -> Any:
    try:
        package = importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        if error.name != "tokenizers":
            raise
        raise MissingExtraError("--tokenizer hf", "text") from error
    try:
        return package.Tokenizer.from_str(data.decode())
    except _NOT_OF_PACKAGE:
        raise
    except BaseException as error:  # See _NOT_OF_PACKAGE.
        raise SourceError(f"{path} is not a tokenizer.json of Hugging Face: {one_line(error)}. {COPY_AGAIN}") from None
