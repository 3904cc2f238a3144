"""Faults of an installed package are reported in one line that names it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import tpudata
from beam_jobs.sources import DocumentForm, Payload, Reject, Source, make_reference, raise_rejection
from tests.beam_jobs.golden import one_pixel_png
from tests.beam_jobs.plugins import install
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import open_dataset
from tpudata.storage import files_below, folder_ranges
from tpudata.tokenizers import TokenizerIdentity
from tpudata.tokenizers.open_tokenizer import FileUse, TokenizerKind

IMAGES, DOCUMENTS = "tpudata.sources", "tpudata.text_sources"


@dataclasses.dataclass(frozen=True)
class Fetched(Payload):
    """Bytes that are read by the source, or something else."""

    is_fetched = True

    def fetch(self, reference: Any) -> bytes:
        del reference
        return "text"  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Read(DocumentForm):
    """A document that is no text."""

    def read(self, data: bytes) -> str | bytes | Mapping[str, Any]:
        del data
        return None  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sound(Source):
    """Files of a folder; the classes below break one promise each."""

    options: Any
    changes: ClassVar[dict[str, Any]] = {}

    def parts(self) -> Any:
        return [self.options.input]

    def units(self, part: Any, ignored: list[str]) -> Any:
        del ignored
        return folder_ranges(part, deep=True)

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Any:
        del ignored, reject
        return (self.refer(*found) for found in files_below(unit, skip=lambda _: False))

    def refer(self, entry: Any, below: str) -> Any:
        return make_reference(self.options, below, **{"path": entry.path, "size": entry.size, **self.changes})


class NoParts(Sound):
    def parts(self) -> Any:
        return None


class NoUnits(Sound):
    def units(self, *_: Any, **__: Any) -> Any:
        return None


class NoReferences(Sound):
    def references(self, *_: Any, **__: Any) -> Any:
        return None


class OtherReferences(Sound):
    def refer(self, entry: Any, below: str) -> Any:
        return f"{entry.path} as {below}"


class NoReference(Sound):
    def refer(self, *_: Any) -> Any:
        return None


class PathOfAnotherType(Sound):
    changes: ClassVar = {"path": Path("0.png")}


class NoSize(Sound):
    changes: ClassVar = {"size": None}


class NegativeSize(Sound):
    changes: ClassVar = {"size": -5}


class SizeBeyondInt64(Sound):
    changes: ClassVar = {"size": 2**63}


class OffsetOfAnotherType(Sound):
    changes: ClassVar = {"offset": 0.0}


class SplitOfAnotherType(Sound):
    changes: ClassVar = {"split": 1}


class NumbersAsLabels(Sound):
    has_classes = True
    changes: ClassVar = {"labels": (1,)}


class TextAsCrc32(Sound):
    changes: ClassVar = {"crc32": "0a1b2c3d"}


class NegativeCrc32(Sound):
    changes: ClassVar = {"crc32": -1}


class TextAsData(Sound):
    changes: ClassVar = {"data": "text"}


class PayloadOfAnotherType(Sound):
    changes: ClassVar = {"payload": Fetched}


class FeaturesOfAnotherType(Sound):
    changes: ClassVar = {"features": [1]}


class RejectsText(Sound):
    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Any:
        reject("damaged")  # type: ignore[arg-type]
        yield from super().references(unit, ignored, reject)


class FetchesText(Sound):
    changes: ClassVar = {"payload": Fetched()}


class ReadsNothing(Sound):
    changes: ClassVar = {"payload": Read()}


class NoFeatures(Sound):
    features = None  # type: ignore[assignment]


class FeaturesByName(Sound):
    features = ("age",)  # type: ignore[assignment]


class NoAnswerOnClasses(Sound):
    has_classes = None  # type: ignore[assignment]


class LabelsAsTuple(Sound):
    has_classes = True
    labels = ("a", "b")  # type: ignore[assignment]


def none(*_: Any) -> Any:
    """What an entry point may name instead of a class."""
    return None


NOTHING = None


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str, group: str = IMAGES, **options: Any) -> Any:
    """Convert two files with the source that an entry point of this module names."""
    for number in range(2):
        (folder / "in").mkdir(exist_ok=True)
        (folder / "in" / f"{number}.png").write_bytes(one_pixel_png(number) if group == IMAGES else b"some text")
    install(monkeypatch, group, broken=globals()[value])
    convert = tpudata.convert_images if group == IMAGES else tpudata.convert_text
    return convert(str(folder / "in"), str(folder / "out"), source="broken", **options)


FAULTS = [
    ("NoParts", "NoParts.parts: no parts (got NoneType, expected an iterable)"),
    ("NoUnits", "NoUnits.units: no units (got NoneType, expected an iterable)"),
    ("NoReferences", "NoReferences.references: no references (got NoneType, expected an iterable)"),
    ("OtherReferences", "OtherReferences.references: not a reference (got str, expected the result of make_reference)"),
    ("NoReference", "NoReference.references: not a reference (got NoneType, expected the result of make_reference)"),
    ("PathOfAnotherType", "PathOfAnotherType.references: the path of '0.png' is of another type (got PosixPath, exp"),
    (
        "NoSize",
        "NoSize.references: the size of '0.png' is invalid (got None, expected an integer from 0 to 2**63 - 1)",
    ),
    ("NegativeSize", "the size of '0.png' is invalid (got -5, expected"),
    ("SizeBeyondInt64", "the size of '0.png' is invalid (got 9223372036854775808, expected"),
    (
        "OffsetOfAnotherType",
        "the offset of '0.png' is invalid (got 0.0, expected an integer from -9223372036854775807 to",
    ),
    ("SplitOfAnotherType", "the split of '0.png' is of another type (got int, expected str)"),
    ("NumbersAsLabels", "the labels of '0.png' are of another type (got (1,), expected a tuple of str)"),
    (
        "TextAsCrc32",
        "the crc32 of '0.png' is invalid (got '0a1b2c3d', expected an integer from 0 to 2**32 - 1)",
    ),
    ("NegativeCrc32", "the crc32 of '0.png' is invalid (got -1, expected an integer from 0 to 2**32 - 1)"),
    ("TextAsData", "the data of '0.png' is of another type (got str, expected bytes)"),
    ("PayloadOfAnotherType", "the payload of '0.png' is of another type (got type, expected Payload)"),
    ("FeaturesOfAnotherType", "the features of '0.png' is of another type (got list, expected Mapping)"),
    ("RejectsText", "RejectsText.references: not an error to reject with (got str, expected BadRecordError)"),
    ("FetchesText", "Fetched.fetch: not the bytes of a record (got str, expected bytes)"),
    ("NoFeatures", "NoFeatures.features: of another type (got None, expected a tuple of tpudata.format.Feature)"),
    ("FeaturesByName", "FeaturesByName.features: of another type (got ('age',), expected a tuple of tpudata.format.F"),
    ("NoAnswerOnClasses", "NoAnswerOnClasses.has_classes: of another type (got None, expected bool)"),
    ("LabelsAsTuple", "LabelsAsTuple.labels: of another type (got ('a', 'b'), expected Labels or None)"),
    ("none", "none: not a source (got NoneType, expected an instance of beam_jobs.sources.Source)"),
    ("NOTHING", "source=broken: the entry point names neither a class nor a function (got NoneType"),
]
# The checks are those of images; here are the places from which text asks.
FAULTS_OF_TEXT = [
    ("NoParts", "NoParts.parts: no parts (got NoneType, expected an iterable)"),
    ("NoReference", "NoReference.references: not a reference (got NoneType, expected the result of make_reference)"),
    ("FetchesText", "Fetched.fetch: not the bytes of a record (got str, expected bytes)"),
    ("ReadsNothing", "Read.read: not a document (got NoneType, expected str, bytes or a dict of fields)"),
]


@pytest.mark.parametrize(
    ("value", "message", "group"),
    [
        *((*fault, IMAGES) for fault in FAULTS),
        *((*fault, DOCUMENTS) for fault in FAULTS_OF_TEXT),
    ],
)
def test_reports_faults_of_a_source(
    value: str, message: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        run(tmp_path, monkeypatch, value, group)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith((" Change the source.", " Change its package."))


@pytest.mark.parametrize("value", ["NoParts", "NoUnits", "NoReferences", "NoSize"])
def test_plans_and_appends_report_faults_of_a_source(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=rf"{value}\.\w+: "):
        run(tmp_path, monkeypatch, value, dry_run=True)
    run(tmp_path, monkeypatch, "Sound")
    with pytest.raises(UsageError, match=rf"{value}\.\w+: "):
        run(tmp_path, monkeypatch, value, append=True)


class Silent(Sound):
    """Says that records have classes, and gives none; with `several`, any number is right."""

    has_classes = True


class SilentOnSeveral(Silent):
    several_labels = True


class Sparse(Silent):
    def refer(self, entry: Any, below: str) -> Any:
        return super().refer(entry, below)._replace(labels=("a",) if below == "0.png" else ())


class SparseOnSeveral(Sparse):
    several_labels = True


@pytest.mark.parametrize("group", [IMAGES, DOCUMENTS])
def test_rejects_a_record_without_the_class_that_its_source_declares(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("Silent", "Sparse"):
        with pytest.raises(BadRecordError, match=r"png: rejected: not exactly one label: 0 labels"):
            run(tmp_path, monkeypatch, value, group, overwrite=True)
    manifest = run(tmp_path, monkeypatch, "Sparse", group, overwrite=True, on_bad_record="skip", max_bad_records=1)
    assert (manifest.records, manifest.labels, sum(manifest.rejected.values())) == (1, 1, 1)


@pytest.mark.parametrize("group", [IMAGES, DOCUMENTS])
@pytest.mark.parametrize("options", [{}, {"dry_run": True}], ids=["run", "plan"])
def test_rejects_an_input_in_which_no_record_has_a_class(
    group: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError, match=r"/in: no record has a class, and its source `has_classes`"):
        run(tmp_path, monkeypatch, "SilentOnSeveral", group, **options)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_takes_records_without_a_class_next_to_those_with_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, monkeypatch, "SparseOnSeveral")
    labels = [example.get("image/class/label", []) for example in open_dataset(str(tmp_path / "out")).examples("train")]
    assert sorted(map(list, labels)) == [[], [0]]


class Encoder:
    """A tokenizer of one token a text; those below break one promise each."""

    unknown_id = None
    file_bytes = b""

    def __init__(self, *_: Any) -> None:
        self.identity: Any = TokenizerIdentity(f"broken-{type(self).__name__}", 3, 1, 0)

    def encode_batch(self, texts: Sequence[str]) -> Any:
        return [np.array([2], np.int32) for _ in texts]

    def decode(self, ids: Any) -> str:
        return "x" * len([*ids])


class NoIdentity(Encoder):
    def __init__(self, *_: Any) -> None:
        self.identity = {"name": "broken-NoIdentity"}


class NoIds(Encoder):
    def encode_batch(self, *_: Any) -> Any:
        return None


class IdsOfNone(Encoder):
    def encode_batch(self, texts: Sequence[str]) -> Any:
        return [None for _ in texts]


class Fractions(Encoder):
    def encode_batch(self, texts: Sequence[str]) -> Any:
        return [np.array([0.5]) for _ in texts]


class Table(Encoder):
    def encode_batch(self, texts: Sequence[str]) -> Any:
        return [np.array([[2]], np.int32) for _ in texts]


class FewerIds(Encoder):
    def encode_batch(self, texts: Sequence[str]) -> Any:
        return super().encode_batch(texts)[1:]


KINDS: list[tuple[Callable[..., Any], str]] = [
    (
        none,
        r"tokenizer broken-none: not a tokenizer (got NoneType, expected the members of tpudata.tokenizers.Tokenizer: identity",
    ),
    (
        NoIdentity,
        r"tokenizer broken-NoIdentity: its identity is of another type (got dict, expected TokenizerIdentity)",
    ),
    (NoIds, r"NoIds.encode_batch: no ids (got NoneType, expected a list of int32 arrays)"),
    (IdsOfNone, r"IdsOfNone.encode_batch: no ids of a text (got NoneType, expected an int32 array [tokens])"),
    (Fractions, r"Fractions.encode_batch: no ids of a text (got float64 [1], expected an int32 array [tokens])"),
    (Table, r"Table.encode_batch: no ids of a text (got int32 [1, 1], expected an int32 array [tokens])"),
    (FewerIds, r"FewerIds.encode_batch: wrong number of results (got 0, expected 1, one for each text)"),
]


@pytest.mark.parametrize(
    ("kind", "message", "chat"), [*((*kind, False) for kind in KINDS), *((*kind, True) for kind in KINDS[-2:])]
)
def test_reports_faults_of_a_tokenizer(
    kind: Callable[..., Any], message: str, chat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "template").write_text(
        "{% for one in messages %}{% generation %}{{ one.content }}{% endgeneration %}{% endfor %}"
    )
    (tmp_path / "in.jsonl").write_text('{"messages": [{"role": "assistant", "content": "a"}], "text": "a"}\n')
    name = f"broken-{kind.__name__}"
    install(monkeypatch, "tpudata.tokenizers", **{name: TokenizerKind(FileUse.NONE, kind, takes_eos=False)})
    options: dict[str, Any] = (
        {"chat": "messages", "chat_template": str(tmp_path / "template"), "sequence_length": 32} if chat else {}
    )
    message = message.replace("got 0, expected 1", "got 2, expected 3") if chat else message
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        tpudata.convert_text(str(tmp_path / "in.jsonl"), str(tmp_path / "out"), tokenizer=name, **options)
    assert str(error.value).endswith(" Change its package.")


@pytest.mark.parametrize("value", ["NOTHING", "none"])
def test_reports_an_entry_point_that_is_not_a_storage(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "tpudata.storages", lost=globals()[value])
    with pytest.raises(
        UsageError, match=r"lost://: the storage of .* lacks members of .*got NoneType without .*\. Change its p"
    ):
        tpudata.convert_images(str(tmp_path), "lost://out")
