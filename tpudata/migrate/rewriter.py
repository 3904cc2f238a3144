"""Rewriting of the names of one file."""

from __future__ import annotations

import abc
import ast

from tpudata.migrate.analysis.bindings import find_tensorflow_path
from tpudata.migrate.analysis.plans import FilePlan
from tpudata.migrate.analysis.versions import Version, is_written_for_v1
from tpudata.migrate.edits import EditedText
from tpudata.migrate.names import HINTS, REMOVED, RENAMED, SLIM_GONE
from tpudata.migrate.tensorflow_names import Api, ApiPath, load_tensorflow_names

# Names by which rewritten files import tpudata.estimator and the package tf_slim.
ESTIMATOR, SLIM = "tpudata_estimator", "tf_slim"
_SLIM_PATHS = (("contrib", "slim", "python", "slim"), ("contrib", "slim"))
# Parts that hold names of the old Keras.
_OLD_KERAS_PARTS = (("layers",), ("nn", "rnn_cell"))


class Rewriter(abc.ABC):
    """Rewriter of one file; it collects edits, and notes on what a person must do.

    Args:
        text: the file.
        tree: its syntax tree.
        plan: plan of its rewrite, which depends on other files.

    Attributes:
        edits: the text with its edits.
        tree: syntax tree of the file.
        plan: plan of its rewrite.
        root: the file's name for TensorFlow; `tf` if it imports only parts of it.
        is_v1: whether `root` is, or becomes, tensorflow.compat.v1.
        is_v2: whether `root` is tensorflow.compat.v2.
        notes: lines, and what to do there.
        modules: modules that rewritten names need: some of "tensorflow", "tpudata.estimator" and "tf_slim".
        old_keras_line: line of the first name that needs the old Keras, or None.
        frozen_ids: ids of nodes that must not be rewritten, or not again.
    """

    def __init__(self, text: str, tree: ast.Module, plan: FilePlan) -> None:
        self.edits = EditedText(text)
        self.tree = tree
        self.plan = plan
        # The file's names for TensorFlow itself.
        roots = {name: binding for name, binding in plan.bindings.items() if not binding.path}
        v1_root = next((name for name, binding in roots.items() if binding.is_v1), None)
        self.root = v1_root or next(iter(roots), "tf")
        imports_v2 = any(binding.is_v2 for binding in roots.values())
        # Without a root, the import that is added is that of compat.v1.
        self.is_v1 = v1_root is not None or not roots or (not imports_v2 and is_written_for_v1(plan.version))
        self.is_v2 = v1_root is None and imports_v2
        self.notes: list[tuple[int, str]] = list(plan.notes)
        self.modules: set[str] = set()
        self.old_keras_line: int | None = None
        # Names and calls of guarded code stay unchanged.
        self.frozen_ids = {id(node) for node in plan.guarded_nodes}

    @abc.abstractmethod
    def rewrite_call(self, node: ast.Call) -> None:
        """Rewrite or note a call whose arguments change with its name; leave other calls."""

    def find_path(self, node: ast.AST) -> ApiPath | None:
        """Return the path below TensorFlow that an expression means; None if it means no part of it."""
        return find_tensorflow_path(node, self.plan.bindings)

    def rewrite(self, node: ast.AST) -> None:
        """Rewrite a call, a name, or a statement that chooses TensorFlow's behaviour, unless the node is to stay unchanged."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and self.plan.uses_estimator:
            path = self.find_path(node.value.func)
            # Removed even in guarded code (a version test or a `try`): the call would change TensorFlow's behaviour there too.
            if path is not None and len(path) == 1 and path[0] in REMOVED:
                self.edits.replace(node, "pass  # tpudata.estimator works with TensorFlow 2's behaviour")
                self.freeze(node)
        if isinstance(node, ast.Call) and id(node) not in self.frozen_ids:
            self.rewrite_call(node)
        if (
            isinstance(node, ast.Attribute | ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in self.frozen_ids
        ):
            self._rewrite_name(node)

    def spell(self, target: str) -> str:
        """Return a name with this file's name of a module in place of the placeholder, and add the module to `modules`.

        Args:
            target: a name with a placeholder, such as `{v1}.train.Saver`, see `tpudata.migrate.names`.
        """
        if "{est}" in target:
            self.modules.add("tpudata.estimator")
        elif "{slim}" in target:
            self.modules.add(SLIM)
        else:
            self.modules.add("tensorflow")
        v1 = self.root if self.is_v1 else f"{self.root}.compat.v1"
        tf2 = self.root if self.is_v2 else f"{self.root}.compat.v2"
        return target.format(est=ESTIMATOR, v1=v1, tf=self.root, tf2=tf2, slim=SLIM)

    def note(self, node: ast.AST, text: str) -> None:
        """Note what a person has to do at a node."""
        self.notes.append((getattr(node, "lineno", 1), text))

    def rewrite_part(self, node: ast.AST) -> str:
        """Return an expression's source code with current names, as part of a larger edit; the expression itself is not edited."""
        with self.edits.isolate():
            for part in ast.walk(node):
                self.rewrite(part)
            return self.edits.render(self.edits.find_start(node), self.edits.find_end(node))

    def rewrite_operand(self, node: ast.AST) -> str:
        """Return an expression's source code with current names, in parentheses if an operand needs them."""
        text = self.rewrite_part(node)
        is_plain = isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        return text if is_plain else f"({text})"

    def replace_call(self, node: ast.Call, text: str) -> None:
        """Replace a call with source code, which is not rewritten any further."""
        self.edits.replace(node, text)
        self.freeze(node)

    def freeze(self, node: ast.AST) -> None:
        """Exclude a node and its parts from further rewriting."""
        self.frozen_ids |= {id(part) for part in ast.walk(node)}

    def _rewrite_name(self, node: ast.Attribute | ast.Name) -> None:
        """Rewrite a dotted name to its current name, or note that it has none."""
        path = self.find_path(node)
        if path is None:
            return
        # The parts of a dotted name are not rewritten once more by themselves.
        name_parts: list[ast.AST] = [node]
        while isinstance(name_parts[-1], ast.Attribute):
            name_parts.append(name_parts[-1].value)
        self.frozen_ids |= {id(name_part) for name_part in name_parts}
        # `tf.layers` itself is a module, not a layer.
        if any(path[: len(prefix)] == prefix for prefix in _OLD_KERAS_PARTS) and path != ("layers",):
            self.old_keras_line = min(self.old_keras_line or node.lineno, node.lineno)
        # Replace the longest part of the name that has a different name today. Parts of slim that are gone have none.
        renameable_parts = [] if _is_gone_slim(path) else name_parts
        for name_part in renameable_parts:
            part_path = self.find_path(name_part)
            target = None if part_path is None else find_target(part_path, is_whole=name_part is node)
            if target is not None:
                self.edits.replace(name_part, self.spell(target))
                return
        # TensorFlow no longer has these parts.
        if (
            path[:1] == ("contrib",)
            or path[:2] == ("keras", "estimator")
            or (path[:1] == ("estimator",) and len(path) > 1)
        ):
            self._note_missing(node, path)
        elif path:
            self._rewrite_api(node, name_parts[-1], path)

    def _note_missing(self, node: ast.AST, path: ApiPath) -> None:
        """Note a name that TensorFlow no longer has, with the hint for the longest part of its path that has a hint."""
        hints = (HINTS.get(".".join(path[:size])) for size in range(len(path), 0, -1))
        hint = next((hint for hint in hints if hint), None)
        fix = f"Use {hint}." if hint else "Write it with what TensorFlow has today."
        # Three parts are enough for a name, as in `tf.contrib.layers.fully_connected`, except in an inner module.
        name = ".".join(path if "python" in path else path[:3])
        self.note(node, f"tf.{name} has no counterpart. {fix}")

    def _rewrite_api(self, node: ast.AST, innermost: ast.AST, path: ApiPath) -> None:
        """Put `compat.v1` or `compat.v2` into a name that the file's API lacks and the other API has.

        Note a name that neither has, unless nothing shows for which release the file is.

        Args:
            node: the dotted name.
            innermost: its first part, such as `tf`.
            path: its path below TensorFlow.
        """
        if not isinstance(innermost, ast.Name) or self.plan.bindings[innermost.id].path:
            # The import of a part is rewritten instead, see `rewrite_imports`.
            return
        api = load_tensorflow_names().find_api(path)
        # If nothing shows for which release the file is, an unknown name may be one that is newer than v1_names.txt.
        if api is Api.NEITHER and self.plan.version not in (Version.UNDECIDED, Version.MAYBE_V2):
            self._note_missing(node, path)
        # A name with `compat` in it already shows its API, so only names without it change.
        elif api is Api.V2 and self.is_v1 and follows_file_api(node):
            self.edits.replace(innermost, self.spell("{tf2}"))
        elif api is Api.V1 and not self.is_v1 and follows_file_api(node):
            self.edits.replace(innermost, self.spell("{v1}"))


def follows_file_api(node: ast.AST) -> bool:
    """Return whether a dotted name has no part `compat`: then the file's import decides whether it means the v1 or the v2 API."""
    while isinstance(node, ast.Attribute):
        if node.attr == "compat":
            return False
        node = node.value
    return True


def _is_gone_slim(path: ApiPath) -> bool:
    """Return whether a path is, or is below, a part of tf.contrib.slim that the package tf_slim lacks or that fails there."""
    gone_paths = [(*prefix, name) for prefix in _SLIM_PATHS for name in SLIM_GONE]
    return any(path[: len(gone)] == gone for gone in gone_paths)


def find_target(path: ApiPath, *, is_whole: bool) -> str | None:
    """Return the current name of a path below TensorFlow, with a placeholder for its module, as `Rewriter.spell` takes it.

    Return None for a path without another name.

    Args:
        path: path of a dotted name in the file, or of its first parts.
        is_whole: whether it is the path of the whole dotted name.
    """
    for prefix in _SLIM_PATHS:
        if path[: len(prefix)] == prefix:
            return ".".join(("{slim}", *path[len(prefix) :]))
    if path == ("estimator",):
        # The module itself becomes tpudata.estimator. A name in it is in RENAMED if tpudata.estimator has it, else it is noted.
        return "{est}" if is_whole else None
    return RENAMED.get(".".join(path))
