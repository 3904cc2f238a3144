"""The public surface: complete, sorted, and light to import."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tpudata
import tpudata.format
import tpudata.input
import tpudata.storage
import tpudata.testing
from tpudata import errors

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("module", [tpudata, tpudata.format, tpudata.input, tpudata.storage, tpudata.testing])
def test_names_are_sorted_importable_and_documented(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert list(names) == sorted(set(names))
    for name in names:
        value = getattr(module, name)
        if name != "__version__":
            assert inspect.getdoc(value), f"{name} has no docstring"
    assert set(names) <= set(dir(module))


MODULES = (tpudata, tpudata.format, tpudata.input, tpudata.storage, tpudata.testing)


def public(chosen: Callable[[object], bool]) -> list[object]:
    names = {
        value: f"{module.__name__}.{name}"
        for module in MODULES
        for name in module.__all__
        if chosen(value := getattr(module, name))
    }
    return [pytest.param(value, id=name) for value, name in names.items()]


def has_options(value: object) -> bool:
    return (
        inspect.isclass(value) and not issubclass(value, BaseException) and value.__module__.startswith("tpudata.input")
    )


@pytest.mark.parametrize("function", [*public(inspect.isfunction), *public(has_options)])
def test_every_parameter_is_documented(function: Callable[..., object]) -> None:
    parameters = list(inspect.signature(function).parameters)
    text = inspect.getdoc(function) or ""
    section = re.search(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    found = re.findall(r"^    ([\w*][\w, *]*):", section[1], re.MULTILINE) if section else []
    documented = [name.strip(" *") for names in found for name in names.split(",")]
    # A function of one argument can describe it in its first line.
    assert documented == parameters or (not documented and len(parameters) <= 1)


def test_every_error_is_public() -> None:
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert kinds <= set(tpudata.__all__)


def test_lazy_names_resolve_to_the_real_objects() -> None:
    assert tpudata.make_input_fn is tpudata.input.make_input_fn
    with pytest.raises(AttributeError, match="no attribute 'make_input_fm'"):
        tpudata.make_input_fm  # noqa: B018


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_conversion_and_storage_load_no_tensorflow() -> None:
    program = """
import sys
import tpudata, tpudata.errors, tpudata.format, tpudata.storage, beam_jobs, beam_jobs.images
dir(tpudata)
print(sorted({name.split(".")[0] for name in sys.modules} & {"tensorflow", "tf_keras", "keras", "tensorflow_datasets"}))
"""
    assert python(program) == "[]"


def test_local_paths_load_no_storage_client() -> None:
    program = """
import sys
import tpudata, tpudata.format, tpudata.storage
from tpudata.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
tpudata.storage.storage_for(".").list("docs")
clients = {"fsspec", "google.auth", "google.cloud.storage", "requests", "urllib3", "tpudata.storage.gcs"}
print()
print(sorted(clients & sys.modules.keys()))
"""
    assert python(program).splitlines()[-1] == "[]"


def test_the_reader_names_the_missing_tensorflow_extra() -> None:
    program = """
import sys
sys.modules["tensorflow"] = None  # As if it were not installed.
import tpudata
try:
    tpudata.make_input_fn
except tpudata.MissingExtraError as error:
    print(error)
"""
    assert f"needs the [tensorflow] extra, which is not installed. Run: pip install -e '{ROOT}[tensorflow]'" in python(
        program
    )
