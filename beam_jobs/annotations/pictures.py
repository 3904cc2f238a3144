"""The names of pictures in annotation files, compared with the paths of pictures."""

from __future__ import annotations

import unicodedata

PICTURE_EXTENSIONS = (
    *(
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".gif",
        ".bmp",
        ".webp",
        ".tif",
        ".tiff",
        ".avif",
        ".heic",
        ".heif",
        ".jp2",
        ".ppm",
    ),
    *(".pgm", ".pnm", ".dib"),
)


def is_picture_name(path: str) -> bool:
    """Return whether a path has the extension of an image."""
    return drop_extension(path) != path


def match_key(path: str) -> str:
    """Return the last part of a picture's path or name without an image extension, by which the two are matched.

    Treats backslashes as slashes and normalizes Unicode, as macOS decomposes accents.
    """
    return drop_extension(_normalise(path).rpartition("/")[2])


def is_same_picture(name: str, path: str) -> bool:
    """Return whether a name in an annotation file stands for the picture of a path.

    One of them is the end of the other, from the name of some folder on. Extensions are compared if both have one, in any case.

    Args:
        name: name or path of the picture in the annotation file.
        path: path of the picture, for example its key in a conversion.
    """
    listed, actual = _normalise(name), _normalise(path)
    bases = drop_extension(listed), drop_extension(actual)
    ends = listed[len(bases[0]) :], actual[len(bases[1]) :]
    if all(ends) and ends[0].lower() != ends[1].lower():
        return False
    listed, actual = bases
    shorter, longer = sorted((listed, actual), key=len)
    return longer == shorter or (bool(shorter) and longer.endswith(f"/{shorter}"))


def is_path_of(name: str, path: str) -> bool:
    """Return whether a name in an annotation file is a picture's whole path, so that it names no other picture."""
    return _normalise(name) == _normalise(path)


def drop_extension(path: str) -> str:
    """Return a path without the extension of an image; others, as in `photo.v2`, are a part of the name."""
    dot = path.rfind(".")
    return path[:dot] if dot > path.rfind("/") + 1 and path[dot:].lower() in PICTURE_EXTENSIONS else path


def _normalise(path: str) -> str:
    text = path if path.isascii() else unicodedata.normalize("NFC", path)
    text = text.replace("\\", "/")
    return text[2:] if text.startswith("./") else text
