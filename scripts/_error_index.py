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
# Classes whose string arguments are messages: errors, defects that verify lists, findings of a rehearsal, lines of tpudata doctor.
CLASSES = (
    *("UsageError", "SourceError", "BadRecordError", "OutputError"),
    *("StorageError", "StorageUnavailableError", "ServiceError", "DatasetError", "CorruptionError", "FeatureError"),
    *("TpudataError", "ModelFnValueError", "ModelFnTypeError", "CheckpointError", "CheckpointNotFoundError"),
    *("ClusterError", "ClusterConfigError", "TPUConnectionError", "NonFiniteError", "BatchSizeError"),
    *("RehearsalError", "Defect", "Finding", "DoctorLine"),
)
# Functions and classes that take a message, and the class from CLASSES that the message then has.
MAKERS = {
    "reject": "BadRecordError",
    "DocumentError": "BadRecordError",
    "error": "BadRecordError",
    "make_error": "BadRecordError",
    "make_syntax_error": "SourceError",
    "Problem": "BadRecordError",
    "UnreadableValue": "BadRecordError",
    "make_damage_error": "SourceError",
    "reject_split_flag": "UsageError",
    "_describe_denial": "StorageUnavailableError",
    "SkippedRecords": "Defect",
}
# The functions of MAKERS whose arguments are the reason and the fix of one message.
REASON_AND_FIX = {"_describe_denial"}


class Check(NamedTuple):
    """The message of a function of tpudata.checks; `{0}` stands for the first argument of a call, and so on.

    Attributes:
        problem: what went wrong.
        kind: name of the error's class, if no argument names it.
        kind_index: index of the argument that names the class.
        fix: what to do about it.
    """

    problem: str
    kind: str = "UsageError"
    kind_index: int = 5
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
# Classes of Python. Their arguments are messages in the rooms that raise the same classes as TensorFlow's TPUEstimator.
PLAIN = ("ValueError", "TypeError")
# Folders of each section of the page; a file is in the first section that contains it.
SECTIONS = {
    "Converting": ("beam_jobs/",),
    "Reading and checking a dataset": ("tpudata/format/", "tpudata/source/", "tpudata/images/", "tpudata/tokenizers/"),
    "Storage": ("tpudata/storage/",),
    "Feeding": ("tpudata/input/",),
    "Training": ("tpudata/train/", "tpudata/models/", "tpudata/estimator/", "tpudata/devices/"),
    "Commands and installation": ("tpudata/",),
}
# Strings of fewer literal words are parts of other messages.
MIN_WORDS = 3
# Place at the beginning of a message that is only a value; it does not count for the order.
_PLACE = re.compile(r"^(?:(?:…|[A-Z_]+): )+")


class Message(NamedTuple):
    """A message of the code.

    Attributes:
        problem: what went wrong, with the values as names in capitals.
        fix: what to do about it; empty if the message does not say it.
        kind: name of the class.
    """

    problem: str
    fix: str
    kind: str


def main(words: Sequence[str]) -> int:
    """Write the page, or with --check compare it; return the exit code."""
    text = format_page()
    if list(words) == ["--check"]:
        is_equal = PAGE.read_text(encoding="utf-8") == text
        if not is_equal:
            print(f"{PAGE.relative_to(ROOT)} is out of date. Run: .venv/bin/python scripts/_error_index.py")
        return int(not is_equal)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def format_page() -> str:
    """Return the page: its sections, each with its messages in alphabetical order; each message is in one section."""
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
    files = sorted(path for folder in ("beam_jobs", "tpudata") for path in (ROOT / folder).rglob("*.py"))
    # Other modules import public constants.
    public_constants: dict[str, str] = {}
    for path in files:
        constants = _find_constants(ast.parse(path.read_text(encoding="utf-8")))
        public_constants.update({name: text for name, text in constants.items() if not name.startswith("_")})
    earlier_files: set[Path] = set()
    earlier_messages: set[Message] = set()
    for title, rooms in SECTIONS.items():
        section_files = {path for path in files if path.relative_to(ROOT).as_posix().startswith(rooms)} - earlier_files
        earlier_files |= section_files
        messages = {message for path in section_files for message in _find_messages(path, public_constants)}
        messages -= earlier_messages
        earlier_messages |= messages
        parts += [f"## {title}\n", *(_format_entry(message) for message in sorted(messages, key=_make_sort_key)), ""]
    return "\n".join(parts)


def _make_sort_key(message: Message) -> tuple[str, Message]:
    """Return a key that sorts messages by their words without a leading place, then by all their fields."""
    return re.sub(r"\W+", " ", _PLACE.sub("", message.problem)).strip().lower(), message


def _format_entry(message: Message) -> str:
    """Return a message as an entry of a list in Markdown, its problem as code."""
    fence, space = ("``", " ") if "`" in message.problem else ("`", "")
    fix = f" {_escape_prose(message.fix)}" if message.fix else ""
    return f"- {fence}{space}{message.problem}{space}{fence}{fix} ({message.kind})"


def _escape_prose(text: str) -> str:
    """Return prose for Markdown: flags and names with _ as code, and no emphasis, links or HTML."""
    if "`" not in text:
        text = re.sub(r"(?<!`)(--[\w-]+(?:=[^\s,;)]+)?)", r"`\1`", text)
    text = _replace_outside_code(r"(?<!\w)(\w*_\w*(?:\([^)]*\))?)", r"`\1`", text)
    return _replace_outside_code(r"([*<\[\]])", r"\\\1", text)


def _replace_outside_code(pattern: str, replacement: str, text: str) -> str:
    """Replace a pattern in the parts of Markdown that are not code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(pattern, replacement, part) for part in parts)


def _find_constants(tree: ast.Module) -> dict[str, str]:
    """Return the values of a module's string constants by name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _find_messages(path: Path, public_constants: Mapping[str, str]) -> Iterator[Message]:
    """Yield the messages of the calls in a file that make errors.

    Args:
        path: the file.
        public_constants: values of the string constants of all modules by name.
    """
    raises_plain_errors = "estimator" in path.parts or "models" in path.parts
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {**public_constants, **_find_constants(tree)}
    imported_checks = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "tpudata.checks"
        for alias in node.names
    }
    # Strings of the local names at each node; ast.walk yields outer functions first.
    local_texts: dict[ast.AST, dict[str, str]] = {}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        texts = _find_local_texts(function, constants)
        local_texts.update({node: {**local_texts.get(node, {}), **texts} for node in ast.walk(function)})
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in imported_checks and name in CHECKS and isinstance(node.func, ast.Name):
            message = _make_check_message(name, node.args, {**constants, **local_texts.get(node, {})})
            if _has_words(message.problem + message.fix):
                yield message
            continue
        if name not in CLASSES and name not in MAKERS and not (name in PLAIN and raises_plain_errors):
            continue
        # Outside of beam_jobs, `error` is a method of loggers and of other objects.
        if name == "error" and "beam_jobs" not in path.parts:
            continue
        arguments = (*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "reason"))
        argument_texts = [" ".join(_format_literal(argument, constants).split()) for argument in arguments]
        if name in REASON_AND_FIX:
            argument_texts = [". ".join(filter(None, argument_texts))]
        for text in argument_texts:
            if _has_words(text):
                problem, fix = _split_fix(text)
                yield Message(problem, fix, MAKERS.get(name, name))


def _has_words(text: str) -> bool:
    """Return whether a string has enough literal words for a message; names of values, in capitals, do not count."""
    return len(re.findall(r"[a-z]{2,}", re.sub(r"[A-Z_]{2,}", "", text))) >= MIN_WORDS


def _find_local_texts(function: ast.FunctionDef, constants: Mapping[str, str]) -> dict[str, str]:
    """Return the literals that a function assigns to names, by name."""
    texts = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for element, value in pairs:
            if isinstance(element, ast.Name) and (text := _format_literal(value, constants)):
                texts[element.id] = text
    return texts


def _make_check_message(name: str, arguments: Sequence[ast.expr], texts_by_name: Mapping[str, str]) -> Message:
    """Return the message of a call of a check.

    Args:
        name: name of the check.
        arguments: arguments of the call.
        texts_by_name: strings of constants and local names.
    """
    check = CHECKS[name]
    texts = []
    for argument in arguments:
        named_text = texts_by_name.get(argument.id, "") if isinstance(argument, ast.Name) else ""
        texts.append(_format_literal(argument, texts_by_name) or named_text or _format_name(argument))
    problem = check.problem
    if name == "check_integer" and len(arguments) > 3:
        problem = problem.replace("of {2} or more", "from {2} to {3}")
    kind = ast.unparse(arguments[check.kind_index]) if len(arguments) > check.kind_index else check.kind
    # Optional arguments that are not passed are empty; no check has more than 6.
    texts += [""] * 6
    return Message(problem.format(*texts), check.fix.format(*texts), kind)


def _format_literal(expression: ast.expr, constants: Mapping[str, str]) -> str:
    """Return a string literal with the names of its values in capitals; empty for another expression.

    Args:
        expression: the expression.
        constants: strings of constants by name, which replace their names.
    """
    if isinstance(expression, ast.Constant):
        return expression.value if isinstance(expression.value, str) else ""
    if not isinstance(expression, ast.JoinedStr):
        return ""
    parts = []
    for part in expression.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        else:
            assert isinstance(part, ast.FormattedValue)
            name = part.value.id if isinstance(part.value, ast.Name) else ""
            parts.append(constants[name] if name in constants else _format_name(part.value))
    return "".join(parts)


def _format_name(expression: ast.expr) -> str:
    """Return the name of a value in capitals, the value of a constant, or dots for another expression."""
    if isinstance(expression, ast.Constant):
        return str(expression.value)
    # The value that tpudata.error_text.values formats.
    if isinstance(expression, ast.Call) and getattr(expression.func, "id", "") in ("format_value", "shorten_value"):
        expression = expression.args[0]
    name = getattr(expression, "id", getattr(expression, "attr", ""))
    # The name of a private constant says nothing to users.
    return name.upper() if name and not name.startswith("_") else "…"


def _split_fix(text: str) -> tuple[str, str]:
    """Return the problem and the fix of a message: the fix is the sentences after the first, or a clause after a semicolon."""
    # The end of the first sentence, but not in "such as. X" or after a digit or a dot; or a semicolon before a command.
    match = re.search(
        r"(?<!such as)(?<![\d.])\. (?=[A-Z`])|; (?=(?:pass|use|save|store|pack|unpack|run|write|make) )", text
    )
    if match is None:
        return text.rstrip("."), ""
    problem, fix = text[: match.start()], text[match.end() :]
    # The fix is a variable, whose value the page does not know.
    if re.fullmatch(r"[A-Z_]+\.?|…\.?", fix):
        return problem, "The message says what to do."
    return problem, fix[0].upper() + fix[1:].rstrip(".") + "."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
