"""Facts from the first records of foreign files: which features hold images, and the name of the layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_jobs.stored_records.foreign.inferred_features import holds_image
from beam_jobs.stored_records.foreign.unread_records import describe_unread_records
from beam_jobs.stored_records.source import detect_compression
from beam_jobs.stored_records.stored_files import StoredFile
from tpudata.console.nearest import did_you_mean
from tpudata.errors import CorruptionError, SourceError, UsageError
from tpudata.format import decode_example, read_records
from tpudata.format.example.wire import Value
from tpudata.format.manifest.model_features import FED_BY_LAYOUT, LABEL_NAMES
from tpudata.format.tfrecord.frame_scan import is_header
from tpudata.format.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, unpack_frame
from tpudata.storage import storage_for

# Maximum number of records of a file that are decoded.
_MAX_RECORDS = 100
# Layout of records that have the features of no other layout.
_EXAMPLES = "examples"


class FirstRecords(NamedTuple):
    """Facts about the features, from the first records of the first file that has any.

    Attributes:
        path: path of the first file with records.
        names: names of all features in these records.
        images: names of the features that hold images.
    """

    path: str
    names: frozenset[str]
    images: frozenset[str]

    @classmethod
    def read(cls, files: Sequence[StoredFile]) -> FirstRecords:
        """Read the first records of files, up to the first file that has any.

        Args:
            files: the first files of all inputs.

        Raises:
            SourceError: no file has records that can be read, or the first record is not a `tf.train.Example`.
        """
        errors: list[CorruptionError] = []
        for file in files:
            compression = detect_compression(file.path, file.size)
            if compression is None and (problem := describe_unread_records(file.path, file.size)):
                errors.append(CorruptionError(file.path, offset=0, reason=problem))
            examples = [] if compression is None else list(_read_examples(file.path, compression, errors))
            if examples:
                names = frozenset(name for example in examples for name in example)
                image_names = {name for example in examples for name, values in example.items() if holds_image(values)}
                # A feature with several values in some record holds the masks of objects, not an image.
                list_names = {name for example in examples for name, values in example.items() if len(values) > 1}
                return cls(file.path, names, frozenset(image_names - list_names))
        if errors:
            raise SourceError(f"{errors[0]}. No record of the first files can be read.")
        raise SourceError(
            f"{files[0].path}: no TFRecords here or in the files after it, by their first bytes. Name files of TFRecords."
        )

    def find_layout(self, array_names: set[str]) -> str:
        """Return the name of the layout of the records; `array_names` names the features that are declared as arrays."""
        if "image/encoded" in self.images:
            return "imagenet"
        # The layout is raw if all features that models are fed in layout raw are arrays.
        return "raw" if set(FED_BY_LAYOUT["raw"]) <= array_names else _EXAMPLES

    def find_label(self, requested: str | None) -> str:
        """Return the name of the feature that holds the class: `requested` or, if it is None, the first usual one.

        Raises:
            UsageError: none of the first records has such a feature.
        """
        if requested is not None:
            self.check_feature("--label", requested)
            return requested
        for usual_name in LABEL_NAMES:
            if usual_name in self.names:
                return usual_name
        raise UsageError(
            f"--labels: {self.path} has no feature {' or '.join(LABEL_NAMES)} (got {', '.join(sorted(self.names))})."
            " Pass --label FEATURE."
        )

    def check_feature(self, flag: str, name: str | None) -> None:
        """Raise UsageError if a flag names a feature that none of the first records has; `name` is None without the flag."""
        if name is not None and name not in self.names:
            raise UsageError(
                f"{flag}: {self.path} has no feature {name!r} (got {', '.join(sorted(self.names))})."
                f"{did_you_mean(name, sorted(self.names))} Name a feature of the records."
            )


def _read_examples(path: str, compression: str, errors: list[CorruptionError]) -> Iterator[dict[str, Value]]:
    """Yield the first records of a file, decoded; append the errors of damage, which the run will report, to `errors`.

    Raises:
        SourceError: the first record is not a `tf.train.Example`.
    """
    try:
        # Records after damage can be read only from an uncompressed file.
        records = read_records(path, compression) if compression else _read_intact_records(path, errors)
        for index, (offset, data) in enumerate(itertools.islice(records, _MAX_RECORDS)):
            try:
                yield decode_example(data, path=path, offset=offset)
            except CorruptionError as error:
                # The run rejects later records that are not Examples.
                if index == 0:
                    raise SourceError(
                        f"{path} at byte {offset}: {error.reason}. A dataset holds Examples; write the records as such."
                    ) from None
    except CorruptionError as error:
        errors.append(error)


def _read_intact_records(path: str, errors: list[CorruptionError]) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, data) of the intact records of an uncompressed file; append the errors of damage to `errors`.

    A damaged record is skipped; a damaged length ends the reading, since no later record can be found.
    """
    storage = storage_for(path)
    entry = storage.stat(path)
    size = entry.size if entry else 0
    offset = 0
    while offset + FRAME_BYTES <= size:
        header = storage.read_range(path, offset, HEADER_BYTES)
        length = int.from_bytes(header[:8], "little")
        if not is_header(header) or length > size - offset - FRAME_BYTES:
            errors.append(CorruptionError(path, offset, "the length of a record is damaged, or the file is cut"))
            return
        frame = storage.read_range(path, offset, length + FRAME_BYTES)
        try:
            yield offset, unpack_frame(frame, path, offset)
        except CorruptionError as error:
            errors.append(error)
        offset += length + FRAME_BYTES
