"""The error tree: exit codes, pickling, and the drawing in its docstring."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from tpudata import errors
from tpudata.errors import (
    BadRecordError,
    CorruptionError,
    DatasetError,
    MissingExtraError,
    SourceError,
    TpudataError,
    UsageError,
)
from tpudata.installation import format_install_command

ALL = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, TpudataError)}
SPECIAL: dict[type, tuple[Any, ...]] = {
    MissingExtraError: ("tpudata.estimator", "tensorflow"),
    BadRecordError: ("a.jpg", "no image", 5),
    CorruptionError: ("a.tfrecord", 12, "the checksum does not match"),
}


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_errors_survive_pickling(kind: type[TpudataError]) -> None:
    error = kind(*SPECIAL.get(kind, ("what happened",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) != ""
    assert vars(again) == vars(error)


def test_the_docstring_draws_the_error_tree() -> None:
    drawn = re.findall(r"^([ │├└─]*)(\w+Error) ", errors.__doc__ or "", re.MULTILINE)
    assert sorted(name for _, name in drawn) == sorted(ALL)
    branch: list[str] = []
    for lines, name in drawn:
        depth = len(lines) // 4 - 1
        branch = [*branch[:depth], name]
        assert [kind.__name__ for kind in ALL[name].__mro__[1:] if kind.__name__ in branch] == branch[-2::-1]


def test_only_wrong_usage_and_missing_extras_exit_with_2() -> None:
    codes = {name: kind.exit_code for name, kind in ALL.items()}
    assert {name for name, code in codes.items() if code == 2} == {"UsageError", "MissingExtraError"}
    assert set(codes.values()) == {1, 2}


def test_messages_name_the_place_and_attributes_hold_it() -> None:
    missing = MissingExtraError("tpudata.input", "tensorflow")
    assert isinstance(missing, (UsageError, ImportError))
    assert str(missing).endswith(f"which is not installed. Run: {format_install_command('tensorflow')}")
    bad = BadRecordError("a.tar", "no image", 512)
    assert isinstance(bad, SourceError)
    assert str(bad) == "a.tar at byte 512: rejected: no image"
    assert str(BadRecordError("a.jpg", "no image")) == "a.jpg: rejected: no image"
    corrupt = CorruptionError("x", 7, "bad")
    assert isinstance(corrupt, DatasetError)
    assert (str(corrupt), corrupt.path, corrupt.offset, corrupt.reason) == ("x at byte 7: bad", "x", 7, "bad")
