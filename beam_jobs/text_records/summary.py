"""Counts of the text of a shard or a dataset."""

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
        dropped: number of tokens cut from the ends of documents.
        unknown: number of tokens for text that the tokenizer does not know.
        negative_labels: number of labels below 0, which test sets have in place of hidden labels.
        maxima: by name of a field of lists, the number of entries of its longest list.
    """

    documents: int = 0
    decoded_bytes: int = 0
    tokens: int = 0
    padding: int = 0
    dropped: int = 0
    unknown: int = 0
    negative_labels: int = 0
    maxima: dict[str, int] = dataclasses.field(default_factory=dict)

    def merge(self, other: TextSummary) -> None:
        """Add the counts of another summary."""
        for field in dataclasses.fields(self):
            if field.name != "maxima":
                setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        for name, count in other.maxima.items():
            self.add_list(name, count)

    def add_list(self, name: str, count: int) -> None:
        """Note that a list of the field `name` has `count` entries: the summary holds the maximum of each field."""
        self.maxima[name] = max(count, self.maxima.get(name, 0))

    @property
    def filled_share(self) -> float:
        """Share of the token positions that hold tokens, not padding; 1 if there are no positions."""
        position_count = self.tokens + self.padding
        return self.tokens / position_count if position_count else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; negative labels and maxima are omitted if there are none, as in indexes of earlier versions."""
        optional = ("negative_labels", "maxima")
        return {name: value for name, value in dataclasses.asdict(self).items() if value or name not in optional}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TextSummary:
        """Return the summary that `to_json` wrote."""
        return cls(**value)
