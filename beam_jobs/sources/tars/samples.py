"""Samples of a WebDataset tar: neighbours with equal base names up to the first dot; the field's name follows the dot.

Source: webdataset, tariterators.py (base_plus_ext).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.sources.classes import parse_json_labels
from beam_jobs.sources.tars.members import Member
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, CorruptionError
from tpudata.json_values import parse_input_json

# The fields of a sample that hold its image, and those that may hold its label, the first of them that is there.
IMAGE_FIELDS = frozenset(("jpg", "jpeg", "png", "gif", "webp", "bmp", "ppm", "tif", "tiff", "jp2", "avif", "heic"))
JSON, TEXT = "json", "txt"
LABEL_FIELDS = ("cls", JSON, TEXT)
# The fields that may hold a label map.
MAP_FIELDS = ("seg.png", "seg")
# The key of the label in JSON.
LABEL = "label"


class MemberContent(NamedTuple):
    """A member, and its bytes where they were read."""

    member: Member
    data: bytes


def read_content(file: BinaryIO, path: str, member: Member) -> bytes:
    """Return the bytes of a member; CorruptionError if the tar ends before them."""
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) < member.size:
        raise CorruptionError(path, member.offset, f"the tar is cut inside {member.name}")
    return data


def samples(
    file: BinaryIO, path: str, members: Iterable[Member], read_images: bool
) -> Iterator[tuple[str, dict[str, MemberContent]]]:
    """Yield (key, members by field) of the samples; the content of labels is read, and that of images if `read_images`."""
    sample: dict[str, MemberContent] = {}
    current = ""
    for member in members:
        folder, slash, base = member.name.rpartition("/")
        stem, _, field = base.partition(".")
        key, field = f"{folder}{slash}{stem}", field.lower()
        if sample and (key != current or field in sample):
            yield current, sample
            sample = {}
        current = key
        read = field in LABEL_FIELDS or (read_images and field in IMAGE_FIELDS)
        sample[field] = MemberContent(member, read_content(file, path, member) if read else b"")
    if sample:
        yield current, sample


def label_field(fields: Iterable[str]) -> str | None:
    """Return the field of a sample that holds its label: the first of `LABEL_FIELDS`; None if there is none."""
    names = set(fields)
    return next((name for name in LABEL_FIELDS if name in names), None)


def caption(content: MemberContent, path: str) -> str:
    """Return a sample's caption, without space around it; BadRecordError if it is not UTF-8."""
    try:
        return content.data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise BadRecordError(f"{path}/{content.member.name}", "not UTF-8 text") from None


def field_labels(content: MemberContent, field: str, path: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels that a field of a sample holds, and whether they are a list; BadRecordError if it holds none."""
    origin = f"{path}/{content.member.name}"
    try:
        text = content.data.decode("utf-8-sig").strip()
        value: Any = parse_input_json(text) if field == JSON else text
    except ValueError as error:
        raise BadRecordError(origin, "not UTF-8 text" if field != JSON else f"not JSON: {error}") from None
    if field != JSON:
        if not text or "\n" in text:
            raise BadRecordError(
                origin, f"a label is one line of text: it has {count_text(len(text.splitlines()), 'line')} of text"
            )
        return (text,), False
    if not isinstance(value, dict) or LABEL not in value:
        raise BadRecordError(
            origin, f'it has no "{LABEL}"; write one, or pass --unlabelled if the images have no classes'
        )
    return parse_json_labels(value[LABEL], origin, f'"{LABEL}"')


def json_object(content: MemberContent, path: str) -> dict[str, Any]:
    """Return the keys and values of a field of JSON; none if it is not an object. BadRecordError if it is not JSON."""
    try:
        value = parse_input_json(content.data.decode("utf-8-sig"))
    except ValueError as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"not JSON: {error}"
        raise BadRecordError(f"{path}/{content.member.name}", reason) from None
    return value if isinstance(value, dict) else {}


def find_label_map_field(fields: Iterable[str]) -> str | None:
    """Return the field of a sample that may hold its label map; None without one."""
    names = set(fields)
    return next((name for name in MAP_FIELDS if name in names), None)


def describe_image_problem(fields: Iterable[str]) -> str:
    """Return the reason to reject a sample that has no image, or several, among its fields."""
    names = list(fields)
    dotted = next((name for name in names if name.rpartition(".")[2] in IMAGE_FIELDS and "." in name), None)
    if dotted is not None:
        return f"the name of a sample ends at the first dot, so its image is a field {dotted!r}; rename its members"
    return f"a sample needs one image; it has {', '.join(names)}; its members must follow each other"
