"""Pictures with annotations: the files of a folder, joined with annotation files."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from beam_jobs.annotations.annotation import ImageAnnotation, Place
from beam_jobs.annotations.find_form import find_form
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.forms.label_maps import LabelMapsForm
from beam_jobs.annotations.targets import TargetsForm
from beam_jobs.image_records.annotated.converter import ANNOTATION, CarriedAnnotation
from beam_jobs.image_records.annotated.schema import AnnotationSchema
from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.notes import ANNOTATION_VALUES, Note, ignore_note
from beam_jobs.references.reference import Reference, key_digests
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.references.repeated_keys import Repeat
from beam_jobs.sources.annotated.picture_index import Picture, find_path_below, list_pictures, load_index
from beam_jobs.sources.annotated.scan import AnnotationFacts, AnnotationScan, Block, PictureScan
from beam_jobs.sources.classes import read_labels
from beam_jobs.sources.named_splits import find_named_split
from beam_jobs.sources.options import FAIL_UNANNOTATED, SKIP_UNANNOTATED, SourceOptions, reject_split_flag
from beam_jobs.sources.source import Scan, ScannedSource, make_reference
from tpudata.errors import BadRecordError, SourceError
from tpudata.storage import Range, storage_for

# Annotated pictures of a file, or a range of the folder, which is searched for pictures without annotation.
Unit: TypeAlias = Block | Range
# Pictures whose digests are looked up together.
_LOOKUP_BATCH = 1000
# The part after the annotation files: the folder of the pictures.
_PICTURES = ""


@dataclasses.dataclass(frozen=True, eq=False)
class AnnotatedImages(ScannedSource):
    """The pictures of a folder with annotations: a ScannedSource whose parts are the annotation files and, last, the folder.

    Attributes:
        options: options with the splits and the seed of the order.
        source_options: options with the rule for pictures without annotations.
        form: form of the annotations, which finds and reads their files.
        run: identifies the run: another run in the process has another index of pictures.
        schema: features of the annotations, once they are scanned.
        annotated_digests: digests of the keys of the pictures with annotations, ascending; empty before the scan.
        blocks: blocks of all files and ranges of the folder if they were scanned in this process; otherwise None.
        ignored_values: names of values of the annotations that are not stored, once they are scanned.
        note: called with the kind of a note and an example: the name of a value of the annotations that is not stored.
    """

    options: ConvertOptions
    source_options: SourceOptions
    form: AnnotationForm
    run: str
    schema: AnnotationSchema | None = None
    annotated_digests: npt.NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint64))
    blocks: tuple[Unit, ...] | None = None
    ignored_values: tuple[str, ...] = ()
    note: Note = ignore_note

    has_classes = True

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions) -> AnnotatedImages:
        """Open the source, after detecting the form of the annotations.

        Args:
            options: options of the conversion.
            source_options: options with the path of the annotations.

        Raises:
            SourceError: the input is not a folder, or the annotations have no known form.
            UsageError: the options assign splits, but the annotations have lists of splits; or a flag is for lists.
        """
        entry = storage_for(options.input).stat(options.input)
        if entry is None or not entry.is_folder:
            state = "is a file" if entry else "does not exist"
            raise SourceError(f"{options.input} {state}. With annotations, pass the folder of the pictures.")
        source_options.reject_list_flags("the input has annotations")
        form: AnnotationForm | None
        # `[]`: these flags name the folder of label maps or second pictures itself, so no entries are searched for it.
        if source_options.masks is not None:
            form = LabelMapsForm.detect_folder(source_options.masks, [])
            if form is None:
                raise SourceError(
                    f"--masks {source_options.masks}: it has no label maps (expected PNGs, grey or with a palette)."
                )
        elif source_options.targets is not None:
            form = TargetsForm.detect_folder(source_options.targets, [])
            if form is None:
                raise SourceError(f"--targets {source_options.targets}: no pictures. Pass the folder that has them.")
        else:
            assert source_options.annotations is not None
            form = find_form(source_options.annotations)
            # Label maps and second pictures come without lists of splits.
            if splits := form.split_lists.splits:
                reject_split_flag(
                    options,
                    f"{source_options.annotations} has lists of splits already ({', '.join(sorted(splits))}), which are not read"
                    " if a folder or file that does not include them is passed as --annotations",
                )
        return cls(options, source_options, form, run=uuid.uuid4().hex)

    @property
    def annotations(self) -> AnnotationSchema | None:
        """The features of the annotations."""
        return self.schema

    @property
    def several_labels(self) -> bool:
        """Whether a picture may have any number of classes."""
        return self.schema is not None and self.schema.several_classes

    @property
    def labels(self) -> Labels | None:
        """The classes of pictures or, if pictures have none, the classes of objects; empty before the scan."""
        return Labels(()) if self.schema is None else self.schema.labels

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the annotations list."""
        return self.form.split_lists.splits

    def no_facts(self) -> AnnotationFacts:
        """Return empty facts."""
        return AnnotationFacts()

    def scan(self, index: int, part: str) -> Scan:
        """Return the scan of an annotation file, or of the folder of pictures.

        Args:
            index: index of the part among all.
            part: path of an annotation file, or `_PICTURES` for the folder.
        """
        if part == _PICTURES:
            return PictureScan(self.options.input, index)
        pictures = load_index(self.options.input, self._omitted_folders, self.run)
        return AnnotationScan(self.form, part, index, pictures.find, self.options.input)

    def apply_scans(self, facts: AnnotationFacts, blocks: Iterable[Unit] | None = None) -> AnnotatedImages:
        """Return the source with the features of its annotations.

        Args:
            facts: facts about all annotation files.
            blocks: their blocks and the ranges of the folder, if they were scanned in this process.

        Raises:
            SourceError: no annotation has a picture in the input, or the file of `--labels` is invalid.
            MissingExtraError: the package that draws polygons is not installed.
        """
        annotated_digests = facts.sort_digests()
        if not len(annotated_digests):
            example = f", which has no {facts.missing_picture!r}" if facts.missing_picture else ""
            raise SourceError(
                f"{self._annotations_path}: no annotation of a picture in {self.options.input}{example}. Check that both are of the"
                " same dataset, and that pictures have the extensions of images."
            )
        labels_file = self.source_options.labels_file
        labels = None if labels_file is None else read_labels(labels_file)
        schema = AnnotationSchema.from_contents(facts.contents, labels, label_offset=self.options.label_offset)
        block_tuple = None if blocks is None else tuple(blocks)
        ignored_values = facts.contents.ignored_values
        return dataclasses.replace(
            self, schema=schema, annotated_digests=annotated_digests, blocks=block_tuple, ignored_values=ignored_values
        )

    def noting(self, note: Note) -> AnnotatedImages:
        """Return the source that calls `note` with values of the annotations that are not stored."""
        return dataclasses.replace(self, note=note)

    def describe_repeat(self, repeat: Repeat, facts: AnnotationFacts) -> SourceError:
        """Return the error of two annotations for one picture."""
        # A repeat's lists are annotation files here.
        first_path, _ = facts.files[repeat.first_list_index]
        path, _ = facts.files[repeat.list_index]
        # Both annotations may be in one file.
        origins = " and ".join(dict.fromkeys((first_path, path)))
        key = self._find_key(path, repeat)
        return SourceError(f"{origins}: two annotations for the picture {key!r}. Keep one of them.")

    def parts(self) -> Iterator[str | Unit]:
        """Yield the annotation files and the folder of pictures; after a scan in this process, their blocks and ranges."""
        if self.blocks is not None:
            yield from self.blocks
            return
        yield from self.form.list_parts()
        yield _PICTURES

    def units(self, part: Unit, ignored: list[str]) -> tuple[Unit]:
        """Return a part; nothing is ignored here."""
        del ignored
        return (part,)

    def references(self, unit: Unit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to each picture of a unit.

        Args:
            unit: one of `units`.
            ignored: list to which this method appends the path of each picture that it skips: a picture that the lists of splits
                lack or, with `--unannotated=skip`, a picture without annotation.
            reject: called with the error of an annotation that is invalid or does not match exactly one picture and, unless
                `--unannotated` is `skip` or `empty`, of a picture without annotation.

        Raises:
            UsageError: the options assign splits, but a picture lies in a folder that is a split.
        """
        # Notes count only if they are made while units are listed, so every unit makes all of them.
        for name in self.ignored_values:
            self.note(ANNOTATION_VALUES, name)
        if isinstance(unit, Range):
            # A range of the folder, which is searched for pictures without annotation.
            yield from self._list_unannotated(unit, ignored, reject)
            return
        for picture_or_error in unit.load_pictures():
            if isinstance(picture_or_error, BadRecordError):
                reject(picture_or_error)
            elif self.form.split_lists.find_split(picture_or_error.picture.key) is None:
                # There are lists of splits, and none of them has the picture.
                ignored.append(self._join_path(picture_or_error.picture))
            else:
                yield self._make_annotated_reference(picture_or_error.picture, picture_or_error.annotation)

    def _list_unannotated(self, files: Range, ignored: list[str], reject: Reject) -> Iterator[Reference]:
        """Yield references to the pictures of a range that have no annotation, or ignore or reject them by `--unannotated`.

        Pictures that the lists of splits lack are ignored, see `references`.
        """
        for picture in self._find_unannotated(files):
            path = self._join_path(picture)
            rule = self.source_options.unannotated or FAIL_UNANNOTATED
            if rule == SKIP_UNANNOTATED or self.form.split_lists.find_split(picture.key) is None:
                ignored.append(path)
            elif rule == FAIL_UNANNOTATED:
                reject(BadRecordError(path, self._unannotated_reason, key=picture.key))
            else:
                yield self._make_annotated_reference(picture, ImageAnnotation(picture.key, Place(path)))

    def _find_unannotated(self, files: Range) -> Iterator[Picture]:
        """Yield the pictures of a range whose digests are not among the annotated ones."""
        pictures = list_pictures(files, self._omitted_folders)
        while batch := list(itertools.islice(pictures, _LOOKUP_BATCH)):
            # `annotated_digests` has the high halves, which are column 0.
            digests = key_digests([picture.key for picture in batch])[:, 0]
            # Compare each digest with the first annotated digest that is not below it or, if all are below, with the last one,
            # which differs. There is at least one annotated digest: a scan without annotated pictures is an error.
            nearest_rows = np.minimum(np.searchsorted(self.annotated_digests, digests), len(self.annotated_digests) - 1)
            yield from (batch[row] for row in np.flatnonzero(self.annotated_digests[nearest_rows] != digests).tolist())

    def _make_annotated_reference(self, picture: Picture, annotation: ImageAnnotation) -> Reference:
        """Return the reference to a picture with its annotation; UsageError if --split is passed and a folder is a split."""
        # Empty if there are no lists of splits. Callers have skipped pictures that the lists lack, for which it is None.
        split = self.form.split_lists.find_split(picture.key) or ""
        if not split:
            split = _find_outer_split(picture.key.split("/")[:-1])
            # `AnnotatedImages.open` has rejected --split if there are lists of splits.
            if split:
                reject_split_flag(self.options, f"{self.options.input} has split folders already ({split})")
        return make_reference(
            self.options,
            picture.key,
            path=self._join_path(picture),
            size=picture.size,
            split=split,
            labels=annotation.classes,
            features={ANNOTATION: CarriedAnnotation(annotation)},
        )

    def _join_path(self, picture: Picture) -> str:
        return storage_for(self.options.input).join(self.options.input, picture.key)

    @property
    def _annotations_path(self) -> str:
        """Path of the annotations, label maps or second pictures."""
        options = self.source_options
        return options.annotations or options.masks or options.targets or ""

    @property
    def _unannotated_reason(self) -> str:
        """Reason to reject a picture without annotation, with the fix."""
        skip = "--unannotated=skip to ignore it"
        if self.source_options.targets is not None:
            return f"no second picture of its name in {self._annotations_path}; add it, or pass {skip}"
        if self.source_options.masks is not None:
            return f"no label map of its name in {self._annotations_path}; add it, or pass {skip}"
        return f"no annotation; pass --unannotated=empty to store it without objects, or {skip}"

    @property
    def _omitted_folders(self) -> tuple[str, ...]:
        """Folders of annotations inside the input, as paths below it that end with `/`: their images are not listed as pictures."""
        folders = (self._annotations_path, *self.form.map_folders)
        inner_paths = (find_path_below(self.options.input, folder) for folder in folders)
        return tuple(f"{path}/" for path in inner_paths if path)

    def _find_key(self, path: str, repeat: Repeat) -> str:
        """Return the key of a picture with two annotations by reading the later one's file again; empty if the file has changed.

        Args:
            path: path of that file.
            repeat: the repeated key, whose `line` is the index of the later annotation in the file.
        """
        find = load_index(self.options.input, self._omitted_folders, self.run).find
        # Index among the annotations that `AnnotationScan` counts, which match exactly one picture.
        index = 0
        # The names that the file lists are not needed.
        for annotation in self.form.read(path, ListedNames()):
            if isinstance(annotation, BadRecordError) or len(pictures := find(annotation.picture)) != 1:
                continue
            if index == repeat.line:
                return pictures[0].key
            index += 1
        return ""


def _find_outer_split(folders: Sequence[str]) -> str:
    """Return the split that the outermost folder, or the one below `images`, is named after; an empty string if there is none."""
    split_folders = folders[1:2] if folders[:1] == ["images"] else folders[:1]
    return find_named_split(split_folders[0]) if split_folders else ""
