"""The flags of a conversion of text."""

from __future__ import annotations

import argparse

from beam_jobs.options import parse_size
from beam_jobs.text_files.options import AUTO, CUT, DEFAULT_DOCUMENT_BYTES, SPLIT, TextField, TextOptions
from beam_jobs.tokenizers import TokenizerSpec
from tpudata.console.flags import FlagParser, flag_type, positive_int
from tpudata.errors import UsageError

_FAIL, _REPLACE = "fail", "replace"


def add_text_flags(parser: FlagParser) -> None:
    """Add the flags that `text_options` reads."""
    add = parser.add_argument
    add(
        "--form",
        default=AUTO,
        help="unit of a document: lines, paragraphs, files, or rows of jsonl, csv, tsv, raw-tsv (whose quotes are ordinary"
        " characters) or parquet (default auto: rows if a file's name or content shows them, else lines)",
    )
    add(
        "--field",
        action="append",
        type=flag_type("field", TextField.parse),
        metavar="NAME[:KIND[=VALUE]]",
        help="field of rows that goes into the records, once for each: text (default kind), or str, int, float or float32 to"
        " store it as it is; VALUE is stored for missing values, such as id:int=0 (default text)",
    )
    add(
        "--invalid-utf8",
        choices=(_FAIL, _REPLACE),
        default=_FAIL,
        help="bytes that are not UTF-8: reject the document, or store U+FFFD for them (default fail)",
    )
    add(
        "--document-bytes",
        type=flag_type("size", parse_size),
        default=DEFAULT_DOCUMENT_BYTES,
        metavar="SIZE",
        help="reject longer documents (default 64MiB)",
    )
    parser.add_switch("--dedup", default=False, help="keep one of several documents with equal text")
    add(
        "--tokenizer",
        metavar="KIND[:FILE]",
        help="bytes, chars, chars:FILE, sentencepiece:FILE or hf:FILE (default: store text)",
    )
    parser.add_switch("--replace-unknown", default=False, help="chars:FILE: a separate id for unknown characters")
    add(
        "--sequence-length", type=positive_int, metavar="N", help="records of N tokens, cut from the documents in order"
    )
    parser.add_switch(
        "--pack", default=False, help="pack whole documents into sequences, with segment_ids and positions"
    )
    add(
        "--long-documents",
        choices=(SPLIT, CUT),
        default=SPLIT,
        help="with --pack: split documents longer than a sequence, or cut them off (default split)",
    )
    add("--eos", metavar="TOKEN", help="token that ends a document (default: that of the tokenizer)")
    parser.add_switch("--no-eos", default=False, help="put no end token after the documents in a sequence")
    parser.add_switch(
        "--int64-lists", default=False, help="store sequences as lists of int64, for readers that take no other form"
    )


def text_options(flags: argparse.Namespace) -> TextOptions:
    """Return the options that the flags of `add_text_flags` set; UsageError if they do not fit each other."""
    spec = None
    if flags.tokenizer is not None:
        spec = TokenizerSpec.parse(flags.tokenizer, flags.eos, replace_unknown=flags.replace_unknown)
    else:
        for name in ("eos", "replace_unknown"):
            if getattr(flags, name):
                raise UsageError(f"--{name.replace('_', '-')} requires --tokenizer. Pass it, or omit the flag")
    if flags.sequence_length is None and flags.no_eos:
        raise UsageError("--no-eos requires --sequence-length. Pass it, or omit the flag")
    if flags.no_eos and flags.eos is not None:
        raise UsageError(f"--no-eos and --eos {flags.eos} exclude each other. Omit one")
    if flags.long_documents != SPLIT and not flags.pack:
        raise UsageError("--long-documents requires --pack: a stream of documents is cut at the end of each sequence")
    return TextOptions(
        form=flags.form,
        fields=tuple(flags.field) if flags.field else TextOptions.fields,
        replace_invalid=flags.invalid_utf8 == _REPLACE,
        document_bytes=flags.document_bytes,
        tokenizer=spec,
        sequence_length=flags.sequence_length,
        pack=flags.pack,
        long_documents=flags.long_documents,
        end_documents=not flags.no_eos,
        int64_lists=flags.int64_lists,
        dedup=flags.dedup,
    )
