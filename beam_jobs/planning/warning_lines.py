"""Warnings of a conversion: a line for each surprising fact about its input, with a hint.

They are derived only from the counts and notes of the listing, the attributes of the source, the options, and the classes of the
dataset that an append adds to, so they are the same on every engine and in a dry run.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from beam_jobs.options.labels import TextLabelOptions
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.references import notes
from beam_jobs.references.labels import is_integer_label
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.source import ScannedSource, Source
from tpudata.console.tables import count_text

# Names of folders that hold a kind of files, such as images next to masks; hardly any class has such a name.
_KINDS_OF_FILES = frozenset(
    f"{name}{plural}"
    for name in (
        "annotation",
        "gt",
        "image",
        "img",
        "imageset",
        "jpegimage",
        "label",
        "mask",
        "picture",
        "segmentation",
    )
    for plural in ("", "s")
)
# A split's name, perhaps followed by anything that does not begin with a letter: train2017, test1, val_images.
_LIKE_A_SPLIT = re.compile(r"(train(ing)?|val(id(ation)?)?|dev|test(ing)?)([^a-z].*)?", re.IGNORECASE | re.DOTALL)
# Classes look like captions if they are more than half as many as the records, and there are this many records, or blanks in at
# least half of the classes.
_MANY_SAMPLES = 100
# One fewer than notes keep, so that it is known whether there are more.
_MAX_SHOWN = notes.MAX_EXAMPLES - 1


@dataclasses.dataclass(frozen=True)
class InputFacts:
    """Facts about an input before it is listed.

    Attributes:
        splits: splits that files or folders of the input are named after.
        classes: class names that are known before the listing.
        has_folder_classes: whether classes are named after folders.
        has_fixed_labels: whether `--labels` or `--label-type` determines the labels of classes.
        needs_classes: whether a dataset without any class is an error, since the source declares that it has classes.
    """

    splits: frozenset[str] = frozenset()
    classes: tuple[str, ...] = ()
    has_folder_classes: bool = False
    has_fixed_labels: bool = False
    needs_classes: bool = False

    @classmethod
    def from_source(cls, source: Source, options: SourceOptions | TextLabelOptions) -> InputFacts:
        """Return the facts that the attributes of a source and the options give."""
        return cls(
            source.named_splits,
            () if source.labels is None else source.labels.names,
            has_folder_classes=source.has_classes and source.folder_classes,
            has_fixed_labels=options.labels_file is not None or options.label_type is not None,
            # For annotated and scanned sources, their annotations or the scan decide whether there are classes.
            needs_classes=source.has_classes and source.annotations is None and not isinstance(source, ScannedSource),
        )


def list_warnings(
    facts: InputFacts, counts: InputCounts, record_counts: Mapping[str, int], known_names: Set[str] | None
) -> dict[str, str]:
    """Return the warnings by kind, in the order in which they are printed.

    Args:
        facts: facts about the input.
        counts: counts of the listing.
        record_counts: number of records by split.
        known_names: classes of the dataset that an append adds to, whose records may have different splits and classes; None if
            this is not an append.
    """
    lines = _describe_notes(counts.notes)
    lines |= _warn_of_captions(counts, sum(record_counts.values()))
    class_names = set(facts.classes).union(*counts.classes.values())
    if not facts.has_fixed_labels:
        lines |= _warn_of_similar_names(class_names, known_names or frozenset())
    if known_names is None:
        lines |= _warn_of_folders(facts, class_names)
        lines |= _warn_of_splits(facts, counts.classes, record_counts)
    return lines


def _describe_notes(source_notes: notes.Notes) -> dict[str, str]:
    """Return the warnings about notes of the listing, by kind, except for `TEXT_CLASSES`; see `_warn_of_captions`."""
    lines = {}
    if columns := source_notes.examples(notes.COLUMNS):
        lines[notes.COLUMNS] = (
            f"columns that are not stored: {_join_names(columns)}; pass --field NAME:KIND to store one of text, of numbers or"
            " of lists"
        )
    line_files, row_files = source_notes.examples(notes.FOUND_LINES), source_notes.examples(notes.FOUND_ROWS)
    if line_files and row_files:
        lines[notes.FOUND_LINES] = (
            f"files that were read as lines, next to files of rows such as {row_files[0]}: {_join_names(line_files)}; name the"
            f" files of rows by a pattern, such as --input 'DIR/**/*.{row_files[0].rpartition('.')[2]}'"
        )
    if columns := source_notes.examples(notes.IMAGE_COLUMNS):
        lines[notes.IMAGE_COLUMNS] = (
            f"columns that are not stored: {_join_names(columns)}; pass --column-types NAME=TYPE to store one"
        )
    if values := source_notes.examples(notes.ANNOTATION_VALUES):
        lines[notes.ANNOTATION_VALUES] = (
            "values of annotations that are not stored, as they are nested, of several kinds or beyond int64:"
            f" {_join_names(values)}; write them as texts to store them"
        )
    if fields := source_notes.examples(notes.SAMPLE_FIELDS):
        lines[notes.SAMPLE_FIELDS] = (
            f"fields of samples that are not stored: {_join_names(fields)}; a key of a JSON file is stored only if the"
            " first samples have it, with a number, a text or a list of these"
        )
    if len(folders := source_notes.examples(notes.TEXT_FOLDERS)) > 1:
        lines[notes.TEXT_FOLDERS] = (
            f"names of folders that are not stored: {_join_names(folders)}; if they are classes, pass --label-from folder"
        )
    if labels := source_notes.examples(notes.LABEL_BLANKS):
        lines[notes.LABEL_BLANKS] = (
            f"blanks around {count_text(source_notes.count(notes.LABEL_BLANKS), 'label')} were removed, such as {labels[0]!r};"
            " write labels without them"
        )
    set_names = defaultdict(list)
    for example in source_notes.examples(notes.IDX_SETS):
        split, _, name = example.partition("/")
        set_names[split].append(name)
    joined_split = next((split for split, names in set_names.items() if len(names) > 1), None)
    if joined_split is not None:
        lines[notes.IDX_SETS] = (
            f"several sets of IDX files become one in {joined_split}: {_join_names(set_names[joined_split])}; name one set by a"
            " pattern, such as --input 'DIR/PREFIX-*'"
        )
    return lines


def _warn_of_captions(counts: InputCounts, record_count: int) -> dict[str, str]:
    """Return a warning if the texts of samples look like captions instead of classes; otherwise an empty dict."""
    sample_count = counts.notes.count(notes.TEXT_CLASSES)
    names = set[str]().union(*counts.classes.values())
    # Captions hardly repeat: there are more than half as many of them as records.
    if not sample_count or 2 * len(names) <= record_count:
        return {}
    # Classes of fewer than 100 records may not repeat either; then only names of several words are taken for captions.
    if record_count < _MANY_SAMPLES and sum(" " in name for name in names) * 2 < len(names):
        return {}
    return {
        notes.TEXT_CLASSES: f"the .txt of {count_text(sample_count, 'sample')} was taken for its class, which makes"
        f" {count_text(len(names), 'class', 'classes')}; if these are captions, pass --unlabelled to store them so"
    }


def _warn_of_similar_names(names: Collection[str], known_names: Set[str]) -> dict[str, str]:
    """Return a warning if class names differ only in case, blanks or the composition of letters; otherwise an empty dict."""
    names_by_form: dict[str, list[str]] = defaultdict(list)
    # Numbers are never alike, and a dataset may have a million labels that are numbers.
    for name in sorted(name for name in {*names, *known_names} if not name.isdecimal()):
        names_by_form[" ".join(unicodedata.normalize("NFC", name).casefold().split())].append(name)
    # This run did not cause a group whose names were all in the dataset before.
    groups = [group for group in names_by_form.values() if len(group) > 1 and not known_names >= {*group}]
    if not groups:
        return {}
    group_texts = [" and ".join(map(_show_distinct, group)) for group in groups]
    return {
        "classes_alike": "classes that differ only in case, blanks or the form of Unicode:"
        f" {_join_names(group_texts)}; rename them if they are one class"
    }


def _show_distinct(name: str) -> str:
    """Return a name as a string that differs visibly for similar names.

    A name with repeated or outer blanks is shown in ASCII with all its blanks escaped, since wrapping drops blanks at the ends of
    lines. A name with letters that have several forms in Unicode is shown in ASCII, too.
    """
    if name.split(" ") != name.split():
        return ascii(name).replace(" ", r"\x20")
    return ascii(name) if unicodedata.normalize("NFC", name) != unicodedata.normalize("NFD", name) else repr(name)


def _warn_of_folders(facts: InputFacts, class_names: Collection[str]) -> dict[str, str]:
    """Return warnings about class folders named like kinds of files, like splits, or by numbers other than their labels.

    Args:
        facts: facts about the input; there are no warnings unless its classes are named after folders.
        class_names: names of the classes that are known or occur.
    """
    if not facts.has_folder_classes or not class_names:
        return {}
    lines = {}
    ordered_names = sorted(class_names)
    file_folders = [name for name in ordered_names if name.lower() in _KINDS_OF_FILES]
    # One of many classes may be called "mask" or "label"; several classes of these names, or no other class, are suspicious.
    if len(file_folders) > 1 or file_folders == ordered_names:
        lines["folders_of_files"] = (
            f"{_describe_folders(file_folders)} taken for {_pluralize_class(file_folders)}; if that is wrong, pass --input"
            f" DIR/{file_folders[0]} --unlabelled"
        )
    split_folders = [name for name in ordered_names if _LIKE_A_SPLIT.fullmatch(name)]
    if len(split_folders) > 1:
        lines["folders_like_splits"] = (
            f"{_describe_folders(split_folders)} taken for {_pluralize_class(split_folders)}; if they are splits, name them train,"
            f" validation and test, or pass --input DIR/{split_folders[-1]}"
        )
    if all(map(is_integer_label, ordered_names)) and not facts.has_fixed_labels:
        # The labels are the indices in the order of the names as strings, in which "10" comes before "2".
        label = next((label for label, name in enumerate(ordered_names) if str(label) != name), None)
        if label is not None:
            lines["numeric_folders"] = (
                f"folders named by numbers get labels in the order of their text: folder {ordered_names[label]} is label {label};"
                f" pass --label-type int to make it label {ordered_names[label]}"
            )
    return lines


def _describe_folders(names: Sequence[str]) -> str:
    """Return the beginning of a sentence about folders, such as "the folders a, b were"."""
    noun, verb = ("folders", "were") if len(names) > 1 else ("folder", "was")
    return f"the {noun} {_join_names(names)} {verb}"


def _pluralize_class(names: Sequence[str]) -> str:
    """Return "a class" for one name, "classes" for several."""
    return "classes" if len(names) > 1 else "a class"


def _warn_of_splits(
    facts: InputFacts, classes: Mapping[str, set[str]], record_counts: Mapping[str, int]
) -> dict[str, str]:
    """Return warnings about splits without records, and classes that only one split has."""
    lines = {}
    if empty_splits := sorted(facts.splits - record_counts.keys()):
        lines["empty_splits"] = (
            f"no record in {_join_names(empty_splits)}, although files or folders of the input are named so; add records, or remove"
            " them"
        )
    if len(record_counts) > 1:
        classes_by_split = {split: classes.get(split, set()) for split in sorted(record_counts)}
        descriptions = []
        for split, names in classes_by_split.items():
            other_classes = (classes_by_split[other] for other in classes_by_split if other != split)
            unique_names = names.difference(*other_classes)
            if unique_names:
                descriptions.append(f"{count_text(len(unique_names))} in {split} ({_join_names(sorted(unique_names))})")
        if descriptions:
            lines["classes_of_one_split"] = (
                f"classes that only one split has: {', '.join(descriptions)}; add records of them, or correct their names"
            )
    return lines


def _join_names(names: Iterable[str]) -> str:
    """Return the first names as one string, with "..." for more of them; bytes in file names that are not UTF-8 are escaped."""
    all_names = [name.encode(errors="backslashreplace").decode() for name in names]
    return ", ".join(all_names[:_MAX_SHOWN]) + (", ..." if len(all_names) > _MAX_SHOWN else "")
