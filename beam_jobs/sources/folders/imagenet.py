"""ImageNet as it comes: a folder with the training images, the validation images, or both.

    training      ILSVRC2012_img_train.tar (a tar of tars), or train/SYNSET/FILE
    validation    ILSVRC2012_img_val.tar, validation/FILE or val/FILE, with a file of synsets next to it, whose line i is the
                  synset of ILSVRC2012_val_0000000i.JPEG; or validation/SYNSET/FILE or val/SYNSET/FILE

A key is the file's own name, which is unique in ImageNet, so tars and folders give the same dataset. Classes are synsets in sorted
order; the extra feature image/class/synset repeats the class for readers that look for it there.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from beam_jobs.file_names import is_ignored_name
from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import Source, make_reference
from beam_jobs.sources.tars.file import open_tar
from beam_jobs.sources.tars.form import TARS
from beam_jobs.sources.tars.tars import Tars
from beam_jobs.sources.tars.unit import TarUnit, list_tar_files
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import Feature
from tpudata.storage import Entry, Range, folder_ranges, lazy_entries, storage_for

TRAIN, VALIDATION = "train", "validation"
TRAIN_TAR, VALIDATION_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
SYNSET_FILES = ("synset_labels.txt", "imagenet_2012_validation_synset_labels.txt")
_VALIDATION_FOLDERS = ("validation", "val")
_SYNSET = re.compile(r"n\d{8}")
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.[A-Za-z]+")
# Names of training and validation images.
_IMAGE_NAME = re.compile(r"(n\d{8}|ILSVRC2012_val)_\d+\.[A-Za-z]+")
_EXTRA = "image/class/synset"
# A folder with more entries is not ImageNet's.
_MAX_ENTRIES = 10_000


class ImageNetUnit(NamedTuple):
    """Part of ImageNet that is listed separately.

    Attributes:
        split: train or validation.
        path: a tar, or a folder.
        is_tar: whether `path` is a tar or has one in its byte range; otherwise it is a folder.
        start, end: byte range of the tar in the file; 0 and -1 for the file as a whole.
        synset: synset of all images; empty if the file of synsets has the synset of each image.
        files: the range of the folder to list; None for the whole folder, and for a tar.
    """

    split: str
    path: str
    is_tar: bool
    start: int = 0
    end: int = -1
    synset: str = ""
    files: Range | None = None


@dataclasses.dataclass(frozen=True)
class ImageNet(Source):
    """The raw files of ImageNet: a Source whose parts are tars and folders.

    Attributes:
        options: options with the seed of the order.
        tars_and_folders: the tars and folders to list; about as many as there are synsets.
        classes: the synsets.
        synset_file: path of the file with the synset of each validation image; empty if there is none.
        synsets: lines of this file; empty if there are no validation images, or they are in folders of synsets.
    """

    options: ConvertOptions
    tars_and_folders: tuple[ImageNetUnit, ...]
    classes: Classes
    synset_file: str
    synsets: tuple[str, ...]
    has_classes: bool = True
    features: tuple[Feature, ...] = (Feature(_EXTRA, "bytes", "string", encoding="utf8"),)

    @classmethod
    def detect(cls, options: ConvertOptions, source_options: SourceOptions) -> ImageNet | None:
        """Return the source of ImageNet's files in the input's folder; None if it has a different layout.

        The layout is detected from listings and the headers of tars.

        Raises:
            SourceError: there are validation images without a file of synsets, a line of this file is not a synset or not
                one of the classes, a tar of training images is not a tar of tars, or the file of `--labels` is invalid.
            CorruptionError: the tar of training images is truncated or damaged.
            UsageError: the options assign splits.
        """
        first_entries = list(itertools.islice(lazy_entries(options.input), _MAX_ENTRIES + 1))
        if len(first_entries) > _MAX_ENTRIES:
            return None
        entries = {entry.name: entry for entry in first_entries}
        train = entries.get(TRAIN_TAR) or _find_folder(entries, (TRAIN,), _are_synset_folders)
        # Flat: the images are together, and a file lists their synsets. Sorted: each lies in the folder of its synset.
        flat_validation = entries.get(VALIDATION_TAR) or _find_folder(
            entries, _VALIDATION_FOLDERS, _have_validation_image
        )
        sorted_validation = _find_folder(entries, _VALIDATION_FOLDERS, _are_synset_folders)
        validation = flat_validation or sorted_validation
        folders = [entry for entry in entries.values() if entry.is_folder and not is_ignored_name(entry.name)]
        has_other_folders = any(entry not in (train, validation) for entry in folders)
        if (train is None and validation is None) or has_other_folders:
            return None
        reject_split_flag(options, f"{options.input} is ImageNet, which has its splits")
        parts = [] if train is None else list(_list_synset_parts(options, TRAIN, train))
        synsets: tuple[str, ...] = ()
        synset_file = next((entries[name].path for name in SYNSET_FILES if name in entries), "")
        if flat_validation is not None:
            if not synset_file:
                raise SourceError(
                    f"{options.input} has validation images but no {' or '.join(SYNSET_FILES)}. Put that file there: line i is the"
                    " synset of image i."
                )
            synsets = _read_synsets(synset_file)
            parts.append(ImageNetUnit(VALIDATION, flat_validation.path, is_tar=not flat_validation.is_folder))
        elif sorted_validation is not None:
            parts.extend(_list_synset_parts(options, VALIDATION, sorted_validation))
        classes = Classes.open(source_options)
        if classes.labels is None:
            # The synsets of training images; without training images, of validation folders, or of the file of synsets.
            names = (
                {part.synset for part in parts if part.split == TRAIN}
                or {part.synset for part in parts} - {""}
                or set(synsets)
            )
            labels = Labels(tuple(sorted(names)))
            classes = dataclasses.replace(classes, labels=labels, path=options.input, comes_from_metadata=True)
        # `resolve` raises for a synset that is not one of the classes, such as those of --labels FILE.
        for line_number, synset in enumerate(synsets, 1):
            classes.resolve(synset, f"{synset_file} line {line_number}")
        return cls(options, tuple(parts), classes, synset_file, synsets)

    @property
    def labels(self) -> Labels | None:
        """The synsets."""
        return self.classes.labels

    def parts(self) -> Sequence[ImageNetUnit]:
        """Return a tar or folder for each synset, and the tar or folder of validation images if they lie together."""
        return self.tars_and_folders

    def units(self, part: ImageNetUnit, ignored: list[str]) -> Iterator[ImageNetUnit]:
        """Yield a tar, or ranges of a folder; nothing is ignored here."""
        del ignored
        if part.is_tar:
            yield part
            return
        for files in folder_ranges(part.path, deep=False):
            yield part if files.is_whole else part._replace(files=files)

    def references(
        self, unit: ImageNetUnit, ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[Reference]:
        """Yield a reference to every image of a unit.

        Raises:
            CorruptionError: a tar is truncated or damaged.
            SourceError: there is a folder among the images.
        """
        for name, path, offset, size in _list_images(unit, ignored, reject):
            try:
                synset = self.classes.resolve(unit.synset or self._find_synset(name, unit.path), f"{unit.path}/{name}")
            except BadRecordError as error:
                reject(add_key(error, name))
                continue
            yield make_reference(
                self.options,
                name,
                path=path,
                offset=offset,
                size=size,
                split=unit.split,
                labels=(synset,),
                features={_EXTRA: synset},
            )

    def _find_synset(self, name: str, path: str) -> str:
        """Return the synset of a validation image: the line of the file of synsets whose number is in the image's name.

        Raises:
            BadRecordError: the name is not that of a validation image, or the file of synsets has no line of its number.
        """
        match = _VALIDATION_NAME.fullmatch(name)
        if match is None or not 0 < int(match[1]) <= len(self.synsets):
            raise BadRecordError(
                f"{path}/{name}",
                f"{self.synset_file.rpartition('/')[2]} has {count_text(len(self.synsets), 'line')}, for"
                " ILSVRC2012_val_00000001.JPEG and so on",
            )
        return self.synsets[int(match[1]) - 1]


def _find_folder(
    entries: Mapping[str, Entry], names: Iterable[str], fits: Callable[[Iterator[Entry]], bool]
) -> Entry | None:
    """Return the first folder with one of these names whose entries fit; None if there is none."""
    for name in names:
        folder = entries.get(name)
        if folder is not None and folder.is_folder and fits(_list_visible(folder.path)):
            return folder
    return None


def _list_visible(folder: str) -> Iterator[Entry]:
    return (entry for entry in lazy_entries(folder) if not is_ignored_name(entry.name))


def _have_validation_image(entries: Iterator[Entry]) -> bool:
    """Return whether one of the first entries is named like a validation image."""
    return any(_VALIDATION_NAME.fullmatch(entry.name) for entry in itertools.islice(entries, _MAX_ENTRIES))


def _are_synset_folders(entries: Iterator[Entry]) -> bool:
    """Return whether all entries are folders of synsets, and the first has images, all named like ImageNet's, and nothing else."""
    first = next(entries, None)
    if first is None or not all(_is_synset_folder(entry) for entry in itertools.chain((first,), entries)):
        return False
    has_image = False
    for image in _list_visible(first.path):
        if image.is_folder or not _IMAGE_NAME.fullmatch(image.name):
            return False
        has_image = True
    return has_image


def _is_synset_folder(entry: Entry) -> bool:
    return entry.is_folder and _SYNSET.fullmatch(entry.name) is not None


def _list_synset_parts(options: ConvertOptions, split: str, entry: Entry) -> Iterator[ImageNetUnit]:
    """Yield a part for each synset of a tar of tars, or of a folder of folders; SourceError for a tar of other files."""
    if entry.is_folder:
        for folder in _list_visible(entry.path):
            yield ImageNetUnit(split, folder.path, is_tar=False, synset=folder.name)
        return
    outer = Tars.open(options, SourceOptions(), InputFiles(entry.path))
    if outer.form != TARS:
        raise SourceError(f"{entry.path} is not a tar of tars, as ImageNet's is. Download it again.")
    for part in outer.parts():
        # The list is for paths of ignored files; `Tars.units` ignores none.
        for inner in outer.units(part, []):
            yield ImageNetUnit(split, inner.path, is_tar=True, start=inner.start, end=inner.end, synset=inner.label)


def _read_synsets(path: str) -> tuple[str, ...]:
    """Return the synsets in a file, a line each; SourceError if a line has anything else, or is blank and not at the end."""
    text = storage_for(path).read(path).decode("utf-8", "replace")
    synsets = tuple(line.strip() for line in text.rstrip().splitlines())
    for line_number, synset in enumerate(synsets, 1):
        if not _SYNSET.fullmatch(synset):
            raise SourceError(
                f"{path} line {line_number}: not a synset (got {synset[:80]!r}, expected only that of validation"
                f" image {line_number}, such as n01440764). Fix the line."
            )
    return synsets


def _list_images(unit: ImageNetUnit, ignored: list[str], reject: Reject) -> Iterator[tuple[str, str, int, int]]:
    """Yield every image of a unit: (name, path of the file that holds it, offset there or WHOLE_FILE, size in bytes).

    Raises:
        CorruptionError: the tar is truncated or damaged.
        SourceError: there is a folder among the images.
    """
    if unit.is_tar:
        with open_tar(unit.path, "") as (file, size):
            # The keys of rejected members begin with the split.
            tar = TarUnit(unit.path, name=unit.split, start=unit.start, end=unit.end)
            for member in list_tar_files(file, tar, size, ignored, reject):
                yield member.name.rsplit("/", 1)[-1], unit.path, member.offset, member.size
        return
    files = unit.files or Range(unit.path)
    for entry in storage_for(files.folder).scan(files.folder, start=files.start, stop=files.stop):
        if is_ignored_name(entry.name):
            ignored.append(entry.path)
        elif entry.is_folder:
            raise SourceError(f"{entry.path} is a folder (expected images only). Remove it from the input.")
        else:
            yield entry.name, entry.path, WHOLE_FILE, entry.checked().size
