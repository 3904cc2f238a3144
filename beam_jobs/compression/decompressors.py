"""Decompressors of bounded output: memory holds one piece of the output, however much a few bytes of input decompress to.

Streams go through the decompressors of zlib, bz2, lzma and zstandard, not through these packages' file objects: `bz2.BZ2File`
ignores a damaged second stream, and zstandard's `stream_reader` ends without an error in a truncated frame.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import zstandard

from beam_jobs.file_kinds import BZIP2, GZIP, XZ

# Largest piece of output. 2 kB of bzip2 decompress to 3 GB.
PIECE_BYTES = 1 << 20
# zstandard's decompressor cannot stop within its input, where a block of 4 bytes may decompress to 128 kB: 256 bytes decompress
# to 8 MB at most.
_ZSTD_STEP = 1 << 8
# xz -9 takes 65 MiB; a header may ask for 4 GiB. zstandard itself has a limit of 128 MiB.
MAX_DICTIONARY_BYTES = 1 << 28
# Raised by decompressors for damaged input; bz2 raises OSError, which reading never does: storage raises StorageError.
DECOMPRESSION_ERRORS = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, EOFError)
# Start of a zip member in LZMA (APPNOTE.TXT, 5.8): version of the SDK (skipped), size of the properties, which are a byte of bit
# counts and the size of the dictionary.
_ZIP_LZMA = struct.Struct("<2xHBI")


class Decompressor(Protocol):
    """One compressed stream.

    Attributes:
        is_finished: whether the stream has ended.
        unused: input after the end of the stream.
    """

    is_finished: bool
    unused: bytes

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Yield the output for more input in pieces; exhaust the iterator before the next call and before reading the attributes.

        Args:
            data: input that follows the earlier input; the part after the end of the stream becomes `unused`.
        """


class _Zlib:
    """A stream of zlib, gzip or bare deflate; `window_bits` is zlib's number for one of these."""

    def __init__(self, window_bits: int) -> None:
        self._decompressor = zlib.decompressobj(window_bits)
        self.is_finished = False
        self.unused = b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data in pieces of at most PIECE_BYTES."""
        is_full = True
        # After a full piece there may be more output without any input.
        while is_full or data:
            piece = self._decompressor.decompress(data, PIECE_BYTES)
            data = self._decompressor.unconsumed_tail
            is_full = len(piece) == PIECE_BYTES
            if piece:
                yield piece
            if self._decompressor.eof:
                break
        self.is_finished, self.unused = self._decompressor.eof, self._decompressor.unused_data


class _LimitedStream:
    """A stream of bz2 or lzma, whose decompressors have the same methods."""

    def __init__(self, decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._decompressor: Any = decompressor
        self.is_finished = False
        self.unused = b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data in pieces of at most PIECE_BYTES."""
        while True:
            piece: bytes = self._decompressor.decompress(data, PIECE_BYTES)
            # The first call takes all input; later calls return the rest of its output.
            data = b""
            if piece:
                yield piece
            if self._decompressor.eof or self._decompressor.needs_input:
                break
        self.is_finished, self.unused = self._decompressor.eof, self._decompressor.unused_data


class _Zstd:
    """A stream of Zstandard."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor().decompressobj()
        self.is_finished = False
        self.unused = b""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data in pieces of at most 8 MB: zstandard sets no limit, so the input is passed in steps."""
        for start in range(0, len(data), _ZSTD_STEP):
            piece = self._decompressor.decompress(data[start : start + _ZSTD_STEP])
            if piece:
                yield piece
            if self._decompressor.eof:
                self.is_finished, self.unused = True, self._decompressor.unused_data + data[start + _ZSTD_STEP :]
                break


def needs_too_much_memory(error: Exception) -> bool:
    """Return whether the error of a decompressor means that the stream's dictionary is too large."""
    return any(words in str(error) for words in ("Memory usage limit", "too much memory", "dictionary is too large"))


def decompress(chunks: Iterable[bytes], compression: str) -> Iterator[bytes]:
    """Yield the content of a compressed file, which may consist of several streams, in pieces of at most 8 MB.

    Args:
        chunks: bytes of the file, in chunks of any size.
        compression: `"gzip"`, `"bzip2"`, `"zstd"` or `"xz"`.

    Raises:
        DECOMPRESSION_ERRORS: the file is truncated or damaged, or needs more than 256 MiB (zstd: 128 MiB) of memory.
    """
    stream: Decompressor | None = None
    for chunk in chunks:
        data = _strip_padding(chunk, compression) if stream is None else chunk
        while data:
            stream = stream or _open_stream(compression)
            yield from stream.decompress(data)
            if not stream.is_finished:
                break
            # What follows the end of a stream begins another one.
            data = _strip_padding(stream.unused, compression)
            stream = None
    if stream is not None:
        raise EOFError("it ends too soon")


def _strip_padding(data: bytes, compression: str) -> bytes:
    """Return data between two streams without the zeros that may follow a gzip stream, as on tapes, or an xz stream."""
    return data.lstrip(b"\0") if compression in (GZIP, XZ) else data


def decompress_member(chunks: Iterable[bytes], method: int) -> Iterator[bytes]:
    """Yield the content of a member of a zip archive, in pieces.

    Args:
        chunks: compressed bytes of the member, in chunks of any size.
        method: compression method of the member, such as `zipfile.ZIP_DEFLATED`.

    Raises:
        NotImplementedError: the method is not supported.
        DECOMPRESSION_ERRORS: the member is truncated or damaged, or needs more than 256 MiB of memory.
    """
    stream: Decompressor | None = None
    for chunk in chunks:
        data = chunk
        if stream is None:
            stream, data = _open_member(data, method)
        yield from stream.decompress(data)
        if stream.is_finished:
            return
    # A stream of LZMA may end with the member, without a mark of its end.
    if method != zipfile.ZIP_LZMA:
        raise EOFError("it ends too soon")


def decompress_zlib(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a zlib stream, which MATLAB files use, in pieces; raises DECOMPRESSION_ERRORS as `decompress` does."""
    stream = _Zlib(zlib.MAX_WBITS)
    for chunk in chunks:
        yield from stream.decompress(chunk)
        if stream.is_finished:
            return
    raise EOFError("it ends too soon")


def _open_stream(compression: str) -> Decompressor:
    """Return a decompressor of a new stream of `"gzip"`, `"bzip2"`, `"zstd"` or `"xz"`."""
    if compression == GZIP:
        # 16 makes zlib expect a header of gzip.
        return _Zlib(zlib.MAX_WBITS | 16)
    if compression == XZ:
        return _LimitedStream(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_DICTIONARY_BYTES))
    return _LimitedStream(bz2.BZ2Decompressor()) if compression == BZIP2 else _Zstd()


def _open_member(data: bytes, method: int) -> tuple[Decompressor, bytes]:
    """Return a decompressor for a zip member, and the member's first chunk without the header that LZMA has.

    Raises what `decompress_member` raises.

    Args:
        data: first chunk of the member.
        method: compression method of the member, such as `zipfile.ZIP_LZMA`.
    """
    if method == zipfile.ZIP_DEFLATED:
        # Zip stores bare deflate, for which zlib takes a negative number.
        return _Zlib(-zlib.MAX_WBITS), data
    if method == zipfile.ZIP_BZIP2:
        return _LimitedStream(bz2.BZ2Decompressor()), data
    if method != zipfile.ZIP_LZMA:
        raise NotImplementedError(f"method {method}")
    if len(data) < _ZIP_LZMA.size:
        raise EOFError("it ends too soon")
    size, properties, dictionary = _ZIP_LZMA.unpack_from(data)
    if size != 5 or properties >= 9 * 5 * 5:
        raise lzma.LZMAError("invalid properties")
    if dictionary > MAX_DICTIONARY_BYTES:
        raise lzma.LZMAError(f"its dictionary is too large (got {dictionary:,} bytes)")
    # The byte is (pb * 5 + lp) * 9 + lc.
    pb_and_lp, lc = divmod(properties, 9)
    pb, lp = divmod(pb_and_lp, 5)
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": dictionary, "lc": lc, "lp": lp, "pb": pb}]
    return _LimitedStream(lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)), data[_ZIP_LZMA.size :]
