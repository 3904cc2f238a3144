"""Errors of tpudata, recovered from what Beam or TensorFlow raised.

Beam's runners and TensorFlow's datasets call this package, and pass its errors on as they are, as a cause, or only as the text of
a traceback.
"""

from __future__ import annotations

import re

from tpudata import errors
from tpudata.console.tables import counted
from tpudata.errors import (
    BadRecordError,
    CorruptionError,
    DatasetError,
    FeatureError,
    MissingExtraError,
    ServiceError,
    TpudataError,
)
from tpudata.format.read_errors import Odd, odd_record_error, read_error

_RAISED = re.compile(r"tpudata\.errors\.(\w+): (.*?)(?: \[while running|\\n|\n|$)")
_WHILE_RUNNING = re.compile(r" \[while running '.*", re.DOTALL)
# Place in the messages of BadRecordError and CorruptionError.
_PLACED = re.compile(r"(?P<path>.*?)(?: at byte (?P<offset>\d+))?: (?P<reason>rejected: .*|(?<=\d: ).*)", re.DOTALL)
_REJECTED = "rejected: "
# Messages of TensorFlow's image decoders.
_NO_IMAGE = re.compile(
    r"(Invalid (JPEG|PNG|GIF) data|Unknown image file format|Incomplete bmp|Input size should match \(header_size"
    r"|Failed to decode WebP)[^\n\[{]*"
)
# Message of its parser for a record that is not an Example.
_NO_EXAMPLE = "Could not parse example input"
# Messages for an Example of other features.
_NO_FEATURE = re.compile(r"Name: <unknown>, Feature: ([^\n]*?) \(data type: \w+\) is required but could not be found")
_ODD_COUNT = re.compile(
    r"Name: <unknown>, Key: ([^\n]*?), Index: \d+\. +Number of \w+ values != expected\. +Values size: (\d+) but output shape:"
    r" (\[[^\n\]]*\])"
)
_ODD_KIND = re.compile(r"Name: <unknown>, Key: ([^\n]*?), Index: \d+\. +Data types don't match")
_ODD_VALUES = re.compile(r"Name: <unknown>, Key: ([^\n]*?), Index: \d+\. +Can't parse serialized Example")
_ODD_IMAGE = re.compile(
    r"Shape of tensor \S*Decode(?:Image|Png)\S* (\[\S*\]) is not compatible with expected shape (\[\S*\])"
)
# Messages of the checks in the reader's graph; see `tpudata.input.decode.parse`.
_ODD_BYTES = re.compile(r"\[Feature ([^\n]*?): a record (does not have the \d+ bytes of [^\n]*? values)\.")
_MISFIT = re.compile(r"\[(Feature [^\n]*?: a (?:value does not fit|record is|record has|label map|mask) [^\n]*?\.)\]")
# Messages of the checks of a tf.data service's streams; see `tpudata.input.graph.pipelines.service`.
_SERVICE = re.compile(r"\[(tf\.data service[^\n]*?\.)\]")
_PLAIN = " For files without a manifest, tpudata.format.read_records(FILE) yields (offset, record), to try one by one."


def own_error(error: BaseException) -> TpudataError | None:
    """Return the TpudataError that `error` is, was caused by, or has in its text; None if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TpudataError):
            return _rebuild(type(cause), _WHILE_RUNNING.sub("", str(cause)))
        cause = cause.__cause__ or cause.__context__
    matches = _RAISED.findall(str(error))
    if not matches:
        return None
    name, message = matches[-1]
    return _rebuild(getattr(errors, name, TpudataError), message)


def reader_error(error: BaseException, *, may_be_plain: bool = False) -> TpudataError | None:
    """Return `own_error`, or else an error that tells how to find a record that TensorFlow cannot parse or decode.

    Args:
        error: the raised error.
        may_be_plain: whether the records may be in files without a manifest.
    """
    translated = own_error(error)
    if translated is not None:
        return translated
    # TensorFlow's message contains the record, which Python cannot decode if it is not text.
    text = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    lost = _SERVICE.search(text)
    translated = read_error(text) if lost is None else ServiceError(lost[1])
    if translated is not None:
        return translated
    plain = _PLAIN if may_be_plain else ""
    where = (
        "TensorFlow does not say which: `tpudata verify DIR` names the file and the offset. Convert the dataset again."
    )
    if _NO_EXAMPLE in text:
        return DatasetError(f"a record is not a tf.train.Example. {where}{plain}")
    odd = _odd_feature(text)
    if odd is not None:
        feature, difference, kind = odd
        try:
            translated = odd_record_error(text, feature, difference, kind)
        except TpudataError as error:
            translated = error
        return translated or FeatureError(f"feature {feature!r} of a record {difference}. {where}{plain}")
    match = _NO_IMAGE.search(text)
    if match is not None:
        return DatasetError(
            f"an encoded image does not decode: {match[0].strip().rstrip('.')}. TensorFlow does not say which: `tpudata verify DIR"
            " --decode` names the file and the offset. Convert the dataset again with --check decode, which rejects such"
            f" images.{plain}"
        )
    match = _ODD_IMAGE.search(text)
    if match is not None:
        varies = " In features= of files without a manifest, None stands for what varies, with images=tpudata.Images(size=...)."
        return FeatureError(
            f"an encoded image is {match[1]}, and its feature says {match[2]}. Convert the dataset again."
            f"{varies if may_be_plain else ''}"
        )
    misfit = _MISFIT.search(text)
    return None if misfit is None else FeatureError(misfit[1])


def _odd_feature(text: str) -> tuple[str, str, Odd] | None:
    """Return the feature that does not fit, what is wrong with it in words, and the kind of the mistake."""
    match = _NO_FEATURE.search(text)
    if match is not None:
        return match[1], "is not in the record", "absent"
    match = _ODD_KIND.search(text)
    if match is not None:
        return match[1], "has values of another kind", "kind"
    match = _ODD_VALUES.search(text)
    if match is not None:
        return match[1], "has another number of values", "count"
    match = _ODD_COUNT.search(text)
    if match is not None:
        return match[1], f"has {counted(int(match[2]), 'value')}, and not those of shape {match[3]}", "count"
    match = _ODD_BYTES.search(text)
    return None if match is None else (match[1], match[2], "count")


def _rebuild(kind: type[TpudataError], message: str) -> TpudataError:
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
