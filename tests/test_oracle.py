"""The comparison of the original TPUEstimator with ours; scripts/oracle_tf215 runs both."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def oracle() -> Any:
    spec = importlib.util.spec_from_file_location("oracle", ROOT / "scripts" / "tf215" / "oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the dataclasses of a module look it up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("original", "ours"),
    [
        (1.0, 1.0 + 5e-5),
        (0.0, 5e-7),
        (3, 3.0),
        (float("nan"), float("nan")),
        ([1.0, [2.0]], [1.0, [2.0001]]),
        ({"a": [1, 2], "b": None}, {"b": None, "a": [1, 2]}),
        ("ValueError", "ValueError"),
        ([], []),
    ],
)
def test_close_values_have_no_differences(original: Any, ours: Any, oracle: Any) -> None:
    assert list(oracle.find_differences(original, ours)) == []


@pytest.mark.parametrize(
    ("original", "ours", "message"),
    [
        (1.0, 1.001, "1.0 became 1.001"),
        (0.0, 1e-5, "0.0 became 1e-05"),
        (1.0, float("nan"), "1.0 became nan"),
        (1, True, "1 became true"),
        (0, None, "0 became null"),
        (1.0, "1.0", '1.0 became "1.0"'),
        ([0, 5, 10], [0, 5], "[0, 5, 10] became [0, 5]"),
        ([1.0, 2.0], [1.0, 3.0], "2.0 became 3.0"),
        ([], {}, "[] became {}"),
        ({"a": 1}, {"b": 1}, "'a' only in the original"),
        ({"losses": {"1": 2.5}}, {"losses": {"1": 2.0}}, "'losses': '1': 2.5 became 2.0"),
        ("ValueError", "TypeError", '"ValueError" became "TypeError"'),
    ],
)
def test_describes_the_first_difference(original: Any, ours: Any, message: str, oracle: Any) -> None:
    assert next(oracle.find_differences(original, ours)) == message


def test_compares_fields_and_gives_known_reasons(oracle: Any) -> None:
    known = (
        oracle.KnownDifference("cnn", "event steps/*", "as we like it"),
        oracle.KnownDifference("other", "*", "not this program"),
    )
    original = {"losses": [1.0, 2.0, 3.0], "variables/w": [1.0], "event steps/rate": [1]}
    ours = {"losses": [1.0, 2.5, 3.5], "variables/w": [1.0], "event steps/speed": [1]}
    rows = oracle.compare_records("cnn", original, ours, known)
    assert [tuple(row) for row in rows] == [
        ("cnn", "event steps/rate", "only in the original", "as we like it"),
        ("cnn", "event steps/speed", "only in ours", "as we like it"),
        ("cnn", "losses", "2.0 became 2.5 (and 1 more)", None),
        ("cnn", "variables/w", "", None),
    ]


def test_the_table_merges_equal_fields_and_marks_unlisted_differences(oracle: Any) -> None:
    rows = [
        oracle.Row("cnn", "variables/a", "", None),
        oracle.Row("cnn", "variables/b", "", None),
        oracle.Row("cnn", "losses", "1.0 became 2.0", None),
        oracle.Row("errors", "error/x", "1 became 2", "so it is better"),
    ]
    assert oracle.format_table(rows) == [
        "| program | field | result |",
        "|---|---|---|",
        "| cnn | variables (2) | equal |",
        "| cnn | losses | **different, and not listed**: 1.0 became 2.0 |",
        "| errors | error/x | different: 1 became 2. so it is better |",
    ]


def test_the_docs_explain_every_known_difference(oracle: Any) -> None:
    text = " ".join((ROOT / "docs" / "reference" / "original_estimator.md").read_text().replace("`", "").split())
    for item in oracle.KNOWN:
        assert item.reason in text, item.reason


def test_every_known_difference_names_an_existing_program(oracle: Any) -> None:
    source = "".join(path.read_text() for path in (ROOT / "scripts" / "tf215").glob("*.py"))
    for item in oracle.KNOWN:
        assert item.program == "*" or f"\ndef {item.program}(folder):" in source
        if item.field.startswith("error/"):
            assert f'"{item.field.removeprefix("error/")}": lambda' in source
