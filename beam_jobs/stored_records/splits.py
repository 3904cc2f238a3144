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
        lists: by split, the keys of its records.
        shares: shares by which the other records are assigned; None keeps the split that the input has them in.
    """

    key: str = RECORD
    lists: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    shares: SplitShares | None = None

    @property
    def reads_records(self) -> bool:
        """Whether the split depends on the content of a record."""
        return self.key != RECORD and bool(self.lists or self.shares)

    @functools.cached_property
    def _listed(self) -> dict[str, str]:
        return {key: split for split, keys in self.lists.items() for key in keys}

    def split(self, stored_split: str, key: str) -> str:
        """Return the split of a record.

        Args:
            stored_split: the split that it has in the input.
            key: its key.
        """
        listed = self._listed.get(key)
        if listed is not None:
            return listed
        return stored_split if self.shares is None else self.shares.assign_split(key_digest(key))

    def splits(self, stored_split: str, keys: PackedKeys, digests: Digests) -> list[str]:
        """Return the split of each record by its key, or a single split that all share.

        Args:
            stored_split: the split that they have in the input.
            keys: n keys.
            digests: their digests.
        """
        if self.lists:
            return [self.split(stored_split, key) for key in keys]
        return [stored_split] if self.shares is None else self.shares.assign_splits(digests[:, 0])

    def find_key_in_record(self, data: bytes, path: str, offset: int) -> str:
        """Return the key of a record by its content.

        Args:
            data: the serialized `tf.train.Example`.
            path: its file, for messages.
            offset: its byte offset there, for messages.

        Raises:
            BadRecordError: it does not have the feature, or not one value of it.
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
