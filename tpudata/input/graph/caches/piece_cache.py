"""Pieces of an object store on a local disk: the second level of reading, filled while records are read.

A piece is a tensor bundle of TensorFlow, `NUMBER.index` and `NUMBER.data-00000-of-00001`, with one tensor, `records`: string [n],
the records as stored, unpacked. TensorFlow writes a bundle next to its place and renames it, its index last, so that it is whole or
absent, also for processes that read and write the same folder at the same time; and it has checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.console.tables import bytes_text
from tpudata.errors import UsageError
from tpudata.input.dataset_ops import as_written, count_up_to
from tpudata.input.graph.caches.cache import Cache
from tpudata.input.graph.reading.pieces import Pieces
from tpudata.input.graph.reading.read import Keep, ReadRange
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.record_sizes import RecordSizes
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Integers
from tpudata.input.order.order import Order
from tpudata.storage.local.errors import WRITTEN, translate_errors

_TENSOR = "records"
# A file of a piece that is older was left by a killed process: writing a piece does not take this long.
_LEFT_SECONDS = 600
# Characters of patterns: TensorFlow looks for a bundle by its name as a pattern.
_PATTERN = "*?[\\"


class PieceCache(Cache):
    """Cache of stored records in pieces in a folder: a host keeps those that it reads in every epoch.

    Args:
        folder: the user's folder of caches.
        name: name of the split and its records.
        is_elsewhere: whether other processes read them, with separate disks, as the workers of a tf.data service.
    """

    def __init__(self, folder: str, name: str, *, is_elsewhere: bool) -> None:
        self._folder = folder
        self._name = name
        self._is_elsewhere = is_elsewhere

    def keep(self, plan: ReadPlan, order: Order, rows: Rows) -> Keep:
        """Return files that serve ranges from pieces in the folder, and fill it with those that the host reads."""
        assert plan.pieces is not None
        files = PieceFiles.of(self._folder, self._name, plan.pieces, plan.sizes)
        files = files.keep(plan.pieces_of(order.starts(rows)))
        if not self._is_elsewhere:
            files.prepare()
        return files.reads


@dataclasses.dataclass(frozen=True, eq=False)
class PieceFiles:
    """Pieces of a split on a local disk.

    Attributes:
        folder: the folder of these pieces.
        pieces: all pieces of the split.
        sizes: sizes of the records.
        kept: which pieces are kept once they are read, bool [pieces]; others are read from the store if they are not there.
    """

    folder: str
    pieces: Pieces
    sizes: RecordSizes
    kept: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, folder: str, name: str, pieces: Pieces, sizes: RecordSizes) -> PieceFiles:
        """Return the pieces below a user's folder, which keeps none that is not there.

        Args:
            folder: the user's folder.
            name: name of the split and its records.
            pieces: all pieces of the split.
            sizes: sizes of the records.

        Raises:
            UsageError: the folder's name has characters of patterns.
        """
        if any(letter in _PATTERN for letter in folder):
            raise UsageError(
                f"cache={folder!r}: TensorFlow takes {' '.join(_PATTERN)} in a name as a pattern. Pass a folder without these."
            )
        bounds = np.stack([pieces.starts, pieces.stops])
        digest = hashlib.sha256(name.encode() + bounds.tobytes()).hexdigest()[:16]
        return cls(str(Path(folder, f"{name}-pieces-{digest}")), pieces, sizes, np.zeros(len(pieces.starts), bool))

    def keep(self, numbers: Integers) -> PieceFiles:
        """Return the files with some of their pieces kept."""
        return dataclasses.replace(self, kept=np.isin(np.arange(len(self.kept)), numbers))

    def prepare(self) -> None:
        """Make the folder, remove what killed processes have left in it, and check the room for what is missing.

        Raises:
            StorageError: the folder cannot be made.
            UsageError: the pieces do not fit the disk.
        """
        folder = Path(self.folder)
        with translate_errors(WRITTEN, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob("*.tempstate*"):
                # Another process may be done with it meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < time.time() - _LEFT_SECONDS:
                        path.unlink()
            stored_numbers = {path.stem for path in folder.glob("*.index")}
        missing = [number for number in np.flatnonzero(self.kept).tolist() if str(number) not in stored_numbers]
        before = self.sizes.before
        size = int((before(self.pieces.stops[missing]) - before(self.pieces.starts[missing])).sum())
        free = shutil.disk_usage(folder).free
        if size > free:
            raise UsageError(
                f"cache={str(folder.parent)!r}: the records that this host reads take {bytes_text(size)} more, and"
                f" {bytes_text(free)} are free there. Pass a folder on a larger disk, or no cache."
            )

    def reads(self, read: ReadRange) -> ReadRange:
        """Return a function that reads records from here, or from `read`, and then keeps their piece."""
        bounds = tf.constant(np.stack([self.pieces.starts, self.pieces.stops], axis=1))
        kept = tf.constant(self.kept)

        def prefix(number: tf.Tensor) -> tf.Tensor:
            return tf.strings.join([self.folder, tf.strings.as_string(number)], "/")

        def is_there(number: tf.Tensor) -> tf.Tensor:
            return tf.size(tf.io.matching_files(tf.strings.join([prefix(number), ".index"]))) > 0

        def restore(number: tf.Tensor) -> tf.Tensor:
            (records,) = tf.raw_ops.RestoreV2(
                prefix=prefix(number), tensor_names=[_TENSOR], shape_and_slices=[""], dtypes=[tf.string]
            )
            return tf.ensure_shape(records, [None])

        def fetch(number: tf.Tensor) -> tf.Tensor:
            first, last = tf.unstack(tf.gather(bounds, number))
            records = read(first, last)
            save = tf.raw_ops.SaveV2(
                prefix=prefix(number), tensor_names=[_TENSOR], shape_and_slices=[""], tensors=[records]
            )
            with tf.control_dependencies([save]):
                return tf.identity(records)

        def read_records(first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
            number = count_up_to(bounds[:, 0], first[tf.newaxis])[0] - 1
            piece = tf.data.Dataset.from_tensors(number)
            begin = tf.gather(bounds, number)[0]

            def cut(records: tf.Tensor) -> tf.Tensor:
                return records[first - begin : last - begin]

            # A damaged file counts as missing: the store has its records.
            restored = piece.filter(as_written(is_there)).map(as_written(restore)).ignore_errors(log_warning=True)
            fetched = piece.filter(as_written(lambda number: tf.gather(kept, number))).map(as_written(fetch))
            read_anew = piece.map(as_written(lambda _: read(first, last)))
            candidates = restored.concatenate(fetched).map(as_written(cut)).concatenate(read_anew)
            return candidates.take(1).get_single_element()

        return read_records
