"""One line out of an error of a library."""

import pytest

from tpudata.error_text.lines import first_line, one_line


@pytest.mark.parametrize(
    ("text", "first", "whole"),
    [
        ("\n a reason.\n  at line 3.\n", "a reason", "a reason. at line 3"),
        ("bad value", "bad value", "bad value"),
        ("", "ValueError", "ValueError"),
        (" \n", "ValueError", "ValueError"),
    ],
)
def test_has_no_line_end_and_no_full_stop(text: str, first: str, whole: str) -> None:
    assert first_line(ValueError(text)) == first
    assert one_line(ValueError(text)) == whole


def test_reports_an_empty_text() -> None:
    assert first_line("") == one_line(" ") == "no message"
