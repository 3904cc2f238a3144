"""The known name that a person most likely meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A word that takes more edits is a different name.
_MAX_EDITS = 4
# Distance of a part from its whole, in edits: --resize stands for --resize-shorter, not for --resume.
_PART_DISTANCE = 1.5
# Characters of the shortest part that counts: a shorter beginning fits too many names.
_MIN_PART_CHARACTERS = 3


def find_nearest_name(unknown_name: str, names: Iterable[str]) -> str | None:
    """Return the known name that `unknown_name` most likely stands for; None if it is empty, or if no known name is near it.

    A known name is near if it takes few edits to get it from `unknown_name`. An edit adds, omits or changes a letter, or swaps two;
    one edit is allowed for every three characters of `unknown_name`, one at least and four at most. A name is also near if one of
    the two is a part of the other: its beginning, or some of its words.
    """
    unknown_word = unknown_name.lower().strip("-")
    if not unknown_word:
        return None
    # Distance, number of edits to choose between equal distances, name.
    candidates: list[tuple[float, int, str]] = []
    for name in names:
        word = name.lower().strip("-")
        edit_count = _count_edits(unknown_word, word)
        if edit_count <= min(_MAX_EDITS, max(1, len(unknown_word) // 3)):
            candidates.append((edit_count, edit_count, name))
        if _is_part(unknown_word, word) or _is_part(word, unknown_word):
            candidates.append((_PART_DISTANCE, edit_count, name))
    if not candidates:
        return None
    _, _, nearest = min(candidates)
    return nearest


def suggestion(unknown_name: str, names: Iterable[str]) -> str:
    """Return `"; did you mean X?"` for the nearest known name, or an empty string if no known name is near."""
    nearest = find_nearest_name(unknown_name, names)
    return "" if nearest is None else f"; did you mean {nearest}?"


def did_you_mean(unknown_name: str, names: Iterable[str]) -> str:
    """Return the sentence `" Did you mean 'X'?"` for the nearest known name, or an empty string if no known name is near."""
    nearest = find_nearest_name(unknown_name, names)
    return "" if nearest is None else f" Did you mean {nearest!r}?"


def _is_part(part: str, whole: str) -> bool:
    """Return whether a name that is not too short begins another one, or consists of some of its words."""
    if len(part) < _MIN_PART_CHARACTERS:
        return False
    return whole.startswith(part) or set(re.split(r"\W|_", part)) < set(re.split(r"\W|_", whole))


def _count_edits(first: str, second: str) -> int:
    """Return the number of edits from one word to the other (optimal string alignment)."""
    # Item j of row i is the number of edits from the first i letters of `first` to the first j letters of `second`.
    one_above: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        two_above, one_above, row = one_above, row, [i]
        for j, other_letter in enumerate(second, 1):
            edit_count = min(one_above[j] + 1, row[j - 1] + 1, one_above[j - 1] + (letter != other_letter))
            is_swap = i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other_letter
            row.append(min(edit_count, two_above[j - 2] + 1) if is_swap else edit_count)
    return row[-1]
