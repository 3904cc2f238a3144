"""Bytes of UTF-8 as tokens: no file, no training, any language, and lossless."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from tpudata.tokenizers.tokenizer import Ids, TokenizerIdentity, content_ids, reject_other_eos

NAME = "bytes"
EOS_ID, PAD_ID = 256, 257


class ByteTokenizer:
    """Tokenizer whose ids 0 to 255 are the bytes of UTF-8; 256 ends a document, 257 is padding.

    Args:
        eos: the name `<eos>`, or None, which means the same.

    Raises:
        UsageError: `eos` names a different end of document.
    """

    file_bytes = b""
    unknown_id: int | None = None
    identity = TokenizerIdentity(NAME, vocab_size=258, eos_id=EOS_ID, pad_id=PAD_ID)

    def __init__(self, eos: str | None = None) -> None:
        reject_other_eos(eos, NAME)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the bytes of each text; UnicodeEncodeError, a ValueError, for a lone surrogate."""
        encoded_texts = [text.encode() for text in texts]
        ids = self.encode_utf8(b"".join(encoded_texts))
        bounds = itertools.accumulate(map(len, encoded_texts), initial=0)
        return [ids[start:end] for start, end in itertools.pairwise(bounds)]

    def encode_utf8(self, data: bytes) -> Ids:
        """Return the bytes of a text as ids."""
        return np.frombuffer(data, np.uint8).astype(np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are not a complete character, as at either end of a row, become U+FFFD."""
        return content_ids(ids, self.identity).astype(np.uint8).tobytes().decode("utf-8", "replace")
