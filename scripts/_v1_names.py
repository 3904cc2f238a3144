"""Writes tpudata/migrate/v1_names.txt from the installed TensorFlow: `python scripts/_v1_names.py`.

`tpudata migrate` works without TensorFlow, so it carries the names. A test compares them with those of this module.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES_FILE = Path(__file__).parents[1] / "tpudata" / "migrate" / "v1_names.txt"
HEAD = """\
# Names of TensorFlow, by module: written by scripts/_v1_names.py, read by tpudata/migrate/tensorflow_names.py.
# "v1": of tensorflow.compat.v1 alone; "v2": of tensorflow alone; "both"; "keyword": parameters of compat.v1's function alone.
"""
# Modules for which `tpudata migrate` has separate rules: Keras is another package, and raw_ops are the same in both APIs.
OMITTED_MODULES = {"keras", "compat", "raw_ops", "estimator", "contrib", "layers"}
# A module with hundreds of names that do not show the version.
NUMPY = "experimental.numpy"
# A name that is declared, but useless: TensorFlow's TPU runtime ended with 2.20.
ENDED = "TPUStrategy"
# Names that tf.losses and tf.metrics have with tf_keras, but not with Keras 3.
TF_KERAS_NAMES = {"losses.mean_squared_error", "metrics.mean_absolute_error", "metrics.mean_squared_error"}


def find_declared_names(api: str) -> Iterator[str]:
    """Yield the names of an API of TensorFlow, as its files declare them.

    Args:
        api: folder of the API below the folder of TensorFlow 2, such as `compat/v1`; empty for TensorFlow 2 itself.
    """
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "_api" / "v2" / api
    # v2.py declares the top of TensorFlow 2.
    for path in sorted([*folder.rglob("__init__.py"), *folder.glob("v2.py")]):
        parts = path.parent.relative_to(folder).parts
        if parts and (parts[0] in OMITTED_MODULES or parts[0].startswith("_")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = alias.asname or alias.name
                    if not name.startswith("_") and name != ENDED:
                        yield ".".join((*parts, name))


def find_attribute(module: Any, name: str) -> Any:
    """Return the attribute of a module with a dotted name; None if there is none."""
    value = module
    for part in name.split("."):
        try:
            # This imports some parts of TensorFlow, which may fail.
            value = getattr(value, part)
        except (AttributeError, ImportError):
            return None
    return value


def list_names() -> dict[str, set[str]]:
    """Return the names in each section of the file, by the title of the section; names in `keyword` are FUNCTION.PARAMETER."""
    tf = importlib.import_module("tensorflow")
    omitted_prefixes = (*(f"{module}." for module in OMITTED_MODULES), NUMPY)
    v1, v2 = (
        {name for name in find_declared_names(api) if not name.startswith(omitted_prefixes)}
        for api in ("compat/v1", "")
    )
    # The module has this name, but its file does not declare it.
    v1.add("app.flags")
    # Names of tf.losses, tf.metrics, tf.initializers and tf.summary of TensorFlow 2 are declared elsewhere.
    v2 |= {name for name in v1 - v2 if name in TF_KERAS_NAMES or find_attribute(tf, name) is not None}
    both = v1 & v2
    keywords = set()
    for name in sorted(both):
        v1_function, v2_function = find_attribute(tf.compat.v1, name), find_attribute(tf, name)
        if v1_function is not v2_function and name not in TF_KERAS_NAMES:
            v1_parameters = list_parameters(v1_function) - list_parameters(v2_function)
            keywords |= {f"{name}.{parameter}" for parameter in v1_parameters}
    return {"v1": v1 - v2, "v2": v2 - v1, "both": both, "keyword": keywords}


def list_parameters(function: Any) -> set[str]:
    """Return the names of a function's parameters, without `*args` and `**kwargs`; empty for a value without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def format_file() -> str:
    """Return the content of the file: a line for each section and module."""
    lines = []
    for section, dotted_names in list_names().items():
        names_by_module: dict[str, list[str]] = defaultdict(list)
        for dotted_name in sorted(dotted_names):
            module, _, name = dotted_name.rpartition(".")
            names_by_module[module].append(name)
        lines += [f"{section} {module}: {' '.join(names)}\n" for module, names in sorted(names_by_module.items())]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    NAMES_FILE.write_text(format_file(), encoding="utf-8")
    print(f"{NAMES_FILE}: written", file=sys.stderr)
