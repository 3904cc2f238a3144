"""Names of a file that are bound to TensorFlow, or to a part of it."""

from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Iterator, Mapping

from tpudata.migrate.tensorflow_names import ApiPath

# Paths of the parts of TensorFlow that modules stand for, by the names of the modules.
_MODULES: dict[str, ApiPath] = {
    "tensorflow": (),
    "tensorflow.compat.v1": (),
    "tensorflow.compat.v2": (),
    "tensorflow.contrib.tpu.python.tpu.tpu_config": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.tpu.tpu_estimator": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.tpu.tpu_optimizer": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.tpu.tpu_context": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.tpu.bfloat16": ("contrib", "tpu"),
    "tensorflow.contrib.tpu.python.ops.tpu_ops": ("contrib", "tpu"),
    "tensorflow.contrib.training.python.training.evaluation": ("contrib", "training"),
    "tensorflow.python.estimator.estimator": ("estimator",),
    "tensorflow_estimator.python.estimator.estimator": ("estimator",),
    "tensorflow_estimator.python.estimator.tpu.tpu_config": ("estimator", "tpu"),
    "tensorflow_estimator.python.estimator.tpu.tpu_estimator": ("estimator", "tpu"),
}
_PRIVATE_MODULES = ("tensorflow.python.", "tensorflow.core.", "tensorflow.examples.", "tensorflow.models.")
_ROOTS = ("tensorflow", "tensorflow_estimator")
_V1, _V2 = "tensorflow.compat.v1", "tensorflow.compat.v2"


@dataclasses.dataclass(frozen=True)
class Binding:
    """A name that means a part of TensorFlow.

    Attributes:
        path: path of the part below `tensorflow`; empty for TensorFlow itself.
        module: the module that the import names, `a.b` for `from a import b`; empty for an assignment.
        statement: the import statement, or the assignment that gives a part another name.
    """

    path: ApiPath
    module: str
    statement: ast.Import | ast.ImportFrom | ast.Assign

    @property
    def is_v1(self) -> bool:
        """Whether it comes from `tensorflow.compat.v1`."""
        return self.module == _V1 or self.module.startswith(f"{_V1}.")

    @property
    def is_v2(self) -> bool:
        """Whether it comes from `tensorflow.compat.v2`."""
        return self.module == _V2 or self.module.startswith(f"{_V2}.")


def find_module_path(name: str) -> ApiPath | None:
    """Return the path of a module or an imported name below `tensorflow`, such as ("estimator", "tpu").

    It is None if the module is not part of TensorFlow.

    Args:
        name: dotted name of the module, or of the module and the name in it.
    """
    if name in _MODULES:
        return _MODULES[name]
    for prefix in (f"{_V1}.", f"{_V2}.", "tensorflow."):
        if name.startswith(prefix):
            return tuple(name.removeprefix(prefix).split("."))
    return None


def find_imports(statement: ast.Import | ast.ImportFrom) -> dict[str, Binding]:
    """Return the names that an import binds to TensorFlow or to a part of it."""
    imports: dict[str, Binding] = {}
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            module = f"{statement.module}.{alias.name}"
            is_absolute = statement.level == 0 and (statement.module or "").split(".")[0] in _ROOTS
            path = find_module_path(module) if is_absolute and alias.name != "*" else None
            if path is not None:
                imports[alias.asname or alias.name] = Binding(path, module, statement)
        elif alias.asname is not None:
            path = find_module_path(alias.name)
            if path is not None:
                imports[alias.asname] = Binding(path, alias.name, statement)
        # `import tensorflow.keras` binds tensorflow. An import of a private module stays unchanged.
        elif f"{alias.name}.".startswith("tensorflow.") and not f"{alias.name}.".startswith(_PRIVATE_MODULES):
            imports["tensorflow"] = Binding((), "tensorflow", statement)
    return imports


def find_bindings(tree: ast.AST) -> dict[str, Binding]:
    """Return the names that a file binds to TensorFlow or to a part of it.

    Imports count for all parts, assignments only for parts that are renamed or gone, see `_find_aliases`.
    """
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imports = {name: binding for statement in statements for name, binding in find_imports(statement).items()}
    # `import tensorflow.keras` may be there only for what it loads.
    names_in_imports = {alias.asname or alias.name for statement in statements for alias in statement.names}
    used_names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if "tensorflow" not in names_in_imports | used_names:
        imports.pop("tensorflow", None)
    # A name that is imported and assigned counts as the import, see `find_reused_names`.
    return {**_find_aliases(tree, imports), **imports}


def _find_aliases(tree: ast.AST, bindings: Mapping[str, Binding]) -> dict[str, Binding]:
    """Return the names that a file gives to parts of TensorFlow that are renamed or gone: `layers = tf.contrib.layers`."""
    aliases: dict[str, Binding] = {}
    # An alias may be a part of another one: `contrib = tf.contrib; layers = contrib.layers`.
    known_bindings = collections.ChainMap(dict(bindings), aliases)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            path = find_tensorflow_path(node.value, known_bindings)
            # A longer path is a class or function inside of a part.
            if path is None or len(path) > 2:
                continue
            # The modules of tf.estimator are parts; its classes and functions are not.
            if path[:1] == ("contrib",) or path in (("estimator",), ("estimator", "tpu")):
                aliases[node.targets[0].id] = Binding(path, "", node)
    return aliases


def find_tensorflow_path(node: ast.AST, bindings: Mapping[str, Binding]) -> ApiPath | None:
    """Return the path below TensorFlow that an expression means, without `compat.v1`; None if it means no part of it."""
    raw_path = find_raw_path(node, bindings)
    return raw_path[2:] if raw_path is not None and raw_path[:2] == ("compat", "v1") else raw_path


def find_raw_path(node: ast.AST, bindings: Mapping[str, Binding]) -> ApiPath | None:
    """Return the path below TensorFlow that an expression means, with a leading `compat.v1`, if any; None if it means no part."""
    chain = split_dotted_name(node)
    if chain is None or chain[0] not in bindings:
        return None
    return (*bindings[chain[0]].path, *chain[1:])


def find_paths(tree: ast.AST, bindings: Mapping[str, Binding]) -> Iterator[tuple[ast.Attribute | ast.Name, ApiPath]]:
    """Yield the node and the path of each name of TensorFlow that is read; for `tf.a.b`, only the whole name, not `tf.a`.

    The path of `tf` itself is empty. Paths keep a leading `compat.v1`, as `find_raw_path` does.
    """
    # Nodes inside of a longer name. `ast.walk` visits the longer name first.
    inner_ids: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner_ids and isinstance(node.ctx, ast.Load):
            inner_node: ast.AST = node
            while isinstance(inner_node, ast.Attribute):
                inner_node = inner_node.value
                inner_ids.add(id(inner_node))
            path = find_raw_path(node, bindings)
            if path is not None:
                yield node, path


def split_dotted_name(node: ast.AST) -> tuple[str, ...] | None:
    """Return the parts of a dotted name; None for an expression that is not one."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None
