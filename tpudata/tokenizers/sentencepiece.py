"""SentencePiece models (`.model` files), through the package of that name."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tpudata.error_text.lines import one_line
from tpudata.errors import MissingExtraError, SourceError, UsageError
from tpudata.tokenizers.tokenizer import COPY_AGAIN, TOKEN, Ids, TokenizerIdentity, content_ids, sha256

NAME = "sentencepiece"
FILE = "tokenizer.model"
_NOTHING: Ids = np.zeros(0, np.int32)


class SentencePieceTokenizer:
    """A SentencePiece model.

    The end of document is the model's own (`</s>`, as a rule), or the piece that `eos` names. Padding is the
    model's padding id, or else its end of document, or else 0.

    Args:
        data: content of the model's file.
        path: path of the file, for messages.
        eos: piece that ends a document, or None.
        special_tokens: what the name of a control piece, such as `</s>`, in a text becomes: `"token"`, that piece, with the text
            before and after it encoded separately; or text, as with None.

    Raises:
        MissingExtraError: the package is not installed.
        SourceError: it is not a SentencePiece model.
        UsageError: it has no piece `eos`.
    """

    def __init__(self, data: bytes, path: str, eos: str | None = None, *, special_tokens: str | None = None) -> None:
        self.file_bytes = data
        self._processor = _load_processor(data, path)
        size: int = self._processor.get_piece_size()
        eos_id: int | None = self._processor.eos_id()
        if eos is not None:
            eos_id = self._processor.piece_to_id(eos)
            if self._processor.id_to_piece(eos_id) != eos:
                raise UsageError(f"--eos: {path} has no piece {eos!r}. Pass one of its pieces.")
        # -1 means none.
        eos_id = None if eos_id is None or eos_id < 0 else eos_id
        pad_id = self._processor.pad_id()
        fill = pad_id if pad_id >= 0 else eos_id if eos_id is not None else 0
        # Otherwise 0 is an ordinary piece.
        self._has_pad = pad_id >= 0 or eos_id is not None
        unknown_id: int = self._processor.unk_id()
        self.unknown_id = unknown_id if unknown_id >= 0 else None
        self._controls = _find_control_pieces(self._processor) if special_tokens == TOKEN else {}
        self.identity = TokenizerIdentity(NAME, size, eos_id, fill, FILE, sha256(data))

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text; ValueError for text that the model cannot encode."""
        if self._controls:
            return [self._encode_with_controls(text) for text in texts]
        return self._encode(texts)

    def _encode_with_controls(self, text: str) -> Ids:
        names = "|".join(map(re.escape, sorted(self._controls, key=len, reverse=True)))
        # Every second part is the name of a control piece.
        parts = re.split(f"({names})", text)
        ids = self._encode(parts[::2])
        controls = [np.array([self._controls[name]], np.int32) for name in parts[1::2]]
        interleaved = itertools.chain.from_iterable(itertools.zip_longest(ids, controls, fillvalue=_NOTHING))
        return np.concatenate(list(interleaved))

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        # One thread: several worker processes share the machine.
        try:
            encoded: list[Ids] = self._processor.encode(list(texts), out_type="numpy", num_threads=1)
        except RuntimeError as error:
            raise ValueError(f"the tokenizer cannot encode it: {one_line(error)}") from None
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, joined by the model; changes of its normaliser remain."""
        text: str = self._processor.decode(content_ids(ids, self.identity, has_pad=self._has_pad).tolist())
        return text


def _find_control_pieces(processor: Any) -> dict[str, int]:
    """Return the ids of the control pieces by name; the piece for unknown text is not a control piece."""
    numbers = filter(processor.is_control, range(processor.get_piece_size()))
    return {processor.id_to_piece(number): number for number in numbers}


def _load_processor(data: bytes, path: str) -> Any:
    try:
        package = importlib.import_module("sentencepiece")
    except ModuleNotFoundError as error:
        if error.name != "sentencepiece":
            raise
        raise MissingExtraError("--tokenizer sentencepiece", "text") from error
    if not data:
        # The package would accept it as an empty model.
        raise SourceError(f"{path} is not a SentencePiece model: it is empty. {COPY_AGAIN}")
    try:
        return package.SentencePieceProcessor(model_proto=data)
    except (RuntimeError, ValueError) as error:
        raise SourceError(f"{path} is not a SentencePiece model: {one_line(error)}. {COPY_AGAIN}") from None
