"""Errors of tpudata, recovered from what Beam or TensorFlow raised.

Beam's runners and TensorFlow's datasets call this package, and pass its errors on as they are, as a cause, or only as the text of
a traceback.
"""

from __future__ import annotations

import re

from tpudata import errors
from tpudata.errors import BadRecordError, CorruptionError, MissingExtraError, TpudataError

_RAISED = re.compile(r"tpudata\.errors\.(\w+): (.*?)(?: \[while running|\\n|\n|$)")
_WHILE_RUNNING = re.compile(r" \[while running '.*", re.DOTALL)
# Place in the messages of BadRecordError and CorruptionError.
_PLACED = re.compile(r"(?P<path>.*?)(?: at byte (?P<offset>\d+))?: (?P<reason>rejected: .*|(?<=\d: ).*)", re.DOTALL)
_REJECTED = "rejected: "


def own_error(error: BaseException) -> TpudataError | None:
    """Return the TpudataError that `error` is, was caused by, or has in its text; None if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TpudataError):
            return _rebuilt(type(cause), _WHILE_RUNNING.sub("", str(cause)))
        cause = cause.__cause__ or cause.__context__
    found = _RAISED.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    return _rebuilt(getattr(errors, name, TpudataError), message)


def _rebuilt(kind: type[TpudataError], message: str) -> TpudataError:
    """Rebuild an error from its class and its text, which may be all that Beam passes on."""
    placed = _PLACED.fullmatch(message)
    if issubclass(kind, BadRecordError) and placed and placed["reason"].startswith(_REJECTED):
        offset = None if placed["offset"] is None else int(placed["offset"])
        return BadRecordError(placed["path"], placed["reason"].removeprefix(_REJECTED), offset)
    if issubclass(kind, CorruptionError) and placed and placed["offset"] is not None:
        return CorruptionError(placed["path"], int(placed["offset"]), placed["reason"])
    if issubclass(kind, (BadRecordError, CorruptionError, MissingExtraError)):
        return TpudataError(message)
    return kind(message)
