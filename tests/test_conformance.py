"""The dataset read back by other libraries' own readers, record by record; scripts/conformance runs the heavy ones."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import images, text

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
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folders of a dataset of each kind."""
    folder = tmp_path_factory.mktemp("conformance")
    CONFORMANCE.draw_pictures(folder / "pictures")
    CONFORMANCE.write_rows(folder / "rows.jsonl")
    for kind in CONFORMANCE.KINDS:
        module, flags = CONFORMANCE.find_conversion(kind, folder / "pictures")
        source = folder / ("pictures" if module == "images" else "rows.jsonl")
        run = {"images": images.run, "text": text.run}[module]
        output = folder / kind / CONFORMANCE.VERSION
        assert run([f"--input={source}", f"--output={output}", *flags]) == 0
        assert len(list(output.glob("train-*"))) > 2
    return {kind: str(folder / kind / CONFORMANCE.VERSION) for kind in CONFORMANCE.KINDS}


def due(datasets: dict[str, str], kind: str) -> dict[object, Any]:
    found: dict[object, Any] = CONFORMANCE.read_expected_records(kind, Path(datasets[kind]).parent.parent)
    assert len(found) == CONFORMANCE.INPUT_COUNT
    return found


def assert_equal(kind: str, records: Iterable[Any], expected: dict[object, Any]) -> None:
    found = CONFORMANCE.unpack_records(kind, records)
    assert len(found) == CONFORMANCE.INPUT_COUNT
    key = CONFORMANCE.KEYS[kind]
    # The tfrecord package does not support lists of strings.
    missing = {name for record in found for name in expected[record[key]].keys() ^ record.keys()}
    assert missing <= {"image/object/class/text"}
    assert CONFORMANCE.find_differences(found, expected, key) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in ("tf_data", "tfds", "beam", "grain")
        for kind in CONFORMANCE.SUPPORTED_KINDS.get(name, CONFORMANCE.KINDS)
    ],
)
def test_every_record_is_read_back_equal(name: str, kind: str, datasets: dict[str, str]) -> None:
    assert_equal(kind, READERS.READERS[name](datasets[kind], kind), due(datasets, kind))


def test_the_tfrecord_package_reads_every_record_back_equal(datasets: dict[str, str]) -> None:
    # Its protobuf classes have the names of TensorFlow's.
    for kind, folder in datasets.items():
        command = [sys.executable, str(SCRIPTS / "_conformance_readers.py"), "tfrecord", folder, kind]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert_equal(kind, map(json.loads, done.stdout.splitlines()), due(datasets, kind))


def test_differences_reports_missing_repeated_and_changed_records(datasets: dict[str, str]) -> None:
    expected = due(datasets, "images")
    first, second, *rest = expected.values()
    assert CONFORMANCE.find_differences([first, second, *rest], expected) == []
    assert CONFORMANCE.find_differences([first, first, *rest], expected) == [
        f"{first['image/filename']} comes 2 times",
        f"{second['image/filename']} comes 0 times",
    ]
    assert len(CONFORMANCE.find_differences([{**first, "image/height": 0}, second, *rest], expected)) == 1


def test_rejects_changed_packed_rows(datasets: dict[str, str]) -> None:
    expected = due(datasets, "packed")
    records = list(READERS.READERS["grain"](datasets["packed"], "packed"))
    row = records[0]
    assert (
        CONFORMANCE.find_differences(CONFORMANCE.unpack_records("packed", [row, *records[2:]]), expected, "text") != []
    )
    for name, place, value in (("positions", 1, 0), ("segment_ids", 1, 2), ("input_ids", 0, 256)):
        wrong = {**row, name: [*row[name][:place], value, *row[name][place + 1 :]]}
        with pytest.raises(ValueError, match=r"position|segment|end|byte"):
            CONFORMANCE.unpack_documents(wrong)
