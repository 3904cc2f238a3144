"""The CRC-32C of a part of a file, from those of two of its beginnings: no byte is read twice.

A CRC is a remainder of polynomials over GF(2): for bytes A followed by B it is crc(A) * x^(8 |B|) + crc(B), modulo the
polynomial 0x11EDC6F41 of CRC-32C (RFC 3720, section 12.1). What is added is exclusive-or, and so is what is subtracted.
"""

from __future__ import annotations

_BITS = 0xFFFFFFFF
# Bits stand as the checksum has them: the highest bit of the 32 is x^0. This is the polynomial without x^32.
_POLYNOMIAL = 0x82F63B78
_X8 = 1 << 31 - 8


def _product(a: int, b: int) -> int:
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = a << 1 & _BITS
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _powers() -> list[int]:
    # x^(8 * 2^k), up to the longest file there can be.
    powers = [_X8]
    while len(powers) < 64:
        powers.append(_product(powers[-1], powers[-1]))
    return powers


_POWERS = _powers()


def crc32c_of_rest(whole: int, beginning: int, size: int) -> int:
    """The CRC-32C of B, from those of A followed by B and of A.

    Args:
        whole: CRC-32C of A followed by B.
        beginning: CRC-32C of A.
        size: number of bytes of B.
    """
    for power in _POWERS:
        if size & 1:
            beginning = _product(power, beginning)
        size >>= 1
        if not size:
            break
    return whole ^ beginning
