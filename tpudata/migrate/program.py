"""Migration of one program: its text with current names, and notes on what a person has to do."""

from __future__ import annotations

import ast
import dataclasses

from tpudata.errors import DatasetError
from tpudata.migrate.bindings import Binding, Path, dotted_name, find_bindings, find_root
from tpudata.migrate.checks import dimension_values, reused_names, star_imports
from tpudata.migrate.edits import EditedText
from tpudata.migrate.names import HINTS, REMOVED, RENAMED

_ESTIMATOR = "tpudata_estimator"
_SUMMARIES_OF_STEPS = frozenset(f"contrib.summary.{kind}" for kind in ("scalar", "histogram", "image", "audio"))
_XAVIER = frozenset({"contrib.layers.xavier_initializer", "contrib.layers.xavier_initializer_conv2d"})


@dataclasses.dataclass(frozen=True)
class Note:
    """Place that a person has to change.

    Attributes:
        line: number of its line in the given program, from 1.
        new_line: number of its line in the rewritten program.
        text: the problem and the fix.
    """

    line: int
    new_line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Migration:
    """Result of migrating a program.

    Attributes:
        text: the program with current names.
        changes: number of rewritten places.
        notes: what is left to do, in the order of lines.
    """

    text: str
    changes: int
    notes: tuple[Note, ...]


def migrate(text: str, where: str) -> Migration:
    """Rewrite a program with current names.

    Args:
        text: the program.
        where: its path, for errors.

    Raises:
        DatasetError: it is not Python 3.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = where if line is None else f"{where}:{line}"
        raise DatasetError(
            f"{place}: not a program in Python 3 (got {getattr(error, 'msg', error)}). Run 2to3 on it first if it is Python 2."
        ) from None
    return _Program(text, tree).migrate()


class _Program:
    def __init__(self, text: str, tree: ast.Module) -> None:
        self._text = EditedText(text)
        self._tree = tree
        self._bindings = find_bindings(tree)
        self._notes: list[tuple[int, str]] = []
        self._uses_estimator = False
        self._uses_tensorflow = False
        self._done: set[int] = set()
        self._root, self._is_v1 = find_root(tree, self._bindings)

    def migrate(self) -> Migration:
        self._notes += [*star_imports(self._tree), *reused_names(self._tree, self._bindings)]
        if self._bindings:
            for node in ast.walk(self._tree):
                self._rewrite(node)
            statements = dict.fromkeys(binding.statement for binding in self._bindings.values())
            for number, statement in enumerate(sorted(statements, key=lambda item: item.lineno)):
                self._rewrite_import(statement, self._new_imports() if number == 0 else [])
            self._notes += dimension_values(self._tree, self._root)
        notes = [Note(line, self._text.new_line(line), text) for line, text in sorted(set(self._notes))]
        return Migration(self._text.edited(), len(self._text), tuple(notes))

    def _path(self, node: ast.AST) -> Path | None:
        """Return the path below TensorFlow that an expression means."""
        chain = dotted_name(node)
        if chain is None or chain[0] not in self._bindings:
            return None
        path = (*self._bindings[chain[0]].path, *chain[1:])
        return path[2:] if path[:2] == ("compat", "v1") else path

    def _rewrite(self, node: ast.AST) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            path = self._path(node.value.func)
            if path is not None and len(path) == 1 and path[0] in REMOVED:
                self._text.replace(node, "pass  # tpudata.estimator works with TensorFlow 2's behaviour")
                self._done |= {id(item) for item in ast.walk(node)}
        if isinstance(node, ast.Call) and id(node) not in self._done:
            self._rewrite_call(node)
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in self._done:
            self._rewrite_name(node)

    def _rewrite_name(self, node: ast.Attribute | ast.Name) -> None:
        path = self._path(node)
        if path is None:
            return
        # The parts of a dotted name are not rewritten once more by themselves.
        parts: list[ast.AST] = [node]
        while isinstance(parts[-1], ast.Attribute):
            parts.append(parts[-1].value)
        self._done |= {id(part) for part in parts}
        for part in parts:
            own = self._path(part)
            target = RENAMED.get(".".join(own)) if own else None
            if target is not None:
                self._text.replace(part, self._named(target))
                return
        if path[:1] == ("contrib",) or (path[:1] == ("estimator",) and len(path) > 1):
            self._note_missing(node, path)

    def _note_missing(self, node: ast.AST, path: Path) -> None:
        hints = (HINTS.get(".".join(path[:size])) for size in range(len(path), 1, -1))
        hint = next((hint for hint in hints if hint), None)
        fix = f"Use {hint}." if hint else "Write it with what TensorFlow has today."
        self._note(node, f"tf.{'.'.join(path[:3])} has no counterpart. {fix}")

    def _rewrite_call(self, node: ast.Call) -> None:
        path = self._path(node.func)
        name = "" if path is None else ".".join(path)
        if name == "contrib.summary.record_summaries_every_n_global_steps" and node.args:
            every = self._operand(node.args[0])
            given = node.args[1] if len(node.args) > 1 else _keyword(node, "global_step")
            step = self._named("{v1}.train.get_or_create_global_step()") if given is None else self._operand(given)
            self._replace_call(node, self._named(f"{{tf2}}.summary.record_if({{v1}}.equal({step} % {every}, 0))"))
        elif name in ("contrib.summary.always_record_summaries", "contrib.summary.never_record_summaries"):
            self._replace_call(node, self._named(f"{{tf2}}.summary.record_if({'always' in name})"))
        elif name in _SUMMARIES_OF_STEPS:
            self._check_summary(node, name.rpartition(".")[2])
        elif name in _XAVIER and (node.args or _keyword(node, "uniform") is not None):
            self._note(
                node, f"{name.rpartition('.')[2]} has become glorot_uniform_initializer(seed, dtype), which is uniform."
            )
        elif name.endswith("cluster_resolver.TPUClusterResolver"):
            tpu = node.args[0] if node.args else _keyword(node, "tpu")
            if isinstance(tpu, ast.Constant) and tpu.value == "":
                self._note(
                    node,
                    "TPUClusterResolver('') looks for a TPU named ''. Pass tpu='local' for the TPU of this machine.",
                )
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "apply" and len(node.args) == 1:
            inner = node.args[0]
            if isinstance(inner, ast.Call) and self._path(inner.func) == (
                "contrib",
                "data",
                "batch_and_drop_remainder",
            ):
                size = ", ".join(map(self._rewritten, [*inner.args, *(item.value for item in inner.keywords)]))
                begin, end = self._text.end(node.func.value), self._text.end(node)
                self._text.replace_range(begin, end, f".batch({size}, drop_remainder=True)")
                self._done |= {id(item) for item in ast.walk(inner)}

    def _check_summary(self, node: ast.Call, kind: str) -> None:
        for item in node.keywords:
            if item.arg == "tensor":
                self._rename_keyword(item, "data")
            elif item.arg == "max_images":
                self._rename_keyword(item, "max_outputs")
            elif item.arg in ("family", "bad_color"):
                self._note(
                    item.value, f"summary.{kind} takes no {item.arg} any more. Remove it, or put it into the name."
                )
        if _keyword(node, "step") is None:
            self._note(node, f"summary.{kind} needs a step today. Pass step=.")
        if len(node.args) > 2:
            self._note(node, f"summary.{kind}: the third argument was family and is step today. Pass both by keyword.")

    def _rename_keyword(self, item: ast.keyword, name: str) -> None:
        begin = self._text.begin(item)
        self._text.replace_range(begin, begin + len(item.arg or ""), name)

    def _new_imports(self) -> list[str]:
        new = []
        if self._uses_tensorflow and all(binding.path for binding in self._bindings.values()):
            new.append(f"import tensorflow.compat.v1 as {self._root}")
        if self._uses_estimator:
            new.append(f"from tpudata import estimator as {_ESTIMATOR}")
        return new

    def _rewrite_import(self, statement: ast.Import | ast.ImportFrom, new: list[str]) -> None:
        text = "\n".join([*filter(None, [self._import_text(statement)]), *new])
        if text == ast.unparse(statement):
            return
        indent = " " * statement.col_offset
        if not text and not indent and self._text.ends_line(statement):
            self._text.replace_range(self._text.begin(statement), self._text.end(statement) + 1, "")
        else:
            self._text.replace(statement, text.replace("\n", f"\n{indent}") or "pass")

    def _import_text(self, statement: ast.Import | ast.ImportFrom) -> str:
        """Return the text of an import after the rewrite; empty if nothing of it remains."""
        bound = {name: item for name, item in self._bindings.items() if item.statement is statement}
        left: list[str] = []
        for alias in statement.names:
            name = alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else alias.name.split(".")[0])
            binding = bound.get(name)
            own = ast.unparse(alias)
            if binding is None or not self._is_replaced(binding):
                left.append(own)
            elif not binding.path and name == self._root and self._is_v1 and not binding.is_v1:
                left.append(f"tensorflow.compat.v1 as {name}")
            elif not binding.path:
                left.append(own)
        if not left:
            return ""
        if isinstance(statement, ast.Import):
            return f"import {', '.join(left)}"
        module = "." * statement.level + (statement.module or "")
        if module.startswith("tensorflow.contrib"):
            self._note(
                statement,
                f"{module} is gone. Remove the import, and write what it gave with what TensorFlow has today.",
            )
        return f"from {module} import {', '.join(left)}"

    @staticmethod
    def _is_replaced(binding: Binding) -> bool:
        """Return whether an import is rewritten: TensorFlow itself, or a part whose uses are rewritten or noted."""
        path = binding.path
        return not path or path[0] in ("contrib", "estimator") or ".".join(path) in RENAMED

    def _named(self, target: str) -> str:
        self._uses_estimator |= "{est}" in target
        self._uses_tensorflow |= "{est}" not in target
        root = self._root
        v1 = root if self._is_v1 else f"{root}.compat.v1"
        tf2 = f"{root}.compat.v2"
        return target.format(est=_ESTIMATOR, v1=v1, tf=root, tf2=tf2)

    def _note(self, node: ast.AST, text: str) -> None:
        self._notes.append((getattr(node, "lineno", 1), text))

    def _rewritten(self, node: ast.AST) -> str:
        """Return an expression's text with current names."""
        with self._text.apart():
            for item in ast.walk(node):
                self._rewrite(item)
            return self._text.edited(self._text.begin(node), self._text.end(node))

    def _operand(self, node: ast.AST) -> str:
        """Return an expression's text with current names, ready to be an operand."""
        text = self._rewritten(node)
        return (
            text
            if isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            else f"({text})"
        )

    def _replace_call(self, node: ast.Call, text: str) -> None:
        self._text.replace(node, text)
        self._done |= {id(item) for item in ast.walk(node)}


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((item.value for item in node.keywords if item.arg == name), None)
