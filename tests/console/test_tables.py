"""Tables and numbers as commands print them.

Tests print values of any size, which no small dataset has.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.console.tables import bytes_text, count_text, table


def test_columns_line_up() -> None:
    assert (
        table([["name", "n"], ["a", "1,000"], ["longer", "2"]], right=[1])
        == "name        n\na       1,000\nlonger      2"
    )


def test_rows_have_no_trailing_spaces() -> None:
    assert table([["a", ""], ["bbb", "x"]]) == "a\nbbb  x"


def test_rejects_rows_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="zip"):
        table([["a", "b"], ["c"]])


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (37_540, "37.5 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.00 MB"),
        (100_000_000, "100.0 MB"),
        (1_280_000_000, "1.28 GB"),
        (10**19, "10000.0 PB"),
    ],
)
def test_bytes_text_picks_the_unit(size: int, text: str) -> None:
    assert bytes_text(size) == text


@given(st.integers(1, 10**17))
def test_bytes_text_is_within_one_percent(size: int) -> None:
    number, unit = bytes_text(size).split()
    scale = {"byte": 1, "bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert float(number) * scale == pytest.approx(size, rel=0.01)
    assert float(number) < 1000


def test_count_text_groups_thousands() -> None:
    assert count_text(1_281_167) == "1,281,167"


# Nouns that commands count.
_COUNTED = re.compile(
    r" (records|shards|files|inputs|documents|classes|images|labels|rows|cells|columns|processes)\b(?!/s)"
)
_ROOT = Path(__file__).parents[2]


def test_only_count_text_makes_plurals() -> None:
    found = []
    for path in sorted([*_ROOT.glob("tpudata/**/*.py"), *_ROOT.glob("beam_jobs/**/*.py")]):
        for text in ast.walk(ast.parse(path.read_text())):
            parts = text.values if isinstance(text, ast.JoinedStr) else []
            for before, value, after in zip([None, *parts], parts, parts[1:], strict=False):
                if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                    continue
                is_argument = isinstance(before, ast.Constant) and str(before.value).endswith("=")
                if not is_argument and _COUNTED.match(str(after.value)):
                    found.append(f"{path.relative_to(_ROOT)}:{value.lineno}: {ast.unparse(value)}{after.value!s}")
    assert found == [], "pass the count to tpudata.console.tables.count_text"


def test_count_text_adds_plurals() -> None:
    texts = [
        count_text(1, "record"),
        count_text(0, "record"),
        count_text(2000, "record"),
        count_text(1, "class", "classes"),
    ]
    assert texts == ["1 record", "0 records", "2,000 records", "1 class"]
    assert count_text(2, "class", "classes") == "2 classes"
