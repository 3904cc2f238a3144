"""The sources of images by name: those of this package, and those that installed packages register.

Each is a function of the conversion's options and of the source's that returns a Source; docs/convert/extending.md has a recipe.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from beam_jobs.options import ConvertOptions
from beam_jobs.sources.class_folders import ClassFolders
from beam_jobs.sources.idx import IdxPairs, is_idx_name
from beam_jobs.sources.imagenet import ImageNet
from beam_jobs.sources.lists.lists import Lists
from beam_jobs.sources.matched_images import MatchedImages
from beam_jobs.sources.names import is_left_behind
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.source import Source
from beam_jobs.sources.tars.tars import Tars
from tpudata.console.nearest import suggestion
from tpudata.errors import SourceError, UsageError
from tpudata.storage import Entry, expand, is_pattern, split_pattern, storage_for

OpenSource = Callable[[ConvertOptions, SourceOptions], Source]
# Installed packages add to the table by entry points of this group.
ENTRY_POINTS = "tpudata.sources"


def source_opener(name: str) -> OpenSource:
    """Return what opens the source of a name.

    Raises:
        UsageError: there is none.
    """
    if name in SOURCES:
        return SOURCES[name]
    points = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if name in points:
        opener: OpenSource = points[name].load()
        return opener
    names = [*SOURCES, *sorted(points)]
    raise UsageError(f"--source is {name!r} (expected one of {', '.join(names)}){suggestion(name, names)}")


def _files(options: ConvertOptions, said: SourceOptions) -> Source:
    folder, parts = split_pattern(options.input) if is_pattern(options.input) else (options.input, ("**", "*"))
    return MatchedImages.find(options, said, folder, parts)


def _imagenet(options: ConvertOptions, said: SourceOptions) -> Source:
    found = ImageNet.find(options, said)
    if found is None:
        raise SourceError(
            f"--source=imagenet: {options.input} is not laid out like it (expected train/SYNSET/*.JPEG or ILSVRC2012_img_train.tar,"
            " and nothing but that and validation images). Omit the flag."
        )
    return found


def _lists(options: ConvertOptions, said: SourceOptions) -> Source:
    return Lists.find(options, said, [entry.path for entry, _ in _inputs(options.input)])


def _tars(options: ConvertOptions, said: SourceOptions) -> Source:
    return Tars.find(options, said, [(entry.path, below) for entry, below in _inputs(options.input)])


def _idx(options: ConvertOptions, said: SourceOptions) -> Source:
    found = [entry for entry, _ in _inputs(options.input)]
    named = [entry.path for entry in found if is_idx_name(entry.name)]
    return IdxPairs.find(options, said, named or [entry.path for entry in found])


def _inputs(path: str) -> Iterator[tuple[Entry, str]]:
    """Yield the files that a path, a folder or a pattern names, and their paths below its fixed folder."""
    found = storage_for(path).stat(path)
    if found is not None and not found.is_folder:
        yield found, found.name
        return
    if found is not None:
        entries: Iterator[tuple[Entry, str]] = ((entry, entry.name) for entry in storage_for(path).list(path))
    elif is_pattern(path):
        entries = expand(path)
    else:
        raise SourceError(f"{path} is not there. Name a file, a folder, or a pattern such as 'DIR/*.tar'.")
    count = 0
    for entry, below in entries:
        if not entry.is_folder and not any(map(is_left_behind, below.split("/"))):
            count += 1
            yield entry, below
    if not count:
        raise SourceError(f"{path} has no files to convert.")


SOURCES: Mapping[str, OpenSource] = MappingProxyType(
    {
        "folders": ClassFolders.find,
        "files": _files,
        "list": _lists,
        "tar": _tars,
        "idx": _idx,
        "imagenet": _imagenet,
    }
)
