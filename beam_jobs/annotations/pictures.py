"""The names of pictures in annotation files, compared with the paths of pictures."""

from __future__ import annotations

import unicodedata

_COMMON_EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
_RARE_EXTENSIONS = (".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".pnm", ".dib")
PICTURE_EXTENSIONS = (*_COMMON_EXTENSIONS, *_RARE_EXTENSIONS)


def is_picture_name(path: str) -> bool:
    """Return whether a path has the extension of an image."""
    return drop_extension(path) != path


def make_match_key(path: str) -> str:
    """Return the last part of a picture's path or name without an image extension: candidates for a match share it."""
    return drop_extension(_normalize(path).rpartition("/")[2])


def is_same_picture(name: str, path: str) -> bool:
    """Return whether a name in an annotation file stands for the picture of a path.

    The name must be the end of the path, or the path the end of the name, from the start of a folder's or the file's name on.
    Extensions are compared, ignoring case, if both have one.

    Args:
        name: name or path of the picture in the annotation file.
        path: path of the picture, for example its key in a conversion.
    """
    name, path = _normalize(name), _normalize(path)
    name_base, path_base = drop_extension(name), drop_extension(path)
    name_extension, path_extension = name[len(name_base) :].lower(), path[len(path_base) :].lower()
    if name_extension and path_extension and name_extension != path_extension:
        return False
    shorter, longer = sorted((name_base, path_base), key=len)
    return longer == shorter or (bool(shorter) and longer.endswith(f"/{shorter}"))


def is_whole_path(name: str, path: str) -> bool:
    """Return whether a name in an annotation file is a picture's whole path, so that it names no other picture."""
    return _normalize(name) == _normalize(path)


def drop_extension(path: str) -> str:
    """Return a path without the extension of an image; other endings, as in `photo.v2`, are a part of the name."""
    dot = path.rfind(".")
    # A dot that begins the file's name, as in `.jpg`, begins no extension.
    return path[:dot] if dot > path.rfind("/") + 1 and path[dot:].lower() in PICTURE_EXTENSIONS else path


def _normalize(path: str) -> str:
    """Return a path with `/` for `\\`, in NFC (macOS decomposes accents), and without a leading `./`."""
    text = path if path.isascii() else unicodedata.normalize("NFC", path)
    text = text.replace("\\", "/")
    return text[2:] if text.startswith("./") else text
