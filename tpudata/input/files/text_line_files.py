"""Text files in which each line is a record."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.checks import check_integer, convert_integers
from tpudata.errors import CorruptionError, FeatureError, UsageError
from tpudata.format import Feature
from tpudata.format.tfrecord.frame_scan import GZIP_MAGIC, Offsets
from tpudata.input.dataset.fields import Fields
from tpudata.input.files.paths import Paths, check_paths
from tpudata.input.files.split_files import Run, SplitFiles
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.options.tokens import Tokens
from tpudata.storage import Entry, storage_for

# Size of one read of a scan.
_READ_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class TextLineFiles:
    r"""Text files in which each line is a record, without its "\n" or "\r\n"; yielded as the feature `text`.

    Attributes:
        files: as in `TFRecordFiles`.
        skip_lines: number of lines to skip at the beginning of each file, such as the header of a CSV file.

    Raises:
        UsageError: an argument is of the wrong type or out of range.
    """

    files: Paths
    skip_lines: int = 0

    def __post_init__(self) -> None:
        check_paths(self.files)
        check_integer("skip_lines", self.skip_lines, 0)
        convert_integers(self, "skip_lines")

    @property
    def features(self) -> tuple[Feature, ...]:
        """The line."""
        return (Feature("text", "bytes", "string", encoding="utf8"),)

    @property
    def label(self) -> None:
        """None: a line has no label."""
        return


class TextLines(SplitFiles):
    """The lines of `TextLineFiles`."""

    description: TextLineFiles

    @staticmethod
    def scan(description: TextLineFiles, file: Entry) -> Offsets:
        """Return where the lines of a file begin and end, by reading every byte; see `SplitFiles.scan`."""
        return find_line_offsets(file, description.skip_lines)

    def choose_fields(
        self, feature_options: FeatureOptions, *, image_size: tuple[int, int] | None = None, tokens: Tokens, **_: Any
    ) -> Fields:
        """Return the field of the line; FeatureError or UsageError if an option asks for another feature."""
        (line,) = self.description.features
        if feature_options.features not in (None, line.name):
            raise FeatureError(
                f"features={feature_options.features!r}: a line is the feature {line.name}. Name it, or omit features."
            )
        # Reject other options that select features, if they are set.
        for name, value in {**feature_options.selection, "size": image_size, **tokens.selection}.items():
            if value and name != "features":
                raise UsageError(f"{name}={value!r}: a line is the feature {line.name} and no more. Omit it.")
        return Fields.for_whole_records(line.name)

    def read_records(self, run: Run) -> tf.data.Dataset:
        """Return a dataset of the lines of a run, without their line breaks."""
        # `tf.strings.split` returns an empty part after the last line break, which is not among the `count` lines.
        lines = tf.strings.regex_replace(tf.strings.split(run.read_bytes(), "\n"), "\r$", "")
        return tf.data.Dataset.from_tensor_slices(lines[run.skipped : run.skipped + run.count])


def find_line_offsets(file: Entry, skip_lines: int, read_bytes: int = _READ_BYTES) -> Offsets:
    """Return where a text file's lines begin, without the skipped ones, and where the last one ends: int64 [lines + 1].

    Raises:
        CorruptionError: the file is compressed, or shorter than it was when it was listed.
    """
    begins = [np.zeros(1, np.int64)]
    offset = 0
    while offset < file.size:
        buffer = storage_for(file.path).read_range(file.path, offset, min(read_bytes, file.size - offset))
        if not buffer:
            raise CorruptionError(file.path, offset, f"the file ends here, and had {file.size} bytes before")
        if offset == 0 and buffer.startswith(GZIP_MAGIC):
            raise CorruptionError(file.path, 0, "the file is compressed, and has no lines. Unpack it with gunzip.")
        # A line begins after each line break.
        begins.append(offset + 1 + np.flatnonzero(np.frombuffer(buffer, np.uint8) == ord("\n")))
        offset += len(buffer)
    offsets = np.concatenate(begins)
    # If the last line has a line break, the last begin is already the end of the file.
    if offsets[-1] < file.size:
        offsets = np.append(offsets, file.size)
    # A file of at most `skip_lines` lines has no records: only the end remains.
    return offsets[min(skip_lines, len(offsets) - 1) :]
