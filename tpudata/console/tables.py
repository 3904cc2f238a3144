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


def count_text(count: int, singular: str | None = None, plural: str | None = None) -> str:
    """Return a count with its thousands separated: 1,437; or, with its noun, 1 record or 1,437 records.

    Args:
        count: the count.
        singular: the noun for 1; None for only the count.
        plural: the noun for other counts; None for `singular` with an s.
    """
    if singular is None:
        return f"{count:,}"
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def bytes_text(size: int) -> str:
    """Return a size in decimal units (1 MB is 10^6 bytes), to three or four digits: 812 bytes, 37.5 kB, 1.28 GB."""
    number, unit_index = float(size), 0
    # 999.95 of a unit would print as 1000.0 of it.
    while number >= 999.95 and unit_index < len(_UNITS) - 1:
        number, unit_index = number / 1000, unit_index + 1
    if unit_index == 0:
        return count_text(size, "byte")
    return f"{number:.{2 if number < 10 else 1}f} {_UNITS[unit_index]}"


def memory_text(size: float) -> str:
    """Return a number of bytes in binary units, as memory of devices is specified: 15.75 GiB, 37.5 MiB, 0.5 KiB."""
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def warning_texts(warnings: Mapping[str, str]) -> list[str]:
    """Return warnings as paragraphs that are wrapped at 100 columns; only a longer word exceeds them.

    Args:
        warnings: the warnings by kind; the paragraphs are in the order of the kinds.
    """
    label = "warning     "
    return [
        textwrap.fill(
            text,
            _WIDTH,
            initial_indent=label,
            subsequent_indent=" " * len(label),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for _, text in sorted(warnings.items())
    ]
