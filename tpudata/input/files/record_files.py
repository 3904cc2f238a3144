"""Files without a manifest that a user describes, and the kinds of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tpudata.input.files.fixed_length_record_files import FixedLengthRecordFiles, FixedLengthRecords
from tpudata.input.files.split_files import SplitFiles
from tpudata.input.files.text_line_files import TextLineFiles, TextLines
from tpudata.input.files.tfrecord_files import DescribedTFRecords, TFRecordFiles

RecordFiles: TypeAlias = TFRecordFiles | FixedLengthRecordFiles | TextLineFiles
# Class that reads the files of each description.
READERS: Mapping[type, type[SplitFiles]] = {
    TFRecordFiles: DescribedTFRecords,
    FixedLengthRecordFiles: FixedLengthRecords,
    TextLineFiles: TextLines,
}
