from __future__ import annotations

from typing import Any

import pytest

from tpudata.error_text.values import format_value, shorten_value

HUGE = 1 << 20_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        ("a", "'a'"),
        (HUGE, "an integer of 20,001 bits"),
        (-HUGE, "an integer of 20,001 bits"),
        ([1, HUGE], "[1, an integer of 20,001 bits]"),
        ({"a": (HUGE,)}, "{'a': (an integer of 20,001 bits,)}"),
    ],
    ids=range(6),
)
def test_describes_an_integer_that_is_too_large_for_a_text(value: Any, text: str) -> None:
    assert format_value(value) == shorten_value(value) == text


def test_formats_long_values_whole_and_shortens_them_on_request() -> None:
    assert format_value("a" * 100) == repr("a" * 100)
    assert len(shorten_value("a" * 100)) < 40


def test_a_value_whose_repr_fails_has_the_same_text_in_every_run() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no text")

    assert format_value(Broken()) == format_value(Broken()) == "a Broken"
