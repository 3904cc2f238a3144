"""Every kind of input keeps the same promises, whatever it is made of and however it is stored.

Sources of packages are tested by the checks that their authors have, in tests/beam_jobs/test_extending_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beam_jobs.contract.forms import IMAGE_FORMS, ODD_NAMES, TEXT_FORMS, Form, items
from tests.beam_jobs.contract.tokenizers import STORED_FORMS
from tests.helpers.pictures import digests
from tpudata.errors import BadRecordError, TpudataError
from tpudata.format import open_dataset

FORMS = [*IMAGE_FORMS, *TEXT_FORMS, *STORED_FORMS]
COUNT = 12
BAD = (5,)
SKIP = ("--on-bad-record=skip", "--max-bad-records=1")
SPLIT = "--split=train=0.5,test=0.5"
# Starting another engine takes seconds.
ON_PRISM = [form if form.name == "coco" else pytest.param(form, marks=pytest.mark.matrix) for form in FORMS]


def of_each(fits: Callable[[Form], bool] = lambda _: True, *, rank: int = 0) -> pytest.MarkDecorator:
    """Run a test for each form that fits, for those of a higher rank in the matrix alone."""
    found = [form for form in FORMS if fits(form)]
    return pytest.mark.parametrize(
        "form",
        [pytest.param(form, marks=pytest.mark.matrix) if form.rank > rank else form for form in found],
        ids=[form.name for form in found],
    )


@pytest.fixture(autouse=True)
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package of a form that is of one, for other processes, too."""
    if request.getfixturevalue("form").is_installed:
        request.getfixturevalue("installed")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


@of_each(rank=2)
def test_stores_each_item_once(form: Form, tmp_path: Path) -> None:
    form.convert(tmp_path / "in", items(COUNT), tmp_path / "out")
    assert form.read_stored(tmp_path / "out") == form.contents(items(COUNT))


@of_each(lambda form: form.names_items)
def test_stores_items_of_any_name(form: Form, tmp_path: Path) -> None:
    named = items(len(ODD_NAMES), names=ODD_NAMES)
    form.convert(tmp_path / "in", named, tmp_path / "out")
    assert form.read_stored(tmp_path / "out") == form.contents(named)


@pytest.mark.cases(5)
@of_each(lambda form: form.can_be_empty)
def test_rejects_an_input_without_items_in_one_line(form: Form, tmp_path: Path) -> None:
    with pytest.raises(TpudataError) as error:
        form.convert(tmp_path / "in", [], tmp_path / "out")
    assert str(tmp_path / "in") in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.cases(8)
@of_each(lambda form: form.can_be_bad)
def test_fails_at_a_damaged_item_and_names_its_input(form: Form, tmp_path: Path) -> None:
    with pytest.raises(BadRecordError) as error:
        form.convert(tmp_path / "in", items(COUNT, bad=BAD), tmp_path / "out")
    assert str(tmp_path / "in") in str(error.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.cases(8)
@of_each(lambda form: form.can_be_bad, rank=1)
def test_skips_a_damaged_item_and_counts_it(form: Form, tmp_path: Path) -> None:
    form.convert(tmp_path / "in", items(COUNT, bad=BAD), tmp_path / "out", *SKIP)
    assert form.read_stored(tmp_path / "out") == form.contents(items(COUNT, bad=BAD))
    assert sum(open_dataset(str(tmp_path / "out")).manifest.rejected.values()) == len(BAD)


@pytest.mark.matrix
@of_each(lambda form: form.can_be_bad)
def test_fails_if_more_items_are_damaged_than_allowed(form: Form, tmp_path: Path) -> None:
    with pytest.raises(TpudataError, match="max-bad-records"):
        form.convert(tmp_path / "in", items(COUNT, bad=(2, 5)), tmp_path / "out", *SKIP)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.cases(5)
@of_each(lambda form: form.takes_split)
def test_split_depends_only_on_the_item(form: Form, tmp_path: Path) -> None:
    flags = form.write(tmp_path / "in", items(4 * COUNT))
    form.run([*flags, *form.output(tmp_path / "out"), SPLIT])
    form.run([*flags, *form.output(tmp_path / "other"), SPLIT, "--seed=3", "--num-shards=1"])
    train, test = (form.read_stored(tmp_path / "out", split) for split in ("train", "test"))
    assert train
    assert test
    assert train + test == form.contents(items(4 * COUNT))
    assert train == form.read_stored(tmp_path / "other", "train")


@pytest.mark.cases(5)
@of_each()
def test_a_resumed_run_ends_with_the_same_bytes(form: Form, tmp_path: Path) -> None:
    flags = [*form.write(tmp_path / "in", items(COUNT)), "--num-shards=3"]
    form.run([*flags, *form.output(tmp_path / "out")])
    whole = digests(tmp_path / "out")
    # As a killed run leaves it: no manifest, and a shard less.
    (tmp_path / "out" / "manifest.json").unlink()
    (tmp_path / "out" / "train-00001-of-00003.tfrecord").unlink()
    form.run([*flags, *form.output(tmp_path / "out"), "--resume"])
    assert digests(tmp_path / "out") == whole


@pytest.mark.cases(6)
@of_each(lambda form: form.grows)
def test_append_adds_only_new_items(form: Form, tmp_path: Path) -> None:
    form.convert(tmp_path / "in", items(COUNT), tmp_path / "out")
    old = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.tfrecord")}
    form.convert(tmp_path / "in", items(COUNT + 4), tmp_path / "out", "--append")
    assert form.read_stored(tmp_path / "out") == form.contents(items(COUNT + 4))
    assert old.items() <= {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.tfrecord")}.items()
    whole = digests(tmp_path / "out")
    form.convert(tmp_path / "in", items(COUNT + 4), tmp_path / "out", "--append")
    assert digests(tmp_path / "out") == whole


# Starting workers takes seconds, too: test_no_shuffle.py, test_text.py and test_reshard.py do it for one form each.
@pytest.mark.matrix
@of_each()
def test_two_workers_write_the_same_bytes(form: Form, tmp_path: Path) -> None:
    flags = [*form.write(tmp_path / "in", items(COUNT)), "--num-shards=3"]
    form.run([*flags, *form.output(tmp_path / "one")])
    form.run([*flags, *form.output(tmp_path / "two"), "--workers=2"])
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


@pytest.mark.parametrize("form", ON_PRISM, ids=[form.name for form in FORMS])
def test_another_engine_writes_the_same_bytes(form: Form, tmp_path: Path, prism: list[str]) -> None:
    flags = [*form.write(tmp_path / "in", items(COUNT)), "--num-shards=3"]
    form.run([*flags, *form.output(tmp_path / "one")])
    form.run([*flags, *form.output(tmp_path / "two"), *prism])
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
