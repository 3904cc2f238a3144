"""CRC-32C of concatenated bytes, computed from the checksums of their parts without reading the bytes again.

A CRC is a remainder of polynomials over GF(2): for bytes A followed by B it is crc(A) * x^(8 |B|) + crc(B), modulo the
polynomial 0x11EDC6F41 of CRC-32C (RFC 3720, section 12.1). Addition and subtraction are exclusive-or.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

_MASK = 0xFFFFFFFF
# Polynomials have their bits in the checksum's order: the highest of the 32 is x^0. This one is CRC-32C's without x^32.
_POLYNOMIAL = 0x82F63B78
_X0 = 1 << 31
_X8 = 1 << (31 - 8)
# A size is handled in digits of this number of bits: fewer bits take more steps, more bits take larger tables.
_DIGIT_BITS = 4
# Number of values that a digit may have.
_DIGIT_VALUES = 1 << _DIGIT_BITS


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo the polynomial of CRC-32C; the highest of their 32 bits is x^0."""
    product = 0
    while a:
        if a & _X0:
            product ^= b
        # The next power of x: in `a` its coefficient moves to the top, `b` is multiplied by x and reduced.
        a = (a << 1) & _MASK
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _list_powers() -> list[int]:
    """Return x^(8 * 2^k) for each k below 64, enough for files of any length."""
    powers = [_X8]
    while len(powers) < 64:
        powers.append(_multiply(powers[-1], powers[-1]))
    return powers


_POWERS = _list_powers()


def split_crc32c(whole_crc32c: int, begin_crc32c: int, size: int) -> int:
    """Return the CRC-32C of bytes B, given the CRC-32C of A and of A followed by B.

    Args:
        whole_crc32c: CRC-32C of A followed by B.
        begin_crc32c: CRC-32C of A.
        size: number of bytes of B.
    """
    moved_crc = begin_crc32c
    for bit in range(size.bit_length()):
        if size >> bit & 1:
            moved_crc = _multiply(_POWERS[bit], moved_crc)
    return whole_crc32c ^ moved_crc


def move_crc32c(crcs: npt.NDArray[np.uint32], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return crc(A) * x^(8 |B|) of each pair: the checksum of A followed by B is the exclusive-or of this value and crc(B).

    Args:
        crcs: uint32 [n], CRC-32C of each A.
        sizes: int64 [n], number of bytes of each B.

    Returns:
        uint32 [n].
    """
    moved_crcs = crcs
    bit_count = int(sizes.max(initial=0)).bit_length()
    for digit_index in range(-(-bit_count // _DIGIT_BITS)):
        # The digit of each size, in base 16, selects one of 16 multiplications, each with 4 tables of 256 entries.
        digit_values = (sizes >> (_DIGIT_BITS * digit_index)) & (_DIGIT_VALUES - 1)
        table_offsets = digit_values * (4 * 256)
        tables = _make_digit_tables(digit_index)
        moved_crcs = np.bitwise_xor.reduce(
            [tables[table_offsets + 256 * index + ((moved_crcs >> (8 * index)) & 0xFF)] for index in range(4)]
        )
    return moved_crcs


def extend_crc32c(crcs: npt.NDArray[np.uint32], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the checksums of many byte strings A, each followed by a few more bytes.

    Args:
        crcs: uint32 [n], CRC-32C of each A; 0 if A is empty.
        data: uint8 [n, bytes], the bytes that follow.

    Returns:
        uint32 [n].
    """
    # The usual table-driven algorithm, a byte at a time: the first table multiplies the state's lowest byte by x^8. The state is
    # inverted at the start and at the end.
    byte_table = _make_tables(_X8)[0]
    state: npt.NDArray[np.uint32] = ~crcs
    for column in data.T:
        state = byte_table[(state ^ column) & 0xFF] ^ (state >> 8)
    return ~state


@functools.cache
def _make_digit_tables(digit_index: int) -> npt.NDArray[np.uint32]:
    """Return the tables that multiply by x^(8 * d * 16^digit_index) for each d below 16, concatenated: uint32 [16 * 4 * 256]."""
    factor = _X0
    tables = []
    for _ in range(_DIGIT_VALUES):
        tables.append(_make_tables(factor))
        factor = _multiply(_POWERS[_DIGIT_BITS * digit_index], factor)
    return np.concatenate(tables, axis=None)


@functools.cache
def _make_tables(factor: int) -> npt.NDArray[np.uint32]:
    """Return the tables that multiply by a polynomial, for each byte of a checksum from the lowest: uint32 [4, 256]."""
    tables = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        # A product is the sum of the products of the bits. The index [:, 1] selects the bytes in which this bit is set.
        bit_mask = 1 << (bit % 8)
        tables[bit // 8].reshape(-1, 2, bit_mask)[:, 1] ^= np.uint32(_multiply(factor, 1 << bit))
    return tables
