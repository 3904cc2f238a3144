"""Files of lists and their blocks.

Names of rejects are hashed from the text of a block, which they do not show.
"""

from __future__ import annotations

from pathlib import Path

from beam_jobs.sources.lists.list_file import ListBlock, detect_list
from beam_jobs.sources.options import SourceOptions


def test_a_block_has_the_text_that_names_of_rejects_are_hashed_from(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("path,label\n0.png,cat\n")
    file = detect_list(str(path), SourceOptions())
    assert repr(ListBlock(file, 11, 21, 1)) == f"Block(file={file!r}, start=11, end=21, line=1)"
