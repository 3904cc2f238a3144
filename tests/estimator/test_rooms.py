"""The rooms of tpudata/estimator import downwards."""

import ast
from pathlib import Path

import tpudata.estimator

ROOT = Path(tpudata.estimator.__file__).parent

# Each room imports from itself and from those before it.
ROOMS = [
    "api",
    "graph",
    "devices",
    "state",
    "fetching",
    "feeding",
    "tracing",
    "hooks",
    "loops",
    "export",
    "tpu_check",
    "",
]


def room(module: str) -> str:
    parts = module.removeprefix("tpudata.estimator").strip(".").split(".")
    return parts[0] if (ROOT / parts[0]).is_dir() else ""


def imported(path: Path) -> set[str]:
    """Return the modules of the estimator that a file imports when it is loaded."""
    tree = ast.parse(path.read_text())
    found = {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
    return {module for module in found if module.startswith("tpudata.estimator.")}


def test_imports_run_downwards() -> None:
    files = list(ROOT.rglob("*.py"))
    assert len(files) > 50
    wrong = []
    for path in files:
        own = path.relative_to(ROOT).parts[0] if path.parent != ROOT else ""
        wrong += [f"{own}: {module}" for module in imported(path) if ROOMS.index(room(module)) > ROOMS.index(own)]
    assert wrong == []
