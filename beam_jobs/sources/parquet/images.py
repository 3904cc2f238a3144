"""The images of a column: bytes, or structs of `bytes` and `path`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.compute  # type: ignore[import-untyped]

from tpudata.errors import BadRecordError


def iterate_images(column: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the bytes of each image, and its path if there is one and no bytes."""
    if not pyarrow.types.is_struct(column.type):
        yield from ((data, None) for data in column.to_pylist())
        return
    data = pyarrow.compute.struct_field(column, "bytes")
    has_path = any(field.name == "path" and pyarrow.types.is_string(field.type) for field in column.type)
    if data.null_count == 0 or not has_path:
        yield from ((image, None) for image in data.to_pylist())
        return
    # Bytes, since a path need not be UTF-8.
    paths = pyarrow.compute.struct_field(column, "path").cast(pyarrow.binary())
    yield from zip(data.to_pylist(), paths.to_pylist(), strict=True)


def image_bytes(data: bytes | None, path: bytes | None, origin: str) -> bytes:
    """Return the bytes of an image; BadRecordError if there are none. `origin` names the row."""
    if data is None and path:
        shown = path.decode("utf-8", "backslashreplace")
        raise BadRecordError(origin, f"no bytes, and only a path: {shown}; store the images' bytes in the Parquet file")
    if not data:
        raise BadRecordError(origin, "the image is empty" if data is not None else "no image: a null")
    return data
