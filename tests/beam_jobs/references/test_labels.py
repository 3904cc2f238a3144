from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.references.labels import CollectLabels, Labels, is_utf8
from tpudata.errors import SourceError

NAMES = st.sets(st.text(st.sampled_from("abcäß 19"), min_size=1, max_size=4), max_size=20)


def collected(parts: list[set[str]], integers: bool) -> Labels:
    """What a runner does with parts that were counted on their own."""
    combine = CollectLabels(integers)
    sums = [combine.add_input(combine.create_accumulator(), part) for part in parts]
    return combine.extract_output(combine.merge_accumulators(sums))


@given(st.lists(NAMES, max_size=5))
def test_labels_count_the_sorted_names_whoever_met_them(parts: list[set[str]]) -> None:
    labels = collected(parts, integers=False)
    assert list(labels.names) == sorted(set().union(*parts))
    assert [labels.number(name) for name in labels.names] == list(range(len(labels.names)))
    assert collected(parts[::-1], integers=False) == labels


@given(st.lists(st.sets(st.integers(0, 50)), max_size=4))
def test_whole_numbers_are_labels_themselves(parts: list[set[int]]) -> None:
    labels = collected([set(map(str, part)) for part in parts], integers=True)
    met = set().union(*parts)
    assert labels.names == tuple(map(str, range(max(met) + 1 if met else 0)))
    assert all(labels.number(str(number)) == number for number in met)


def test_one_large_number_does_not_make_many_classes() -> None:
    with pytest.raises(
        SourceError, match=r"the input: label 1000000 makes 1,000,001 classes.*but 3 different labels occur"
    ):
        collected([{"0", "1"}, {"1000000"}], integers=True)
    assert len(collected([{"0", "1"}, {"9999"}], integers=True).names) == 10_000
    assert len(collected([set(map(str, range(0, 20_000, 50)))], integers=True).names) == 19_951


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^unknown label: 'cow'; 2 are known$"):
        Labels(("cat", "dog")).number("cow")


@pytest.mark.parametrize("name", ["", "two\nlines", "end\n", "\u2028", "form\x0cfeed", "caf\udce9"])
def test_names_that_a_line_of_text_cannot_hold(name: str) -> None:
    with pytest.raises(SourceError, match=r"labels\.txt cannot hold\. Rename it"):
        Labels(("fine", name))


def test_tells_utf8_from_other_names() -> None:
    assert is_utf8("Ä 漢 🙂")
    assert not is_utf8("\udce9")
