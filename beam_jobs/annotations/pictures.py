"""The names of pictures in annotation files, compared with the paths of pictures."""

from __future__ import annotations

import unicodedata

_EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jp2", ".ppm"),
    *(".pgm", ".pnm", ".dib"),
)


def match_key(path: str) -> str:
    """Return what a picture's path and its name in an annotation file have in common: the last part, without an image's extension.

    Backslashes of Windows are slashes, and letters with accents are equal however they are composed: macOS takes them apart.
    """
    return without_extension(_slashed(path).rpartition("/")[2])


def is_same_picture(name: str, path: str) -> bool:
    """Return whether a name in an annotation file stands for the picture of a path.

    Args:
        name: name or path of the picture in the annotation file: the end of the path, from some folder on, or the path is the end of it. It may
            lack the extension.
        path: path of the picture, for example its key in a conversion.
    """
    left, right = _slashed(name), _slashed(path)
    if left != (bare := without_extension(left)) and right != without_extension(right):
        bare, right_bare = left, right
    else:
        right_bare = without_extension(right)
    shorter, longer = sorted((bare, right_bare), key=len)
    return longer == shorter or longer.endswith(f"/{shorter}")


def without_extension(path: str) -> str:
    """Return a path without the extension of an image; others, as in `photo.v2`, are a part of the name."""
    dot = path.rfind(".")
    return path[:dot] if dot > path.rfind("/") + 1 and path[dot:].lower() in _EXTENSIONS else path


def _slashed(path: str) -> str:
    text = path if path.isascii() else unicodedata.normalize("NFC", path)
    text = text.replace("\\", "/")
    return text[2:] if text.startswith("./") else text
