"""Plan of each file: facts that depend on other files, such as its API and whether an estimator runs it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Mapping
from pathlib import PurePath

from tpudata.migrate.analysis.bindings import Binding, find_bindings, find_paths, split_dotted_name
from tpudata.migrate.analysis.graph_uses import GraphUses, find_entry_files
from tpudata.migrate.analysis.guards import find_guarded_nodes
from tpudata.migrate.analysis.versions import Version, decide_versions, find_version, is_written_for_v1
from tpudata.migrate.names import TPU_NAMES

# Functions that choose the behaviour of TensorFlow 1 or 2.
_BEHAVIOUR_FUNCTIONS = frozenset(
    {"disable_v2_behavior", "disable_eager_execution", "enable_eager_execution", "enable_v2_behavior"}
)
# Names of the TPUEstimator's module that programs without an estimator also use.
_WITHOUT_ESTIMATOR = frozenset({"CrossShardOptimizer", "InputPipelineConfig"})


@dataclasses.dataclass(frozen=True)
class FilePlan:
    """Facts that the rewrite of a file needs.

    Attributes:
        bindings: names of TensorFlow in the file.
        version: the API that the file is written for.
        guarded_nodes: nodes that are not rewritten: code that depends on a test of TensorFlow's release, or on a `try`;
            empty in a file that is written for TensorFlow 1.
        uses_estimator: whether a program that the file belongs to uses an estimator.
        has_old_shapes: whether dimensions of shapes have a `value` in a program that the file belongs to, as in TensorFlow 1.
        disables_v2: whether the rewrite adds `disable_v2_behavior()` to the file, which a program of sessions needs.
        notes: lines, and what a person must do there.
    """

    bindings: dict[str, Binding]
    version: Version
    guarded_nodes: Collection[ast.AST]
    uses_estimator: bool
    has_old_shapes: bool
    disables_v2: bool
    notes: tuple[tuple[int, str], ...]


def plan_files(trees: Mapping[str, ast.Module]) -> dict[str, FilePlan]:
    """Return the plan of each file, by its path.

    Args:
        trees: syntax trees of the files, by their paths.
    """
    return _Planner(trees).plan()


class _Planner:
    """Facts about files, which are named by their paths.

    A file belongs to one program or several: the top of each is the file itself, or a file that imports it, directly or through
    other files.

    Args:
        trees: syntax trees of the files, by their paths.
    """

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        # The order matters: each fact is computed from facts above it.
        self._trees = trees
        self._bindings = {path: find_bindings(tree) for path, tree in trees.items()}
        self._uses = GraphUses(trees, self._bindings)
        # Files that are run, or whose import is enough to reach a call that needs a graph.
        self._entry_files = find_entry_files(trees) | {path for path in trees if self._uses.reaches_use(path)}
        paths_by_module = {PurePath(path).stem: path for path in trees}
        self._imported_files = {
            path: {paths_by_module[name] for name in _list_imports(tree) & paths_by_module.keys()}
            for path, tree in trees.items()
        }
        self._reachable_files = {path: self._find_reachable(path) for path in trees}
        guarded_nodes = {path: find_guarded_nodes(tree, self._bindings[path]) for path, tree in trees.items()}
        own_versions = {
            path: find_version(tree, self._bindings[path], guarded_nodes[path]) for path, tree in trees.items()
        }
        files_of_programs = {path: set().union(*self._find_programs(path)) for path in trees}
        self._versions = decide_versions(own_versions, files_of_programs)
        # In a file written for TensorFlow 1, the import itself becomes compat.v1, which also covers guarded code. So no node is
        # exempt.
        self._guarded_nodes = {
            path: set() if is_written_for_v1(version) else guarded_nodes[path]
            for path, version in self._versions.items()
        }
        self._estimator_files = {path for path, tree in trees.items() if _uses_estimator(tree, self._bindings[path])}
        self._behaviour_files = self._find_callers(_BEHAVIOUR_FUNCTIONS)
        self._old_behaviour_files = self._find_callers({"disable_v2_behavior"})
        self._old_shape_files = self._find_callers({"disable_v2_tensorshape"})

    def plan(self) -> dict[str, FilePlan]:
        """Return the plan of each file, by its path."""
        disabling_files = {path for path in self._trees if self._disables_v2(path)}
        plans = {}
        for path in self._trees:
            programs = self._find_programs(path)
            uses_estimator = any(program & self._estimator_files for program in programs)
            sets_behaviour = any(program & (self._behaviour_files | disabling_files) for program in programs)
            old_shape_files = self._old_shape_files
            # With an estimator, the calls of disable_v2_behavior are removed.
            if not uses_estimator:
                old_shape_files = old_shape_files | self._old_behaviour_files | disabling_files
            plans[path] = FilePlan(
                self._bindings[path],
                self._versions[path],
                self._guarded_nodes[path],
                uses_estimator=uses_estimator,
                has_old_shapes=any(program & old_shape_files for program in programs),
                disables_v2=path in disabling_files,
                notes=(
                    *self._note_graph_uses(path, uses_estimator=uses_estimator, sets_behaviour=sets_behaviour),
                    *self._note_mixed_names(path),
                ),
            )
        return plans

    def _find_callers(self, functions: Collection[str]) -> set[str]:
        """Return the files that call a function with one of these names."""
        return {path for path, tree in self._trees.items() if _calls_any(tree, functions)}

    def _find_programs(self, path: str) -> list[set[str]]:
        """Return the files of each program that a file belongs to."""
        return [program for program in self._reachable_files.values() if path in program]

    def _find_reachable(self, path: str) -> set[str]:
        """Return a file and all files that it imports, directly or through other files."""
        reachable_files: set[str] = set()
        new_files = {path}
        while new_files:
            reachable_files |= new_files
            new_files = set().union(*(self._imported_files[file] for file in new_files)) - reachable_files
        return reachable_files

    def _disables_v2(self, path: str) -> bool:
        """Return whether the rewrite adds `disable_v2_behavior()` to a file.

        It does so for an entry file, and for a file with graph uses that an entry file without TensorFlow imports. The file must be
        written for TensorFlow 1, and belong only to programs that use no estimator and do not choose the behaviour.
        """
        programs = self._find_programs(path)
        if self._versions[path] is not Version.V1 or any(program & self._estimator_files for program in programs):
            return False
        # A program that chooses the behaviour itself keeps its choice. The call goes after a plain import of TensorFlow.
        if any(program & self._behaviour_files for program in programs) or not _imports_plain_tensorflow(
            self._bindings[path]
        ):
            return False
        # An entry file that does not import TensorFlow leaves the call to the file that does.
        starting_files = {
            entry_file
            for entry_file in self._entry_files
            if path in self._reachable_files[entry_file] and (entry_file == path or not self._bindings[entry_file])
        }
        return path in starting_files or bool(starting_files and self._uses.find(path))

    def _note_graph_uses(self, path: str, *, uses_estimator: bool, sets_behaviour: bool) -> list[tuple[int, str]]:
        """Return notes on calls that need a graph or TensorFlow 1's behaviour, if the programs of the file give them neither.

        Args:
            path: path of the file.
            uses_estimator: whether a program of the file uses an estimator. If so, all uses outside of guarded code are noted; if
                not, only the first.
            sets_behaviour: whether a program of the file sets TensorFlow's behaviour; if so, and without an estimator, no use is
                noted.
        """
        guarded_lines = {getattr(node, "lineno", 0) for node in self._guarded_nodes[path]}
        uses = [use for use in self._uses.find(path) if use.line not in guarded_lines]
        if uses_estimator:
            return [
                (
                    use.line,
                    f"tf.{use.name} needs a graph, and no estimator gives it one here: the program runs eagerly. Put it, and what"
                    " it runs, below `with tf.Graph().as_default():`.",
                )
                for use in uses
            ]
        if not uses or sets_behaviour:
            return []
        # A binding without a path is TensorFlow itself.
        imports_v1 = any(not binding.path and binding.is_v1 for binding in self._bindings[path].values())
        call = f"{'tf' if imports_v1 or self._versions[path] is Version.V1 else 'tf.compat.v1'}.disable_v2_behavior()"
        location = "after the imports" if path in self._entry_files else "in the program that imports this file"
        return [(uses[0].line, f"tf.{uses[0].name} needs TensorFlow 1's behaviour. Call {call} {location}.")]

    def _note_mixed_names(self, path: str) -> list[tuple[int, str]]:
        """Return the line and text of a note on a file that mixes names of both releases; empty for other files."""
        if self._versions[path] is not Version.MIXED:
            return []
        line = min(binding.statement.lineno for binding in self._bindings[path].values())
        return [
            (
                line,
                "the file has names that only TensorFlow 1 has, and names that only TensorFlow 2 has. It was migrated as a program"
                " of TensorFlow 2, with the names of TensorFlow 1 from tf.compat.v1: check the names that both have with different"
                " behaviour. If it is a program of TensorFlow 1, import tensorflow.compat.v1 as tf, and migrate again.",
            )
        ]


def _imports_plain_tensorflow(bindings: Mapping[str, Binding]) -> bool:
    """Return whether a file imports TensorFlow, and nothing from compat.v1 or compat.v2: so do most programs for TensorFlow 1."""
    # An assignment, such as `layers = tf.contrib.layers`, only gives a part of an import another name.
    imports = [binding for binding in bindings.values() if not isinstance(binding.statement, ast.Assign)]
    return bool(imports) and not any(binding.is_v1 or binding.is_v2 for binding in imports)


def _uses_estimator(tree: ast.Module, bindings: Mapping[str, Binding]) -> bool:
    """Return whether a file uses TensorFlow's estimator API, or imports tpudata.estimator."""
    for _, full_path in find_paths(tree, bindings):
        path = full_path[2:] if full_path[:2] in (("compat", "v1"), ("compat", "v2")) else full_path
        if path[:1] == ("estimator",) or path[:2] in (("contrib", "learn"), ("contrib", "estimator")):
            return True
        if path[:2] == ("contrib", "tpu") and len(path) > 2 and path[2] in TPU_NAMES - _WITHOUT_ESTIMATOR:
            return True
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tpudata":
            if any(alias.name == "estimator" for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            # The module itself, or a module inside of it.
            if any(f"{name}.".startswith("tpudata.estimator.") for name in names):
                return True
    return False


def _calls_any(tree: ast.Module, names: Collection[str]) -> bool:
    """Return whether a file calls a function named in `names`, alone or as the last part of a dotted name."""
    dotted_names = (split_dotted_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(name_parts is not None and name_parts[-1] in names for name_parts in dotted_names)


def _list_imports(tree: ast.Module) -> set[str]:
    """Return the last parts of the names of all modules that a file may import."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # A name that is imported from a package may be a module.
            names |= {alias.name for alias in node.names}
            names.add((node.module or "").rpartition(".")[2])
    return names
