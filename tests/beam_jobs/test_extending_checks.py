"""The checks of `tpudata.testing`: the package of docs/convert/extending.md passes, and one that breaks a promise does not."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_jobs.sources import Reject, Source, make_reference, raise_rejection
from tests.beam_jobs.golden import one_pixel_png
from tests.beam_jobs.plugins import install
from tpudata.errors import BadRecordError
from tpudata.storage import files_below, folder_ranges
from tpudata.testing import check_source, check_tokenizer
from tpudata.tokenizers import Ids, TokenizerIdentity
from tpudata.tokenizers.open_tokenizer import FileUse, TokenizerKind

PAGE = Path(__file__).parents[2] / "docs" / "convert" / "extending.md"
TESTS = re.findall(r'```python title="test_pets.py"\n(.*?)```', PAGE.read_text(), re.DOTALL)


@pytest.fixture
def installed_everywhere(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the page, installed for other processes, too."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


@pytest.mark.usefixtures("installed_everywhere")
@pytest.mark.parametrize("name", ["test_pets", "test_words"])
def test_the_tests_of_the_page_pass(name: str, tmp_path: Path) -> None:
    (page,) = TESTS
    tests: dict[str, Any] = {}
    exec(compile(page, "test_pets.py", "exec"), tests)
    (tmp_path / "work").mkdir()
    tests[name](tmp_path / "work")


def write_notes(folder: Path, numbers: Sequence[int], damaged: Sequence[int] = ()) -> Path:
    folder.mkdir()
    notes = [b"@c%d\n%s\n" % (n % 3, b"\xff" if n in damaged else b"note %d" % n) for n in numbers]
    (folder / "notes.txt").write_bytes(b"".join(notes))
    return folder


@pytest.mark.matrix
@pytest.mark.usefixtures("installed_everywhere")
def test_check_source_passes_a_source_of_file_ranges(tmp_path: Path) -> None:
    check_source(
        "diary",
        write_notes(tmp_path / "notes", range(12)),
        tmp_path / "datasets",
        records=12,
        grown=write_notes(tmp_path / "grown", range(16)),
        damaged=write_notes(tmp_path / "damaged", range(12), [5]),
        empty=write_notes(tmp_path / "empty", []),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept(Source):
    """Pictures of a folder; the classes below break one promise each."""

    options: Any
    state: str = ""

    def parts(self) -> Any:
        yield self.options.input

    def units(self, part: Any, ignored: list[str]) -> Any:
        del ignored
        yield from folder_ranges(part, deep=True)

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Any:
        del ignored
        for entry, below in files_below(unit, skip=lambda _: False):
            if entry.size < 20:
                self.meet_damage(entry.path, reject)
            else:
                yield make_reference(self.options, self.key(entry.path, below), path=entry.path, size=entry.size)

    def key(self, path: str, below: str) -> str:
        return below if path else ""

    def meet_damage(self, path: str, reject: Reject) -> None:
        reject(BadRecordError(path, "too small"))


class RandomKeys(Kept):
    def key(self, path: str, below: str) -> str:
        return super().key(path, f"{below}-{os.urandom(4).hex()}")


class PathsAsKeys(Kept):
    def key(self, path: str, below: str) -> str:
        return super().key(path, path or below)


class SizesInKeys(Kept):
    """The keys change once the input grows."""

    def key(self, path: str, below: str) -> str:
        return super().key(path, f"{below} of {len([*Path(self.options.input).iterdir()])}")


class OtherOrder(Kept):
    """Units come in another order in other processes than `state`."""

    def units(self, part: Any, ignored: list[str]) -> Any:
        del ignored
        names = sorted(path.name for path in Path(part).iterdir())
        halves = [(part, names[:6]), (part, names[6:])]
        yield from halves if os.getpid() == int(self.state) else halves[::-1]

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Any:
        del ignored, reject
        for path in (Path(unit[0]) / name for name in unit[1]):
            yield make_reference(self.options, path.name, path=str(path), size=path.stat().st_size)


class SilentOnDamage(Kept):
    def meet_damage(self, path: str, reject: Reject) -> None:
        """Skip it."""


class DamageSomewhere(Kept):
    def meet_damage(self, path: str, reject: Reject) -> None:
        super().meet_damage(f"somewhere else than in {len(path)} letters", reject)


def write_pictures(folder: Path, count: int, damaged: Sequence[int] = ()) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02}.png").write_bytes(b"no picture" if number in damaged else one_pixel_png(number))
    return folder


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (RandomKeys, "kind: a resumed run gives different bytes than a plain run .* keys are the same in each listing"),
        pytest.param(
            PathsAsKeys,
            "kind: the input in a folder 'a b é .* keys and records do not have the path of the input",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            SizesInKeys,
            r"kind: an append of the grown input gives different records .*\(got 26, expected 14\)",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            OtherOrder,
            "kind: two workers with shuffle=False gives different bytes .* parts and units come in the same order",
            marks=pytest.mark.matrix,
        ),
        (SilentOnDamage, r"kind: converts .*damaged without an error \(expected a BadRecordError\)"),
        (DamageSomewhere, r"kind: the error of a damaged record does not name its file \(got 'somewhere else"),
    ],
)
def test_catches_a_source_that_breaks_a_promise(
    kind: type[Source], broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "tpudata.sources", kind=kind)
    more: dict[str, Any] = {}
    if kind is SizesInKeys:
        more["grown"] = write_pictures(tmp_path / "grown", 14)
    if kind in (SilentOnDamage, DamageSomewhere):
        more["damaged"] = write_pictures(tmp_path / "damaged", 12, [3])
    if kind is OtherOrder:
        more["source_args"] = {"state": str(os.getpid())}
    with pytest.raises(AssertionError, match=broken):
        check_source("kind", write_pictures(tmp_path / "in", 12), tmp_path / "datasets", **more)


def test_check_source_rejects_a_wrong_number_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "tpudata.sources", kind=Kept)
    with pytest.raises(AssertionError, match=r"kind: a different number of records \(got 12, expected 13\)"):
        check_source("kind", write_pictures(tmp_path / "in", 12), tmp_path / "datasets", records=13)


class Letters:
    """A tokenizer of letters; those below break one promise each."""

    unknown_id = None
    file_bytes = b""

    def __init__(self, *_: Any) -> None:
        self.identity = TokenizerIdentity(type(self).__name__, 128, None, 0)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: Any) -> str:
        return bytes(ids).decode()


class Wide(Letters):
    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [ids.astype(np.int64) for ids in super().encode_batch(texts)]


class Padded(Letters):
    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        longest = max(map(len, texts), default=0)
        return [np.pad(ids, (0, longest - len(ids))) for ids in super().encode_batch(texts)]


class Small(Letters):
    def __init__(self, *_: Any) -> None:
        self.identity = TokenizerIdentity("Small", 100, None, 0)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Wide, r"Wide: the ids of 'abc' are of a different kind .*expected an int32 array"),
        (
            Padded,
            r"Padded: 'z' has different ids if no other text is encoded with it \(got \[122\], expected \[122, 0, 0\]\)",
        ),
        (Small, r"Small: an id of 'z' is not in the vocabulary of 100 \(got \[122\]\)"),
    ],
)
def test_catches_a_tokenizer_that_breaks_a_promise(
    kind: Callable[..., Any], broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = kind.__name__
    install(monkeypatch, "tpudata.tokenizers", **{name: TokenizerKind(FileUse.NONE, kind, takes_eos=False)})
    with pytest.raises(AssertionError, match=broken):
        check_tokenizer(name, ["abc", "z"], tmp_path / "datasets")
