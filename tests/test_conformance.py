"""The dataset read back by other libraries' own readers, record by record; scripts/conformance has those that are not light."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.images import run

SCRIPTS = Path(__file__).parent.parent / "scripts"
# tensorflow_datasets 4.9 asks protobuf for a field's label, which protobuf 5 deprecates.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONFORMANCE, READERS = script("_conformance"), script("_conformance_readers")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("conformance")
    CONFORMANCE.draw(folder / "pictures")
    records = map(json.loads, (folder / "pictures.jsonl").read_text().splitlines())
    assert run([f"--input={folder / 'pictures'}", f"--output={folder / 'out'}", "--shard-size=20kB"]) == 0
    assert len(list((folder / "out").glob("train-*"))) > 2
    return str(folder / "out"), {record["image/encoded"]: record for record in records}


@pytest.mark.parametrize("name", ["tf_data", "tfds", "beam", "grain"])
def test_every_record_is_read_back_equal(name: str, drawn: tuple[str, dict[str, Any]]) -> None:
    folder, expected = drawn
    records = list(READERS.READERS[name](folder))
    assert len(records) == CONFORMANCE.PICTURES
    assert all(record.keys() == expected[record["image/encoded"]].keys() for record in records)
    assert CONFORMANCE.differences(records, expected) == []


def test_the_tfrecord_package_in_a_process_of_its_own(drawn: tuple[str, dict[str, Any]]) -> None:
    # Its protobuf classes have the names of TensorFlow's.
    folder, expected = drawn
    command = [sys.executable, str(SCRIPTS / "_conformance_readers.py"), "tfrecord", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert CONFORMANCE.differences(records, expected) == []
    assert [record.keys() for record in records] == [record.keys() for record in expected.values()]


def test_differences_are_seen(drawn: tuple[str, dict[str, Any]]) -> None:
    _, expected = drawn
    first, second, *rest = expected.values()
    assert CONFORMANCE.differences([first, second, *rest], expected) == []
    assert CONFORMANCE.differences([first, first, *rest], expected) == [
        f"{first['image/filename']} comes 2 times",
        f"{second['image/filename']} comes 0 times",
    ]
    assert len(CONFORMANCE.differences([{**first, "image/height": 0}, second, *rest], expected)) == 1
