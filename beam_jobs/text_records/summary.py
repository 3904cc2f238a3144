"""Counts of a shard's text, and of a dataset's."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class TextSummary:
    """Counts of documents and tokens.

    Attributes:
        documents: number of documents in records.
        decoded_bytes: size of the records as tensors: 4 bytes a token or number, and the bytes of text.
        tokens: number of tokens in records, without padding.
        padding: number of padding tokens in records.
        dropped: number of tokens that were cut off documents.
        unknown: number of tokens for text that the tokenizer does not know.
        negative_labels: number of labels below 0, as test sets have them in place of hidden ones.
    """

    documents: int = 0
    decoded_bytes: int = 0
    tokens: int = 0
    padding: int = 0
    dropped: int = 0
    unknown: int = 0
    negative_labels: int = 0

    def merge(self, other: TextSummary) -> None:
        """Add another summary."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def real_share(self) -> float:
        """Share of the tokens that are not padding: 1 without tokens."""
        places = self.tokens + self.padding
        return self.tokens / places if places else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; an index has the same bytes as in earlier versions unless there are negative labels."""
        value = dataclasses.asdict(self)
        if not self.negative_labels:
            del value["negative_labels"]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TextSummary:
        """Return the summary that `to_json` wrote."""
        return cls(**value)
