"""Values of options: shares of splits, budgets, sizes."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.options import Budget, SplitShares, parse_size
from tpudata.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("100MB", 10**8),
        ("64MiB", 64 << 20),
        ("1.5kB", 1500),
        ("2 GB", 2 * 10**9),
        ("0.5KiB", 512),
        ("1gib", 1 << 30),
    ],
)
def test_parses_sizes_with_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1TB", "1e3", "1..5MB", "0", "0.5", "0x10", "nan"])
def test_rejects_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a size|expected 1 byte or more"):
        parse_size(text)


SHARES = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True), st.integers(1, 1000), min_size=1, max_size=6
).map(lambda parts: {name: Fraction(part, sum(parts.values())) for name, part in parts.items()})


@given(SHARES)
def test_shares_are_parsed_as_they_are_written(shares: dict[str, Fraction]) -> None:
    text = ",".join(f"{name}={share}" for name, share in shares.items())
    assert SplitShares.parse(text).shares == shares


@given(SHARES, st.integers(0, 2**128 - 1))
def test_every_record_has_a_split(shares: dict[str, Fraction], digest: int) -> None:
    assert SplitShares(shares).split_of(digest) in shares


def test_splits_get_their_shares_and_a_record_stays_where_it_is() -> None:
    random = Random(0)
    digests = [random.getrandbits(128) for _ in range(20_000)]
    one, two = SplitShares.parse("train=0.8,test=0.2"), SplitShares.parse("train=0.9,test=0.1")
    for shares in (one, two):
        count = sum(shares.split_of(digest) == "test" for digest in digests)
        assert count == pytest.approx(shares.shares["test"] * len(digests), rel=0.1)
    # What is in the smaller part was in the larger.
    assert all(one.split_of(digest) == "test" for digest in digests if two.split_of(digest) == "test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train", "not a share"),
        ("train=", "not a share"),
        ("train=1/0", "not a share"),
        ("train=nan", "not a share"),
        ("train=1e999999999", "not a share"),
        ("train=0.5,train=0.5", "train is named twice"),
        ("train=1,test=0", "share of split test: out of range"),
        ("train=0.6,test=0.6", r"add up to 1 \(got 1\.2\)"),
        ("train=1e400", r"add up to 1 \(got more than 10\^9\)"),
        ("a-b=1", "split name 'a-b'"),
        ("=1", "split name ''"),
    ],
)
def test_rejects_texts_that_are_no_shares(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SplitShares.parse(text)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_count_is_allowed_as_many(count: int, rejected: int) -> None:
    budget = Budget.parse(str(count))
    assert str(budget) == str(count)
    assert budget.allows(rejected, 10**9) == (rejected <= count)


@given(st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_share_is_allowed_exactly(permille: int, rejected: int, records: int) -> None:
    budget = Budget.parse(f"{permille / 10}%")
    assert budget.allows(rejected, records) == (rejected * 1000 <= permille * records)


@pytest.mark.parametrize(
    "text", ["", "-1", "0.5", "101%", "-1%", "x", "%", "nan", "inf%", "1e999999999", "1e-999999999%"]
)
def test_rejects_texts_that_are_no_budget(text: str) -> None:
    with pytest.raises(UsageError, match="expected a count such as 100 or a share"):
        Budget.parse(text)
