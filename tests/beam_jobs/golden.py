"""What tests of unchanging datasets share: images and digests that depend on no library."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import zlib
from pathlib import Path

from tpudata.format import Manifest


def one_pixel_png(number: int) -> bytes:
    """A PNG of one pixel, the same whatever library is installed: its data are stored, not compressed."""
    row = bytes([0, number, 0, 0])
    stored = (
        b"\x78\x01\x01" + struct.pack("<HH", len(row), len(row) ^ 0xFFFF) + row + struct.pack(">I", zlib.adler32(row))
    )
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)), (b"IDAT", stored), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def dataset_digest(folder: Path) -> str:
    """The first 16 digits of SHA-256 over the names and bytes of a dataset's files, without warnings and version."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.name == "manifest.json":
                # Warnings are of another test. The digests are from version 0.1.0, which the checksum of a manifest covers.
                manifest = Manifest.from_bytes(data)
                options = json.loads(json.dumps(dict(manifest.options)).replace(manifest.created_by, "tpudata 0.1.0"))
                manifest = dataclasses.replace(manifest, warnings={}, options=options, created_by="tpudata 0.1.0")
                data = manifest.to_bytes()
                data = json.dumps(json.loads(data) | {"created_by": ""}).encode()
            digest.update(str(path.relative_to(folder.parent)).encode() + b"\0" + data)
    return digest.hexdigest()[:16]
