"""Charts as SVG, for a self-contained page."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from tpudata.console.tables import count_text

# In pixels: the width of a chart and, in a bar chart, the widths of the names and the counts, and the height of a row.
_WIDTH, _LABEL_WIDTH, _COUNT_WIDTH, _ROW_HEIGHT = 640, 190, 80, 22
# In pixels: the height of a histogram, and the distances of the highest bar and of the line below the bars from its upper edge.
_HEIGHT, _TOP, _BASE = 150, 16, 130
_SHOWN_CHARACTERS = 28


def draw_bars(rows: Sequence[tuple[str, int]]) -> str:
    """Return a chart with a horizontal bar for each name and its count."""
    # At least 1, since it divides the counts, which may all be 0.
    largest_count = max((count for _, count in rows), default=0) or 1
    max_length = _WIDTH - _LABEL_WIDTH - _COUNT_WIDTH
    parts = []
    for row_index, (name, count) in enumerate(rows):
        y = row_index * _ROW_HEIGHT
        length = max_length * count / largest_count
        label = name if len(name) <= _SHOWN_CHARACTERS else f"{name[: _SHOWN_CHARACTERS - 1]}…"
        # In its row, a bar has 4 pixels above and below it, and the baseline of texts is 15 pixels from the top.
        parts.append(
            f"<g><title>{html.escape(name)}: {count_text(count)}</title>"
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">{html.escape(label)}</text>'
            f'<rect x="{_LABEL_WIDTH}" y="{y + 4}" width="{length:.1f}" height="{_ROW_HEIGHT - 8}"/>'
            f'<text x="{_LABEL_WIDTH + length + 6:.1f}" y="{y + 15}">{count_text(count)}</text></g>'
        )
    return _draw_svg(len(rows) * _ROW_HEIGHT, parts)


def draw_histogram(values: Sequence[int], unit: str, max_bins: int = 32) -> str:
    """Return a chart of the number of values in equal ranges.

    Args:
        values: the values, at least one.
        unit: unit of the values, such as `"pixels"`.
        max_bins: maximum number of ranges; there are fewer if there are fewer integers from the smallest value to the largest.
    """
    low, high = min(values), max(values)
    # The values are integers, and the range of each bin excludes its end, so the last range ends after `high`.
    counts, edges = np.histogram(values, bins=min(max_bins, high - low + 1), range=(low, high + 1))
    largest_count = int(counts.max())
    bin_width = _WIDTH / len(counts)
    parts = []
    for index, count in enumerate(counts):
        height = (_BASE - _TOP) * count / largest_count
        # Leave a gap of 2 pixels between bars.
        x, width = index * bin_width + 1, max(1.0, bin_width - 2)
        parts.append(
            f"<g><title>{edges[index]:,.0f} to {edges[index + 1]:,.0f} {html.escape(unit)}: {count_text(int(count))}</title>"
            f'<rect x="{x:.1f}" y="{_BASE - height:.1f}" width="{width:.1f}" height="{height:.1f}"/></g>'
        )
    parts.append(f'<text x="0" y="10">{count_text(largest_count)}</text>')
    parts.append(f'<line x1="0" y1="{_BASE}" x2="{_WIDTH}" y2="{_BASE}"/>')
    for text_x, anchor, value in ((0, "start", low), (_WIDTH, "end", high)):
        parts.append(
            f'<text x="{text_x}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{count_text(value)} {html.escape(unit)}</text>'
        )
    return _draw_svg(_HEIGHT, parts)


def _draw_svg(height: int, parts: Sequence[str]) -> str:
    """Return an SVG image of some elements."""
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'
