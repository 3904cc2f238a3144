"""The sources of images by name: functions that open this package's sources, and the sources of installed packages
(beam_jobs/sources/installed/installed_sources.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from beam_jobs.options import ConvertOptions
from beam_jobs.sources.folders.class_folders import ClassFolders
from beam_jobs.sources.folders.imagenet import ImageNet
from beam_jobs.sources.folders.matched_images import MatchedImages
from beam_jobs.sources.idx_pairs.source import IdxPairs, is_idx_name
from beam_jobs.sources.image_arrays.source import ImageArrays
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.installed.installed_sources import (
    IMAGES,
    Installed,
    list_installed_names,
    load_source,
    make_no_arguments_error,
    make_unknown_source_error,
    open_installed_source,
)
from beam_jobs.sources.lists.lists import Lists
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.parquet.source import ParquetImages
from beam_jobs.sources.source import Source
from beam_jobs.sources.tars.tars import Tars
from beam_jobs.sources.zips import Zips
from tpudata.errors import SourceError
from tpudata.storage import is_pattern, split_pattern

OpenSource = Callable[[ConvertOptions, SourceOptions], Source]


def find_opener(name: str) -> OpenSource:
    """Return the function that opens the source called `name`.

    Raises:
        UsageError: the name is unknown.
    """
    if name in SOURCES:
        return functools.partial(_open_without_arguments, name)
    installed = load_source(IMAGES, name)
    if installed is None:
        raise make_unknown_source_error(IMAGES, name, list_source_names())
    return functools.partial(_open_package_source, name, installed)


def list_source_names() -> list[str]:
    """Return the names of all sources, sources of installed packages last."""
    return [*SOURCES, *list_installed_names(IMAGES)]


def _open_without_arguments(name: str, options: ConvertOptions, source_options: SourceOptions) -> Source:
    """Open one of this package's sources; UsageError with --source-arg, which none of them takes."""
    if source_options.source_args:
        raise make_no_arguments_error(name)
    return SOURCES[name](options, source_options)


def _open_package_source(
    name: str, installed: Installed, options: ConvertOptions, source_options: SourceOptions
) -> Source:
    options_by_field = {"options": options, "source_options": source_options}
    return open_installed_source(name, installed, source_options.source_args, options_by_field)


def _open_files(options: ConvertOptions, source_options: SourceOptions) -> Source:
    """Open the images that a pattern matches or, if the input is a folder, all files below it."""
    folder, parts = split_pattern(options.input) if is_pattern(options.input) else (options.input, ("**", "*"))
    return MatchedImages.open(options, source_options, folder, parts)


def _open_imagenet(options: ConvertOptions, source_options: SourceOptions) -> Source:
    """Open ImageNet's files; SourceError if the input is laid out otherwise."""
    images = ImageNet.detect(options, source_options)
    if images is None:
        raise SourceError(
            f"--source=imagenet: {options.input} is not laid out like it (expected train/SYNSET/*.JPEG or ILSVRC2012_img_train.tar,"
            " and nothing but that and validation images). Omit the flag."
        )
    return images


def _open_containers(
    source_class: type[Lists | Tars | Zips | ParquetImages], options: ConvertOptions, source_options: SourceOptions
) -> Source:
    """Open a source whose files hold many images each; every file of the input must be of the form that --source names.

    Markdown next to files of binary forms is skipped, as without --source.
    """
    files = InputFiles(options.input, skips_markdown=source_class is not Lists)
    return source_class.open(options, source_options, files)


def _open_idx(options: ConvertOptions, source_options: SourceOptions) -> Source:
    """Open the IDX files of the input, whatever else it has."""
    paths = [path for path, _ in InputFiles(options.input)]
    # Other files may lie next to the pairs. If no name is one of a pair, IdxPairs reports the first.
    idx_paths = [path for path in paths if is_idx_name(path.rpartition("/")[2])]
    return IdxPairs.open(options, source_options, idx_paths or paths)


def _open_arrays(options: ConvertOptions, source_options: SourceOptions) -> Source:
    return ImageArrays.open(options, source_options, [path for path, _ in InputFiles(options.input)])


SOURCES: Mapping[str, OpenSource] = MappingProxyType(
    {
        "folders": ClassFolders.open,
        "files": _open_files,
        "list": functools.partial(_open_containers, Lists),
        "tar": functools.partial(_open_containers, Tars),
        "zip": functools.partial(_open_containers, Zips),
        "parquet": functools.partial(_open_containers, ParquetImages),
        "idx": _open_idx,
        "arrays": _open_arrays,
        "imagenet": _open_imagenet,
    }
)
