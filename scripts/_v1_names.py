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

TARGET = Path(__file__).parents[1] / "tpudata" / "migrate" / "v1_names.txt"
HEAD = """\
# Names of TensorFlow, by module: written by scripts/_v1_names.py, read by tpudata/migrate/tensorflow_names.py.
# "v1": of tensorflow.compat.v1 alone; "v2": of tensorflow alone; "both"; "keyword": parameters of compat.v1's function alone.
"""
# Modules with separate rules: Keras comes from another package, and raw_ops are the same in both.
LEFT_OUT = {"keras", "compat", "raw_ops", "estimator", "contrib", "layers"}
# tf.experimental.numpy has hundreds of names that say nothing of the version.
PLAIN = "experimental.numpy"
# Declared, but useless: TensorFlow's TPU runtime ended with 2.20.
ENDED = "TPUStrategy"
# Names that tf.losses and tf.metrics have with tf_keras, and not with Keras 3.
OF_TF_KERAS = {"losses.mean_squared_error", "metrics.mean_absolute_error", "metrics.mean_squared_error"}


def declared(root: str) -> Iterator[str]:
    """Yield the names below tensorflow or tensorflow.compat.v1, as the files of its API declare them."""
    found = importlib.util.find_spec("tensorflow")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "_api" / "v2" / root
    # v2.py is the top of TensorFlow 2, which its __init__.py repeats.
    for path in sorted([*folder.rglob("__init__.py"), *folder.glob("v2.py")]):
        parts = path.parent.relative_to(folder).parts
        if parts[:1] and (parts[0] in LEFT_OUT or parts[0].startswith("_")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = alias.asname or alias.name
                    if not name.startswith("_") and name != ENDED:
                        yield ".".join((*parts, name))


def lookup(root: Any, name: str) -> Any:
    """Return what a name means below a module, or None; some parts of TensorFlow load when they are first asked for."""
    for part in name.split("."):
        try:
            root = getattr(root, part)
        except (AttributeError, ImportError):
            return None
    return root


def sections() -> dict[str, set[str]]:
    """Return the names by section."""
    tf = importlib.import_module("tensorflow")
    v1, v2 = (
        {name for name in declared(root) if not name.startswith((*(f"{left}." for left in LEFT_OUT), PLAIN))}
        for root in ("compat/v1", "")
    )
    # Its module has it, and its declaration does not.
    v1.add("app.flags")
    # tf.losses, tf.metrics, tf.initializers and tf.summary of TensorFlow 2 are declared elsewhere.
    v2 |= {name for name in v1 - v2 if name in OF_TF_KERAS or lookup(tf, name) is not None}
    both = v1 & v2
    keywords = set()
    for name in sorted(both):
        old, new = lookup(tf.compat.v1, name), lookup(tf, name)
        if old is not new and name not in OF_TF_KERAS:
            keywords |= {f"{name}.{word}" for word in parameters(old) - parameters(new)}
    return {"v1": v1 - v2, "v2": v2 - v1, "both": both, "keyword": keywords}


def parameters(function: Any) -> set[str]:
    """Return the names of a function's parameters."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set()
    return {name for name, item in found.items() if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)}


def text() -> str:
    """Return the file."""
    lines = []
    for section, names in sections().items():
        modules: dict[str, list[str]] = defaultdict(list)
        for name in sorted(names):
            module, _, last = name.rpartition(".")
            modules[module].append(last)
        lines += [f"{section} {module}: {' '.join(items)}\n" for module, items in sorted(modules.items())]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"{TARGET}: written", file=sys.stderr)
