"""The interface of a tokenizer, and its identity in a dataset."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from tpudata.errors import FeatureError, UsageError

Ids: TypeAlias = npt.NDArray[np.int32]
EOS = "<eos>"
# Treatment of a special token's name in a text: it becomes this token, or is split like any other text.
TOKEN, PLAIN = "token", "text"
# Ids are stored as int32.
MAX_IDS = 1 << 31
# Bytes of the largest tokenizer file, which is read whole; the largest known files have some tens of MB.
MAX_FILE_BYTES = 1 << 28
COPY_AGAIN = "Copy it again from its source."


@dataclasses.dataclass(frozen=True)
class TokenizerIdentity:
    """Identity of the tokenizer that made a dataset: equal identities give the same ids for the same text.

    Attributes:
        name: name of the kind of tokenizer in `--tokenizer`, such as `"hf"`.
        vocab_size: number of ids, which count from 0.
        eos_id: id that ends a document; None if there is none.
        pad_id: id of padding.
        file: name of the tokenizer's file next to the data; empty for bytes, which have none.
        sha256: SHA-256 of that file, in hexadecimal digits; empty without a file.
    """

    name: str
    vocab_size: int
    eos_id: int | None
    pad_id: int
    file: str = ""
    sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for the manifest."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TokenizerIdentity:
        """Return the identity that `to_json` wrote."""
        return cls(**value)


class Tokenizer(Protocol):
    """A tokenizer: text to ids and back."""

    @property
    def identity(self) -> TokenizerIdentity:
        """Name, size of the vocabulary, special ids, and the file's hash."""

    @property
    def unknown_id(self) -> int | None:
        """The id of text outside of the vocabulary, or None."""

    @property
    def file_bytes(self) -> bytes:
        """Content of the file that is kept next to the data as `identity.file`; empty without a file."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, int32 [tokens], without end of document; a ValueError if a text cannot be encoded."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without ends of documents and padding.

        If the padding id also stands for text, it is kept, since the text would be lost otherwise.

        Raises:
            FeatureError: an id is not in the vocabulary.
        """


@runtime_checkable
class Utf8Tokenizer(Tokenizer, Protocol):
    """A tokenizer with one id for each byte of UTF-8, so that texts can be encoded together."""

    def encode_utf8(self, data: bytes) -> Ids:
        """Return the ids of text in UTF-8: int32 [bytes]."""


@runtime_checkable
class OffsetTokenizer(Tokenizer, Protocol):
    """A tokenizer that also returns where each token starts and ends in the text."""

    def encode_with_offsets(self, text: str) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Return the ids, int32 [tokens], and the start and end of each token in characters, int64 [tokens, 2]."""


def sha256(data: bytes) -> str:
    """Return the SHA-256 of a tokenizer's file in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def reject_other_eos(eos: str | None, name: str) -> None:
    """Raise UsageError if --eos names a token other than `<eos>`, with which the tokenizer always ends documents."""
    if eos not in (None, EOS):
        raise UsageError(f"--eos: the tokenizer {name} has {EOS} (got {eos!r}). Omit the flag.")


def check_ids(ids: npt.NDArray[np.integer], identity: TokenizerIdentity) -> None:
    """Raise FeatureError if an id is not in the vocabulary.

    Args:
        ids: integers, of any shape.
        identity: identity of the tokenizer.
    """
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= identity.vocab_size):
        wrong_id = int(ids[(ids < 0) | (ids >= identity.vocab_size)].flat[0])
        raise FeatureError(
            f"id {wrong_id} is not in the vocabulary of {identity.name}, which has {identity.vocab_size:,} ids from 0. Use the"
            " tokenizer that the ids were made with."
        )


def content_ids(ids: Iterable[int], identity: TokenizerIdentity, *, has_pad: bool = True) -> Ids:
    """Return ids as an array, int32 [tokens], without ends of documents and padding.

    Args:
        ids: ids of the tokenizer.
        identity: identity of the tokenizer.
        has_pad: whether the padding id stands only for padding; otherwise it also stands for text, and is kept.

    Raises:
        FeatureError: an id is not in the vocabulary.
    """
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
    check_ids(array, identity)
    removed_ids = [] if identity.eos_id is None else [identity.eos_id]
    if has_pad:
        removed_ids.append(identity.pad_id)
    content: Ids = array[~np.isin(array, removed_ids)].astype(np.int32)
    return content
