"""Files of arrays of images with labels: the formats of CIFAR, SVHN, Keras's MNIST and MedMNIST.

A key is the name of the file, for an archive also the name of the array of images, and the image's number from 0 in eight digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from beam_jobs import file_kinds
from beam_jobs.compression.files import read_head
from beam_jobs.file_names import find_parent, is_ignored_name
from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.sources.classes import Classes, ClassifiedSource
from beam_jobs.sources.image_arrays.cifar import (
    OTHER_FILES,
    CifarFile,
    is_cifar_batch_name,
    is_cifar_name,
    read_cifar_names,
)
from beam_jobs.sources.image_arrays.image_set import ImageSet
from beam_jobs.sources.image_arrays.mat_files import open_mat_file
from beam_jobs.sources.image_arrays.npz_files import open_npz_file
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import make_reference
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import Feature

_ENDINGS = (".npz", ".mat")
_HEAD_BYTES = 512


def is_array_name(name: str) -> bool:
    """Return whether a file's name shows unmistakably that it is a file of arrays."""
    return name.lower().endswith(_ENDINGS) or is_cifar_batch_name(name)


def find_array_files(names_by_path: Mapping[str, str]) -> list[str]:
    """Return the paths of a folder's files of arrays; an empty list if there are files of other kinds.

    Names decide, and the content of the first file of arrays. Files about the data, such as a README, do not count.

    Args:
        names_by_path: names of the folder's files, by path.
    """
    data_names = {path: name for path, name in names_by_path.items() if _has_images(name)}
    if not data_names or not all(is_array_name(name) or is_cifar_name(name) for name in data_names.values()):
        return []
    first_path = next(iter(data_names))
    return list(data_names) if is_array_file(first_path, read_head(first_path, _HEAD_BYTES)) else []


def is_array_file(path: str, head: bytes) -> bool:
    """Return whether a file contains arrays.

    Args:
        path: path of the file. Its name decides about CIFAR's binary files, which have no signature.
        head: first 512 bytes of the file.
    """
    name = path.rpartition("/")[2]
    kinds = (file_kinds.NPZ, file_kinds.MAT, file_kinds.PICKLE)
    return file_kinds.detect_file_kind(head) in kinds or (name.endswith(".bin") and is_cifar_name(name))


@dataclasses.dataclass(frozen=True)
class ImageArrays(ClassifiedSource):
    """Files of arrays: a Source whose units are sets of images.

    Attributes:
        options: options with the splits and the seed of the order.
        sets: the sets of images, which are the units; an archive may have several.
        classes: mapping from labels, which are integers, to class names.
        features: extra features.
        has_classes: False if records are unlabelled.
        several_labels: whether an image may have any number of classes.
        named_splits: splits in the names of the files and arrays; empty with --split.
    """

    options: ConvertOptions
    sets: tuple[ImageSet, ...]
    classes: Classes
    features: tuple[Feature, ...] = ()
    has_classes: bool = True
    several_labels: bool = False
    named_splits: frozenset[str] = frozenset()

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions, paths: Iterable[str]) -> ImageArrays:
        """Open the source, after reading headers of .npz and .mat files, and CIFAR's names of classes.

        Args:
            options: options of the conversion.
            source_options: options of labels.
            paths: the files; files about the data, such as a README or the names of CIFAR's classes, are skipped.

        Raises:
            SourceError: a file lacks arrays of images and labels, no file has images, sets have different kinds of classes, files
                of CIFAR have different names of classes, or the file of `--labels` is invalid.
            CorruptionError: a file is truncated or damaged.
            UsageError: the options assign splits, but the sets are of several splits already.
        """
        files = [path for path in paths if _has_images(path.rpartition("/")[2])]
        if not files:
            raise SourceError(
                f"{options.input} has no file of arrays with images, only files about them. Add one, or pass another --input."
            )
        sets = [image_set for path in sorted(files) for image_set in _open_sets(path)]
        # --split divides sets of a single split, but would mix sets of several.
        splits = sorted({image_set.split for image_set in sets if image_set.split})
        if len(splits) > 1:
            reject_split_flag(options, f"{options.input} has splits already ({', '.join(splits)})")
        has_several_labels = sets[0].has_several_labels
        features = sets[0].features
        first_kind = (has_several_labels, features)
        other_set = next((other for other in sets if (other.has_several_labels, other.features) != first_kind), None)
        if other_set is not None:
            raise SourceError(
                f"{options.input}: sets with different kinds of classes, {sets[0].name} and {other_set.name}. Convert them apart."
            )
        has_classes = not source_options.unlabelled
        return cls(
            options,
            tuple(sets),
            _open_classes(source_options, sets) if has_classes else Classes(),
            features=features,
            has_classes=has_classes,
            several_labels=has_several_labels and has_classes,
            named_splits=frozenset() if options.split else frozenset(splits),
        )

    def parts(self) -> Sequence[ImageSet]:
        """Return the sets."""
        return self.sets

    def units(self, part: ImageSet, ignored: list[str]) -> Sequence[ImageSet]:
        """Return the set, which is its only unit; nothing is ignored here."""
        del ignored
        return (part,)

    def references(self, unit: ImageSet, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference, with the payload `Pixels`, to every image of a set; raise what `ImageSet.rows` raises."""
        del ignored
        payload = unit.payload
        height, width, channels = payload.find_image_shape()
        for index, row in enumerate(unit.rows()):
            key = f"{unit.name}/{index:08d}"
            try:
                origin = f"{unit.path}, label {index}"
                labels = tuple(self.classes.resolve(label, origin) for label in row.labels) if self.has_classes else ()
            except BadRecordError as error:
                reject(add_key(error, key))
                continue
            yield make_reference(
                self.options,
                key,
                path=unit.path,
                offset=row.offset,
                size=height * width * channels,
                # --split replaces the split in the names.
                split="" if self.options.split else unit.split,
                labels=labels,
                payload=payload,
                features=row.columns,
                data=row.data,
            )


def _has_images(name: str) -> bool:
    """Return whether a file may have images, judging by its name: it is not about the data, as a README is."""
    return name not in OTHER_FILES and not name.lower().endswith(".md") and not is_ignored_name(name)


def _open_sets(path: str) -> Sequence[ImageSet]:
    """Return the sets of images in a file, judging by its content and, for CIFAR, its name; SourceError for other files."""
    name = path.rpartition("/")[2]
    head = read_head(path, _HEAD_BYTES)
    kind = file_kinds.detect_file_kind(head)
    if kind == file_kinds.NPZ:
        return open_npz_file(path)
    if kind == file_kinds.MAT:
        return (open_mat_file(path),)
    if is_cifar_name(name) and (kind == file_kinds.PICKLE or name.endswith(".bin")):
        return (CifarFile(path, name),)
    raise SourceError(
        f"{path}: no file of arrays that is read (expected .npz, .mat, or files named as CIFAR's). Remove it from the input."
    )


def _open_classes(options: SourceOptions, sets: Sequence[ImageSet]) -> Classes:
    """Return the classes: of `--labels FILE`, of CIFAR's files of names, or numbers; SourceError if CIFAR's files differ."""
    if options.labels_file is None:
        # A path without a folder lies in the working directory.
        folders = {find_parent(image_set.path) or "." for image_set in sets if isinstance(image_set, CifarFile)}
        names_and_paths = filter(None, map(read_cifar_names, sorted(folders)))
        paths_by_names = {names: path for names, path in names_and_paths if names}
        if len(paths_by_names) > 1:
            raise SourceError(
                f"{' and '.join(paths_by_names.values())}: different names of classes. Convert the folders apart,"
                " or pass --labels FILE."
            )
        if paths_by_names:
            ((names, path),) = paths_by_names.items()
            return Classes(Labels(names), path, has_integers=True, comes_from_metadata=True)
    return Classes.open(options, has_integers=True)
