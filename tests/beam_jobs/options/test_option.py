"""The options of the conversions as fields: their help, checks and entries in the manifest, and the keywords of the functions.

Tests of properties that all options share read the tables that flags, help and manifest are made of.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from apache_beam import Pipeline
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.calls import ImageKeywords, ReshardKeywords, TextKeywords
from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.command.run_conversion import parse_own_flags
from beam_jobs.options import ConvertOptions, RunOptions
from beam_jobs.options.groups import FlagGroup
from beam_jobs.options.tokenizers import TokenizerOptions
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.source_table import SOURCES
from beam_jobs.text_files.fields import TextField
from beam_jobs.text_files.options import TextOptions
from tests.beam_jobs.texts import convert
from tests.helpers.hostile import write_json
from tpudata.cli import main
from tpudata.console.option import (
    COUNT,
    Bounds,
    Option,
    Stored,
    Value,
    check_options,
    list_options,
    option,
    stored_options,
)
from tpudata.errors import TpudataError, UsageError

COMMANDS = {"images": ImageKeywords, "text": TextKeywords, "reshard": ReshardKeywords}
PARSERS: dict[str, OptionParser] = {
    kind: importlib.import_module(f"beam_jobs.{kind}").new_parser("program") for kind in COMMANDS
}
ALL = [pytest.param(kind, one, id=f"{kind}-{name}") for kind in COMMANDS for name, one in PARSERS[kind].options.items()]
CHOICES = [(kind, one) for kind in COMMANDS for one in PARSERS[kind].options.values() if one.choices]
PLAIN = {bool, int, float, str}


@pytest.mark.parametrize(("kind", "one"), ALL)
def test_every_option_has_a_help_and_a_placeholder(kind: str, one: Option) -> None:
    assert one.help
    assert one.help == one.help.strip(" .")
    assert one.is_switch or bool(one.value.metavar) != bool(one.choices)


@pytest.mark.parametrize(("kind", "one"), ALL)
def test_help_states_the_default(kind: str, one: Option) -> None:
    if one.is_required:
        return
    default = False if (kind, one.name) == ("reshard", "shuffle") else one.default
    stated = re.search(r".*\(default ([\w%]+)", one.help)
    if stated is None:
        assert not default or one.inverts or isinstance(default, tuple)
    elif one.is_switch:
        assert stated[1] == str(default).lower()
    elif default is not None or one.choices:
        parsed = one.value.parse(stated[1])
        assert one.from_flag(parsed if one.collect is None else [parsed]) == default


@pytest.mark.parametrize(("kind", "one"), CHOICES)
def test_rejects_values_outside_the_choices(kind: str, one: Option, tmp_path: Path) -> None:
    command = ["reshard", "in"] if kind == "reshard" else ["convert", kind, "--input=in"]
    with pytest.raises(UsageError, match=rf"^{one.flag}: unknown value \(got 'x', expected {next(iter(one.choices))}"):
        importlib.import_module(f"beam_jobs.{kind}").run([*command[-1:], f"--output={tmp_path}/out", f"{one.flag}=x"])


@pytest.mark.parametrize("kind", COMMANDS)
def test_help_shows_the_flags_in_groups(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*(() if kind == "reshard" else ("convert",)), kind, "--help"]) == 0
    text = capsys.readouterr().out
    titles = [
        title for title in re.findall(r"(?m)^([a-z ]+):$", text) if title not in ("options", "positional arguments")
    ]
    order = [group.value for group in FlagGroup]
    assert titles == sorted(titles, key=order.index)
    for one in PARSERS[kind].options.values():
        section = text.split(f"\n{one.group.value}:\n")[1].split("\n\n")[0]
        assert re.search(rf"(?m)^  {one.flag}[ ,\n]", section)


def test_help_names_all_sources() -> None:
    text = list_options(SourceOptions)["source"].help
    assert f"the input as {', '.join(SOURCES)} or" in text


@pytest.mark.parametrize(("kind", "keywords"), COMMANDS.items())
def test_keywords_have_the_types_of_the_options(kind: str, keywords: type) -> None:
    hints = typing.get_type_hints(keywords, localns={"PipelineOptions": PipelineOptions, "Pipeline": Pipeline})
    fields = {
        name: hint
        for one in (*importlib.import_module(f"beam_jobs.{kind}")._OPTIONS,)
        for name, hint in typing.get_type_hints(one).items()
    }
    for name in hints.keys() & fields.keys():
        field, keyword = types_of(fields[name]), types_of(hints[name])
        assert field & PLAIN <= keyword & PLAIN, name
        assert (bool in field, type(None) in keyword) == (bool in keyword, True), name


def types_of(hint: Any) -> set[Any]:
    return set(typing.get_args(hint)) if typing.get_origin(hint) in (typing.Union, types.UnionType) else {hint}


# Flags that set each option that an append takes from the dataset.
INHERITED = {
    "images": [
        "--split=validation=0.25,train=3/4",
        "--shard-size=3MB",
        "--no-shuffle",
        "--compression=gzip",
        "--label-offset=1",
        "--source=own",
        "--source-arg=a=b=c",
        "--source-arg=d=",
        "--path-column=p",
        "--split-column=s",
        "--column-types=a=int=-1,b=str=x",
        "--raw-tsv",
        "--labels=names.txt",
        "--label-column=l",
        "--label-separator=|",
        "--label-type=int",
        "--layout=imagenet",
        "--check=decode",
        "--resize-shorter=64",
        "--quality=80",
        "--jpeg-only",
    ],
    "text": [
        "--seed=-5",
        "--form=jsonl",
        "--key-field=id",
        "--keep-key",
        # In the order of the manifest.
        "--field=a:b:str=c=d",
        "--field=body",
        "--field=id:int=0",
        "--field=x:float=nan",
        "--invalid-utf8=replace",
        "--document-bytes=5kB",
        "--tokenizer=bytes",
    ],
    "sequences": [
        "--tokenizer=chars:vocab.json",
        "--replace-unknown",
        "--sequence-length=64",
        "--pack",
        "--long-documents=cut",
        "--no-eos",
        "--int64-lists",
    ],
    "pairs": [
        "--tokenizer=bytes",
        "--sequence-length=64",
        "--inputs=a",
        "--targets=b",
        "--field=a",
        "--field=b",
        "--train-on-inputs",
    ],
    "special tokens": ["--tokenizer=hf:tokenizer.json", "--special-tokens=text"],
    "two lengths": [
        "--tokenizer=bytes",
        "--inputs=a",
        "--targets=b",
        "--field=a",
        "--field=b",
        "--inputs-length=64",
        "--targets-length=32",
        "--pack",
        "--long-documents=cut",
    ],
    "chats": [
        "--tokenizer=sentencepiece:a.model",
        "--chat=a,b",
        "--field=a",
        "--field=b",
        "--chat-template=t.jinja",
    ],
    "installed": ["--source=own", "--source-arg=a=b=c", "--source-arg=d="],
    "separated": ["--form=separated", r"--separator=\n---\n"],
    "headerless": ["--form=csv", "--no-header"],
    "labelled": ["--label-field=l", "--label-separator=|", "--labels=names.txt", "--label-type=int"],
    "folders": ["--form=files", "--label-from=folder"],
    "unlabelled": ["--unlabelled"],
    "annotations": ["--annotations=a.json", "--unannotated=skip"],
    "masks": ["--masks=maps"],
    "targets": ["--targets=pictures"],
    "paths": ["--label-from=(cat|dog)", "--target-half=left"],
    "sentencepiece": ["--tokenizer=sentencepiece:a.model", "--eos=</s>"],
}
KINDS = dict.fromkeys(("unlabelled", "annotations", "masks", "targets", "paths"), "images") | dict.fromkeys(
    (
        *("sequences", "pairs", "two lengths", "chats", "installed", "separated", "headerless", "labelled", "folders"),
        *("sentencepiece", "special tokens"),
    ),
    "text",
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    (folder / "in.txt").write_text("one\ntwo\n")
    convert(folder / "in.txt", folder / "out")
    return folder / "out"


@pytest.mark.parametrize("name", INHERITED)
def test_append_inherits_options_as_they_were_passed(name: str, dataset: Path) -> None:
    kind = KINDS.get(name, name)
    paths, kinds = ["--input=in", f"--output={dataset}"], importlib.import_module(f"beam_jobs.{kind}")._OPTIONS
    passed, _ = parse_own_flags(PARSERS[kind], [*paths, *INHERITED[name]])
    spec = read_options(TokenizerOptions, passed).spec if kind == "text" else None
    options = [read_options(one, passed, **({"tokenizer": spec} if one is TextOptions else {})) for one in kinds]
    entries = {key: value for one in options for key, value in stored_options(one).items()}
    entries |= {"split_order": [*passed.split.shares]} if passed.split else {}
    if getattr(passed, "tokenizer", None):
        tokenizer, _, file = passed.tokenizer.partition(":")
        entries["tokenizer"] = {
            "name": tokenizer,
            "file": file,
            "vocab_size": 9,
            "pad_id": 0,
            "sha256": "",
            "eos_id": 1,
        }
    write_manifest(dataset, entries)
    inherited, _ = parse_own_flags(PARSERS[kind], [*paths, "--append"])
    for one in PARSERS[kind].options.values():
        if one.name in ("input", "output", "append"):
            continue
        before, after = getattr(passed, one.name), getattr(inherited, one.name)
        if one.name == "tokenizer" and before is not None:
            before = before.replace(":", f":{dataset}/")
        if before is None:
            assert after is None or one.from_flag(after) == one.default, one.name
        else:
            assert repr(after) == repr(before), one.name
    assert all(getattr(inherited, one) is None for one in ("num_shards", "shards_multiple_of", "resume", "workers"))


def test_passed_flags_override_the_manifest(dataset: Path) -> None:
    write_manifest(dataset, {"seed": 3, "shuffle": False, "fields": {"body": "text"}, "form": "jsonl"})
    paths = ["--input=in", f"--output={dataset}", "--append"]
    flags, _ = parse_own_flags(PARSERS["text"], [*paths, "--seed=0", "--shuffle", "--field=text"])
    assert (flags.seed, flags.shuffle, flags.fields, flags.form) == (
        0,
        True,
        [TextField("text")],
        "jsonl",
    )


def test_cases_cover_every_inherited_option() -> None:
    for kind in ("images", "text"):
        lines = [flag for name, flags in INHERITED.items() if KINDS.get(name, name) in (kind, "all") for flag in flags]
        flags, _ = parse_own_flags(PARSERS[kind], ["--input=in", "--output=out", *lines])
        shared = {"split", "shard_bytes", "shuffle", "compression"} if kind == "text" else {"seed"}
        inherited = {one.name for one in PARSERS[kind].options.values() if one.stored and one.stored.schema}
        assert {name for name in inherited if getattr(flags, name) is None} == shared


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, one.name)
        for kind in ("images", "text")
        for one in PARSERS[kind].options.values()
        # A tokenizer's entry is a dict, which has checks in the tokenizers' tests.
        if one.stored and one.stored.schema and one.name != "tokenizer"
    ],
)
def test_rejects_a_damaged_manifest_entry_by_name(kind: str, name: str, dataset: Path) -> None:
    write_manifest(dataset, {name: [{}]})
    with pytest.raises(TpudataError, match=rf"manifest\.json: .*options\.{name} is "):
        parse_own_flags(PARSERS[kind], ["--input=in", f"--output={dataset}", "--append"])


def write_manifest(dataset: Path, options: dict[str, Any]) -> None:
    path = dataset / "manifest.json"
    write_json(path, {**json.loads(path.read_bytes()), "options": json.loads(json.dumps(options))})


@dataclasses.dataclass(frozen=True)
class Own:
    size: int = option(3, FlagGroup.SHARDS, "size (default 3)", Value("N", int, Bounds(1, 2_000)), stored=Stored())
    count: int | None = option(None, FlagGroup.SHARDS, "count", COUNT, flag="--number", stored=Stored(name="other"))
    on: bool = option(True, FlagGroup.RUN, "turn it off", flag="--off", inverts=True)
    names: tuple[str, ...] = option(
        (), FlagGroup.RUN, "names", Value("NAME"), collect=tuple, stored=Stored(is_optional=True)
    )
    mode: bool = option(False, FlagGroup.RUN, "mode (default slow)", choices={"slow": False, "fast": True})
    table: dict[str, int] = option({}, FlagGroup.RUN, "table", Value("TABLE"))

    def __post_init__(self) -> None:
        check_options(self)


def parsed(*argv: str) -> Own:
    return read_options(Own, OptionParser("own", "An example.", "", [Own, RunOptions]).parse(argv))


def test_fields_become_flags() -> None:
    assert parsed() == Own()
    assert parsed("--size=5", "--number=2", "--off", "--names=a", "--names", "b", "--mode=fast") == Own(
        5, 2, False, ("a", "b"), True
    )
    assert parsed("--no-off").on
    assert Own().table is not Own().table


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0}, r"^--size: out of range \(got 0, expected 1 to 2,000\)$"),
        ({"size": 10**6}, r"^--size: out of range \(got 1,000,000, expected 1 to 2,000\)$"),
        ({"size": None}, r"^--size: not a whole number \(got None\)$"),
        ({"size": True}, r"^--size: not a whole number \(got True\)$"),
        ({"count": 0.5}, r"^--number: not a whole number \(got 0.5\)$"),
        ({"count": 0}, r"^--number: out of range \(got 0, expected a whole number of 1 or more\)$"),
        ({"mode": "fasd"}, r"^--mode: unknown value \(got 'fasd', expected slow or fast\); did you mean fast\?$"),
    ],
)
def test_rejects_invalid_single_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Own(**values)


def test_stores_only_options_declared_as_stored() -> None:
    assert stored_options(Own()) == {"size": 3, "other": None}
    assert stored_options(Own(count=4, names=("a",))) == {"size": 3, "other": 4, "names": ("a",)}


def test_no_two_options_share_a_flag() -> None:
    for parser in PARSERS.values():
        assert len({one.flag for one in parser.options.values()}) == len(parser.options)
    assert {*list_options(ConvertOptions)} == {field.name for field in dataclasses.fields(ConvertOptions)}
