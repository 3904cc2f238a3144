"""Pictures and texts of a report as HTML: annotations are drawn over the thumbnails as SVG, which stays sharp."""

from __future__ import annotations

import base64
import html
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from tpudata.report.split_sample import ClassedText, SamplePicture, Text

# Maximum numbers of characters that are shown of a text and of a caption, and of captions of a picture.
_SHOWN_CHARACTERS, _CAPTION_CHARACTERS, _SHOWN_CAPTIONS = 600, 120, 2
# Text between the documents of one row of tokens.
_DOCUMENT_SEPARATOR = "\n———\n"
# Height of a class name above its box, in pixels of the thumbnail.
_NAME_HEIGHT = 11

# Function from token ids to their text; None shows the ids.
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


def format_picture(picture: SamplePicture) -> str:
    """Return the HTML of a picture with its label maps laid over it, its boxes with their classes, and its captions below."""
    layers = "".join(
        f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for png in (picture.png, *picture.maps)
    )
    lines = list(picture.captions[:_SHOWN_CAPTIONS])
    # A single class is the heading of its pictures.
    if len(picture.classes) > 1:
        lines.append(", ".join(picture.classes))
    if not (picture.maps or picture.objects or lines):
        return layers
    if picture.objects:
        shapes = "".join(_draw_object(picture, index) for index in range(len(picture.objects)))
        layers += f'<svg viewBox="0 0 {picture.width} {picture.height}" role="img">{shapes}</svg>'
    captions = "".join(f"<figcaption>{html.escape(_shorten(line, _CAPTION_CHARACTERS))}</figcaption>" for line in lines)
    style = f"width:{picture.width}px"
    return f'<figure class="picture" style="{style}"><div class="layers">{layers}</div>{captions}</figure>'


def format_text(text: ClassedText, decode: Decode) -> str:
    """Return the HTML of the start of a text, with the names of its sides or fields, and its classes if there are several."""
    blocks: list[str] = []
    # Number of characters that may still be shown.
    remaining_count = _SHOWN_CHARACTERS
    for content, is_learned, side in _decode_parts(text.text, decode):
        escaped = html.escape(_shorten(content, remaining_count))
        label = f"<i>{html.escape(side)}:</i> " if side else ""
        blocks.append(f"{label}<mark>{escaped}</mark>" if is_learned else f"{label}{escaped}")
        remaining_count -= len(content)
        if remaining_count <= 0:
            break
    classes = f'<p class="note">{html.escape(", ".join(text.classes))}</p>' if len(text.classes) > 1 else ""
    return f"<pre>{''.join(blocks)}</pre>{classes}"


def _decode_parts(documents: Text, decode: Decode) -> Iterator[tuple[str, bool, str]]:
    """Yield the content of each part of documents as text, whether it is learned, and the name of its side.

    Separators between documents and sides also count as parts.
    """
    for index, document in enumerate(documents):
        if index:
            yield _DOCUMENT_SEPARATOR, False, ""
        for part_index, (content, is_learned, side) in enumerate(document):
            # Only the first part of a side has its name.
            if part_index and side:
                yield "\n", False, ""
            if isinstance(content, str):
                text = content
            elif decode is not None:
                text = decode(content)
            else:
                text = " ".join(map(str, content))
            yield text, is_learned, side


def _draw_object(picture: SamplePicture, object_index: int) -> str:
    """Return the SVG of an object's box, with the name of its class."""
    name, (ymin, xmin, ymax, xmax) = picture.objects[object_index]
    # A class has the same colour in all pictures: a hue in degrees, derived from its name. 137 is near the golden angle.
    colour = f"hsl({zlib.crc32(name.encode()) * 137 % 360} 95% 60%)"
    x, y = xmin * picture.width, ymin * picture.height
    width, height = (xmax - xmin) * picture.width, (ymax - ymin) * picture.height
    rect = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" style="stroke:{colour}"/>'
    if not name:
        return rect
    # The name is above the box, or inside it if the box is at the picture's upper edge.
    text_y = y - 3 if y > _NAME_HEIGHT else y + _NAME_HEIGHT
    text = f'<text x="{x + 2:.1f}" y="{text_y:.1f}" style="fill:{colour}">{html.escape(name)}</text>'
    return f"<g><title>{html.escape(name)}</title>{rect}{text}</g>"


def _shorten(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else f"{text[:max_characters]}…"
