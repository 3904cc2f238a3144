"""Reading the row groups of a Parquet file with pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

from beam_jobs.parquet_files.footer import Footer, make_damage_error, make_encryption_error, read_footer
from beam_jobs.parquet_files.pages import estimate_value_bytes
from beam_jobs.references.ranged_file import open_ranged
from tpudata.console.tables import count_text
from tpudata.error_text.lines import one_line
from tpudata.errors import CorruptionError, SourceError

# Maximum size of the values of a batch, in bytes, unless a single row is larger.
_MAX_BATCH_BYTES = 1 << 26


class ParquetReader:
    """An open file; see `open_parquet`.

    Args:
        path: path of the file.
        footer: its footer. pyarrow's own accessors abort the process if the footer is damaged.
        file: the file, open in pyarrow.

    Attributes:
        footer: footer of the file.
        schema: the columns and their types, as pyarrow reads them.
    """

    def __init__(self, path: str, footer: Footer, file: Any) -> None:
        self.footer = footer
        self.schema = file.schema_arrow
        self._path = path
        self._file = file

    def read_batches(self, group_index: int, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        """Yield the rows of a row group in record batches of pyarrow, each of at most 64 MB or of one row.

        Args:
            group_index: index of the row group.
            names: the columns, or `COLUMN.FIELD` for a field of a struct.
            max_rows: maximum number of rows in a batch.

        Raises:
            CorruptionError: a column is truncated or damaged, or the number of rows is wrong; the message names the column if it is
                known.
            SourceError: a column is encrypted, or a page is too large.
        """
        batch_row_count = self._count_batch_rows(group_index, names, max_rows)
        read_count = 0
        expected_count = self.footer.groups[group_index].row_count
        for batch in self._read(group_index, names, batch_row_count):
            read_count += batch.num_rows
            if read_count > expected_count:
                break
            yield batch
        if read_count != expected_count:
            got = "more rows" if read_count > expected_count else count_text(read_count, "row")
            raise make_damage_error(self._path, f"row group {group_index} has {got} (expected {expected_count:,})")

    def check(self, group_index: int, names: Sequence[str], max_rows: int) -> None:
        """Read the columns of a row group, only to raise what `read_batches` raises."""
        for _ in self.read_batches(group_index, names, max_rows):
            pass

    def _count_batch_rows(self, group_index: int, names: Sequence[str], max_rows: int) -> int:
        """Return the row count of a batch, 1 or more: `max_rows`, or as many as 64 MB hold; raise what `read_batches` raises."""
        row_bytes = 0
        # For `COLUMN.FIELD` the whole struct counts: chunks have only the name of their column.
        structs = {name.partition(".")[0] for name in names}
        for chunk in self.footer.groups[group_index].chunks:
            if chunk.column in names or chunk.column in structs:
                if chunk.is_encrypted:
                    raise make_encryption_error(self._path, chunk.column)
                row_bytes += estimate_value_bytes(self._path, chunk)
        return max(1, min(max_rows, _MAX_BATCH_BYTES // max(1, row_bytes)))

    def _read(self, group_index: int, names: Sequence[str], batch_row_count: int) -> Iterator[Any]:
        """Yield batches of columns; if reading fails, read the columns one by one, so that the error names the damaged column."""
        try:
            yield from self._file.iter_batches(
                batch_row_count, row_groups=[group_index], columns=list(names), use_threads=False
            )
        except MemoryError:
            # Some of pyarrow's exceptions are MemoryErrors, and the file is not to blame.
            raise
        except (pyarrow.ArrowException, OSError) as error:
            if len(names) == 1:
                raise _make_read_error(self._path, error, f"column {names[0]!r}: ") from None
            # pyarrow does not name the column, so each is read again.
            for name in names:
                for _ in self._read(group_index, [name], batch_row_count):
                    pass
            raise _make_read_error(self._path, error) from None


@contextlib.contextmanager
def open_parquet(path: str, size: int) -> Iterator[ParquetReader]:
    """Yield an open Parquet file, local or on gs://.

    Args:
        path: path of the file.
        size: its size in bytes.

    Raises:
        CorruptionError: the file is truncated or damaged.
        SourceError: the file is encrypted, has a column name that is not UTF-8, or a form that pyarrow does not read.
    """
    footer = read_footer(path, size)
    with open_ranged(path, size) as raw:
        try:
            file = parquet.ParquetFile(raw, pre_buffer=False, page_checksum_verification=True)
            group_count, row_count = file.metadata.num_row_groups, file.metadata.num_rows
            reader = ParquetReader(path, footer, file)
        except MemoryError:
            # Some of pyarrow's exceptions are MemoryErrors, and the file is not to blame.
            raise
        except UnicodeDecodeError:
            raise SourceError(f"{path}: the name of a column is not UTF-8. Rename the column.") from None
        except (pyarrow.ArrowException, OSError) as error:
            raise _make_read_error(path, error) from None
        if (group_count, row_count) != (len(footer.groups), footer.row_count):
            raise make_damage_error(
                path,
                f"pyarrow finds {count_text(group_count, 'row group')} of {count_text(row_count, 'row')} in its footer",
            )
        yield reader


def _make_read_error(path: str, error: Exception, origin: str = "") -> CorruptionError | SourceError:
    """Return the error for an error of pyarrow: SourceError if pyarrow does not support the file, else CorruptionError.

    `origin` precedes the reason, and names the column if it is known.
    """
    reason = f"{origin}{one_line(error)}"
    if isinstance(error, pyarrow.ArrowNotImplementedError):
        return SourceError(f"{path} is of a form of Parquet that pyarrow does not read: {reason}. Write it again.")
    return make_damage_error(path, reason)
