"""The meaning of names of files and folders, the same for every source."""

from __future__ import annotations

from collections.abc import Sequence

from tpudata.errors import SourceError

# Folder names that stand for splits, as people write them.
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_SPLITS = {name: split for split, names in _SPLIT_NAMES.items() for name in names}
_LEFT_BEHIND = ("Thumbs.db", "desktop.ini", "__MACOSX")


def is_left_behind(name: str) -> bool:
    """Return whether a name is ignored: it is hidden, or of a file that operating systems leave in folders."""
    return name in _LEFT_BEHIND or (name.startswith(".") and name not in (".", ".."))


def is_path_left_behind(path: str) -> bool:
    """Return whether a path is ignored because of one of its names."""
    return any(map(is_left_behind, path.split("/")))


def member_path(name: str) -> str | None:
    """Return the path of a member in its archive, without `.` and `..`; None if it is none in there."""
    name = name.removeprefix("./")
    parts = name.split("/")
    if not {".", ".."} & {*parts}:
        return name
    inside: list[str] = []
    for part in parts:
        if part == "..":
            if not inside:
                return None
            inside.pop()
        elif part not in ("", "."):
            inside.append(part)
    return f"{'/' * name.startswith('/')}{'/'.join(inside)}" if inside else None


def folder_split(name: str) -> str:
    """Return the split that a folder's name stands for, whatever its case: train, validation, test, or nothing."""
    return _SPLITS.get(name.lower(), "")


def listed_split(name: str) -> str:
    """Return the split that a name in a list stands for: as of a folder, and any other name is a split itself."""
    return folder_split(name) or name


def splits_of(names: Sequence[str], where: str) -> dict[str, str]:
    """Return the splits that the folders of an input stand for: each name's, or none at all if they are classes.

    A folder of classes may well have one that is called `train`. Two names of splits are no accident.

    Raises:
        SourceError: two folders stand for one split, or some names are splits and some are not.
    """
    splits = {name: folder_split(name) for name in names}
    found = [name for name in names if splits[name]]
    others = [name for name in names if not splits[name]]
    if len(found) < 2 and others:
        return {}
    if others:
        raise SourceError(
            f"{where} has {', '.join(found)}, which look like splits, next to {others[0]}, which does not. Put classes below"
            " splits, or classes alone into the input."
        )
    if len({splits[name] for name in names}) < len(names):
        raise SourceError(f"{where} has two folders for one split among {', '.join(found)}. Merge them, or rename one.")
    return splits


def class_and_split(folders: Sequence[str], record: str) -> tuple[str, str]:
    """Return the class and the split of a record by the folders that it lies in: CLASS, or SPLIT/CLASS, at the end.

    Args:
        folders: names, outermost first.
        record: for the message.

    Returns:
        The class, and the split or nothing.

    Raises:
        SourceError: there is no folder, or it is named after a split; so nothing says the class.
    """
    if not folders or folder_split(folders[-1]) or folders[-1] in ("", ".", ".."):
        raise SourceError(
            f"{record} lies in no folder of its class. Put the images of each class into a folder named after the class, or pass"
            " --unlabelled."
        )
    return folders[-1], folder_split(folders[-2]) if len(folders) > 1 else ""
