"""Encoding of several texts by a tokenizer, perhaps of another package, with checks of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tpudata.errors import UsageError
from tpudata.tokenizers import Ids


class Encoder(Protocol):
    """Encoder of texts: a tokenizer, or an encoder of chats."""

    def encode_batch(self, texts: Sequence[str], /) -> list[Ids]:
        """Return the ids of each text, int32 [tokens]; ValueError if one cannot be encoded."""


def encode_each(encoder: Encoder, texts: Sequence[str]) -> list[Ids]:
    """Return the ids of each text, integers [tokens]; UsageError if a tokenizer of another package returns something else."""
    encoded: Any = encoder.encode_batch(texts)
    method_name = f"{type(encoder).__qualname__}.encode_batch"
    if not isinstance(encoded, (Sequence, np.ndarray)):
        raise UsageError(
            f"{method_name}: no ids (got {type(encoded).__name__}, expected a list of int32 arrays). Change its package."
        )
    if len(encoded) != len(texts):
        raise UsageError(
            f"{method_name}: wrong number of results (got {len(encoded)}, expected {len(texts)}, one for each text). Change its"
            " package."
        )
    return [_convert_ids(ids, method_name) for ids in encoded]


def _convert_ids(ids: Any, method_name: str) -> Ids:
    """Return the ids of a text as an array; UsageError if they are not integers [tokens]."""
    array: Ids = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        got = f"{array.dtype} {list(array.shape)}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise UsageError(
            f"{method_name}: no ids of a text (got {got}, expected an int32 array [tokens]). Change its package."
        )
    # numpy makes an empty list an array of floats.
    return array if array.size else array.astype(np.int32)
