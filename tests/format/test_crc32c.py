"""The checksum of a rest, against google_crc32c over the rest itself."""

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from tpudata.format.crc32c import crc32c_of_rest


@given(st.binary(max_size=300), st.binary(max_size=5000))
def test_is_that_of_the_rest(beginning: bytes, rest: bytes) -> None:
    whole = google_crc32c.value(beginning + rest)
    assert crc32c_of_rest(whole, google_crc32c.value(beginning), len(rest)) == google_crc32c.value(rest)


def test_of_a_long_rest() -> None:
    rest = bytes(range(256)) * 40_001
    assert crc32c_of_rest(
        google_crc32c.value(b"head" + rest), google_crc32c.value(b"head"), len(rest)
    ) == google_crc32c.value(rest)
