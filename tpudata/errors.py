"""The errors of tpudata.

    TpudataError                  exit code 1: the data or the run failed
    ├── UsageError                exit code 2: the command or the call was wrong
    │   └── MissingExtraError     the feature needs an extra that is not installed
    ├── SourceError               the input cannot be read as described
    │   └── BadRecordError        one input record was rejected
    ├── OutputError               the output cannot be written
    ├── StorageError              a file or object could not be read, listed or written
    │   └── StorageUnavailableError   the store did not answer, or denied permission
    ├── ServiceError              a tf.data service did not start in time, or lost a worker
    └── DatasetError              a dataset on disk is not what it should be
        ├── CorruptionError       bytes differ from what was written; names file and offset
        └── FeatureError          a feature's dtype, shape or name cannot be used; names the feature

`tpudata.estimator` has seven more below TpudataError: TPUConnectionError, ClusterError, RehearsalError, and four with a
second base class: CheckpointError (ValueError), ClusterConfigError (UsageError and ValueError), ModelFnError (TypeError or
ValueError) and NonFiniteError (TensorFlow's NanLossDuringTrainingError).

A message has the form `WHERE: WHAT (got X, expected Y). FIX.` Wrong arguments to the estimator raise ValueError and TypeError, as
in TensorFlow's TPUEstimator.
"""

import re

from tpudata.installation import format_install_command

_SOURCE_AND_OFFSET = re.compile(r"(?P<source>.*) at byte (?P<offset>\d+)", re.DOTALL)


class TpudataError(Exception):
    """Base of every error that tpudata raises on purpose; the command line prints it without a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        # A message may contain a file name that is not UTF-8, which runners cannot send from a worker.
        return super().__str__().encode(errors="backslashreplace").decode()


class UsageError(TpudataError):
    """The command line or an argument is wrong, or does not fit this installation."""

    exit_code = 2


class MissingExtraError(UsageError, ImportError):
    """A feature needs packages that are not installed; the message names what to install.

    Args:
        feature: the feature, as the message names it.
        extra: name of the extra that it needs; empty for Apache Beam, which tpudata itself requires.
    """

    def __init__(self, feature: str, extra: str) -> None:
        needed = f"the [{extra}] extra" if extra else "Apache Beam"
        super().__init__(f"{feature} needs {needed}, which is not installed. Run: {format_install_command(extra)}")
        self.feature = feature
        self.extra = extra

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.feature, self.extra)


class SourceError(TpudataError):
    """The input cannot be read as described: nothing found, an unknown layout, duplicate keys."""


class BadRecordError(SourceError):
    """One input record was rejected.

    Attributes:
        source: path of the file (and member) that holds the record.
        reason: why it was rejected; completes `rejected: ...` in the message.
        offset: byte offset of the record in `source`, or None if the whole file is the record.
        key: the record's stable name if `source` and `offset` may move (a row of a list), or None.

    Args:
        source: path of the file (and member); without a reason, the whole message, which is all that Beam passes on of an error.
        reason: why it was rejected; None if `source` is the message.
        offset: byte offset of the record in the file, or None.
        key: the record's stable name, or None.
    """

    def __init__(
        self, source: str, reason: str | None = None, offset: int | None = None, key: str | None = None
    ) -> None:
        if reason is None:
            # Recover the attributes from the message, see the class's docstring.
            message = source
            source, _, reason = message.partition(": rejected: ")
            if match := _SOURCE_AND_OFFSET.fullmatch(source):
                source, offset = match["source"], int(match["offset"])
        else:
            message = f"{source if offset is None else f'{source} at byte {offset}'}: rejected: {reason}"
        super().__init__(message)
        self.source = source
        self.reason = reason
        self.offset = offset
        self.key = key

    def __reduce__(self) -> tuple[type, tuple[str, str, int | None, str | None]]:
        # Errors are sent between processes, and the default rebuilds them only from the message.
        return type(self), (self.source, self.reason, self.offset, self.key)


class OutputError(TpudataError):
    """The output cannot be written to the requested place: it is not empty, or there is no space or permission."""


class StorageError(TpudataError):
    """A file or object could not be read, listed or written."""


class StorageUnavailableError(StorageError):
    """The store gave no valid answer until the retries ended, or denied permission.

    This is not a fact about the file or object, so it ends a job and never counts as a bad record.
    """


class ServiceError(TpudataError):
    """The dispatcher or a worker of a tf.data service did not start in time, or was lost."""


class DatasetError(TpudataError):
    """A dataset on disk is incomplete or unknown: no manifest, an unknown version, a missing shard."""


class CorruptionError(DatasetError):
    """Bytes on disk differ from what was written.

    Attributes:
        path: the file.
        offset: byte offset in the file at which the damage was noticed.
        reason: what is wrong there.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.path, self.offset, self.reason)


class FeatureError(DatasetError):
    """A feature's name, dtype or shape cannot be used; the message names the feature and the fix."""
