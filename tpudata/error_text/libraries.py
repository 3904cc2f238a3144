"""Patterns of the error messages of TensorFlow 2.20 and 2.21, jax 0.10 and libtpu 0.0.42, and parsers for them.

tests/error_text/test_libraries.py provokes each error with the installed versions: if a new one words it differently, the
test of its pattern fails.
"""

import re
from typing import Any

from tpudata.error_text.lines import first_line

# tf.data: the name of a dataset that failed (see `tpudata.format.read_errors`), and the fault of its files.
DATASET_NAME = re.compile(r"passed to tpudata_(\w+) transformation")
DAMAGED_RECORD = re.compile(r"(?:corrupted|truncated) record at (\d+)")
DAMAGED_BLOCK = re.compile(r"inflate\(\) failed|Reading from zlib|incorrect data check|invalid \w+|unexpected end of")
SHORT_FILE = re.compile(r"A file has fewer records than its index says|Excluding the header|Dataset was empty")
UNREADABLE_FILE = re.compile(r"transformation with iterator: \S+: (?P<path>[^\n]+?); (?P<reason>[A-Z][^\n\[]+)")
GCS_FAILURE = re.compile(
    r": (?P<reason>Error executing an HTTP request: [^\n]*)\n\s*when reading (?P<path>gs://[^\n]+)"
)

# The parser of Examples: a record that is not an Example, and Examples whose features differ from the schema.
NO_EXAMPLE = re.compile("Could not parse example input")
_KEY = r"Name: <unknown>, Key: (?P<name>[^\n]*?), Index: \d+\. +"
ABSENT_FEATURE = re.compile(
    r"Name: <unknown>, Feature: ([^\n]*?) \(data type: \w+\) is required but could not be found"
)
OTHER_COUNT = re.compile(
    _KEY + r"Number of \w+ values != expected\. +Values size: (?P<count>\d+) but output shape: (?P<shape>\[[^\n\]]*\])"
)
OTHER_KIND = re.compile(_KEY + r"Data types don't match\.[^\n]*?xpected type: (?P<type>\w+)")
OTHER_VALUES = re.compile(_KEY + "Can't parse serialized Example")

# Decoders of images, and the check of a decoded one's shape.
NO_IMAGE = re.compile(
    r"(Invalid (JPEG|PNG|GIF) data|Unknown image file format|Incomplete bmp|Input size should match \(header_size"
    r"|Failed to decode WebP)[^\n\[{]*"
)
OTHER_IMAGE_SHAPE = re.compile(
    r"Shape of tensor \S*Decode(?:Image|Png)\S* (?P<shape>\[\S*\]) is not compatible with expected shape (?P<expected>\[\S*\])"
)

# Messages of the reader's own checks in its graph: in `tpudata.input.decode.parse`, and in
# `tpudata.input.graph.pipelines.service` on the streams of a tf.data service.
CHECKED_BYTES = re.compile(
    r"\[Feature (?P<name>[^\n]*?): a record (?P<fault>does not have the (?P<size>\d+) bytes of [^\n]*? values)\."
)
CHECKED_VALUE = re.compile(
    r"\[(Feature [^\n]*?: a (?:value does not fit|record is|record has|label map|mask) [^\n]*?\.)\]"
)
CHECKED_SERVICE = re.compile(r"\[(tf\.data service[^\n]*?\.)\]")

# Python functions that are called eagerly or traced. The first is part of the errors of make_initializable_iterator, of
# placeholders and of the queues of tf.compat.v1.train.
NEEDS_GRAPH = re.compile("eager")
EAGER_CAPTURE = re.compile("capture an EagerTensor")
NEW_VARIABLE = re.compile("only supports singleton tf.Variables")

# A loss of sparse labels.
LABEL_OUTSIDE = re.compile(
    r"Received a label value of (?P<label>-?\d+) which is outside the valid range of \[0, (?P<end>\d+)\)"
)

# XLA: an operation without a compiled form by its type and location, and three mistakes.
NO_KERNEL = re.compile(r"(\w+) \(No registered '\w+' OpKernel[^{]*(?:\{\{function_node [^}]+\}\})?(\{\{node [^}]+\}\})")
NO_CONSTANT = re.compile("compile-time constant")
NO_LIST_SIZE = re.compile("fixed tensor list size")
OTHER_LOOP_SHAPE = re.compile("loop body do not match")
_NODES = (re.compile(r"\{\{node ([^}]+)\}\}"), re.compile(r"node `([^`]+)`"))

# PJRT: exchanges of devices after a process has ended, any error of the runtime, and a TPU that another process has.
LOST_EXCHANGE = re.compile(r"Gloo|NCCL|[Cc]ollective|[Cc]oordination ?[Ss]ervice|Connection (reset|closed) by peer")
RUNTIME_STATUS = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")
TPU_IN_USE = re.compile(r"already in use by process with pid (\d+)|lockfile|[Dd]evice or resource busy")

# libtpu's compiler: out of memory, and the bytes needed and available.
NO_DEVICE_MEMORY = re.compile("RESOURCE_EXHAUSTED")
_SIZE = r"([\d.]+)([KMGT]?)"
_SIZES = (
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# In a session, the reason of an operation's error follows the line that names the operation.
_REASON_IN_SESSION = re.compile(r"\nNode: .*\n(.*)")
# The operation's location in the graph, which is before the reason, and its type, which is after it.
_OPERATION_LOCATION = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\]")


def find_reason(error: Any) -> str:
    """Return the reason of a tf.errors.OpError in one line, without the location and the type of the operation."""
    match = _REASON_IN_SESSION.search(error.message)
    line = match[1] if match else first_line(error.message)
    return _OPERATION_LOCATION.sub("", line)


def find_nodes(text: str, scope: str) -> list[str]:
    """Return the names of operations in a message of TensorFlow or XLA.

    Args:
        text: the message.
        scope: name scope that the graph was copied into, which is removed from the names.
    """
    return [name.removeprefix(f"{scope}/") for pattern in _NODES for name in pattern.findall(text)]


def find_xla_reason(text: str, scope: str) -> str:
    """Return the first line of XLA's message.

    Args:
        text: the message, as TensorFlow passes it on.
        scope: name scope that the graph was copied into, which is removed from names of operations.
    """
    # TensorFlow puts "Failed to ...: '" before XLA's message.
    xla_message = text.partition("'")[2] if text.startswith("Failed ") else text
    return first_line(xla_message).replace(f"`{scope}/", "`")


def find_memory_sizes(text: str) -> tuple[float, float] | None:
    """Return the bytes that a program needs and the bytes that a device has, from libtpu's out-of-memory message.

    Returns None for a message without these sizes.
    """
    for pattern in _SIZES:
        match = pattern.search(text)
        if match is not None:
            needed, needed_unit, available, available_unit = match.groups()
            return float(needed) * _UNITS[needed_unit], float(available) * _UNITS[available_unit]
    return None
