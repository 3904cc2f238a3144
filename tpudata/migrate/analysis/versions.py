"""The API of TensorFlow that files are written for: files that are migrated together share it, unless one shows another API."""

from __future__ import annotations

import ast
import enum
from collections.abc import Collection, Iterable, Mapping

from tpudata.migrate.analysis.bindings import Binding, find_paths, find_tensorflow_path
from tpudata.migrate.tensorflow_names import Api, ApiPath, load_tensorflow_names

# Parts of compat.v1 that TensorFlow 2.0 to 2.4 had as well: mixed precision with Keras, and structures of datasets.
_EARLY_V2_PARTS = (("mixed_precision",), ("train", "experimental"), ("data", "experimental"))
# Parts of TensorFlow 2 that 1.15 has as well, though few programs for 1.15 use these parts.
_NEW_PROGRAM_PARTS = (("keras",), ("function",), ("GradientTape",))


class Version(enum.Enum):
    """The API that a file is written for."""

    # Names or parameters that only TensorFlow 1 has, in this file or in one that decides for it.
    V1 = "1"
    # `import tensorflow.compat.v1 as tf`: the file is ported already.
    PORTED = "1, on TensorFlow 2"
    # A file next to a ported one, which may have been ported with it; or a file with only tf.estimator, which both releases had.
    MAYBE_V1 = "1, or 2 up to 2.15"
    # Names that only TensorFlow 2 has; `tf.compat.v1.x`, as tf_upgrade_v2 writes it; or an import of tensorflow.compat.v2.
    V2 = "2"
    # Names or parameters that only TensorFlow 1 has, next to names that only 2 has: the file stays on TensorFlow 2, with a note.
    MIXED = "2, with names of 1"
    # Keras or eager code, and no name that only one release has.
    MAYBE_V2 = "2, or 1.15 with Keras"
    # Nothing in the file shows a release.
    UNDECIDED = "1 or 2"


def find_version(tree: ast.AST, bindings: Mapping[str, Binding], guarded_nodes: Collection[ast.AST]) -> Version:
    """Return the API that the names of one file show.

    Args:
        tree: syntax tree of the file.
        bindings: the file's names that stand for TensorFlow or parts of it, by name.
        guarded_nodes: nodes whose names and keywords do not count, see `find_guarded_nodes`. Imports in them still show compat.v1,
            compat.v2, Keras or tf.estimator.
    """
    imports = [binding for binding in bindings.values() if not isinstance(binding.statement, ast.Assign)]
    # The file's names for TensorFlow itself.
    roots = [binding for binding in imports if not binding.path]
    if any(binding.is_v1 for binding in roots):
        return Version.PORTED
    paths = [path for node, path in find_paths(tree, bindings) if node not in guarded_nodes]
    all_paths = (*paths, *(binding.path for binding in imports))
    # Programs for TensorFlow 1 hardly name compat.v1; tf_upgrade_v2 puts it into programs for 2.
    if any(binding.is_v2 for binding in roots) or any(path[:2] == ("compat", "v1") for path in paths):
        return Version.V2
    names = load_tensorflow_names()
    # Of the rest, guarded imports, names from compat.v1, and parts of TensorFlow 1 that 2.0 to 2.4 had as well do not decide.
    counted_imports = (
        binding.path for binding in imports if not binding.is_v1 and binding.statement not in guarded_nodes
    )
    apis = {names.find_api(path) for path in (*paths, *counted_imports) if not _is_in_early_v2(path)}
    if Api.V1 in apis or _has_v1_keywords(tree, bindings, guarded_nodes):
        return Version.MIXED if Api.V2 in apis else Version.V1
    if Api.V2 in apis:
        return Version.V2
    if any(path[:1] == ("estimator",) for path in all_paths):
        return Version.MAYBE_V1
    return Version.MAYBE_V2 if any(path[:1] in _NEW_PROGRAM_PARTS for path in all_paths) else Version.UNDECIDED


def decide_versions(
    versions: Mapping[str, Version], files_of_programs: Mapping[str, Collection[str]]
) -> dict[str, Version]:
    """Return the API of each file; if a file does not show it, other files of TensorFlow 1, ported or not, decide.

    Args:
        versions: the API that each file shows by itself, by its path.
        files_of_programs: for each file, the files of all programs that it belongs to. For a file of Keras or eager code, only
            these decide, since it may be a separate program; for other files, all files decide.
    """
    return {path: _decide_version(versions, path, files_of_programs[path]) for path in versions}


def _decide_version(versions: Mapping[str, Version], path: str, files_of_programs: Collection[str]) -> Version:
    """Return the API of one file: its own if that is clear, otherwise the API that other files suggest.

    Args:
        versions: the API that each file shows by itself, by its path.
        path: path of the file to decide for.
        files_of_programs: the files of all programs that this file belongs to.
    """
    version = versions[path]
    if version not in (Version.UNDECIDED, Version.MAYBE_V1, Version.MAYBE_V2):
        return version
    # A file of Keras may be a separate program, so only files of its programs decide.
    deciding_files = files_of_programs if version is Version.MAYBE_V2 else versions
    other_versions = {versions[file] for file in deciding_files}
    if Version.V1 in other_versions:
        return Version.V1
    # Next to a ported file, this one may have been ported with it.
    return Version.MAYBE_V1 if Version.PORTED in other_versions else version


def is_written_for_v1(version: Version) -> bool:
    """Return whether a file of this version uses `tensorflow.compat.v1` after its migration."""
    return version in (Version.V1, Version.PORTED, Version.MAYBE_V1)


def _is_in_early_v2(path: ApiPath) -> bool:
    """Return whether a path is in a part of compat.v1 that TensorFlow 2.0 to 2.4 had as well."""
    return any(path[: len(part)] == part for part in _EARLY_V2_PARTS)


def _has_v1_keywords(tree: ast.AST, bindings: Mapping[str, Binding], guarded_nodes: Collection[ast.AST]) -> bool:
    """Return whether a call outside of guarded code has a parameter that only TensorFlow 1 has."""
    names = load_tensorflow_names()
    calls: Iterable[ast.Call] = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.keywords)
    for call in calls:
        if call in guarded_nodes:
            continue
        path = find_tensorflow_path(call.func, bindings)
        v1_keywords = names.keywords.get(".".join(path)) if path else None
        if v1_keywords and any(keyword.arg in v1_keywords for keyword in call.keywords):
            return True
    return False
