"""Captions of Flickr8k and Flickr30k, and of CSV files like those: any number for a picture.

    1000268201_693b08cb0e.jpg#0\\tA child in a pink dress .         Flickr8k.token.txt, results_20130124.token
    image_name| comment_number| comment                             Flickr30k: results.csv
    1000092795.jpg| 0| Two young guys look at their hands .
    2199200615.jpg| 4   A dog runs across the grass .           the one row of it without the second |
    image,caption                                                   captions.txt, and other CSV files
    1000268201_693b08cb0e.jpg,A child in a pink dress .

Sources: https://hockenmaier.cs.illinois.edu/8k-pictures.html and https://shannon.cs.illinois.edu/DenotationGraph/.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation
from beam_jobs.annotations.files.picture_parts import group_parts
from beam_jobs.annotations.files.rows import Line, parse_table_columns, read_table_rows, read_text_lines
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from tpudata.errors import BadRecordError

# A row of a .token file, a row of results.csv, and the columns of results.csv.
_TOKEN_FILE_ROW = re.compile(r"(?P<picture>[^\t]+)#\d+\t(?P<caption>.*\S)")
_NUMBERED_ROW = re.compile(r"(?P<picture>[^|]*[^|\s])\s*\|\s*\d+(?:\s*\||\s)\s*(?P<caption>.*\S)")
_NUMBERED_COLUMNS = ("image_name", "comment_number", "comment")
_TOKEN_FILE_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?[^\t\r\n]+#\d+\t[^\r\n]*\S")
# Names of the columns of other tables, in order of precedence.
_PICTURE_COLUMNS = ("image", "image_name", "filename", "image_path")
_CAPTION_COLUMNS = ("caption", "comment", "captions")
_DELIMITERS = (",", "|", "\t")


@dataclasses.dataclass(frozen=True)
class CaptionsForm(AnnotationForm):
    """A file with a row for each caption.

    Attributes:
        path: path of the file of captions.
        delimiter: the character between two cells; empty for rows of NAME#NUMBER, and for rows of Flickr30k's results.csv.
        picture_column: column of the picture's name.
        caption_column: column of the caption.
        is_numbered: whether rows are those of Flickr30k's results.csv.
    """

    path: str
    delimiter: str = ""
    picture_column: str = ""
    caption_column: str = ""
    is_numbered: bool = False
    title = "captions (Flickr8k, Flickr30k, CSV with image and caption)"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> CaptionsForm | None:
        """Return the form if `head`, the start of the file, looks like a file of captions; None otherwise."""
        if _TOKEN_FILE_HEAD.match(head):
            return cls(path)
        for delimiter in _DELIMITERS:
            columns = parse_table_columns(head, delimiter)
            if delimiter == "|" and columns == _NUMBERED_COLUMNS:
                # The file is not read as a table, since one row of Flickr30k's file lacks a delimiter.
                return cls(path, is_numbered=True)
            picture_column = next((column for column in _PICTURE_COLUMNS if column in columns), "")
            caption_column = next((column for column in _CAPTION_COLUMNS if column in columns), "")
            if picture_column and caption_column:
                return cls(path, delimiter, picture_column, caption_column)
        return None

    def list_parts(self) -> Iterable[str]:
        """Return the file, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the captions of each picture, in the order of first appearance."""
        del names
        if self.delimiter:
            return group_parts(self._read_table(part))
        return group_parts(_read_numbered_rows(part) if self.is_numbered else _read_token_file(part))

    def _read_table(self, path: str) -> Iterator[tuple[str, Annotated]]:
        """Yield (picture, annotation with one caption) for each row, or (picture or unique key, error) for a bad row."""
        # Captions hold plain quotation marks, which quote cells only in tables with commas.
        for row in read_table_rows(path, self.delimiter, has_quotes=self.delimiter == ","):
            if isinstance(row, BadRecordError):
                # The message names the line, so no other row has this key.
                yield str(row), row
                continue
            picture, caption = row.cells[self.picture_column], row.cells[self.caption_column]
            if picture and caption:
                yield picture, ImageAnnotation(picture, row.place, captions=(caption,))
            else:
                yield (
                    picture or str(row.place),
                    row.place.make_error("no caption" if picture else "no picture", picture),
                )


def _read_token_file(path: str) -> Iterator[tuple[str, Annotated]]:
    """Yield what `_match_lines` yields for a .token file of Flickr8k or Flickr30k."""
    return _match_lines(read_text_lines(path), _TOKEN_FILE_ROW, "NAME#NUMBER, a tab and a caption")


def _read_numbered_rows(path: str) -> Iterator[tuple[str, Annotated]]:
    """Yield what `_match_lines` yields for Flickr30k's results.csv."""
    # The first line names the columns.
    lines_after_columns = itertools.islice(read_text_lines(path), 1, None)
    return _match_lines(lines_after_columns, _NUMBERED_ROW, "NAME| NUMBER| CAPTION")


def _match_lines(lines: Iterable[Line], pattern: re.Pattern[str], expected: str) -> Iterator[tuple[str, Annotated]]:
    """Yield (picture, annotation with one caption) for each line that matches, or (unique key, error) for any other line.

    Args:
        lines: lines with one caption each.
        pattern: pattern of a whole line, with the groups `picture` and `caption`.
        expected: what the pattern matches, for the message of the error.
    """
    for place, text in lines:
        row = pattern.fullmatch(text)
        if row is None:
            yield str(place), place.make_error(f"not a row of {expected}: {text[:80]!r}")
        else:
            yield row["picture"], ImageAnnotation(row["picture"], place, captions=(row["caption"],))
