"""Assignment of stored records to splits."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping

from beam_jobs.options import SplitShares
from beam_jobs.references.packs.packed_keys import PackedKeys
from beam_jobs.references.reference import Digests, key_digest
from beam_jobs.stored_records.options import CONTENT, RECORD
from tpudata.errors import BadRecordError, CorruptionError
from tpudata.format import decode_example

_DIGEST_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Splitter:
    """The rule that gives each record its split.

    Attributes:
        key: source of a record's key: RECORD, CONTENT or the name of a feature.
        lists: by split, the keys of the records that are assigned to it.
        shares: shares by which the other records are assigned to splits; None keeps the split that they have in the input.
    """

    key: str = RECORD
    lists: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    shares: SplitShares | None = None

    @property
    def reads_records(self) -> bool:
        """Whether the split depends on the content of a record."""
        return self.key != RECORD and bool(self.lists or self.shares)

    @functools.cached_property
    def _split_by_key(self) -> dict[str, str]:
        return {key: split for split, keys in self.lists.items() for key in keys}

    def assign_split(self, stored_split: str, key: str) -> str:
        """Return the split of a record.

        It is the split of the list that has the record's key. Without such a list, the shares decide; if there are none, the record
        keeps its stored split.

        Args:
            stored_split: split that the record has in the input.
            key: key of the record.
        """
        if key in self._split_by_key:
            return self._split_by_key[key]
        return stored_split if self.shares is None else self.shares.assign_split(key_digest(key))

    def assign_splits(self, stored_split: str, keys: PackedKeys, digests: Digests) -> list[str]:
        """Return the split of each record by its key, or a list of one split that all records share.

        Args:
            stored_split: split that the records have in the input.
            keys: keys of the records.
            digests: digests of the keys.
        """
        if self.lists:
            return [self.assign_split(stored_split, key) for key in keys]
        # Column 0 has the high halves of the digests.
        return [stored_split] if self.shares is None else self.shares.assign_splits(digests[:, 0])

    def read_key(self, data: bytes, path: str, offset: int) -> str:
        """Return the key of a record from its content; for keys that are not RECORD.

        Args:
            data: the serialized `tf.train.Example`.
            path: path of the file of records, for messages.
            offset: byte offset of the record in the file, for messages.

        Raises:
            BadRecordError: the record is not an Example, or does not have exactly one value of the feature.
        """
        if self.key == CONTENT:
            return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
        try:
            values = decode_example(data, path=path, offset=offset).get(self.key, [])
        except CorruptionError as error:
            raise BadRecordError(path, error.reason, offset) from None
        if len(values) != 1:
            raise BadRecordError(path, f"feature {self.key!r} of --key has {len(values)} values, expected 1", offset)
        value = values[0]
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
