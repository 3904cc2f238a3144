from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.references.repeated_keys import Repeat, first_repeat, grouped, key_rows


@given(st.lists(st.lists(st.sampled_from("abcdefgh\udcffé"), max_size=8), max_size=4), st.randoms())
def test_the_first_repeat_is_that_of_a_plain_loop(lists: list[list[str]], random: object) -> None:
    seen: dict[str, tuple[int, int]] = {}
    expected = None
    for number, keys in enumerate(lists):
        for line, key in enumerate(keys, 2):
            if key in seen and expected is None:
                expected = (number, line, *seen[key])
            seen.setdefault(key, (number, line))
    groups: dict[int, list[bytes]] = {}
    parts = [key_rows(keys, range(2, 2 + len(keys)), number) for number, keys in enumerate(lists) if keys]
    random.shuffle(parts)  # type: ignore[attr-defined]
    for rows in parts:
        for group, data in grouped(rows):
            groups.setdefault(group, []).append(data)
    repeats = [Repeat(*found) for found in map(first_repeat, groups.values()) if found is not None]
    found = min(repeats, default=None)
    assert (None if found is None else found[:4]) == expected
    # All at once, as a single process does.
    whole = first_repeat(rows.tobytes() for rows in parts)
    assert (None if whole is None else whole[:4]) == expected
