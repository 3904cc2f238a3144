"""The known name that a person most likely meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A word with more edits is another name.
_MAX_EDITS = 4
# Distance of a part from its whole, in edits: --resize stands for --resize-shorter, not for --resume.
_PART_DISTANCE = 1.5
# Characters of the shortest part that counts: a shorter beginning fits too many names.
_SHORTEST_PART = 3


def find_nearest_name(got: str, names: Iterable[str]) -> str | None:
    """Return the known name that `got` most likely stands for, or None if all are too far or `got` is empty.

    A name is near if it differs by at most one edit for every three characters of `got`, one at least and four at most (a letter
    added, omitted, changed, or two swapped), or if one of the two is a part of the other: its beginning, or some of its words.
    """
    word = got.lower().strip("-")
    if not word:
        return None
    # Distance, edits to choose between equal distances, name.
    candidates: list[tuple[float, int, str]] = []
    for name in names:
        other = name.lower().strip("-")
        edits = _count_edits(word, other)
        if edits <= min(_MAX_EDITS, max(1, len(word) // 3)):
            candidates.append((edits, edits, name))
        if _is_part(word, other) or _is_part(other, word):
            candidates.append((_PART_DISTANCE, edits, name))
    if not candidates:
        return None
    _, _, nearest = min(candidates)
    return nearest


def suggestion(got: str, names: Iterable[str]) -> str:
    """Return `"; did you mean X?"` for the nearest known name, or an empty string if all are too far."""
    nearest = find_nearest_name(got, names)
    return "" if nearest is None else f"; did you mean {nearest}?"


def did_you_mean(got: str, names: Iterable[str]) -> str:
    """Return the sentence `" Did you mean 'X'?"` for the nearest known name, or an empty string if all are too far."""
    nearest = find_nearest_name(got, names)
    return "" if nearest is None else f" Did you mean {nearest!r}?"


def _is_part(part: str, whole: str) -> bool:
    """Return whether a name that is not too short begins another one, or consists of some of its words."""
    if len(part) < _SHORTEST_PART:
        return False
    return whole.startswith(part) or set(re.split(r"\W|_", part)) < set(re.split(r"\W|_", whole))


def _count_edits(first: str, second: str) -> int:
    """Return the number of edits from one word to the other (optimal string alignment)."""
    # Row i of the table has the edits from the first i letters of `first` to each beginning of `second`.
    one_above: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        two_above, one_above, row = one_above, row, [i]
        for j, other_letter in enumerate(second, 1):
            edits = min(one_above[j] + 1, row[j - 1] + 1, one_above[j - 1] + (letter != other_letter))
            is_swap = i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other_letter
            row.append(min(edits, two_above[j - 2] + 1) if is_swap else edits)
    return row[-1]
