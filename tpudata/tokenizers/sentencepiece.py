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
_NO_IDS: Ids = np.zeros(0, np.int32)


class SentencePieceTokenizer:
    """A SentencePiece model.

    The end of document is the model's own (`</s>`, as a rule), or the piece that `eos` names. Padding is the
    model's padding id; if it has none, the end of document; if it has neither, 0.

    Args:
        data: content of the model's file.
        path: path of the file, for messages.
        eos: piece that ends a document; None for the model's own.
        special_tokens: what the name of a control piece, such as `</s>`, in a text becomes: with `"token"` that piece, and the text
            before and after it is encoded separately; with `"text"` or None ordinary text.

    Raises:
        MissingExtraError: the package is not installed.
        SourceError: it is not a SentencePiece model.
        UsageError: it has no piece `eos`.
    """

    def __init__(self, data: bytes, path: str, eos: str | None = None, *, special_tokens: str | None = None) -> None:
        self.file_bytes = data
        self._processor = _load_processor(data, path)
        size: int = self._processor.get_piece_size()
        eos_id = _drop_negative(self._processor.eos_id())
        if eos is not None:
            # For a piece that the model lacks, this is the id of unknown text.
            eos_id = self._processor.piece_to_id(eos)
            if self._processor.id_to_piece(eos_id) != eos:
                raise UsageError(f"--eos: {path} has no piece {eos!r}. Pass one of its pieces.")
        pad_id = _drop_negative(self._processor.pad_id())
        if pad_id is None:
            pad_id = eos_id
        # Without an id for padding, padding is 0, which also stands for an ordinary piece: `decode` keeps it.
        self._has_pad_id = pad_id is not None
        self.unknown_id = _drop_negative(self._processor.unk_id())
        self._control_ids = _find_control_pieces(self._processor) if special_tokens == TOKEN else {}
        self.identity = TokenizerIdentity(
            NAME, vocab_size=size, eos_id=eos_id, pad_id=pad_id or 0, file=FILE, sha256=sha256(data)
        )

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text; ValueError for text that the model cannot encode."""
        if self._control_ids:
            return [self._encode_with_controls(text) for text in texts]
        return self._encode(texts)

    def _encode_with_controls(self, text: str) -> Ids:
        """Return the ids of a text; names of control pieces in it become these pieces."""
        # The longest name first, in case one begins with another.
        name_pattern = "|".join(map(re.escape, sorted(self._control_ids, key=len, reverse=True)))
        # Every second part is the name of a control piece.
        parts = re.split(f"({name_pattern})", text)
        text_ids = self._encode(parts[::2])
        control_ids = [np.array([self._control_ids[name]], np.int32) for name in parts[1::2]]
        all_ids = itertools.chain.from_iterable(itertools.zip_longest(text_ids, control_ids, fillvalue=_NO_IDS))
        return np.concatenate(list(all_ids))

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, with names of control pieces as plain text.

        Raises:
            ValueError: the model cannot encode a text.
        """
        # One thread: several worker processes share the machine.
        try:
            encoded: list[Ids] = self._processor.encode(list(texts), out_type="numpy", num_threads=1)
        except RuntimeError as error:
            raise ValueError(f"the tokenizer cannot encode it: {one_line(error)}") from None
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, joined by the model; what its normalizer changed is not restored."""
        text: str = self._processor.decode(content_ids(ids, self.identity, has_pad=self._has_pad_id).tolist())
        return text


def _drop_negative(piece_id: int) -> int | None:
    """Return the id of a special piece, None for -1, which stands for a model without it."""
    return piece_id if piece_id >= 0 else None


def _find_control_pieces(processor: Any) -> dict[str, int]:
    """Return the ids of the control pieces by name; the piece for unknown text is not a control piece."""
    piece_ids = filter(processor.is_control, range(processor.get_piece_size()))
    return {processor.id_to_piece(piece_id): piece_id for piece_id in piece_ids}


def _load_processor(data: bytes, path: str) -> Any:
    """Return the package's processor of a model file.

    Args:
        data: content of the file.
        path: path of the file, for messages.

    Raises:
        MissingExtraError: the package is not installed.
        SourceError: the file is not a model.
    """
    try:
        package = importlib.import_module("sentencepiece")
    except ModuleNotFoundError as error:
        if error.name != "sentencepiece":
            raise
        raise MissingExtraError("--tokenizer sentencepiece", "text") from error
    if not data:
        # The package would accept an empty file as an empty model.
        raise SourceError(f"{path} is not a SentencePiece model: it is empty. {COPY_AGAIN}")
    try:
        return package.SentencePieceProcessor(model_proto=data)
    except (RuntimeError, ValueError) as error:
        raise SourceError(f"{path} is not a SentencePiece model: {one_line(error)}. {COPY_AGAIN}") from None
