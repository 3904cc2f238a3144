"""The interface of a set of images in files of arrays."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from beam_jobs.image_records.pixels import Pixels
from beam_jobs.references.reference import NO_FEATURES
from tpudata.format import Feature


class ImageRow(NamedTuple):
    """One image of a set.

    Attributes:
        offset: byte offset of its pixels in the file; without meaning if `data` has the pixels.
        labels: its labels, as the file stores them.
        data: its pixels if they are compressed in the file; otherwise empty.
        columns: extra features, by name.
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
        split: split that the set's name stands for; empty if there is none.
        payload: kind of the images' bytes.
    """

    path: str
    name: str
    split: str

    @property
    @abc.abstractmethod
    def payload(self) -> Pixels:
        """Kind of the images' bytes."""

    @property
    def has_several_labels(self) -> bool:
        """Whether an image may have any number of classes."""
        return False

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of the extra features."""
        return ()

    @abc.abstractmethod
    def rows(self) -> Iterator[ImageRow]:
        """Yield the images in order.

        Raises:
            CorruptionError: the file is truncated or damaged.
            SourceError: the arrays are not as the set's format requires.
        """
