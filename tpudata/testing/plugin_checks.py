"""Checks for the tests of packages that extend conversions: whether a source or a tokenizer keeps what the documentation promises.

They convert as a user does, with the public functions, and raise an AssertionError at the first promise that is broken.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.metadata
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import tpudata
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, SourceError, TpudataError, UsageError
from tpudata.format import Manifest, open_dataset, verify
from tpudata.format.manifest.model_features import LABEL_NAMES
from tpudata.tokenizers import Ids, Tokenizer, TokenizerSpec, dataset_tokenizer
from tpudata.tokenizers.open_tokenizer import open_tokenizer

__all__ = ["check_source", "check_tokenizer"]

AnyPath: TypeAlias = "str | os.PathLike[str]"
# Groups of entry points.
_IMAGE_SOURCES, _TEXT_SOURCES = "tpudata.sources", "tpudata.text_sources"
# Name of a folder that breaks code which takes paths for URLs, patterns or words of a shell.
_ODD_NAME = "a b é #1 %41 [0]"
_SHARD_COUNT = 2


def check_source(
    source: str,
    input: AnyPath,
    folder: AnyPath,
    *,
    records: int | None = None,
    grown: AnyPath | None = None,
    damaged: AnyPath | None = None,
    empty: AnyPath | None = None,
    **options: Any,
) -> Manifest:
    """Convert an input with a source of an installed package in several ways, and check the datasets.

    One worker and two write the same bytes. So do conversions of the same input in another folder, and a run that was killed and
    resumed. An append of the same input adds nothing, and an append of a grown input adds only the new records. A
    record's split follows from its key.

    Args:
        source: value of `--source`.
        input: a local input of the source with eight records or more, none of them damaged.
        folder: folder of the written datasets: new or empty.
        records: expected number of records of the input; None for any number.
        grown: the same input with further records; None skips its append.
        damaged: an input with damaged records next to whole ones; None skips its check.
        empty: an input without records; None skips its check.
        **options: further keywords of `tpudata.convert_images` or `tpudata.convert_text`, such as `source_args`.

    Returns:
        The manifest of the input's dataset, which is in the folder `whole`, for checks of your own.

    Raises:
        AssertionError: a promise is broken; the message says which one.
        TpudataError: the input cannot be converted at all.
    """
    check = _SourceCheck(source, Path(input), Path(folder), options)
    manifest = check.convert("whole", num_shards=_SHARD_COUNT)
    defects = list(verify(str(check.folder / "whole")))
    _require(not defects, f"{source}: its dataset is damaged: {defects[:1]}")
    _require(
        records is None or records == manifest.records,
        f"{source}: a different number of records (got {manifest.records}, expected {records}). Look for keys and files that the"
        " listing skips, and for records in `manifest.rejected`.",
    )
    if damaged is not None:
        check.check_damaged_input(Path(damaged))
    if empty is not None:
        check.check_empty_input(Path(empty))
    check.check_resumed_run()
    check.check_moved_input()
    check.check_splits()
    check.check_append(grown)
    # The workers are checked last, since starting them takes seconds.
    check.check_workers()
    return manifest


@dataclasses.dataclass(frozen=True)
class _SourceCheck:
    """The checks of a source, which write datasets into subfolders.

    Attributes:
        source: name of the source.
        input: the input.
        folder: folder of the written datasets.
        options: keywords of the conversion.
    """

    source: str
    input: Path
    folder: Path
    options: dict[str, Any]

    def convert(self, output: str, input: Path | None = None, **more: Any) -> Manifest:
        """Convert an input, and return the manifest.

        Args:
            output: subfolder to write the dataset to.
            input: the input; None for the input of the checks.
            more: further keywords of the conversion.
        """
        text_sources = {point.name for point in importlib.metadata.entry_points(group=_TEXT_SOURCES)}
        image_sources = {point.name for point in importlib.metadata.entry_points(group=_IMAGE_SOURCES)}
        # A name in both groups is taken for a source of images.
        convert = tpudata.convert_text if self.source in text_sources - image_sources else tpudata.convert_images
        manifest = convert(input or self.input, self.folder / output, source=self.source, **{**self.options, **more})
        assert isinstance(manifest, Manifest)
        return manifest

    def check_workers(self) -> None:
        """Check that two processes write what one thread does."""
        # A shuffle gives each record a position by its key, which would hide a changed order of parts and units.
        self.convert("ordered", num_shards=_SHARD_COUNT, shuffle=False)
        self.convert("workers", num_shards=_SHARD_COUNT, shuffle=False, workers=2)
        self._require_equal_datasets(
            "workers",
            "ordered",
            run="two workers with shuffle=False",
            hint="parts and units come in the same order each time",
        )

    def check_moved_input(self) -> None:
        """Check that the same input in a folder of an odd name gives the same bytes: keys are relative to the input."""
        moved_input = self.folder / _ODD_NAME / self.input.name
        moved_input.parent.mkdir()
        if self.input.is_dir():
            shutil.copytree(self.input, moved_input)
        else:
            shutil.copyfile(self.input, moved_input)
        self.convert("moved", moved_input, num_shards=_SHARD_COUNT)
        self._require_equal_datasets(
            "moved",
            "whole",
            run=f"the input in a folder {_ODD_NAME!r}",
            hint="keys and records do not have the path of the input",
        )

    def check_resumed_run(self) -> None:
        """Check that a run that was killed and is resumed ends with the same bytes."""
        self.convert("resumed", num_shards=_SHARD_COUNT)
        # A killed run leaves no manifest, and not all shards.
        (self.folder / "resumed" / "manifest.json").unlink()
        min((self.folder / "resumed").glob("*.tfrecord")).unlink()
        self.convert("resumed", num_shards=_SHARD_COUNT, resume=True)
        self._require_equal_datasets("resumed", "whole", run="a resumed run", hint="keys are the same in each listing")

    def check_splits(self) -> None:
        """Check that a record's split follows from its key, whatever the order of the records is."""
        try:
            self.convert("splits", split="train=0.5,test=0.5")
        except (SourceError, UsageError):
            # A few records may all be in one split, and a source may have splits of its input: there is nothing to check.
            return
        self.convert("splits-again", split="train=0.5,test=0.5", seed=1)
        has_equal_splits = self._count_records("splits", "train") == self._count_records("splits-again", "train")
        _require(
            has_equal_splits,
            f"{self.source}: a record changes its split with the seed. Keys must be the same each time.",
        )

    def check_append(self, grown: AnyPath | None) -> None:
        """Check that an append of the same input adds nothing, and an append of a grown input only the new records.

        Args:
            grown: the same input with further records; None skips the second check.
        """
        self.convert("appended")
        old_files = self._read_files("appended")
        self.convert("appended", append=True)
        self._require_equal_files(
            self._read_files("appended"),
            old_files,
            run="an append of the same input",
            hint="keys are the same in each listing",
        )
        if grown is None:
            return
        self.convert("grown", Path(grown))
        self.convert("appended", Path(grown), append=True)
        old_shards = {name: data for name, data in old_files.items() if name.endswith((".tfrecord", ".index"))}
        _require(
            old_shards.items() <= self._read_files("appended").items(),
            f"{self.source}: an append changes shards. Report this as a bug of tpudata.",
        )
        converted_records, appended_records = self._count_records("grown"), self._count_records("appended")
        _require(
            converted_records == appended_records,
            f"{self.source}: an append of the grown input gives different records than its conversion (got"
            f" {appended_records.total()}, expected {converted_records.total()}). Keys and bytes of old records must stay as they"
            " are, and keys of new ones must be new.",
        )

    def check_damaged_input(self, damaged: Path) -> None:
        """Check that a damaged record ends a run with an error that names the record's file, or is counted if the run skips it."""
        try:
            self.convert("damaged", damaged)
        except BadRecordError as error:
            _require(
                str(damaged) in error.source,
                f"{self.source}: the error of a damaged record does not name its file (got {error.source!r}, expected a path in"
                f" {damaged}). Pass `reject` a BadRecordError of that path.",
            )
        else:
            raise AssertionError(
                f"{self.source}: converts {damaged} without an error (expected a BadRecordError). Call `reject` for a record that"
                " cannot be referred to, and raise a ValueError in `fetch` or `read`."
            )
        _require(
            not (self.folder / "damaged" / "manifest.json").exists(), f"{self.source}: a failed run leaves a manifest."
        )
        # `resume`, since the failed run has begun to write into the folder.
        manifest = self.convert("damaged", damaged, on_bad_record="skip", max_bad_records="100%", resume=True)
        reject_count = sum(manifest.rejected.values())
        _require(
            manifest.records > 0 and reject_count > 0,
            f"{self.source}: a run that skips bad records has {count_text(manifest.records, 'record')} and"
            f" {count_text(reject_count, 'reject')} (expected some of both). Continue with the next record after `reject`.",
        )

    def check_empty_input(self, empty: Path) -> None:
        """Check that an input without records is an error in one line, which names it."""
        try:
            self.convert("empty", empty)
        except TpudataError as error:
            message = str(error)
            _require(
                str(empty) in message and "\n" not in message,
                f"{self.source}: the error of an empty input is not one line that names it (got {message!r}).",
            )
        else:
            raise AssertionError(f"{self.source}: converts {empty}, which is to have no records, without an error.")

    def _require_equal_datasets(self, output: str, expected: str, run: str, hint: str) -> None:
        """Raise AssertionError if two datasets differ.

        Args:
            output: subfolder of the first dataset.
            expected: subfolder of the second dataset.
            run: the run that made the first dataset, for the message.
            hint: what makes the files equal, for the message.
        """
        self._require_equal_files(self._read_files(output), self._read_files(expected), run, hint)

    def _require_equal_files(self, files: dict[str, bytes], expected: dict[str, bytes], run: str, hint: str) -> None:
        """Raise AssertionError if the files of two datasets differ.

        Args:
            files: contents of the files of the first dataset, by name.
            expected: contents of the files of the second dataset, by name.
            run: the run that made the first dataset, for the message.
            hint: what makes the files equal, for the message.
        """
        different_names = sorted(
            name for name in files.keys() | expected.keys() if files.get(name) != expected.get(name)
        )
        _require(
            not different_names,
            f"{self.source}: {run} gives different bytes than a plain run (in {', '.join(different_names[:3])}). Make sure that"
            f" {hint}.",
        )

    def _read_files(self, output: str) -> dict[str, bytes]:
        """Return the contents of a dataset's files by name, without JSON files: the manifest contains the path of the input."""
        folder = self.folder / output
        paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    def _count_records(self, output: str, *splits: str) -> collections.Counter[str]:
        """Count the records of `splits`, or of all, by their values; labels are omitted, since they depend on the dataset."""
        dataset = open_dataset(str(self.folder / output))
        return collections.Counter(
            repr(sorted((name, list(values)) for name, values in example.items() if name not in LABEL_NAMES))
            for split in splits or dataset.manifest.splits
            for example in dataset.examples(split)
        )


def check_tokenizer(tokenizer: str, texts: Sequence[str], folder: AnyPath) -> Tokenizer:
    """Convert texts with a tokenizer of an installed package, and check its ids.

    Args:
        tokenizer: value of `--tokenizer`, such as `"words:FILE"`.
        texts: two texts or more, of one line each, which the tokenizer can encode; empty texts are not stored.
        folder: folder of the written files: new or empty.

    Returns:
        The tokenizer, as the dataset opens it, for checks of your own.

    Raises:
        AssertionError: a promise is broken; the message says which one.
        TpudataError: the texts cannot be converted at all.
    """
    folder = Path(folder)
    original = open_tokenizer(TokenizerSpec.parse(tokenizer))
    batch = original.encode_batch(list(texts))
    for text, ids in zip(texts, batch, strict=True):
        _check_ids(tokenizer, original, text, ids)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    for output, workers in (("one", 1), ("two", 2)):
        options: dict[str, Any] = {"tokenizer": tokenizer, "shuffle": False, "num_shards": 2, "workers": workers}
        tpudata.convert_text(folder / "texts.txt", folder / output, **options)
    examples_of_one = [*open_dataset(str(folder / "one")).examples("train")]
    examples_of_two = [*open_dataset(str(folder / "two")).examples("train")]
    _require(
        examples_of_one == examples_of_two,
        f"{tokenizer}: two workers store different ids than one. Ids must depend only on the text and the file.",
    )
    stored_ids = [list(example["input_ids"]) for example in examples_of_one]
    expected_ids = [ids.tolist() for text, ids in zip(texts, batch, strict=True) if text]
    _require(
        stored_ids == expected_ids,
        f"{tokenizer}: a conversion stores different ids than `encode_batch` returns here, such as {stored_ids[:1]}.",
    )
    reopened = dataset_tokenizer(str(folder / "one"))
    _require(
        reopened.identity == original.identity,
        f"{tokenizer}: opened from the dataset it has a different identity (got {reopened.identity}, expected"
        f" {original.identity}).",
    )
    _require(
        all(map(np.array_equal, reopened.encode_batch(list(texts)), batch)),
        f"{tokenizer}: opened from the dataset it returns different ids. `file_bytes` must be all that they follow from.",
    )
    return reopened


def _check_ids(name: str, tokenizer: Tokenizer, text: str, ids: Ids) -> None:
    """Raise AssertionError if the ids of a text break a promise.

    Args:
        name: value of `--tokenizer`, for messages.
        tokenizer: the tokenizer that encoded the text.
        text: the text, on one line.
        ids: ids of the text, encoded together with other texts.
    """
    identity = tokenizer.identity
    # The package may break the annotation.
    array: Any = ids
    _require(
        isinstance(array, np.ndarray) and array.dtype == np.int32 and array.ndim == 1,
        f"{name}: the ids of {text!r} are of a different kind (got {array!r}, expected an int32 array [tokens]).",
    )
    _require(
        not ids.size or (int(ids.min()) >= 0 and int(ids.max()) < identity.vocab_size),
        f"{name}: an id of {text!r} is not in the vocabulary of {identity.vocab_size:,} (got {ids.tolist()}).",
    )
    _require(
        identity.eos_id is None or identity.eos_id not in ids,
        f"{name}: the ids of {text!r} have the end of a document (got {ids.tolist()}), which the conversion adds.",
    )
    (ids_alone,) = tokenizer.encode_batch([text])
    _require(
        np.array_equal(ids, ids_alone),
        f"{name}: {text!r} has different ids if no other text is encoded with it (got {ids_alone.tolist()}, expected"
        f" {ids.tolist()}).",
    )
    _require(
        isinstance(tokenizer.decode(ids), str),
        f"{name}: `decode` returns no text (got {type(tokenizer.decode(ids)).__name__}).",
    )


def _require(is_kept: bool, message: str) -> None:
    """Raise AssertionError with this message unless a promise is kept, also under `python -O`."""
    if not is_kept:
        raise AssertionError(message)
