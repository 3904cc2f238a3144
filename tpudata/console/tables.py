"""Text of tables, counts and sizes for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence

_WIDTH = 100
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return rows as lines of aligned columns, without trailing spaces.

    Args:
        rows: rows of the same length; the first may be a heading.
        right: indices of the columns to align on the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def count_text(count: int, one: str | None = None, many: str | None = None) -> str:
    """Return a count with its thousands separated: 1,437; or, with its noun, 1 record or 1,437 records.

    Args:
        count: the count.
        one: singular of the noun; None for the count alone.
        many: its plural; None for `one` with an s.
    """
    if one is None:
        return f"{count:,}"
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def bytes_text(size: int) -> str:
    """Return a size in decimal units (1 MB is 10^6 bytes), to three or four digits: 812 bytes, 37.5 kB, 1.28 GB."""
    value, unit = float(size), 0
    # 999.95 of a unit would print as 1000.0 of it.
    while value >= 999.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return count_text(size, "byte")
    return f"{value:.2f} {_UNITS[unit]}" if value < 10 else f"{value:.1f} {_UNITS[unit]}"


def memory_text(size: float) -> str:
    """Return a size of memory in binary units, in which that of devices is stated: 15.8 GiB, 37.5 MiB, 0.5 KiB."""
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def warning_texts(warnings: Mapping[str, str]) -> list[str]:
    """Return warnings by kind as paragraphs of at most 100 columns, in the order of their kinds."""
    return [
        textwrap.fill(
            line,
            _WIDTH,
            initial_indent="warning     ",
            subsequent_indent=" " * len("warning     "),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for _, line in sorted(warnings.items())
    ]
