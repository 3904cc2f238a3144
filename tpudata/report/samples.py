"""Pictures and texts of a report as HTML: annotations are drawn over the thumbnails as SVG, which stays sharp."""

from __future__ import annotations

import base64
import html
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tpudata.report.split_sample import ClassedText, SamplePart, SamplePicture

_SHOWN_CHARACTERS, _SHOWN_CAPTION, _SHOWN_CAPTIONS = 600, 120, 2
# Between the documents of one row of tokens.
_BETWEEN_DOCUMENTS = "\n———\n"
# Height of a class name above its box, in pixels of the thumbnail.
_LINE = 11

# From token ids to their text; None shows the ids.
Decode: TypeAlias = "Callable[[Sequence[int]], str] | None"

STYLE = """
figure.picture { margin: 0; } .picture figcaption { margin: 2px 0 0; }
.layers { position: relative; } .layers img { display: block; } .layers img + img { position: absolute; inset: 0; opacity: .55; }
.layers svg { position: absolute; inset: 0; width: 100%; height: 100%; max-width: none; font: 600 10px system-ui, sans-serif;
              overflow: hidden; }
.layers rect { fill: none; stroke-width: 1.5; }
.layers text { paint-order: stroke; stroke: #000b; stroke-width: 2.5px; }
mark { background: #d9ecd2; color: inherit; } pre i { color: var(--soft); font-style: normal; }
"""


def picture_html(picture: SamplePicture) -> str:
    """Return a picture with its label maps laid over it, its boxes with their classes, and its captions below."""
    layers = "".join(
        f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for png in (picture.png, *picture.maps)
    )
    lines = [*picture.captions[:_SHOWN_CAPTIONS], *([", ".join(picture.classes)] if len(picture.classes) > 1 else [])]
    if not (picture.maps or picture.objects or lines):
        return layers
    if picture.objects:
        shapes = "".join(_draw_objects(picture, index) for index in range(len(picture.objects)))
        layers += f'<svg viewBox="0 0 {picture.width} {picture.height}" role="img">{shapes}</svg>'
    width = f"width:{picture.width}px"
    captions = "".join(f"<figcaption>{html.escape(_cut(line, _SHOWN_CAPTION))}</figcaption>" for line in lines)
    return f'<figure class="picture" style="{width}"><div class="layers">{layers}</div>{captions}</figure>'


def text_html(text: ClassedText, decode: Decode) -> str:
    """Return the HTML of a text: its documents, with names of sides and classes if there are several."""
    parts = list(_decode_texts(text.text, decode))
    room, shown = _SHOWN_CHARACTERS, list[str]()
    for part, content in parts:
        cut = _cut(content, room)
        escaped = html.escape(cut)
        side = f"<i>{html.escape(part.side)}:</i> " if part.side else ""
        shown.append(f"{side}<mark>{escaped}</mark>" if part.is_learned else f"{side}{escaped}")
        room -= len(content)
        if room <= 0:
            break
    classes = f'<p class="note">{html.escape(", ".join(text.classes))}</p>' if len(text.classes) > 1 else ""
    return f"<pre>{''.join(shown)}</pre>{classes}"


def _decode_texts(text: Sequence[Sequence[SamplePart]], decode: Decode) -> Iterable[tuple[SamplePart, str]]:
    """Yield the parts of all documents and their content as text, with separators between them."""
    for index, document in enumerate(text):
        if index:
            yield SamplePart(""), _BETWEEN_DOCUMENTS
        for part_index, part in enumerate(document):
            if part_index and part.side:
                yield SamplePart(""), "\n"
            content = part.content
            if not isinstance(content, str):
                content = decode(content) if decode is not None else " ".join(map(str, content))
            yield part, content


def _draw_objects(picture: SamplePicture, index: int) -> str:
    name, (ymin, xmin, ymax, xmax) = picture.objects[index]
    # A class has the same colour in all pictures.
    colour = f"hsl({zlib.crc32(name.encode()) * 137 % 360} 95% 60%)"
    x, y = xmin * picture.width, ymin * picture.height
    width, height = (xmax - xmin) * picture.width, (ymax - ymin) * picture.height
    rect = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" style="stroke:{colour}"/>'
    if not name:
        return rect
    # Above the box, or inside it at the picture's upper edge.
    line = y - 3 if y > _LINE else y + _LINE
    text = f'<text x="{x + 2:.1f}" y="{line:.1f}" style="fill:{colour}">{html.escape(name)}</text>'
    return f"<g><title>{html.escape(name)}</title>{rect}{text}</g>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: max(limit, 0)]}…"
