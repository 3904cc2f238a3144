"""Rewriting of a file's imports, after its names have been rewritten.

Parameters named `rewriter` are the Rewriter of the file, which has rewritten the names.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

from tpudata.migrate.analysis.bindings import Binding, find_imports
from tpudata.migrate.rewriter import ESTIMATOR, SLIM, Rewriter, find_target
from tpudata.migrate.tensorflow_names import Api, load_tensorflow_names

_Import: TypeAlias = "ast.Import | ast.ImportFrom"


def rewrite_imports(rewriter: Rewriter) -> None:
    """Rewrite the imports of TensorFlow, and add the imports that the rewritten names need."""
    statements: list[_Import] = [
        node
        for node in ast.walk(rewriter.tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and find_imports(node).keys() & rewriter.plan.bindings.keys()
    ]
    statements.sort(key=lambda statement: statement.lineno)
    extended_statements = _pick_first(rewriter.tree, statements)
    # The call of disable_v2_behavior follows the import of TensorFlow itself. Without one, `_list_new_imports` adds it.
    root_statements = [statement for statement in statements if rewriter.root in find_imports(statement)]
    behaviour_statements = _pick_first(rewriter.tree, root_statements) or extended_statements
    for statement in statements:
        new_lines = _list_new_imports(rewriter) if statement in extended_statements else []
        if f"import {SLIM}" in new_lines and statement is extended_statements[0]:
            rewriter.note(statement, f"{SLIM} is a package. Install it: pip install {SLIM}.")
        if rewriter.plan.disables_v2 and statement in behaviour_statements:
            new_lines.append(f"{rewriter.root}.disable_v2_behavior()")
        _rewrite_statement(rewriter, statement, new_lines)


def _pick_first(tree: ast.Module, statements: Sequence[_Import]) -> list[_Import]:
    """Return the imports that new lines follow, so that each new line runs before what needs it.

    Args:
        tree: syntax tree of the file.
        statements: imports in it, in order.

    Returns:
        The first of the imports that run with the module, or the first in each branch if it is in a branch. If no import is sure
        to run with the module, also the first import in each function.
    """
    functions = _find_functions(tree, statements)
    module_statements = [statement for statement in statements if statement not in functions]
    first_statements = _pick_in_module(tree, module_statements)
    blocks_that_run = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.Try | ast.With))]
    if not any(statement in block for statement in module_statements for block in blocks_that_run):
        # In reversed order, so that the first import of a function replaces its later ones.
        first_statements += {function: statement for statement, function in reversed(functions.items())}.values()
    return sorted(first_statements, key=lambda statement: statement.lineno)


def _pick_in_module(tree: ast.Module, statements: Sequence[_Import]) -> list[_Import]:
    """Return the first of the imports that run with the module, or the first of each branch if branches come first.

    Branches below an import in the module's body are omitted, since that import has run by then.
    """
    body_statements = [statement for statement in statements if statement in tree.body]
    # The first import is in the module's body, or there are no imports.
    if body_statements[:1] == statements[:1]:
        return body_statements[:1]
    last_line = body_statements[0].lineno if body_statements else math.inf
    # All lists in the tree; lists that are not blocks contain no import.
    blocks = [block for node in ast.walk(tree) for _, block in ast.iter_fields(node) if isinstance(block, list)]
    first_of_blocks = (next((statement for statement in statements if statement in block), None) for block in blocks)
    return [statement for statement in first_of_blocks if statement is not None and statement.lineno <= last_line]


def _find_functions(tree: ast.Module, statements: Sequence[_Import]) -> dict[_Import, ast.AST]:
    """Return the innermost function of each import that is in a function, in the order of the imports."""
    functions: dict[ast.AST, ast.AST] = {}
    # `ast.walk` yields outer functions before the functions in them.
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions |= dict.fromkeys(itertools.chain.from_iterable(map(ast.walk, node.body)), node)
    return {statement: functions[statement] for statement in statements if statement in functions}


def _list_new_imports(rewriter: Rewriter) -> list[str]:
    """Return the import statements that the rewritten names need and the file lacks."""
    new_imports = []
    needs_root = "tensorflow" in rewriter.modules or rewriter.plan.disables_v2
    # A binding without a path is TensorFlow itself.
    if needs_root and all(binding.path for binding in rewriter.plan.bindings.values()):
        new_imports.append(f"import tensorflow.compat.v1 as {rewriter.root}")
    if "tpudata.estimator" in rewriter.modules:
        new_imports.append(f"from tpudata import estimator as {ESTIMATOR}")
    if SLIM in rewriter.modules:
        new_imports.append(f"import {SLIM}")
    return new_imports


def _rewrite_statement(rewriter: Rewriter, statement: _Import, new_lines: list[str]) -> None:
    """Replace an import with what it becomes, and with new lines after it; remove it if nothing is left."""
    # In the normal form that new imports have, so that an import that stays the same is recognized.
    old_text = ast.unparse(statement)
    # Code that tests TensorFlow's release stays unchanged.
    is_guarded = statement in rewriter.plan.guarded_nodes
    text = "\n".join([*([old_text] if is_guarded else _format_imports(rewriter, statement)), *new_lines])
    if text == old_text:
        return
    indent = " " * statement.col_offset
    if not text and not indent and rewriter.edits.ends_line(statement):
        rewriter.edits.remove_line(statement)
    else:
        # Further lines must stand in the block of the import, which may begin after a colon: `except ImportError: import ...`.
        separator = f"\n{indent}" if rewriter.edits.begins_line(statement) else "; "
        # An indented block must not become empty.
        rewriter.edits.replace(statement, text.replace("\n", separator) or "pass")


def _format_imports(rewriter: Rewriter, statement: _Import) -> list[str]:
    """Return the import statements that replace `statement`; note imported parts that are gone.

    Names of a statement go different ways: TensorFlow itself becomes tensorflow.compat.v1 in a file of TensorFlow 1, parts that
    only compat.v1 has move there, names of renamed parts are dropped, since their uses are rewritten, and all other names stay.
    """
    bindings = {name: binding for name, binding in find_imports(statement).items() if name in rewriter.plan.bindings}
    # Aliases that stay in a statement like the old one.
    aliases: list[str] = []
    # New statements that import compat.v1 itself.
    root_imports: list[str] = []
    # Aliases that are imported from compat.v1, by the module there.
    v1_aliases: dict[str, list[str]] = {}
    for alias in statement.names:
        # Without `as`, `import a.b` binds a.
        name = alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else alias.name.split(".")[0])
        binding = bindings.get(name)
        alias_text = ast.unparse(alias)
        if binding is None:
            aliases.append(alias_text)
        # TensorFlow itself becomes compat.v1 in a file of TensorFlow 1. If the file already has a name for compat.v1, its other
        # names for TensorFlow stay.
        elif not binding.path and rewriter.is_v1 and not rewriter.plan.bindings[rewriter.root].is_v1:
            v1_root = f"tensorflow.compat.v1 as {name}"
            root_aliases = aliases if isinstance(statement, ast.Import) else root_imports
            root_import = v1_root if isinstance(statement, ast.Import) else f"import {v1_root}"
            # `import tensorflow.nn, tensorflow.keras` binds one name.
            if root_import not in root_aliases:
                root_aliases.append(root_import)
        elif not binding.path:
            # `import tensorflow.contrib.x` binds `tensorflow`, and these modules are gone.
            is_gone = alias.name.startswith(("tensorflow.contrib", "tensorflow.estimator"))
            aliases.append("tensorflow" if is_gone and alias.asname is None else alias_text)
        elif _is_dropped(binding):
            continue
        elif not _moves_to_compat_v1(rewriter, binding):
            aliases.append(alias_text)
        elif isinstance(statement, ast.Import):
            aliases.append(f"tensorflow.compat.v1.{alias_text.removeprefix('tensorflow.')}")
        else:
            module_part = (statement.module or "").removeprefix("tensorflow")
            v1_aliases.setdefault(f"tensorflow.compat.v1{module_part}", []).append(alias_text)
    imports = [*root_imports, *(f"from {module} import {', '.join(names)}" for module, names in v1_aliases.items())]
    if aliases and isinstance(statement, ast.Import):
        imports.append(f"import {', '.join(aliases)}")
    elif aliases and isinstance(statement, ast.ImportFrom):
        module = "." * statement.level + (statement.module or "")
        if module.startswith("tensorflow.contrib"):
            rewriter.note(
                statement,
                f"{module} is gone. Remove the import, and write what it gave with what TensorFlow has today.",
            )
        imports.append(f"from {module} import {', '.join(aliases)}")
    return imports


def _is_dropped(binding: Binding) -> bool:
    """Return whether the import of a part of TensorFlow is removed, because the uses of the part are rewritten or noted."""
    return binding.path[0] in ("contrib", "estimator") or find_target(binding.path, is_whole=True) is not None


def _moves_to_compat_v1(rewriter: Rewriter, binding: Binding) -> bool:
    """Return whether an import of a part of TensorFlow becomes an import from compat.v1; note a part that no API has."""
    if binding.is_v1 or binding.is_v2:
        return False
    api = load_tensorflow_names().find_api(binding.path)
    if api is Api.NEITHER:
        name = ".".join(binding.path)
        rewriter.note(
            binding.statement, f"tensorflow.{name} has no counterpart. Write it with what TensorFlow has today."
        )
    # A part that both APIs have may behave differently in each.
    return api is Api.V1 or (api is Api.BOTH and rewriter.is_v1)
