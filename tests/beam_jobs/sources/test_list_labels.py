"""Labels of lists: numbers, names, several of them, and labels files."""

from pathlib import Path

import pytest

from beam_jobs.references.labels import Labels
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import (
    listed,
    listed_and_rejected,
    opened,
    write_list,
)
from tpudata.errors import SourceError

LABELS = [
    (["0", "1", "-1"], "line 4: label '-1' is not a whole number from 0 and .* line 2 is '0'"),
    (["0", "1", "cat"], "line 4: label 'cat' is not a whole number from 0"),
    (["0", "01", "2"], "line 3: label '01'"),
    (["0.0", "1.0", "2.0"], r"line 2: label '0\.0' is not a whole number from 0\. Correct it"),
    (["-1", "-2", "-3"], "line 2: label '-1'"),
    (["+1", "cat", "dog"], "line 2: label '\\+1'"),
]


@pytest.mark.parametrize(("labels", "message"), LABELS)
@pytest.mark.parametrize("separator", [None, "|"])
def test_rejects_labels_that_mix_numbers_and_names(
    tmp_path: Path, labels: list[str], message: str, separator: str | None
) -> None:
    path = write_list(tmp_path, "path,label\n" + "".join(f"{n}.jpg,{label}\n" for n, label in enumerate(labels)))
    with pytest.raises(SourceError, match=message):
        opened(path, SourceOptions(label_separator=separator))
    # With label_type, all are names, or labels that are not whole numbers are bad records.
    source = opened(path, SourceOptions(label_separator=separator, label_type="str"))
    assert source.labels == Labels(tuple(sorted(labels)))
    source = opened(path, SourceOptions(label_separator=separator, label_type="int"))
    found, rejected = listed_and_rejected(source)
    assert [reference.labels for reference in found] == [(label,) for label in labels if label in ("0", "1", "2")]
    assert all("is not a whole number from 0" in (error.reason or "") for error in rejected)
    assert source.integer_labels


def test_label_type_str_treats_numbers_as_names(tmp_path: Path) -> None:
    path = write_list(tmp_path, "path,label\n0.jpg,10\n1.jpg,2\n2.jpg,10\n")
    source = opened(path, SourceOptions(label_type="str"))
    assert (source.labels, source.integer_labels) == (Labels(("10", "2")), False)


@pytest.mark.parametrize("label", [10_000, 999_999, 1_000_000])
def test_rejects_a_large_label_that_makes_too_many_classes(tmp_path: Path, label: int) -> None:
    path = write_list(tmp_path, f"path,label\n0.jpg,0\n1.jpg,{label}\n2.jpg,1\n")
    with pytest.raises(
        SourceError, match=rf"list\.csv line 3: label {label} makes {label + 1:,} classes.*--label-type str"
    ):
        opened(path)
    assert opened(path, SourceOptions(label_type="str")).labels == Labels(("0", "1", str(label)))
    path.write_text("path,label\n0.jpg,0\n1.jpg,9999\n2.jpg,1\n")
    assert len((opened(path).labels or Labels(())).names) == 10_000


def test_uses_whole_numbers_as_labels(tmp_path: Path) -> None:
    path = write_list(tmp_path, "file,class\n0.jpg,4\n1.jpg,1\n2.jpg,10\n")
    source = opened(path)
    assert source.integer_labels
    assert source.labels == Labels(tuple(str(number) for number in range(11)))
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {number}\n" for number in range(11)))
    named = opened(path, SourceOptions(labels_file=str(names)))
    assert not named.integer_labels
    assert [reference.labels for reference in listed(named)] == [("class 4",), ("class 1",), ("class 10",)]
    path.write_text("file,class\n0.jpg,20240131\n")
    with pytest.raises(SourceError, match=r"line 2.*label is more than 1,000,000, .*: 20240131"):
        listed(opened(path))


def test_splits_cells_at_the_separator_of_labels(tmp_path: Path) -> None:
    path = write_list(tmp_path, "path,labels\n0.jpg,cat|dog\n1.jpg,\n2.jpg, dog \n")
    source = opened(path, SourceOptions(label_separator="|"))
    assert source.several_labels
    assert source.labels == Labels(("cat", "dog"))
    assert [reference.labels for reference in listed(source)] == [("cat", "dog"), (), ("dog",)]
    # Without the flag a cell is one class, and an empty one is rejected.
    with pytest.raises(SourceError, match="line 3: rejected"):
        listed(opened(path))


def test_labels_file_sets_names_and_order(tmp_path: Path) -> None:
    path = write_list(tmp_path, "path,label\n0.jpg,dog\n1.jpg,cat\n2.jpg,cow\n")
    names = tmp_path / "names.txt"
    names.write_bytes(b"\xef\xbb\xbfdog\r\ncat\r\n")
    source = opened(path, SourceOptions(labels_file=str(names)))
    assert source.labels == Labels(("dog", "cat"))
    with pytest.raises(SourceError, match=r"list\.csv line 4: rejected: unknown label: 'cow'; --labels .* has 2 names"):
        listed(source)


@pytest.mark.parametrize("digits", [1, 20, 5000])
def test_rejects_a_number_without_a_name_in_the_labels_file(tmp_path: Path, digits: int) -> None:
    path = write_list(tmp_path, f"path,label\n0.jpg,1\n1.jpg,{'9' * digits}\n")
    names = tmp_path / "names.txt"
    names.write_text("dog\ncat\n")
    found, rejected = listed_and_rejected(opened(path, SourceOptions(labels_file=str(names))))
    assert [reference.labels for reference in found] == [("cat",)]
    assert ["unknown label" in str(error) for error in rejected] == [True]
