"""The interface of the forms of annotation files."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from beam_jobs.annotations.annotation import Annotated
from beam_jobs.annotations.split_lists import NO_LISTS, SplitLists
from tpudata.storage import Entry


@dataclasses.dataclass
class ListedNames:
    """Names that annotation files list, in the order of their numbers; empty if the files list none.

    Attributes:
        objects: classes of objects.
        pictures: classes of whole pictures.
        keypoints: the keypoints of an object.
    """

    objects: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()


class AnnotationForm(abc.ABC):
    """Annotation files of one form. Subclasses are frozen dataclasses, pickled to the workers; `detect_file` and `detect_folder`
    make them from the first bytes of the files and the entries of the folder.

    Attributes:
        title: name of the form in messages.
    """

    title: ClassVar[str]

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> AnnotationForm | None:
        """Return an instance for a file of this form; None for any other file. Forms of single files override this.

        Args:
            path: path of a file that may have this form.
            head: its first bytes, decompressed if it is compressed.
        """
        del path, head
        return None

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> AnnotationForm | None:
        """Return an instance for a folder of this form; None for any other folder. Forms of folders override this.

        Args:
            path: path of a folder that may have this form.
            entries: first entries of the folder, from `list_first_entries`.

        Raises:
            SourceError: the folder has this form, but a file that the form needs is missing, damaged or ambiguous.
        """
        del path, entries
        return None

    def add_folder_facts(self, entries: Sequence[Entry]) -> AnnotationForm:
        """Return the form with what the dataset's folder adds, such as the lists of its splits; by default it adds nothing.

        Args:
            entries: first entries of the folder that the user passed, which may be above the folder of the annotations.
        """
        del entries
        return self

    @property
    def split_lists(self) -> SplitLists:
        """Lists of the pictures of each split; empty if the dataset has none."""
        return NO_LISTS

    @property
    def map_folders(self) -> tuple[str, ...]:
        """Folders of label maps or targets, whose images are not pictures of the dataset; empty if the form has none."""
        return ()

    @abc.abstractmethod
    def list_parts(self) -> Iterable[str]:
        """Return, in order, the paths of the parts that workers read separately. No two parts describe the same picture."""

    @abc.abstractmethod
    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the annotation of each picture in a part, and an error for each damaged annotation.

        Args:
            part: one of `list_parts()`.
            names: filled with the names that the part lists; complete when the iteration has ended.

        Raises:
            SourceError: the file itself is damaged, so that none of its annotations can be trusted; the message names the file
                and the place.
            CorruptionError: the compressed file is truncated or damaged.
        """
