"""Charts as SVG, for a self-contained page."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from tpudata.console.tables import count_text

_WIDTH, _LABEL_WIDTH, _ROW = 640, 190, 22
_HEIGHT, _BASE = 150, 130
_SHOWN_LABEL = 28


def bars(rows: Sequence[tuple[str, int]]) -> str:
    """Return a chart with a horizontal bar for each name and its count."""
    largest = max((count for _, count in rows), default=0) or 1
    room = _WIDTH - _LABEL_WIDTH - 80
    parts = []
    for row, (name, count) in enumerate(rows):
        y, length = row * _ROW, room * count / largest
        label = name if len(name) <= _SHOWN_LABEL else f"{name[: _SHOWN_LABEL - 1]}…"
        parts.append(
            f"<g><title>{html.escape(name)}: {count_text(count)}</title>"
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">{html.escape(label)}</text>'
            f'<rect x="{_LABEL_WIDTH}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}"/>'
            f'<text x="{_LABEL_WIDTH + length + 6:.1f}" y="{y + 15}">{count_text(count)}</text></g>'
        )
    return _draw_svg(len(rows) * _ROW, parts)


def histogram(values: Sequence[int], unit: str, bins: int = 32) -> str:
    """Return a chart of the number of values in equal ranges.

    Args:
        values: at least one.
        unit: unit of the values, such as `"pixels"`.
        bins: number of ranges, at most.
    """
    low, high = min(values), max(values)
    counts, edges = np.histogram(values, bins=min(bins, max(1, high - low + 1)), range=(low, high + 1))
    largest, step = int(counts.max()), _WIDTH / len(counts)
    parts = [
        f"<g><title>{edges[index]:,.0f} to {edges[index + 1]:,.0f} {html.escape(unit)}: {count_text(int(count))}</title>"
        f'<rect x="{index * step + 1:.1f}" y="{_BASE - (_BASE - 16) * count / largest:.1f}" width="{max(1.0, step - 2):.1f}"'
        f' height="{(_BASE - 16) * count / largest:.1f}"/></g>'
        for index, count in enumerate(counts)
    ]
    parts.append(f'<text x="0" y="10">{count_text(largest)}</text>')
    parts.append(f'<line x1="0" y1="{_BASE}" x2="{_WIDTH}" y2="{_BASE}"/>')
    for x, anchor, value in ((0, "start", low), (_WIDTH, "end", high)):
        parts.append(
            f'<text x="{x}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{count_text(value)} {html.escape(unit)}</text>'
        )
    return _draw_svg(_HEIGHT, parts)


def _draw_svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'
