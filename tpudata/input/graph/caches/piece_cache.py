"""Pieces of an object store on a local disk: the second level of reading, filled while records are read.

A piece is a tensor bundle of TensorFlow, `NUMBER.index` and `NUMBER.data-00000-of-00001`, with one tensor, `records`: string [n],
the records as stored, unpacked. TensorFlow writes a bundle to temporary files and renames them, its index last, so that it is
complete or absent even if several processes use the folder. It has checksums.
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
from tpudata.input.dataset_ops import count_up_to, without_autograph
from tpudata.input.graph.caches.cache import Cache
from tpudata.input.graph.reading.pieces import Pieces
from tpudata.input.graph.reading.read import CacheWrapper, ReadRange
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.record_sizes import RecordSizes
from tpudata.input.options.hosts import Rows
from tpudata.input.order.chunks import Integers
from tpudata.input.order.order import Order
from tpudata.storage.local.errors import WRITTEN, translate_errors

_TENSOR = "records"
# Age after which a temporary file belongs to a killed process: writing a piece is faster.
_STALE_SECONDS = 600
# Characters that the folder's path may not contain: TensorFlow matches the path of a bundle as a pattern.
_PATTERN_CHARACTERS = "*?[\\"


class PieceCache(Cache):
    """Cache of pieces of stored records in a folder: a host caches the pieces that it reads in every epoch.

    Args:
        folder: the user's folder of caches.
        name: name of the split and a digest of its records.
        is_read_elsewhere: whether other processes with separate disks, such as workers of a tf.data service, read the records.
    """

    def __init__(self, folder: str, name: str, *, is_read_elsewhere: bool) -> None:
        self._folder = folder
        self._name = name
        self._is_read_elsewhere = is_read_elsewhere

    def choose_wrapper(self, plan: ReadPlan, order: Order, rows: Rows) -> CacheWrapper:
        """Return a wrapper for read functions: it reads saved pieces, and saves the pieces that the host reads in every epoch.

        Prepares the folder of the pieces, unless it is on other machines.

        Raises:
            StorageError: the folder cannot be made.
            UsageError: the pieces do not fit the disk, or the folder's path contains a wildcard or a backslash.
        """
        assert plan.pieces is not None
        files = PieceFiles.open(self._folder, self._name, plan.pieces, plan.sizes)
        files = files.select_kept(plan.find_pieces(order.list_first_records(rows)))
        # Folders on the disks of other processes cannot be prepared from here.
        if not self._is_read_elsewhere:
            files.prepare()
        return files.wrap_read


@dataclasses.dataclass(frozen=True, eq=False)
class PieceFiles:
    """Pieces of a split on a local disk.

    Attributes:
        folder: the folder of these pieces.
        pieces: all pieces of the split.
        sizes: sizes of the records.
        is_kept: whether each piece is saved once it is read, bool [pieces].
    """

    folder: str
    pieces: Pieces
    sizes: RecordSizes
    is_kept: npt.NDArray[np.bool_]

    @classmethod
    def open(cls, folder: str, name: str, pieces: Pieces, sizes: RecordSizes) -> PieceFiles:
        """Return the pieces in a user's folder; missing ones are only saved if `select_kept` selects them.

        Args:
            folder: the user's folder.
            name: name of the split and a digest of its records.
            pieces: all pieces of the split.
            sizes: sizes of the records.

        Raises:
            UsageError: the folder's path contains a wildcard or a backslash.
        """
        if any(character in _PATTERN_CHARACTERS for character in folder):
            raise UsageError(
                f"cache={folder!r}: TensorFlow takes {' '.join(_PATTERN_CHARACTERS)} in a name as a pattern. Pass a folder without"
                " these."
            )
        bounds = np.stack([pieces.firsts, pieces.stops])
        digest = hashlib.sha256(name.encode() + bounds.tobytes()).hexdigest()[:16]
        none_kept = np.zeros(len(pieces.firsts), bool)
        return cls(str(Path(folder, f"{name}-pieces-{digest}")), pieces, sizes, none_kept)

    def select_kept(self, indices: Integers) -> PieceFiles:
        """Return these files, with the pieces at `indices` saved once they are read."""
        return dataclasses.replace(self, is_kept=np.isin(np.arange(len(self.is_kept)), indices))

    def prepare(self) -> None:
        """Make the folder, remove temporary files of killed processes, and check that missing pieces fit the disk.

        Raises:
            StorageError: the folder cannot be made.
            UsageError: the pieces do not fit the disk.
        """
        folder = Path(self.folder)
        with translate_errors(WRITTEN, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.glob("*.tempstate*"):
                # Another process may have removed the file.
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < time.time() - _STALE_SECONDS:
                        path.unlink()
            stored_pieces = {path.stem for path in folder.glob("*.index")}
        missing = [piece for piece in np.flatnonzero(self.is_kept).tolist() if str(piece) not in stored_pieces]
        begins = self.sizes.sum_bytes_before(self.pieces.firsts[missing])
        ends = self.sizes.sum_bytes_before(self.pieces.stops[missing])
        size = int((ends - begins).sum())
        free = shutil.disk_usage(folder).free
        if size > free:
            raise UsageError(
                f"cache={str(folder.parent)!r}: the records that this host reads take {bytes_text(size)} more, and"
                f" {bytes_text(free)} are free there. Pass a folder on a larger disk, or no cache."
            )

    def wrap_read(self, read: ReadRange) -> ReadRange:
        """Return a function that reads a range of records from the file of its piece.

        Without the file, `read` reads the whole piece, which is then saved, or only the range if the piece is not kept.
        """
        bounds = tf.constant(np.stack([self.pieces.firsts, self.pieces.stops], axis=1))
        is_kept = tf.constant(self.is_kept)

        def make_prefix(piece: tf.Tensor) -> tf.Tensor:
            """Return the common part of the paths of a piece's two files."""
            return tf.strings.join([self.folder, tf.strings.as_string(piece)], "/")

        def has_piece(piece: tf.Tensor) -> tf.Tensor:
            return tf.size(tf.io.matching_files(tf.strings.join([make_prefix(piece), ".index"]))) > 0

        def restore(piece: tf.Tensor) -> tf.Tensor:
            """Return the records of a whole piece from its files."""
            (records,) = tf.raw_ops.RestoreV2(
                prefix=make_prefix(piece), tensor_names=[_TENSOR], shape_and_slices=[""], dtypes=[tf.string]
            )
            return tf.ensure_shape(records, [None])

        def fetch_and_save(piece: tf.Tensor) -> tf.Tensor:
            """Return the records of a whole piece once they are saved."""
            first, stop = tf.unstack(tf.gather(bounds, piece))
            records = read(first, stop)
            save = tf.raw_ops.SaveV2(
                prefix=make_prefix(piece), tensor_names=[_TENSOR], shape_and_slices=[""], tensors=[records]
            )
            with tf.control_dependencies([save]):
                return tf.identity(records)

        def read_records(first: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
            """Return the records [first, stop), which lie in one piece, as `ReadRange` does."""
            piece = count_up_to(bounds[:, 0], first[tf.newaxis])[0] - 1
            piece_dataset = tf.data.Dataset.from_tensors(piece)
            piece_first = tf.gather(bounds, piece)[0]

            def slice_range(records: tf.Tensor) -> tf.Tensor:
                return records[first - piece_first : stop - piece_first]

            # Datasets of one element, or of none if the file is missing or the piece is not kept. tf.data computes only the first
            # element. A damaged file counts as missing: the store has its records.
            restored = (
                piece_dataset.filter(without_autograph(has_piece))
                .map(without_autograph(restore))
                .ignore_errors(log_warning=True)
            )
            fetched = piece_dataset.filter(without_autograph(lambda piece: tf.gather(is_kept, piece))).map(
                without_autograph(fetch_and_save)
            )
            uncached = piece_dataset.map(without_autograph(lambda _: read(first, stop)))
            # The file of the piece, the whole piece to save it, or only the range: the first of these that exists is taken.
            candidates = restored.concatenate(fetched).map(without_autograph(slice_range)).concatenate(uncached)
            return candidates.take(1).get_single_element()

        return read_records
