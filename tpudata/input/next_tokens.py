"""The next tokens of packed rows as targets, while the rows are numpy's.

TensorFlow takes two to four times as long for the same: each of its steps gets new memory, whose pages the system first clears.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.input.dataset.fields import Fields
from tpudata.input.source import Columns
from tpudata.input.text.sequence import INPUT_IDS, SEGMENT_IDS, TARGETS, TOKEN_WEIGHTS, Sequences


@dataclasses.dataclass(frozen=True)
class NextTokens:
    """Makes the targets and their weights, as `Sequences.with_targets` does.

    Attributes:
        ids: name of the column of tokens, int32 [n, length].
        segments: name of the column that says which document each is of, int32 [n, length]; 0 for padding.
        length: tokens in a row.
    """

    ids: str
    segments: str
    length: int

    @classmethod
    def of(cls, fields: Fields, sequences: Sequences) -> NextTokens | None:
        """For the columns of these fields; None where TensorFlow has to make the targets, or nobody."""
        if sequences.targets != "segments":
            return None
        inputs = {field.name: field for field in fields.inputs}
        ids, segments = inputs[INPUT_IDS], inputs[SEGMENT_IDS]
        # int64 is fed as int32.
        if any(field.pads or field.dtype not in ("int32", "int64") for field in (ids, segments)):
            return None
        return cls(ids.feature.name, segments.feature.name, ids.shape[0])

    @property
    def columns(self) -> dict[str, tuple[tf.DType, tuple[int, ...]]]:
        """By name, the dtype and shape of what is made of a record."""
        return {TARGETS: (tf.int32, (self.length,)), TOKEN_WEIGHTS: (tf.float32, (self.length,))}

    def make(self, columns: Columns, array: Callable[[tuple[int, ...], tf.DType], Any]) -> Columns:
        """The targets of rows: the token behind each that is of the same document, and 0; and their weights, 1 and 0.

        Args:
            columns: of the rows, one and more.
            array: makes an array with any values.
        """
        made = {name: array((len(columns[self.ids]), *shape), dtype) for name, (dtype, shape) in self.columns.items()}
        # All rows as one: row by row, numpy takes twice as long.
        ids: Any = columns[self.ids].reshape(-1)
        segments: Any = columns[self.segments].reshape(-1)
        targets, weights = made[TARGETS].reshape(-1), made[TOKEN_WEIGHTS].reshape(-1)
        has_next = np.empty(ids.shape, np.bool_)
        np.equal(segments[1:], segments[:-1], out=has_next[:-1])
        # Behind the last token of a row stands nothing.
        has_next[self.length - 1 :: self.length] = False
        has_next &= segments > 0
        weights[...] = has_next
        targets[-1] = 0
        np.multiply(ids[1:], has_next[:-1], out=targets[:-1])
        return made
