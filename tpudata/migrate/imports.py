"""Rewriting of a program's imports, after its names."""

from __future__ import annotations

import ast
from typing import TypeAlias

from tpudata.migrate.analysis.bindings import Binding
from tpudata.migrate.rewriter import ESTIMATOR, SLIM, Rewriter, find_target
from tpudata.migrate.tensorflow_names import Api, tensorflow_names

_Import: TypeAlias = "ast.Import | ast.ImportFrom"
_BEHAVIOUR = "disable_v2_behavior"


def rewrite_imports(program: Rewriter) -> None:
    """Rewrite the imports of TensorFlow, and add those that the rewritten names need."""
    statements: list[_Import] = []
    for binding in program.plan.bindings.values():
        if not isinstance(binding.statement, ast.Assign) and binding.statement not in statements:
            statements.append(binding.statement)
    statements.sort(key=lambda statement: statement.lineno)
    roots = [binding.statement for binding in program.plan.bindings.values() if not binding.path]
    for index, statement in enumerate(statements):
        new_imports = _list_new_imports(program) if index == 0 else []
        if program.plan.disables_v2 and statement is (roots or statements)[0]:
            new_imports.append(f"{program.root}.{_BEHAVIOUR}()")
        _rewrite_statement(program, statement, new_imports)


def _list_new_imports(program: Rewriter) -> list[str]:
    new_imports = []
    needs_root = "tensorflow" in program.modules or program.plan.disables_v2
    if needs_root and all(binding.path for binding in program.plan.bindings.values()):
        new_imports.append(f"import tensorflow.compat.v1 as {program.root}")
    if "tpudata.estimator" in program.modules:
        new_imports.append(f"from tpudata import estimator as {ESTIMATOR}")
    if SLIM in program.modules:
        new_imports.append(f"import {SLIM}")
    return new_imports


def _rewrite_statement(program: Rewriter, statement: _Import, new_imports: list[str]) -> None:
    kept_imports = (
        [ast.unparse(statement)] if statement in program.plan.guarded else _format_imports(program, statement)
    )
    text = "\n".join([*kept_imports, *new_imports])
    if text == ast.unparse(statement):
        return
    if SLIM in program.modules and f"import {SLIM}" in new_imports:
        program.note(statement, f"{SLIM} is a package. Install it: pip install {SLIM}.")
    edits, indent = program.text, " " * statement.col_offset
    if not text and not indent and edits.ends_line(statement):
        edits.remove_line(statement)
    else:
        edits.replace(statement, text.replace("\n", f"\n{indent}") or "pass")


def _format_imports(program: Rewriter, statement: _Import) -> list[str]:
    """Return the import statements that replace one after the rewrite."""
    bindings = {name: binding for name, binding in program.plan.bindings.items() if binding.statement is statement}
    imports: list[str] = []
    moved: list[str] = []
    parts: dict[str, list[str]] = {}
    for alias in statement.names:
        name = alias.asname or (alias.name if isinstance(statement, ast.ImportFrom) else alias.name.split(".")[0])
        binding = bindings.get(name)
        alias_text = ast.unparse(alias)
        if binding is None:
            imports.append(alias_text)
        elif not binding.path and name == program.root and program.is_v1 and not binding.is_v1:
            replaced = f"tensorflow.compat.v1 as {name}"
            if isinstance(statement, ast.Import):
                imports.append(replaced)
            else:
                moved.append(f"import {replaced}")
        elif not binding.path:
            imports.append(alias_text)
        elif _is_replaced(binding):
            continue
        elif not _is_moved(program, binding):
            imports.append(alias_text)
        elif isinstance(statement, ast.Import):
            imports.append(f"tensorflow.compat.v1.{alias_text.removeprefix('tensorflow.')}")
        else:
            module_part = (statement.module or "").removeprefix("tensorflow")
            parts.setdefault(f"tensorflow.compat.v1{module_part}", []).append(alias_text)
    texts = []
    if imports and isinstance(statement, ast.Import):
        texts.append(f"import {', '.join(imports)}")
    elif imports and isinstance(statement, ast.ImportFrom):
        module = "." * statement.level + (statement.module or "")
        if module.startswith("tensorflow.contrib"):
            program.note(
                statement,
                f"{module} is gone. Remove the import, and write what it gave with what TensorFlow has today.",
            )
        texts.append(f"from {module} import {', '.join(imports)}")
    return [*moved, *(f"from {module} import {', '.join(names)}" for module, names in parts.items()), *texts]


def _is_replaced(binding: Binding) -> bool:
    """Return whether an import is removed, because the uses of its part are rewritten or noted."""
    return binding.path[0] in ("contrib", "estimator") or find_target(binding.path, is_whole=True) is not None


def _is_moved(program: Rewriter, binding: Binding) -> bool:
    """Return whether an import of a part of TensorFlow must become one of compat.v1; note a part without a counterpart."""
    if binding.is_v1 or binding.is_v2:
        return False
    api = tensorflow_names().find_api(binding.path)
    if api is Api.UNKNOWN:
        name = ".".join(binding.path)
        program.note(
            binding.statement, f"tensorflow.{name} has no counterpart. Write it with what TensorFlow has today."
        )
    return api is Api.V1 or (api is Api.BOTH and program.is_v1)
