"""Faults on the wire at every request of a conversion and of random access: the same bytes or an error.

`test_a_fault_at_any_request...` runs each program once without a fault, counts its requests, and then runs it anew for each of them
and each kind of fault. scripts/test takes a few of these runs, scripts/test_gcs all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tpudata
from beam_jobs.images import run as convert_images
from beam_jobs.text import run as convert_text
from scripts.fake_gcs import FakeGcs, Fault
from tests.helpers.pictures import make_pictures
from tests.helpers.stores import serve_gs
from tpudata.errors import TpudataError

KINDS = (
    *("reset", "lost", "truncated", "short", "empty", "html", "unsaid"),
    *("corrupt", "unhashed", "duplicate", "stall", "cut", "503"),
)
# The runs of each program that scripts/test takes, eleven in all: the number of the first one, and the step. Steps are prime to
# the number of kinds, so that the runs of a program are of different kinds.
SOME = {"images": (100, 1283), "tar": (330, 1283), "list": (560, 1283), "text": (790, 641), "feed": (0, 31)}
SKIP = ("--on-bad-record=skip", "--max-bad-records=100%")
Program = Callable[[FakeGcs], dict[str, str]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Objects of the bucket: pictures, one of them invalid, in folders, a list and a tar, and texts of several forms."""
    root = make_pictures(tmp_path_factory.mktemp("pictures"), 8)
    files = {f"in/{path.relative_to(root)}": path.read_bytes() for path in sorted(root.rglob("*.*"))}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(Path(name).name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    rows = [f"{name},{name.split('/')[1]}\n" for name in files]
    return {
        **files,
        "in/cat/none.jpg": b"no picture",
        "tars/a.tar": packed.getvalue(),
        "list.csv": "".join(["path,label\n", *rows, "in/cat/missing.jpg,cat\n"]).encode(),
        "text/a.txt": "".join(f"line {number} of some words\n" for number in range(8)).encode(),
        "text/b.jsonl": b"".join(b'{"text": "row %d"}\n' % number for number in range(4)),
        "text/c.jsonl": b'{"text": "good"}\n{"text": bad}\n',
    }


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, inputs: dict[str, bytes]) -> Iterator[FakeGcs]:
    monkeypatch.setenv("TPUDATA_GCS_RETRY", "first_wait=0.005,longest_wait=0.02,limit=3,answer_within=0.5")
    with serve_gs() as server:
        for name, data in inputs.items():
            server.put("b", name, data)
        yield server


def outputs(store: FakeGcs) -> dict[str, str]:
    """Digests of the objects that a conversion left."""
    objects = store.buckets["b"]
    return {name: hashlib.sha256(objects[name].data).hexdigest() for name in objects if name.startswith("out/")}


def _convert(run: Callable[[list[str]], int], source: str, *flags: str) -> Program:
    def program(store: FakeGcs) -> dict[str, str]:
        for name in [name for name in store.buckets["b"] if name.startswith("out/")]:
            del store.buckets["b"][name]
        assert run(["--input", f"gs://b/{source}", "--output", "gs://b/out", *SKIP, *flags]) == 0
        return outputs(store)

    return program


def _feed(store: FakeGcs) -> dict[str, str]:
    """Digests of the records in order, and of some by number."""
    del store
    source = tpudata.RecordSource("gs://b/fed", "train", decode=None)
    some = source.__getitems__(range(len(source) - 1, 0, -3))
    return {name: hashlib.sha256(b"".join(found)).hexdigest() for name, found in (("all", source), ("some", some))}


PROGRAMS: dict[str, Program] = {
    "images": _convert(convert_images, "in", "--num-shards=2"),
    "tar": _convert(convert_images, "tars/a.tar", "--num-shards=1", "--unlabelled"),
    "list": _convert(convert_images, "list.csv", "--num-shards=1", "--compression=gzip"),
    "text": _convert(convert_text, "text", "--num-shards=1", "--tokenizer=chars", "--sequence-length=32", "--pack"),
    "feed": _feed,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a program with one fault: of a kind, at the request of a number."""

    kind: str
    request: int


def failure(store: FakeGcs, program: Program, due: dict[str, str], run: Run) -> tuple[str, bool]:
    """Return what a run did wrong, or nothing, and whether it ended with an error."""
    store.faults.clear()
    store.faults.add(Fault(run.kind, "*", passing=run.request, seconds=2))
    try:
        found = program(store)
    except TpudataError:
        # An append keeps the manifest that was there.
        return ("a manifest after an error" if "out/manifest.json" in store.buckets["b"] else ""), True
    finally:
        store.faults.clear()
    if found != due:
        return f"other bytes: {sorted(name for name in {*found, *due} if found.get(name) != due.get(name))}", False
    return "", False


@pytest.mark.parametrize("part", ["some", pytest.param("all", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_at_any_request_yields_the_same_bytes_or_an_error(store: FakeGcs, name: str, part: str) -> None:
    if name == "feed":
        assert convert_images(["--input", "gs://b/in", "--output", "gs://b/fed", "--num-shards=2", *SKIP]) == 0
    program = PROGRAMS[name]
    store.requests.clear()
    due = program(store)
    count = store.requests.total()
    runs = [Run(kind, request) for request in range(count) for kind in KINDS]
    start, step = (0, 1) if part == "all" else SOME[name]
    runs = runs[start::step]
    wrong, errors = [], []
    for run in runs:
        problem, is_error = failure(store, program, due, run)
        wrong += [f"{run}: {problem}"] if problem else []
        errors += [str(run)] if is_error else []
    assert not wrong, wrong
    # A single fault is retried: few end a run.
    assert len(errors) <= -(-len(runs) // 20), errors
