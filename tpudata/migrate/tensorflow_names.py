"""Names of TensorFlow's modules, and which of its two APIs has each; read from v1_names.txt, which scripts/_v1_names.py writes."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

# Parts of a name below `tensorflow`, such as ("estimator", "tpu"); empty for TensorFlow itself.
ApiPath: TypeAlias = tuple[str, ...]
_FILE = Path(__file__).with_name("v1_names.txt")
# The file does not list these parts: parts that only TensorFlow 1 has; parts with classes of Keras, which TensorFlow 2 has there;
# and parts for which other modules have rules.
_V1_PARTS = frozenset({"contrib", "layers"})
_KERAS_PARTS = frozenset({"losses", "metrics", "optimizers", "initializers"})
_NOT_COVERED = frozenset(
    {"keras", "compat", "raw_ops", "estimator", "python", "core", "version", "pywrap_tensorflow", "examples"}
)


class Api(enum.Enum):
    """The API that has a name."""

    V1 = "only tensorflow.compat.v1"
    V2 = "only tensorflow"
    BOTH = "both"
    NEITHER = "neither"
    NOT_COVERED = "not covered by v1_names.txt"


@dataclasses.dataclass(frozen=True)
class TensorflowNames:
    """The names of TensorFlow's modules.

    Attributes:
        apis: the API that has each name, by its path below `tensorflow`, such as `nn.dropout`.
        modules: paths that are modules.
        keywords: parameters that a function has only in compat.v1, by its path.
    """

    apis: dict[str, Api]
    modules: frozenset[str]
    keywords: dict[str, frozenset[str]]

    def find_api(self, path: ApiPath) -> Api:
        """Return the API that has a name.

        Args:
            path: path of the name below `tensorflow`; its parts after a class or a function are ignored.
        """
        # TensorFlow itself, and names that the file omits.
        if not path or path[0] in _NOT_COVERED or path[0].startswith("_") or path[:2] == ("experimental", "numpy"):
            return Api.NOT_COVERED
        if path[0] in _V1_PARTS:
            return Api.V1
        for size in range(1, len(path) + 1):
            name = ".".join(path[:size])
            # The first part that is not a module is a class or a function.
            if name not in self.modules:
                return self.apis.get(name) or _find_api_without_entry(path[:size])
        # The path is a module, which both APIs have unless the file lists it.
        return self.apis.get(".".join(path), Api.BOTH)


def _find_api_without_entry(path: ApiPath) -> Api:
    """Return the API of a class or function that has no entry in v1_names.txt."""
    if path[-1].startswith("_"):
        return Api.NOT_COVERED
    # In these parts, TensorFlow 2 has classes of Keras, which the file omits.
    return Api.V2 if path[0] in _KERAS_PARTS else Api.NEITHER


@functools.cache
def load_tensorflow_names() -> TensorflowNames:
    """Return the names, read from v1_names.txt."""
    apis: dict[str, Api] = {}
    modules: set[str] = set()
    keywords: dict[str, set[str]] = defaultdict(set)
    sections = {"v1": Api.V1, "v2": Api.V2, "both": Api.BOTH}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        # Examples of lines: `v1 dtypes: as_string` and `keyword argmax: dimension`.
        head, _, names = line.partition(":")
        section, _, module = head.partition(" ")
        if section == "keyword":
            # In these lines, a function stands instead of the module, and its parameters instead of names.
            keywords[module].update(names.split())
            continue
        # The line of TensorFlow itself names no module.
        parts = module.split(".") if module else []
        modules |= {".".join(parts[:size]) for size in range(1, len(parts) + 1)}
        for name in names.split():
            apis[".".join([*parts, name])] = sections[section]
    return TensorflowNames(apis, frozenset(modules), {name: frozenset(words) for name, words in keywords.items()})
