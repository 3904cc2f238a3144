"""The files that an input names: a single file, the files of a folder, or the files that a pattern matches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from beam_jobs.file_names import is_ignored_name, is_ignored_path
from tpudata.errors import SourceError
from tpudata.storage import expand, is_pattern, lazy_entries, split_pattern, storage_for


@dataclasses.dataclass(frozen=True)
class InputFiles:
    """The files of an input, listed anew by each iteration: the path of each, and its path below the input's fixed folder.

    Attributes:
        path: path of the input.
        rejects_folders: whether a folder among the files of a folder is an error, unless its name is ignored.
        skips_markdown: whether `.md` files are skipped, such as Hugging Face's README.md.
    """

    path: str
    rejects_folders: bool = False
    skips_markdown: bool = False

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield (path, relative path) of each file, in order.

        Hidden files, files that operating systems create, and with `skips_markdown` Markdown files are skipped, except for an input
        that is one file.

        Raises:
            SourceError: no file matches, the path does not exist, or `rejects_folders` is set and the input has a folder.
        """
        input_entry = storage_for(self.path).stat(self.path)
        if input_entry is not None and not input_entry.is_folder:
            yield self.path, input_entry.name
            return
        if input_entry is not None:
            files = self._list_folder()
        elif is_pattern(self.path):
            files = ((entry.path, relative_path) for entry, relative_path in expand(self.path) if not entry.is_folder)
        else:
            raise SourceError(f"{self.path} does not exist. Name a file, a folder, or a pattern such as 'DIR/*.tar'.")
        is_empty = True
        for path, relative_path in files:
            is_skipped = self.skips_markdown and relative_path.lower().endswith(".md")
            if not is_skipped and not is_ignored_path(relative_path):
                is_empty = False
                yield path, relative_path
        if is_empty:
            raise SourceError(f"{self.path} has no files to convert. Add files, or pass another --input.")

    def find_relative_path(self, path: str) -> str:
        """Return the relative path that iteration yields with a path."""
        # The input is a folder, or a pattern with a folder before its wildcards.
        for folder in (self.path, split_pattern(self.path)[0]):
            prefix = f"{folder.rstrip('/')}/"
            if path.startswith(prefix):
                return path.removeprefix(prefix)
        # The input is the file itself.
        return path.rpartition("/")[2]

    def _list_folder(self) -> Iterator[tuple[str, str]]:
        """Yield (path, name) of each file of the folder.

        Raises:
            SourceError: `rejects_folders` is set, and the folder has a folder whose name is not ignored.
        """
        for entry in lazy_entries(self.path):
            if not entry.is_folder:
                yield entry.path, entry.name
            elif self.rejects_folders and not is_ignored_name(entry.name):
                raise SourceError(
                    f"{self.path} has the folder {entry.name} next to its files. Move it out of the input, or pass --source=tar to"
                    " ignore it."
                )
