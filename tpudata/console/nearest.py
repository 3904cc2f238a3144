"""The known name that a person most likely meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A word with more edits is another name.
_MOST_EDITS = 4
# Distance of a part, in edits: --resize stands for --resize-shorter, not for --resume.
_PART = 1.5
# A shorter beginning fits too many names.
_SHORTEST_PART = 3


def nearest_name(got: str, names: Iterable[str]) -> str | None:
    """Return the known name that `got` most likely stands for, or None if all are too far.

    A name is near if it differs by at most one edit for every three characters, four in all (a letter added, omitted, changed, or
    two swapped), or if one of the two is a part of the other: its beginning, or some of its words.
    """
    word = got.lower().strip("-")
    if not word:
        return None
    candidates: list[tuple[float, int, str]] = []
    for name in names:
        other = name.lower().strip("-")
        edits = _count_edits(word, other)
        if edits <= min(_MOST_EDITS, max(1, len(word) // 3)):
            candidates.append((edits, edits, name))
        if _is_part(word, other) or _is_part(other, word):
            candidates.append((_PART, edits, name))
    return min(candidates)[2] if candidates else None


def suggestion(got: str, names: Iterable[str]) -> str:
    """Return `"; did you mean X?"` for the nearest known name, or an empty string if all are too far."""
    nearest = nearest_name(got, names)
    return "" if nearest is None else f"; did you mean {nearest}?"


def did_you_mean(got: str, names: Iterable[str]) -> str:
    """Return the sentence `" Did you mean 'X'?"` for the nearest known name, or an empty string if all are too far."""
    nearest = nearest_name(got, names)
    return "" if nearest is None else f" Did you mean {nearest!r}?"


def _is_part(part: str, whole: str) -> bool:
    if len(part) < _SHORTEST_PART:
        return False
    return whole.startswith(part) or set(re.split(r"\W|_", part)) < set(re.split(r"\W|_", whole))


def _count_edits(first: str, second: str) -> int:
    """Return the number of edits from one word to the other (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        last, before, row = before, row, [i]
        for j, other_letter in enumerate(second, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other_letter))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other_letter:
                edits = min(edits, last[j - 2] + 1)
            row.append(edits)
    return row[-1]
