"""Zip archives of images: a member's class is the folder it lies in, and its split the folder above, as in tars; with
`--label-from`, its path in the archive gives the class.

A key is ARCHIVE/MEMBER. A reference points to a member that is not compressed, which is usual for images, and holds the content of
a compressed one. References have the CRC-32 of the central directory, which is compared when their bytes are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.compression.decompressors import DECOMPRESSION_ERRORS, decompress_member
from beam_jobs.file_kinds import ZIP_MAGIC
from beam_jobs.file_names import is_ignored_path, resolve_member_path
from beam_jobs.options import ConvertOptions
from beam_jobs.references.ranged_file import file_size, open_ranged
from beam_jobs.references.reading import MAX_INPUT_BYTES, make_too_large_error
from beam_jobs.references.reference import NO_FEATURES, Reference
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.sources.classes import Classes, ClassifiedSource
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.named_splits import (
    NamedSplits,
    find_class_and_split,
    find_file_split,
    find_named_split,
    find_split_in_file_name,
    take_first_names,
)
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.path_labels import PathLabels
from beam_jobs.sources.source import make_reference
from beam_jobs.sources.tars.members import OUTSIDE
from beam_jobs.values.column_kinds import INT
from tpudata.errors import BadRecordError, CorruptionError
from tpudata.format import Feature

# Header of a member: signature, 22 other bytes, and the lengths of name and extra field, which precede the content (APPNOTE.TXT,
# 4.3.7).
_LOCAL_HEADER = struct.Struct("<4s22xHH")
# Bit of a member's flags.
ENCRYPTED = 1
_READ_BYTES = 1 << 16


class ZipUnit(NamedTuple):
    """An archive.

    Attributes:
        path: the file.
        name: prefix of keys.
        split: split that its name stands for; empty if there is none.
    """

    path: str
    name: str
    split: str


@dataclasses.dataclass(frozen=True)
class Zips(ClassifiedSource):
    """Zip archives: a Source whose units are archives.

    Attributes:
        options: options with the splits and the seed of the order.
        files: the archives.
        splits: splits in the names of the archives.
        classes: mapping from folder names to class names.
        has_classes: False if records are unlabelled.
        path_labels: rule for classes and columns in paths; None without `--label-from`.
        folder_classes: whether folders are classes.
    """

    options: ConvertOptions
    files: InputFiles
    splits: NamedSplits
    classes: Classes
    has_classes: bool = True
    path_labels: PathLabels | None = None
    # Names of folders are classes or, with --label-type=int, integer labels.
    folder_classes: bool = True
    takes_label_type: bool = True
    takes_label_from: bool = True

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> Zips:
        """Open the source, after a look at the names of the archives and, for `--label-from`, of their members.

        Raises:
            SourceError: there is no archive, only some of their names stand for splits, or the file of `--labels` is invalid.
            CorruptionError: with `--label-from`, one of the first archives is truncated or damaged.
            UsageError: the options assign splits, but the names of the archives stand for splits; or `--label-from`
                does not fit the first paths, see `PathLabels.infer`.
        """
        names = [name for _, name in take_first_names(files)]
        splits = NamedSplits.infer(options, names, find_file_split, find_split_in_file_name)
        path_labels = PathLabels.infer(source_options, _list_member_paths(files))
        if path_labels is not None:
            has_classes = path_labels.has_classes
            return cls(
                options,
                files,
                splits,
                path_labels.classes,
                has_classes=has_classes,
                path_labels=path_labels,
                folder_classes=False,
            )
        classes = Classes.open(source_options, has_integers=source_options.label_type == INT)
        has_classes = not source_options.unlabelled
        return cls(options, files, splits, classes, has_classes=has_classes, folder_classes=has_classes)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The extra features whose values `--label-from` takes from the paths; empty without the flag."""
        return () if self.path_labels is None else self.path_labels.features

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the archives stand for."""
        return self.splits.named

    def parts(self) -> Iterator[ZipUnit]:
        """Yield the archives."""
        return (ZipUnit(path, name, self.splits.find_split(name)) for path, name in self.files)

    def units(self, part: ZipUnit, ignored: list[str]) -> Sequence[ZipUnit]:
        """Return the archive, which is its only unit; nothing is ignored here."""
        del ignored
        return (part,)

    def references(self, unit: ZipUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to every image of an archive.

        Raises:
            CorruptionError: the archive is truncated or damaged.
            SourceError: a member is in no folder of its class, or its folder and its archive are of different splits.
            UsageError: the options assign splits, but a folder in the archive stands for a split.
        """
        with open_zip(unit.path) as (file, archive):
            for member in archive.infolist():
                # is_dir() would raise IndexError for an empty name.
                if member.filename.endswith("/"):
                    continue
                if is_ignored_path(member.filename):
                    ignored.append(f"{unit.path}/{member.filename}")
                    continue
                member_path = resolve_member_path(member.filename)
                key = f"{unit.name}/{member_path or member.filename}"
                try:
                    if member_path is None:
                        raise BadRecordError(f"{unit.path}/{member.filename}", OUTSIDE)
                    yield self._make_member_reference(unit, member, member_path, key, file)
                except BadRecordError as error:
                    reject(add_key(error, key))

    def _make_member_reference(
        self, unit: ZipUnit, member: zipfile.ZipInfo, member_path: str, key: str, file: BinaryIO
    ) -> Reference:
        """Return the reference to a member, with its content if it is compressed.

        Args:
            unit: the archive.
            member: the member.
            member_path: its path in the archive, without `.` and `..`.
            key: key of the record.
            file: the archive, opened.

        Raises:
            BadRecordError: the member cannot be a record.
            CorruptionError, SourceError, UsageError: see `references`.
        """
        origin = f"{unit.path}/{member.filename}"
        if member.flag_bits & ENCRYPTED:
            raise BadRecordError(origin, "encrypted; pack the archive again without a password")
        if member.file_size > MAX_INPUT_BYTES:
            raise make_too_large_error(origin, member.file_size)
        if not member.file_size:
            raise BadRecordError(origin, "the file is empty")
        folders = member_path.split("/")[:-1]
        labels: tuple[str, ...] = ()
        split = ""
        columns: Mapping[str, Any] = NO_FEATURES
        if self.path_labels is not None:
            labels, columns = self.path_labels.read(member_path, origin)
        if self.folder_classes:
            folder_class, split = find_class_and_split(folders, f"{unit.path}: member {member.filename}")
            labels = (self.classes.resolve(folder_class, origin),)
        elif folders:
            # If folders are not classes (--label-from, --unlabelled), the outermost may be a split.
            split = find_named_split(folders[0])
        if split:
            reject_split_flag(self.options, f"{unit.path} has split folders already ({split})")
        split = self.splits.find_member_split(unit.split, split, origin)
        offset = find_content_offset(file, member, unit.path)
        is_stored = member.compress_type == zipfile.ZIP_STORED
        data = b"" if is_stored else _read_compressed(file, offset, member, origin)
        return make_reference(
            self.options,
            key,
            path=unit.path,
            offset=offset,
            size=member.file_size,
            split=split,
            labels=labels,
            crc32=member.CRC,
            features=columns,
            data=data,
        )


def _list_member_paths(files: InputFiles) -> Iterator[str]:
    """Yield the path, in its archive, of each member that may be a picture."""
    for path, _ in files:
        with open_zip(path) as (_, archive):
            for member in archive.infolist():
                member_path = resolve_member_path(member.filename)
                is_folder = member.filename.endswith("/")
                if member_path is not None and not is_folder and not is_ignored_path(member.filename):
                    yield member_path


def find_content_offset(file: BinaryIO, member: zipfile.ZipInfo, path: str) -> int:
    """Return the offset of a member's content, which follows its header; CorruptionError if the header is damaged."""
    offset = member.header_offset
    if offset < 0:
        raise CorruptionError(path, 0, f"the zip archive is cut or damaged: {member.filename} begins before it")
    file.seek(offset)
    head = file.read(_LOCAL_HEADER.size)
    if len(head) < _LOCAL_HEADER.size or not head.startswith(ZIP_MAGIC):
        raise CorruptionError(path, offset, f"no zip header of {member.filename} where one is expected")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(head)
    return offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)


def _read_compressed(file: BinaryIO, offset: int, member: zipfile.ZipInfo, origin: str) -> bytes:
    """Return the content of a compressed member.

    zipfile would decompress all of it before comparing its size with the one that the archive lists.

    Args:
        file: the archive, opened.
        offset: offset of the member's content in the archive.
        member: the member.
        origin: archive and member, for messages.

    Raises:
        BadRecordError: the content is damaged, or its compression is not supported.
    """
    pieces: list[bytes] = []
    missing_bytes = member.file_size
    try:
        for piece in decompress_member(_read_chunks(file, offset, member.compress_size), member.compress_type):
            missing_bytes -= len(piece)
            if missing_bytes < 0:
                # Caught below, as one of DECOMPRESSION_ERRORS.
                raise EOFError(f"it has more than the {member.file_size:,} bytes that the archive lists")
            pieces.append(piece)
    except DECOMPRESSION_ERRORS as error:
        raise BadRecordError(origin, f"damaged in the archive: {error}") from None
    except NotImplementedError as error:
        raise BadRecordError(origin, f"packed by a method that is not read: {error}; pack the archive again") from None
    data = b"".join(pieces)
    if missing_bytes or zlib.crc32(data) != member.CRC:
        got = f"it has {len(data):,} of {member.file_size:,} bytes" if missing_bytes else "its CRC-32 does not fit"
        raise BadRecordError(origin, f"damaged in the archive: {got}")
    return data


def _read_chunks(file: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of a file from `offset` in chunks; fewer if the file ends."""
    file.seek(offset)
    while size > 0 and (chunk := file.read(min(_READ_BYTES, size))):
        yield chunk
        size -= len(chunk)


@contextlib.contextmanager
def open_zip(path: str) -> Iterator[tuple[BinaryIO, zipfile.ZipFile]]:
    """Open an archive; yield its file, opened for ranged reads, and the archive. CorruptionError if it is truncated or damaged."""
    with open_ranged(path, file_size(path)) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield file, archive
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise CorruptionError(path, 0, f"the zip archive is cut or damaged: {error}") from None
        except UnicodeDecodeError as error:
            # A single name that is not UTF-8 makes the whole archive unreadable.
            raise CorruptionError(
                path,
                0,
                f"the zip archive has a name that is not UTF-8, although its flags say that it is ({error.object!r});"
                " rename the file, and pack the archive again",
            ) from None
