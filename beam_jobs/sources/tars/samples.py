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

# The fields of a sample that may hold its image, and the fields that may hold its label, in the order of precedence.
IMAGE_FIELDS = frozenset(("jpg", "jpeg", "png", "gif", "webp", "bmp", "ppm", "tif", "tiff", "jp2", "avif", "heic"))
JSON, TEXT = "json", "txt"
LABEL_FIELDS = ("cls", JSON, TEXT)
# The fields that may hold a label map, in the order of precedence.
MAP_FIELDS = ("seg.png", "seg")
# The key of the label in JSON.
LABEL = "label"


class MemberContent(NamedTuple):
    """A member, and its bytes; empty if they were not read."""

    member: Member
    data: bytes


def read_content(file: BinaryIO, path: str, member: Member) -> bytes:
    """Return the bytes of a member; CorruptionError if the tar ends before them."""
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) < member.size:
        raise CorruptionError(path, member.offset, f"the tar is cut inside {member.name}")
    return data


def read_samples(
    file: BinaryIO, path: str, members: Iterable[Member], *, reads_images: bool
) -> Iterator[tuple[str, dict[str, MemberContent]]]:
    """Group the members of a tar into samples; yield (key, members by field) of each.

    Args:
        file: the opened tar.
        path: path of the tar.
        members: members of the tar, in order.
        reads_images: whether to read the content of images; that of `LABEL_FIELDS` is always read, that of other fields never.
    """
    sample: dict[str, MemberContent] = {}
    sample_key = ""
    for member in members:
        folder, slash, base = member.name.rpartition("/")
        stem, _, field = base.partition(".")
        key = f"{folder}{slash}{stem}"
        field = field.lower()
        # A repeated field also begins another sample.
        if sample and (key != sample_key or field in sample):
            yield sample_key, sample
            sample = {}
        sample_key = key
        is_read = field in LABEL_FIELDS or (reads_images and field in IMAGE_FIELDS)
        sample[field] = MemberContent(member, read_content(file, path, member) if is_read else b"")
    if sample:
        yield sample_key, sample


def find_label_field(fields: Iterable[str]) -> str | None:
    """Return the field of a sample that holds its label: the first of `LABEL_FIELDS` that it has, or None."""
    names = set(fields)
    return next((name for name in LABEL_FIELDS if name in names), None)


def decode_text(content: MemberContent, path: str) -> str:
    """Return the text in a field of a sample without surrounding blanks; BadRecordError if it is not UTF-8."""
    try:
        return content.data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise BadRecordError(f"{path}/{content.member.name}", "not UTF-8 text") from None


def parse_field_labels(content: MemberContent, field: str, path: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels in a field of a sample, and whether they are a list; BadRecordError if they are missing or invalid."""
    origin = f"{path}/{content.member.name}"
    if field == JSON:
        values = parse_json_object(content, path)
        if LABEL not in values:
            raise BadRecordError(
                origin, f'it has no "{LABEL}"; write one, or pass --unlabelled if the images have no classes'
            )
        return parse_json_labels(values[LABEL], origin, f'"{LABEL}"')
    text = decode_text(content, path)
    if not text or "\n" in text:
        raise BadRecordError(
            origin, f"a label is one line of text: it has {count_text(len(text.splitlines()), 'line')} of text"
        )
    return (text,), False


def parse_json_object(content: MemberContent, path: str) -> dict[str, Any]:
    """Return the JSON object in a field of a sample; an empty one for other JSON. BadRecordError if it is not JSON."""
    try:
        value = parse_input_json(content.data.decode("utf-8-sig"))
    except ValueError as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"not JSON: {error}"
        raise BadRecordError(f"{path}/{content.member.name}", reason) from None
    return value if isinstance(value, dict) else {}


def find_label_map_field(fields: Iterable[str]) -> str | None:
    """Return the field of a sample that may hold its label map: the first of `MAP_FIELDS` that it has, or None."""
    names = set(fields)
    return next((name for name in MAP_FIELDS if name in names), None)


def describe_image_problem(fields: Iterable[str]) -> str:
    """Return the reason to reject a sample that has no image, or several, among its fields."""
    names = list(fields)
    dotted_name = next((name for name in names if name.rpartition(".")[2] in IMAGE_FIELDS and "." in name), None)
    if dotted_name is not None:
        return (
            f"the name of a sample ends at the first dot, so its image is a field {dotted_name!r}; rename its members"
        )
    return f"a sample needs one image; it has {', '.join(names)}; its members must follow each other"
