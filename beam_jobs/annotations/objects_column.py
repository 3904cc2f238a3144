"""The objects of a picture in Hugging Face's datasets: a value `objects`, which is a dict of lists or a list of dicts.

    {"bbox": [[x, y, width, height], ...], "category": [0, ...], "area": [...], "iscrowd": [...]}

Boxes are in pixels. `category`, `categories`, `label` or `labels` are names or numbers; other keys are ignored.
Source: https://huggingface.co/docs/datasets/image_dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.annotations.annotation import ObjectAnnotation, make_box
from tpudata.json_values import abbreviate_json, convert_json_number

CATEGORIES = ("category", "categories", "label", "labels")
CROWDS = ("iscrowd", "is_crowd")


def read_objects(value: Any, names: Sequence[str] | None = None) -> tuple[ObjectAnnotation, ...]:
    """Return the objects of a value `objects`.

    Args:
        value: a dict of lists, or a list of dicts.
        names: names of the classes that numbers stand for; None if numbers are names themselves, such as "3".

    Raises:
        ValueError: the value has another form, or has a box or an area that is not of numbers, or an unknown class.
    """
    columns = value
    if isinstance(value, list) and all(isinstance(object_fields, Mapping) for object_fields in value):
        # An empty list has no keys, and is a picture without objects.
        keys = {key for object_fields in value for key in object_fields} or {"bbox"}
        columns = {key: [object_fields.get(key) for object_fields in value] for key in keys}
    if not isinstance(columns, Mapping):
        raise ValueError(f"'objects' is not a dict of lists: {abbreviate_json(value)}")
    boxes = columns.get("bbox")
    if not isinstance(boxes, list) or not all(isinstance(box, list) and len(box) == 4 for box in boxes):
        raise ValueError(f"'bbox' of objects is not a list of [x, y, width, height]: {abbreviate_json(boxes)}")
    classes, areas, crowds = (
        _read_column(columns, column_keys, len(boxes)) for column_keys in (CATEGORIES, ("area",), CROWDS)
    )
    objects = []
    for index, box in enumerate(boxes):
        x, y, width, height = (convert_json_number(number, "bbox") for number in box)
        name = "" if classes is None else find_class_name(classes[index], names)
        area = None if areas is None else convert_json_number(areas[index], "area")
        is_crowd = None if crowds is None else bool(crowds[index])
        objects.append(ObjectAnnotation(make_box(x, y, width, height), name, is_crowd, area=area))
    return tuple(objects)


def find_class_name(value: Any, names: Sequence[str] | None = None) -> str:
    """Return the name of a class: a string itself, or for an integer its name in `names`; its digits if `names` is None.

    Raises:
        ValueError: the value is neither a string nor an integer, or is an empty string, or the number has no name.
    """
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ValueError(f"a class is neither a text nor a whole number: {abbreviate_json(value)}")
    if names is None or isinstance(value, str):
        return str(value)
    if not 0 <= value < len(names):
        raise ValueError(f"unknown class {value}; numbers of classes go from 0 to {len(names) - 1}")
    return names[value]


def _read_column(columns: Mapping[str, Any], keys: Sequence[str], box_count: int) -> list[Any] | None:
    """Return the column of the first key that has one, None without any; ValueError if it is not a list of `box_count` entries."""
    key = next((key for key in keys if columns.get(key) is not None), None)
    column = None if key is None else columns[key]
    if column is not None and (not isinstance(column, list) or len(column) != box_count):
        raise ValueError(
            f"{key!r} of objects is not a list of {box_count}, one for each box: {abbreviate_json(column)}"
        )
    return column
