"""Errors of tpudata, recovered from what Beam or TensorFlow raised.

Beam's runners and TensorFlow's datasets call this package, and pass its errors on unchanged, as a cause, or only as lines of a
traceback.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from tpudata.errors import BadRecordError, CorruptionError, MissingExtraError, TpudataError

# The line of a traceback that shows an error of tpudata; in a repr of the traceback, the line ends with `\n` as two characters.
_RAISED = re.compile(r"tpudata\.errors\.(\w+): (.*?)(?: \[while running|\\n|\n|$)")
_WHILE_RUNNING = re.compile(r" \[while running '.*", re.DOTALL)
_MISSING_EXTRA_MESSAGE = re.compile(
    r"(?P<feature>.*) needs (?:the \[(?P<extra>[^]]+)\] extra|Apache Beam), which is not installed\. .*", re.DOTALL
)
_CORRUPTION_MESSAGE = re.compile(r"(?P<path>.*?) at byte (?P<offset>\d+): (?P<reason>.*)", re.DOTALL)


def recover_own_error(error: BaseException) -> TpudataError | None:
    """Return the TpudataError that `error` is, was caused by, or quotes in its message; None if there is none."""
    own_cause = find_own_cause(error)
    if own_cause is not None:
        # Beam appends the step in which an error was raised to its message, such as ` [while running 'Read']`.
        return _rebuild(type(own_cause), _WHILE_RUNNING.sub("", str(own_cause)))
    matches = _RAISED.findall(str(error))
    if not matches:
        return None
    # A traceback ends with the error that was raised last.
    name, message = matches[-1]
    return _rebuild(getattr(sys.modules[TpudataError.__module__], name, TpudataError), message)


def find_own_cause(error: BaseException) -> TpudataError | None:
    """Return the TpudataError that `error` is or was caused by; None if there is none."""
    return next((cause for cause in iterate_causes(error) if isinstance(cause, TpudataError)), None)


def iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then the error that it was raised from or during, and so on."""
    # Errors may be each other's causes, so stop at the first one seen before.
    seen_ids: set[int] = set()
    while error is not None and id(error) not in seen_ids:
        yield error
        seen_ids.add(id(error))
        error = error.__cause__ or error.__context__


def _rebuild(error_class: type[TpudataError], message: str) -> TpudataError:
    """Rebuild an error from its class and its message, which may be all that Beam passes on.

    If the arguments of the class cannot be parsed from the message, the error is a plain TpudataError.
    """
    if issubclass(error_class, BadRecordError) and ": rejected: " in message:
        return BadRecordError(message)
    match = _CORRUPTION_MESSAGE.fullmatch(message)
    if issubclass(error_class, CorruptionError) and match:
        return CorruptionError(match["path"], int(match["offset"]), match["reason"])
    match = _MISSING_EXTRA_MESSAGE.fullmatch(message)
    if issubclass(error_class, MissingExtraError) and match:
        return MissingExtraError(match["feature"], match["extra"] or "")
    if issubclass(error_class, (BadRecordError, CorruptionError, MissingExtraError)):
        return TpudataError(message)
    try:
        rebuilt_error = error_class(message)
    # The class has different arguments, whose use may raise anything.
    except Exception:
        return TpudataError(message)
    return rebuilt_error if str(rebuilt_error) == message else TpudataError(message)
