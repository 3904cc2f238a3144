from __future__ import annotations

from typing import Any

import pytest

from beam_jobs.command.option_parser import OptionParser, read_options
from beam_jobs.sources import SourceOptions
from tpudata.errors import UsageError


def parsed(*argv: str) -> SourceOptions:
    return read_options(SourceOptions, OptionParser("test", "", "", [SourceOptions]).parse(argv))


def test_flags() -> None:
    assert parsed() == SourceOptions()
    assert parsed(
        "--labels=f", "--path-column=p", "--label_column=l", "--split-column=s", "--label-separator=|"
    ) == SourceOptions(labels_file="f", path_column="p", label_column="l", split_column="s", label_separator="|")
    assert parsed("--unlabelled", "--column-types=a=int,b=c=str") == SourceOptions(
        unlabelled=True, column_types={"a": "int", "b=c": "str"}
    )
    assert parsed("--label-type=int", "--column-types=a=int=-1,b=c=str=,d=float=nan") == SourceOptions(
        label_type="int", column_types={"a": "int=-1", "b=c": "str=", "d": "float=nan"}
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--column-types=a=long"], "a is 'long'; allowed are int, float, float32, str"),
        (["--column-types=a=int=x"], "--column-types: a=int=x: 'x' is not a whole number that fits int64"),
        (["--unlabelled", "--label-type=str"], "--unlabelled and --label-type: choose one"),
        (["--column-types=a=int,a=str"], "write each column once"),
        (["--unlabelled", "--labels=f"], "--unlabelled and --labels: choose one"),
        (["--label-separator="], "--label-separator is empty"),
    ],
)
def test_flags_that_are_rejected(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(*argv)


@pytest.mark.parametrize("values", [{"unlabelled": True, "label_column": "x"}, {"path_column": ""}])
def test_options_that_are_rejected(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SourceOptions(**values)
