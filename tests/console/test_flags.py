"""Flags as all commands parse them.

Tests make a parser with a flag of each kind; no command has them all.
"""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.console.flags import FlagParser, end_sentence, flag_type, positive_int
from tpudata.errors import UsageError


@pytest.fixture
def parser() -> FlagParser:
    parser = FlagParser("prog", "Does something.")
    parser.add_argument("--shard-size", type=positive_int, default=5)
    parser.add_argument("--master", default="local")
    parser.add_switch("--use-tpu", default=True, help="whether")
    parser.add_switch("--resume", default=False, help="whether")
    return parser


def test_dashes_and_underscores_in_names_are_equivalent(parser: FlagParser) -> None:
    for words in (["--shard-size", "7"], ["--shard_size", "7"], ["--shard-size=7"], ["--shard_size=7"]):
        assert parser.parse(words).shard_size == 7


def test_keeps_underscores_in_values(parser: FlagParser) -> None:
    assert parser.parse(["--master", "my_host"]).master == "my_host"
    assert parser.parse(["--master=--shard_size"]).master == "--shard_size"


def test_takes_values_with_a_minus_for_values(parser: FlagParser) -> None:
    assert parser.parse(["--master", "-5MB", "--no-resume"]).master == "-5MB"
    with pytest.raises(UsageError, match=r"'-\.5kB'"):
        parser.parse(["--shard_size", "-.5kB"])


def test_accepts_the_flags_of_the_original_programs(parser: FlagParser) -> None:
    flags = parser.parse(["--use_tpu=false", "--master="])
    assert (flags.use_tpu, flags.master) == (False, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], True),
        (["--use-tpu"], True),
        (["--use_tpu"], True),
        (["--no-use-tpu"], False),
        (["--no_use_tpu"], False),
        (["--use-tpu=false"], False),
        (["--use-tpu=False"], False),
        (["--use-tpu=0"], False),
        (["--no-use-tpu", "--use-tpu=yes"], True),
    ],
)
def test_switches_parse_all_spellings(parser: FlagParser, words: list[str], expected: bool) -> None:
    assert parser.parse(words).use_tpu is expected


def test_switch_rejects_other_values(parser: FlagParser) -> None:
    with pytest.raises(UsageError, match="'maybe' is neither true nor false"):
        parser.parse(["--use-tpu=maybe"])


@pytest.mark.parametrize("word", ["false", "true", "0", "images"])
def test_switch_never_takes_the_next_word(parser: FlagParser, word: str) -> None:
    with pytest.raises(UsageError, match=f"unexpected argument {word!r}"):
        parser.parse(["--use_tpu", word])
    parser.add_argument("folder")
    for words in (["--use-tpu", word], [word, "--use-tpu"], ["--use_tpu", "--", word]):
        flags = parser.parse(words)
        assert (flags.use_tpu, flags.folder) == (True, word)


def test_the_value_of_a_switch_requires_an_equals_sign(parser: FlagParser) -> None:
    with pytest.raises(
        UsageError, match=r"unexpected argument 'False'; pass the value of a boolean with =, --FLAG=False\."
    ):
        parser.parse(["--use-tpu", "False"])


def test_words_after_two_dashes_are_positional(parser: FlagParser) -> None:
    parser.add_argument("folder")
    assert parser.parse(["--", "--use-tpu"]).folder == "--use-tpu"


@pytest.mark.parametrize("word", ["--shard-sise", "--shard_sise", "--shard-sise=4", "--shard_siz"])
def test_unknown_flag_names_the_nearest(parser: FlagParser, word: str) -> None:
    with pytest.raises(UsageError, match=r"unknown flag --shard.*; did you mean --shard-size\?.*prog --help"):
        parser.parse([word])


def test_rejects_abbreviated_names(parser: FlagParser) -> None:
    with pytest.raises(UsageError, match="unknown flag --res"):
        parser.parse(["--res"])


def test_rejects_an_unexpected_word(parser: FlagParser) -> None:
    with pytest.raises(UsageError, match="unexpected argument 'images'"):
        parser.parse(["images"])


def test_reports_a_misspelt_required_flag_as_unknown(parser: FlagParser) -> None:
    parser.add_argument("--input", required=True)
    with pytest.raises(UsageError, match=r"unknown flag --inputt; did you mean --input\?"):
        parser.parse(["--inputt=x"])


def test_names_a_missing_required_flag(parser: FlagParser) -> None:
    parser.add_argument("--input", required=True)
    with pytest.raises(UsageError, match="--input"):
        parser.parse([])


def test_returns_the_flags_of_another_parser(parser: FlagParser) -> None:
    flags, rest = parser.parse_with_rest(["--runner", "X", "--shard_size=3", "--temp_location=gs://b/t"])
    assert flags.shard_size == 3
    assert rest == ["--runner", "X", "--temp_location=gs://b/t"]
    parser.reject_unknown([])
    with pytest.raises(UsageError, match=r"did you mean --runner\?"):
        parser.reject_unknown(["--runer=X"], also_known=["--runner"])


@given(st.text())
def test_positive_int_accepts_exactly_whole_numbers_from_1(text: str) -> None:
    try:
        expected = int(text)
    except ValueError:
        expected = 0
    if expected >= 1:
        assert positive_int(text) == expected
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="whole number of 1 or more"):
            positive_int(text)


def test_flag_type_shows_the_parsers_message() -> None:
    def parse(text: str) -> int:
        raise UsageError(f"{text!r} will not do")

    parser = FlagParser("prog", "Does something.")
    parser.add_argument("--size", type=flag_type("size", parse))
    with pytest.raises(UsageError, match="argument --size: 'x' will not do"):
        parser.parse(["--size=x"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard-sise"], "prog: unknown flag --shard-sise; did you mean --shard-size? See: prog --help"),
        (["--zzz"], "prog: unknown flag --zzz. See: prog --help"),
        (["images"], "prog: unexpected argument 'images'. See: prog --help"),
    ],
)
def test_messages_point_to_the_help(parser: FlagParser, words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parser.parse(words)
    assert str(caught.value) == message


def test_sentence_ends_with_one_mark() -> None:
    assert [end_sentence(text) for text in ("a", "a.", "a?", "a!")] == ["a.", "a.", "a?", "a!"]
