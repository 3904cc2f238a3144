"""Checksums derived from those of parts, compared with google_crc32c over the whole bytes.

The arithmetic is private: files show only whole checksums.
"""

from __future__ import annotations

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpudata.format.tfrecord.crc32c import extend_crc32c, move_crc32c, split_crc32c


def checksums(pieces: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([google_crc32c.value(piece) for piece in pieces], np.uint32)


@given(st.binary(max_size=300), st.binary(max_size=5000))
def test_derives_the_checksum_of_the_rest(beginning: bytes, rest: bytes) -> None:
    whole = google_crc32c.value(beginning + rest)
    assert split_crc32c(whole, google_crc32c.value(beginning), len(rest)) == google_crc32c.value(rest)


def test_derives_the_checksum_of_a_long_rest() -> None:
    rest = bytes(range(256)) * 40_001
    assert split_crc32c(
        google_crc32c.value(b"head" + rest), google_crc32c.value(b"head"), len(rest)
    ) == google_crc32c.value(rest)


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=5000)), max_size=8))
def test_derives_checksums_of_many_joined_pieces(pairs: list[tuple[bytes, bytes]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    moved = move_crc32c(checksums(first), np.array([len(b) for b in second], np.int64))
    assert (moved ^ checksums(second)).tolist() == checksums([a + b for a, b in pairs]).tolist()


def test_derives_checksums_of_pieces_before_a_long_rest() -> None:
    rest = bytes(range(256)) * 40_001
    moved = move_crc32c(checksums([b"one", b"two"]), np.array([len(rest), 0], np.int64))
    assert moved.tolist() == [
        google_crc32c.value(b"one" + rest) ^ google_crc32c.value(rest),
        google_crc32c.value(b"two"),
    ]


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(min_size=7, max_size=7)), min_size=1, max_size=8))
def test_derives_checksums_of_many_extended_pieces(pairs: list[tuple[bytes, bytes]]) -> None:
    data = np.array([list(more) for _, more in pairs], np.uint8)
    extended = extend_crc32c(checksums([start for start, _ in pairs]), data)
    assert extended.tolist() == checksums([start + more for start, more in pairs]).tolist()
