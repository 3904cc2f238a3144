"""Names of files and folders to ignore, folders of paths, and paths of members of archives."""

from __future__ import annotations

_SYSTEM_NAMES = ("Thumbs.db", "desktop.ini", "__MACOSX")


def is_ignored_name(name: str) -> bool:
    """Return whether to ignore a name: it is hidden, or one that operating systems leave in folders."""
    return name in _SYSTEM_NAMES or (name.startswith(".") and name not in (".", ".."))


def is_ignored_path(path: str) -> bool:
    """Return whether to ignore a path because of one of its names."""
    return any(map(is_ignored_name, path.split("/")))


def resolve_member_path(name: str) -> str | None:
    """Return the path of a member in its archive, without `.` and `..`; None if it leads outside; for the root, None or empty."""
    name = name.removeprefix("./")
    parts = name.split("/")
    if not {".", ".."} & {*parts}:
        # Nearly all names: they need no change.
        return name
    kept_parts: list[str] = []
    for part in parts:
        if part == "..":
            if not kept_parts:
                return None
            kept_parts.pop()
        elif part not in ("", "."):
            kept_parts.append(part)
    root = "/" if name.startswith("/") else ""
    return f"{root}{'/'.join(kept_parts)}" if kept_parts else None


def find_parent(path: str) -> str:
    """Return the folder that a path is in; an empty string for a bare name, for a bucket and for the root."""
    above, slash, _ = path.rstrip("/").rpartition("/")
    # What is above a bucket, gs://bucket, is only "gs:/".
    return "" if above.endswith(":/") else above or slash
