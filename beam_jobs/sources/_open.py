"""Which source an input is."""

from __future__ import annotations

from beam_jobs.options import ConvertOptions
from beam_jobs.sources._source import Source
from beam_jobs.sources.class_folders import ClassFolders
from tpudata.errors import SourceError
from tpudata.storage import storage_for


def open_source(options: ConvertOptions) -> Source:
    """The source that `options.input` is.

    Raises:
        SourceError: there is nothing at that path, or nothing that is read; says what is.
        UsageError: the options do not fit the input.
    """
    found = storage_for(options.input).stat(options.input)
    if found is None:
        raise SourceError(f"{options.input} is not there. Name a folder whose subfolders are classes.")
    if not found.is_folder:
        raise SourceError(f"{options.input} is a file. Name a folder whose subfolders are classes.")
    return ClassFolders.find(options)
