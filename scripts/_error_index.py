"""The index of error messages, docs/reference/errors.md, made from the calls in the code that raise errors.

    .venv/bin/python scripts/_error_index.py          # writes the page
    .venv/bin/python scripts/_error_index.py --check  # exits with 1 if the page is out of date

A message ends with its fix, which the page shows apart. Values are shown by their names in capitals, or as dots.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "errors.md"
# Classes that users meet: errors, reasons of bad records, defects that verify lists, findings of a rehearsal.
CLASSES = (
    *("UsageError", "SourceError", "BadRecordError", "OutputError"),
    *("StorageError", "StorageUnavailableError", "ServiceError", "DatasetError", "CorruptionError", "FeatureError"),
    *("TpudataError", "ModelFnValueError", "ModelFnTypeError", "CheckpointError", "CheckpointNotFoundError"),
    *("ClusterError", "ClusterConfigError", "TPUConnectionError", "NonFiniteError", "BatchSizeError"),
    *("RehearsalError", "Defect", "Finding", "DoctorLine"),
)
# Functions and classes that make errors of the texts that they get, with the classes that users meet.
MAKERS = {
    "reject": "BadRecordError",
    "DocumentError": "BadRecordError",
    "error": "BadRecordError",
    "make_error": "BadRecordError",
    "Problem": "BadRecordError",
    "UnreadableValue": "BadRecordError",
    "make_damage_error": "SourceError",
    "reject_split_flag": "UsageError",
    "_describe_denial": "StorageUnavailableError",
    "SkippedRecords": "Defect",
}


class Check(NamedTuple):
    """A function of tpudata.checks: the message that it makes of its arguments, which stand in braces by their places.

    Attributes:
        words: what went wrong.
        kind: name of the class, without the argument that names it.
        place: place of that argument.
        fix: what to do about it.
    """

    words: str
    kind: str = "UsageError"
    place: int = 5
    fix: str = ""


CHECKS = {
    "check": Check("{0}: invalid value (got {1}, expected {3})", fix="{4}"),
    "check_argument": Check("{0}={1}", fix="Pass {3}."),
    "check_integer": Check("{0}: invalid value (got {1}, expected an integer of {2} or more)"),
    "check_flag": Check("{0}: invalid value (got {1}, expected True or False)"),
    "check_one_of": Check("{0}: invalid value (got {1}, expected …)"),
    "require": Check("{0}({1}=...) must be {4}, got {2}", "TypeError"),
    "require_type": Check("{0} must be {3}, got …", "TypeError", 4, "{5}"),
    "require_one_of": Check("{0} must be one of …, got {1}", "ValueError", 3),
    "require_positive_int": Check("{0}({1}=...) must be a positive int, got {2}", "TypeError"),
    "require_flag": Check("{0}({1}=...) must be a bool, got {2}", "TypeError"),
}
# Classes of Python, which are messages for users where the original TPUEstimator raised them.
PLAIN = ("ValueError", "TypeError")
SECTIONS = {
    "Converting": ("beam_jobs/",),
    "Reading and checking a dataset": ("tpudata/format/", "tpudata/source/", "tpudata/images/", "tpudata/tokenizers/"),
    "Storage": ("tpudata/storage/",),
    "Feeding": ("tpudata/input/",),
    "Training": ("tpudata/train/", "tpudata/models/", "tpudata/estimator/", "tpudata/devices/"),
    "Commands and installation": ("tpudata/",),
}
# Messages of fewer literal words are parts of others.
LEAST_WORDS = 3
# Names of parts that stand before a message say nothing without their value.
_PLACE = re.compile(r"^(?:(?:…|[A-Z_]+): )+")


class Message(NamedTuple):
    """A message of the code.

    Attributes:
        text: what went wrong, with the values as names in capitals.
        fix: what to do about it, or an empty string if the message does not say it.
        kind: name of the class.
    """

    text: str
    fix: str
    kind: str


def main(words: Sequence[str]) -> int:
    """Write the page, or with --check compare it; return the exit code."""
    text = page()
    if list(words) == ["--check"]:
        is_equal = PAGE.read_text(encoding="utf-8") == text
        if not is_equal:
            print(f"{PAGE.relative_to(ROOT)} is out of date. Run: .venv/bin/python scripts/_error_index.py")
        return int(not is_equal)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """Return the page: a section for each part of the work, with its messages in alphabetical order."""
    parts = [
        "# Error messages\n",
        "Every message of tpudata with its fix, made from the code. Values are names in capitals or",
        "`…`: search for the words around them, with the browser's search, or in a terminal:\n",
        "    tpudata help errors | grep -i 'no such picture'\n",
        '<div id="error-search"></div>\n',
        "A message begins with its place: a command, a file with an offset or a line, a feature. Classes are",
        "those of `tpudata` and `tpudata.estimator`. `Defect` is a line of `tpudata verify`, `DoctorLine` one",
        "of `tpudata doctor`, `Finding` one of a rehearsal, and `BadRecordError` also the reason of a line in",
        "`rejects/`.\n",
    ]
    seen: set[Message] = set()
    files = sorted(path for folder in ("beam_jobs", "tpudata") for path in (ROOT / folder).rglob("*.py"))
    taken: set[Path] = set()
    shared: dict[str, str] = {}
    for path in files:
        public = _constants(ast.parse(path.read_text(encoding="utf-8"))).items()
        shared.update({name: text for name, text in public if not name.startswith("_")})
    for title, rooms in SECTIONS.items():
        chosen = [path for path in files if path.relative_to(ROOT).as_posix().startswith(rooms) and path not in taken]
        taken.update(chosen)
        messages = {message for path in chosen for message in _messages(path, shared)} - seen
        seen |= messages
        parts += [f"## {title}\n", *(_entry(message) for message in sorted(messages, key=_order)), ""]
    return "\n".join(parts)


def _order(message: Message) -> tuple[str, Message]:
    return re.sub(r"\W+", " ", _PLACE.sub("", message.text)).strip().lower(), message


def _entry(message: Message) -> str:
    """Return a message as an entry of a list, its words as code."""
    fence = "``" if "`" in message.text else "`"
    space = " " if fence == "``" else ""
    fix = f" {_as_prose(message.fix)}" if message.fix else ""
    return f"- {fence}{space}{message.text}{space}{fence}{fix} ({message.kind})"


def _as_prose(text: str) -> str:
    """Return a text in which Markdown sees no emphasis, links or HTML."""
    text = re.sub(r"(?<!`)(--[\w-]+(?:=[^\s,;)]+)?)", r"`\1`", text) if "`" not in text else text
    parts = re.split(r"(`[^`]*`)", text)
    names = [
        part if part.startswith("`") else re.sub(r"(?<!\w)(\w*_\w*(?:\([^)]*\))?)", r"`\1`", part) for part in parts
    ]
    parts = re.split(r"(`[^`]*`)", "".join(names))
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts of a module's constants by name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _messages(path: Path, shared: Mapping[str, str]) -> Iterator[Message]:
    """Yield the messages of the calls in a file that make errors.

    Args:
        path: the file.
        shared: texts of constants of all modules by name.
    """
    is_original = "estimator" in path.parts or "models" in path.parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {**shared, **_constants(tree)}
    checks = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "tpudata.checks"
        for alias in node.names
    }
    local_texts: dict[ast.AST, dict[str, str]] = {}
    # Outer functions come first.
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        texts = _local_texts(function, constants)
        local_texts.update({node: {**local_texts.get(node, {}), **texts} for node in ast.walk(function)})
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in checks and name in CHECKS and isinstance(node.func, ast.Name):
            message = _checked(name, node.args, {**constants, **local_texts.get(node, {})})
            if _has_words(message.text + message.fix):
                yield message
            continue
        if name not in CLASSES and name not in MAKERS and not (name in PLAIN and is_original):
            continue
        # Loggers have an `error`, too, and the estimator checks its hooks by one.
        if name == "error" and "beam_jobs" not in path.parts:
            continue
        literals = [argument for argument in node.args if isinstance(argument, (ast.JoinedStr, ast.Constant))]
        for text in [_text(argument, constants) for argument in literals]:
            if _has_words(text):
                what, fix = _split(" ".join(text.split()))
                yield Message(what, fix, MAKERS.get(name, name))


def _has_words(text: str) -> bool:
    return len(re.findall(r"[a-z]{2,}", re.sub(r"[A-Z_]{2,}", "", text))) >= LEAST_WORDS


def _local_texts(function: ast.FunctionDef, constants: Mapping[str, str]) -> dict[str, str]:
    """Return the literals that a function assigns to names, by name."""
    texts = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for name, value in pairs:
            if isinstance(name, ast.Name) and (text := _literal(value, constants)):
                texts[name.id] = text
    return texts


def _literal(value: ast.expr, constants: Mapping[str, str]) -> str:
    return _text(value, constants) if isinstance(value, (ast.JoinedStr, ast.Constant)) else ""


def _checked(name: str, arguments: Sequence[ast.expr], constants: Mapping[str, str]) -> Message:
    """Return the message of a call of a check."""
    check = CHECKS[name]
    texts = [
        _literal(item, constants) or (constants.get(item.id, "") if isinstance(item, ast.Name) else "") or _name(item)
        for item in arguments
    ]
    words = check.words
    if name == "check_integer" and len(arguments) > 3:
        words = words.replace("of {2} or more", "from {2} to {3}")
    kind = ast.unparse(arguments[check.place]) if len(arguments) > check.place else check.kind
    texts += [""] * 6
    return Message(words.format(*texts), check.fix.format(*texts), kind)


def _text(argument: ast.JoinedStr | ast.Constant, constants: Mapping[str, str]) -> str:
    """Return a literal, with the names of its values in capitals.

    Args:
        argument: the literal.
        constants: the texts of the module's constants by name, which take the place of their names.
    """
    if isinstance(argument, ast.Constant):
        return argument.value if isinstance(argument.value, str) else ""
    parts = []
    for value in argument.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        else:
            assert isinstance(value, ast.FormattedValue)
            name = value.value.id if isinstance(value.value, ast.Name) else ""
            parts.append(constants[name] if name in constants else _name(value.value))
    return "".join(parts)


def _name(value: ast.expr) -> str:
    """Return the name of a value in capitals, or dots if it has none."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    # A private constant is a part of the text.
    return name.upper() if name and not name.startswith("_") else "…"


def _split(text: str) -> tuple[str, str]:
    """Return what went wrong, and the fix: the sentences after it, or the clause after a semicolon."""
    found = re.search(
        r"(?<!such as)(?<![\d.])\. (?=[A-Z`])|; (?=(?:pass|use|save|store|pack|unpack|run|write|make) )", text
    )
    if found is None:
        return text.rstrip("."), ""
    fix = text[found.end() :]
    if re.fullmatch(r"[A-Z_]+\.?|…\.?", fix):
        return text[: found.start()], "The message says what to do."
    return text[: found.start()], fix[0].upper() + fix[1:].rstrip(".") + "."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
