from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from beam_jobs.images import run
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import write_list
from tpudata.errors import UsageError
from tpudata.format import open_dataset


def test_flags_name_the_columns_and_their_types(tmp_path: Path) -> None:
    rows = "p,l,s,a,b=c,d\n0.jpg,x|y,train,,7,\n1.jpg,y,test,3,8,0.5\n"
    flags = ["--path-column=p", "--label_column=l", "--split-column=s", "--label-separator=|"]
    flags += ["--column-types=a=int=-1,b=c=str,d=float=nan", f"--labels={tmp_path}/names.txt"]
    (tmp_path / "names.txt").write_text("y\nx\n")
    assert run([f"--input={write_list(tmp_path, rows)}", f"--output={tmp_path}/out", *flags]) == 0
    dataset = open_dataset(str(tmp_path / "out"))
    names = ("image/class/label", "a", "b=c", "d")
    ((first,), (second,)) = ([*dataset.examples(split)] for split in ("train", "test"))
    assert repr([first[name] for name in names]) == "[[1, 0], [-1], [b'7'], [nan]]"
    assert [second[name] for name in names] == [[0], [3], [b"8"], [0.5]]


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
def test_rejects_invalid_and_conflicting_flags(argv: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run([f"--input={tmp_path}", f"--output={tmp_path}-out", *argv])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unlabelled": True, "label_column": "x"}, "--unlabelled and --label-column: choose one"),
        ({"path_column": ""}, "--path-column is empty"),
    ],
)
def test_rejects_invalid_and_conflicting_options(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SourceOptions(**values)
