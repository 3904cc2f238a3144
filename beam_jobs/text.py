"""Converts text into a dataset: `python -m beam_jobs.text`, the same as `tpudata convert text`.

Documents are found in beam_jobs.text_files.documents and converted in beam_jobs.text_records.records; the steps are in
beam_jobs.pipeline.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before the imports, which take most of a second. The module is imported again by its name, and this copy ends here.
    import sys

    from tpudata.console.interrupts import end_on_interrupt

    end_on_interrupt()
    from tpudata.console.process import run_module

    sys.exit(run_module("beam_jobs.text", "python -m beam_jobs.text"))

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.chats.find_template import find_chat_template
from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.run_conversion import (
    check_output_is_writable,
    hold_limits,
    resolve_places,
    run_job,
)
from beam_jobs.conversion import Conversion
from beam_jobs.options import ConvertOptions, PrintOptions, RunOptions
from beam_jobs.options.labels import TextLabelOptions
from beam_jobs.options.tokenizers import TokenizerOptions
from beam_jobs.planning.warning_lines import InputFacts
from beam_jobs.run.places import absolute_path, check_places
from beam_jobs.sources.options import TextSourceOptions
from beam_jobs.sources.text import SourceDocuments, TextSource
from beam_jobs.steps.duplicates.texts import OmitDuplicates
from beam_jobs.steps.vocabulary import CollectCharacters
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_records.converter import TextConverter
from beam_jobs.text_records.schema import choose_text_layout
from tpudata.console.option import list_path_entries, stored_options
from tpudata.errors import UsageError
from tpudata.format import open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.format.tokenizer_file import CHAT_TEMPLATE
from tpudata.storage import storage_for
from tpudata.tokenizers import TokenizerSpec, dataset_tokenizer, open_tokenizer
from tpudata.tokenizers.tokenizer import PLAIN

_FORMS = (
    "SRC is a file of text, a folder of such, or a pattern: lines, paragraphs or whole files, JSONL, CSV, TSV or Parquet, also"
    " packed as .gz, .bz2 or .zst."
)
_TOPICS = ("which_command", "text_datasets", "convert/text", "text_sources", "runs", "append")
_OPTIONS = (
    RunOptions,
    PrintOptions,
    TextSourceOptions,
    ConvertOptions,
    TokenizerOptions,
    TextLabelOptions,
    TextOptions,
)
_VOCABULARY = "vocab.json"


def run(argv: Sequence[str], prog: str = "tpudata convert text") -> int:
    """Run the job with the arguments of a command line, see `run_job`; messages call the command `prog`."""
    return run_job(new_parser(prog), prepare, argv)


def new_parser(prog: str) -> OptionParser:
    """Return the parser of the job's flags, for a command called `prog`."""
    # Text has no background class, so its labels always begin with 0.
    omitted_options = ("label_offset",)
    return OptionParser(
        prog, "Convert text into TFRecord shards.", _FORMS, _OPTIONS, without=omitted_options, topics=_TOPICS
    )


@contextlib.contextmanager
def prepare(flags: argparse.Namespace, beam_options: PipelineOptions) -> Iterator[Conversion]:
    """Yield the conversion that flags describe, ready to be planned or run; its requests are limited until the context ends.

    Args:
        flags: flags of the parser.
        beam_options: Beam's options, such as the runner.

    Raises:
        TpudataError: the flags do not fit each other, or the input or the output is invalid.
    """
    dry_run = read_options(RunOptions, flags).dry_run
    options = resolve_places(read_options(ConvertOptions, flags), beam_options, dry_run=dry_run)
    with hold_limits(options, beam_options):
        check_output_is_writable(options, beam_options, dry_run=dry_run)
        tokenizer = read_options(TokenizerOptions, flags)
        source_options = read_options(TextSourceOptions, flags)
        labels = read_options(TextLabelOptions, flags, are_from_source=source_options.source is not None)
        text = read_options(TextOptions, flags, tokenizer=tokenizer.spec, labels=labels)
        text = _add_template(text, tokenizer.chat_template)
        # The plan of a dry run is made on this machine, so any path is valid.
        if not dry_run:
            text = _resolve_targets(_resolve_tokenizer(text, beam_options), beam_options)
        yield make_text_conversion(options, text, source_options)


def _add_template(text: TextOptions, path: str | None) -> TextOptions:
    """Return the options with the chat template of a file or the tokenizer; unchanged unless chats become tokens.

    Raises:
        UsageError: the flags of chats do not fit each other, or there is no template.
    """
    if path is not None and not text.chat:
        raise UsageError("--chat-template requires --chat. Pass it, or omit the flag")
    if not text.chat or text.tokenizer is None:
        return text
    spec = text.tokenizer
    if spec.special_tokens == PLAIN:
        raise UsageError(
            "--special-tokens text and --chat: the template's own special tokens would be text. Omit --special-tokens"
        )
    return dataclasses.replace(text, template=find_chat_template(path, spec), tokenizer=spec.allow_special_tokens())


def _resolve_tokenizer(text: TextOptions, beam_options: PipelineOptions) -> TextOptions:
    """Return the options with an absolute path of the tokenizer; UsageError if the workers cannot open it."""
    if text.tokenizer is None:
        return text
    check_places(beam_options, {"--tokenizer": text.tokenizer.path})
    path = absolute_path(text.tokenizer.path, beam_options)
    return dataclasses.replace(text, tokenizer=dataclasses.replace(text.tokenizer, path=path))


def _resolve_targets(text: TextOptions, beam_options: PipelineOptions) -> TextOptions:
    """Return the options with an absolute path of the targets; UsageError if the workers cannot open it."""
    if text.targets_file is None:
        return text
    check_places(beam_options, {"--targets-file": text.targets_file})
    return dataclasses.replace(text, targets_file=absolute_path(text.targets_file, beam_options))


def make_text_conversion(
    options: ConvertOptions, text: TextOptions, source_options: TextSourceOptions | None = None
) -> Conversion:
    """Inspect the input, and return its conversion, ready to be planned or run.

    Raises:
        UsageError: options do not fit each other or the input.
        SourceError: the input does not have the form that the options name, or cannot be read.
    """
    if text.dedup and options.append:
        raise UsageError(
            "--dedup and --append: an append compares names, not texts, so it cannot find duplicates of documents in the dataset."
            " Convert everything again with --overwrite; or omit --dedup if the dataset was made without it."
        )
    source_options = source_options or TextSourceOptions()
    source = (
        TextSource.open(options, text)
        if source_options.source is None
        else SourceDocuments.open(options, text, source_options)
    )
    # `source.text` and not `text`: the source of an installed package has set whether documents have classes.
    text = _reuse_vocabulary(options, source.text)
    spec = text.tokenizer
    collects_characters = spec is not None and spec.collects_characters
    # A vocabulary that the run collects has no identity yet.
    identity = None if spec is None or collects_characters else open_tokenizer(spec).identity
    tokenizer_json: Any = None if spec is None else spec.kind
    tokenizer_files: tuple[str, ...] = () if spec is None else (_VOCABULARY,)
    if identity is not None:
        tokenizer_json = identity.to_json()
        tokenizer_files = (identity.file,) if identity.file else ()
    converter = TextConverter(text, identity, source.several_labels, source.features)
    return Conversion(
        options=options,
        source=source,
        converter=converter,
        layout=choose_text_layout(text),
        extra_bytes=converter.extra_bytes,
        estimate=converter.estimate_ratio,
        deciding_options={
            **options.deciding_options(),
            **text.deciding_options(),
            **stored_options(source_options),
            "tokenizer": tokenizer_json,
        },
        path_options=list_path_entries(text.labels),
        collect_characters=functools.partial(CollectCharacters, text) if collects_characters else None,
        omit_duplicates=functools.partial(OmitDuplicates, text) if text.dedup else None,
        files=(*tokenizer_files, *((CHAT_TEMPLATE,) if text.template else ())),
        input_noun="document",
        facts=InputFacts.from_source(source, text.labels),
    )


def _reuse_vocabulary(options: ConvertOptions, text: TextOptions) -> TextOptions:
    """Return the options with the vocabulary that an append or --resume finds in the output, so that its characters are not
    collected again; otherwise unchanged.
    """
    storage = storage_for(options.output)
    spec = text.tokenizer
    if spec is None or not spec.collects_characters or not (options.append or options.resume):
        return text
    if storage.stat(storage.join(options.output, MANIFEST_NAME)) is None:
        return text
    tokenizer_json = open_dataset(options.output).manifest.options.get("tokenizer")
    if not isinstance(tokenizer_json, dict) or tokenizer_json.get("file") != _VOCABULARY:
        return text
    # Raises if the file is missing or changed.
    dataset_tokenizer(options.output)
    path = storage.join(options.output, _VOCABULARY)
    return dataclasses.replace(text, tokenizer=TokenizerSpec(spec.kind, path, spec.eos))
