"""The interface of a set of images in files of arrays."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from beam_jobs.image_records.pixels import Pixels
from beam_jobs.references.reference import NO_FEATURES


class ImageRow(NamedTuple):
    """One image of a set.

    Attributes:
        offset: byte offset of its pixels in the file.
        labels: its classes, as the file has them.
        data: its pixels, if the file has no addressable ones; otherwise empty.
        columns: extra features.
    """

    offset: int
    labels: tuple[str, ...]
    data: bytes = b""
    columns: Mapping[str, Any] = NO_FEATURES


class ImageSet(abc.ABC):
    """Images with labels in one file. A frozen dataclass that is pickled to the workers.

    Attributes:
        path: the file.
        name: prefix of the indices in keys.
        split: split that its name stands for; empty without one.
        payload: kind of the images' bytes.
    """

    path: str
    name: str
    split: str

    @property
    @abc.abstractmethod
    def payload(self) -> Pixels:
        """Kind of the images' bytes."""

    @abc.abstractmethod
    def rows(self) -> Iterator[ImageRow]:
        """Yield the images in order.

        Raises:
            CorruptionError: the file is truncated or damaged.
            SourceError: it has other arrays than those of its form.
        """
