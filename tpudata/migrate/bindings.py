"""Names of a program that are bound to TensorFlow, or to a part of it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping

from tpudata.migrate.names import V1_NAMES, V1_TRAIN_NAMES

Path = tuple[str, ...]
# Modules whose names stand for a part of TensorFlow: from the module's name to the path of the part.
_MODULES: dict[str, Path] = {
    "tensorflow": (),
    "tensorflow.compat.v1": (),
    "tensorflow.contrib.tpu.python.tpu.tpu_config": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.tpu.tpu_estimator": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.tpu.tpu_optimizer": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.tpu.tpu_context": ("contrib", "tpu"),
    "tensorflow.contrib.training.python.training.evaluation": ("contrib", "training"),
    "tensorflow.python.estimator.estimator": ("estimator",),
    "tensorflow_estimator.python.estimator.estimator": ("estimator",),
    "tensorflow_estimator.python.estimator.tpu.tpu_config": ("estimator", "tpu"),
    "tensorflow_estimator.python.estimator.tpu.tpu_estimator": ("estimator", "tpu"),
}
_ROOTS = ("tensorflow", "tensorflow_estimator")


@dataclasses.dataclass(frozen=True)
class Binding:
    """A name that means a part of TensorFlow.

    Attributes:
        path: path of the part below `tensorflow`; empty for TensorFlow itself.
        is_v1: whether it is TensorFlow itself under `tensorflow.compat.v1`.
        statement: the import statement.
    """

    path: Path
    is_v1: bool
    statement: ast.Import | ast.ImportFrom


def module_path(name: str) -> Path | None:
    """Return the path below `tensorflow` that a module stands for; None for a module of another package."""
    if name in _MODULES:
        return _MODULES[name]
    for prefix in ("tensorflow.compat.v1.", "tensorflow."):
        if name.startswith(prefix):
            return tuple(name.removeprefix(prefix).split("."))
    return None


def find_bindings(tree: ast.AST) -> dict[str, Binding]:
    """Return the names that a program's imports bind to TensorFlow or to a renamed part of it."""
    found: dict[str, Binding] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = module_path(alias.name)
                if path is None or (path and alias.asname is None):
                    continue
                found[alias.asname or "tensorflow"] = Binding(path, alias.name == "tensorflow.compat.v1", node)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module.split(".")[0] not in _ROOTS:
                continue
            for alias in node.names:
                if alias.name == "*":
                    continue
                full = f"{node.module}.{alias.name}"
                path = module_path(full)
                if path is not None:
                    found[alias.asname or alias.name] = Binding(path, full == "tensorflow.compat.v1", node)
    return found


def find_root(tree: ast.AST, bindings: Mapping[str, Binding]) -> tuple[str, bool]:
    """Return the program's name for TensorFlow, and whether that is, or becomes, tensorflow.compat.v1."""
    roots = {name: binding for name, binding in bindings.items() if not binding.path}
    v1 = next((name for name, binding in roots.items() if binding.is_v1), None)
    if v1 is not None:
        return v1, True
    name = next(iter(roots), "tf")
    return name, name not in roots or _is_written_for_v1(tree, name)


def _is_written_for_v1(tree: ast.AST, name: str) -> bool:
    paths = [path for node in ast.walk(tree) if (path := dotted_name(node)) and path[0] == name]
    if any(path[1:3] == ("compat", "v1") for path in paths):
        return False
    return any(
        path[1] in V1_NAMES or (path[1:2] == ("train",) and path[2:3] and path[2].endswith(V1_TRAIN_NAMES))
        for path in paths
        if len(path) > 1
    )


def dotted_name(node: ast.AST) -> Path | None:
    """Return the parts of a dotted name; None for another expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None
