"""Keywords become the flags of the command, and the command's messages name keywords.

Tests call the translation directly: most keywords leave no trace in a dataset, and messages that no command prints are
translated, too.
"""

from __future__ import annotations

import importlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_jobs.calls import ImageKeywords, ReshardKeywords, TextKeywords
from beam_jobs.calls.command_words import make_command_words, translate_flags
from tpudata.console.option import Option
from tpudata.errors import UsageError

OF_THE_CALL = {"pipeline", "runner", "beam_options", "progress"}
# Arguments of the functions that are no keywords of these classes.
SEPARATE = {"input", "output", "dry_run", "detach", "json", "quiet"}


def options_of_command(kind: str) -> dict[str, Option]:
    options: dict[str, Option] = importlib.import_module(f"beam_jobs.{kind}").new_parser("program").options
    return options


ALL = {name: option for kind in ("reshard", "text", "images") for name, option in options_of_command(kind).items()}


@pytest.mark.parametrize(
    ("kind", "keywords"), [("images", ImageKeywords), ("text", TextKeywords), ("reshard", ReshardKeywords)]
)
def test_every_flag_has_a_keyword(kind: str, keywords: type) -> None:
    assert {*keywords.__annotations__} - OF_THE_CALL == {*options_of_command(kind)} - SEPARATE


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"num_shards": 3, "seed": -2, "retry_seconds": 0.5}, ["--num-shards=3", "--seed=-2", "--retry-seconds=0.5"]),
        ({"num_shards": np.int64(3), "quality": None}, ["--num-shards=3"]),
        ({"shard_bytes": "64MiB"}, ["--shard-size=64MiB"]),
        ({"shuffle": False, "resume": True}, ["--shuffle=false", "--resume=true"]),
        ({"split": {"train": 0.9, "validation": Fraction(1, 10)}}, ["--split=train=0.9,validation=1/10"]),
        ({"split": "train=1"}, ["--split=train=1"]),
        ({"labels_file": Path("names.txt"), "reader": "x"}, ["--labels=names.txt", "--for=x"]),
        ({"column_types": {"age": "int=0", "b": "str"}}, ["--column-types=age=int=0,b=str"]),
        (
            {"source_args": {"a": "x,y", "b": 3, "c": True}},
            ["--source-arg=a=x,y", "--source-arg=b=3", "--source-arg=c=true"],
        ),
        ({"fields": ["text", "id:int"]}, ["--field=text", "--field=id:int"]),
        ({"fields": {"text": "text", "id": "int=0"}}, ["--field=text:text", "--field=id:int=0"]),
        ({"fields": "body"}, ["--field=body"]),
        ({"replace_invalid": True, "end_documents": False}, ["--invalid-utf8=replace", "--no-eos=true"]),
        ({"replace_invalid": False, "end_documents": True}, ["--invalid-utf8=fail", "--no-eos=false"]),
        ({"take": ("train", "test")}, ["--take-splits=train,test"]),
        ({"split_keys": {"test": Path("keys.txt")}}, ["--split-keys=test=keys.txt"]),
        ({"raw": {"image_raw": "uint8:28x28x1"}}, ["--raw=image_raw=uint8:28x28x1"]),
        ({"label_maps": ["a", "b"]}, ["--label-map=a", "--label-map=b"]),
        ({"label_separator": "|", "path_column": ""}, ["--label-separator=|", "--path-column="]),
    ],
)
def test_translates_keywords_to_flags(keywords: dict[str, Any], words: list[str]) -> None:
    assert make_command_words(keywords, ALL) == words


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"column_types": {"a,b": "int"}}, r"column_types: an item with a comma.*got 'a,b=int'"),
        ({"column_types": {"a=b": "int"}}, r"column_types: invalid name \(got 'a=b'"),
        ({"column_types": {3: "int"}}, r"column_types: invalid name \(got 3,"),
        ({"take": ["a,b"]}, r"take: an item with a comma"),
        ({"replace_invalid": "replace"}, r"replace_invalid: neither True nor False \(got 'replace'\)"),
    ],
)
def test_rejects_values_that_a_flag_cannot_express(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_command_words(keywords, ALL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--shard-size: too small. Omit the flag.", "shard_bytes: too small. Omit the argument."),
        ("--seed sets the order, and --no-shuffle keeps it", "seed sets the order, and shuffle=False keeps it"),
        ("run again with --resume to convert the rest.", "run again with resume=True to convert the rest."),
        ("requires --on-bad-record=skip: without it", "requires on_bad_record=skip: without it"),
        ("--num-shards is 3. Pass --num-shards=4.", "num_shards is 3. Pass num_shards=4."),
        ("--invalid-utf8=replace or --no-eos", "replace_invalid=True or end_documents=False"),
        ("--invalid-utf8=fail", "replace_invalid=False"),
        ("pass --on-bad-record skip to go on", "pass on_bad_record=skip to go on"),
        ("--num-shards 3 or --no-shuffle skip", "num_shards 3 or shuffle=False skip"),
        ("--no-eos --seed", "end_documents=False seed"),
        ("--job_endpoint of a server", "--job_endpoint of a server"),
        ("a--resume.jpg and --resumed", "a--resume.jpg and --resumed"),
        ("f: no. See: f --help", "f: no. See: help(f)"),
    ],
)
def test_translates_flags_in_messages_to_keywords(text: str, expected: str) -> None:
    keywords = [
        "shard_bytes",
        "seed",
        "shuffle",
        "resume",
        "on_bad_record",
        "num_shards",
        "replace_invalid",
        "end_documents",
    ]
    assert translate_flags(text, "f", keywords, ALL) == expected
