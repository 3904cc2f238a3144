"""What the tests of a file need, found out from its text: importing it would load TensorFlow already.

    tensorflow    TensorFlow
    pipeline      Beam's runner
    subprocess    other processes, or servers on loopback

scripts/check leaves these files out, whatever else is in them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

KINDS = ("tensorflow", "pipeline", "subprocess")
_MODULES = {
    "tensorflow": (
        "tensorflow",
        "tests.estimator",
        "tests.helpers.datasets",
        "tests.helpers.digits",
        "tests.helpers.replicas",
        "tests.helpers.sequences",
        "tests.helpers.markdown",
        "tests.helpers.forked",
    ),
    "pipeline": (
        "apache_beam",
        "beam_jobs.images",
        "beam_jobs.text",
        "beam_jobs.reshard",
        "tests.beam_jobs.resharding",
        "tests.beam_jobs.outcomes",
        "tests.beam_jobs.annotations.converting",
        "tests.beam_jobs.examples.flowers",
        "tpudata.testing",
    ),
    "subprocess": (
        "subprocess",
        "tests.helpers.processes",
        "tests.helpers.forked",
        "tests.helpers.stores",
        "scripts.fake_gcs",
        "moto",
    ),
}
# By names that a test calls without importing the module that loads TensorFlow.
_TEXTS = {
    "tensorflow": re.compile(
        r"make_input_fn|tpudata\.(input|devices|estimator|models|train)\b|\bmain\(\[|digits_dataset"
    ),
    "pipeline": re.compile(r"from beam_jobs import|convert\(|tpudata\.(convert_|reshard)"),
    "subprocess": re.compile(r"multiprocessing|ProcessPool"),
}
_IMPORT = re.compile(
    r"^ *(?:from ([\w.]+) import (\([^)]*\)|.*)|import ([\w.]+(?: as \w+)?(?:, [\w.]+(?: as \w+)?)*))", re.MULTILINE
)


@functools.cache
def kinds_of(path: Path) -> tuple[str, ...]:
    """Return which of KINDS the tests of a file are."""
    text = path.read_text(encoding="utf-8")
    modules = set(_list_imports(text))

    def is_one(kind: str) -> bool:
        prefixes = tuple(f"{name}." for name in _MODULES[kind])
        return any(f"{module}.".startswith(prefixes) for module in modules) or bool(_TEXTS[kind].search(text))

    return tuple(filter(is_one, KINDS))


def _list_imports(text: str) -> Iterator[str]:
    """Yield the modules that a file imports, and the names in them: parsing all files would take seconds of each run."""
    for module, names, many in _IMPORT.findall(text):
        if many:
            yield from (name.split()[0] for name in many.split(","))
        else:
            yield module
            yield from (f"{module}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip())
