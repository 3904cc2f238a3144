"""The schema of foreign records, inferred from the records: the type of each feature over all of them.

    values in every record                          feature
    integers                                        int64
    floats                                          float32
    one JPEG or PNG                                 encoded image, its size if all have the same
    one grey PNG that `--label-map` names           label map of its 8 or 16 bits, its size if all have the same
    text that is UTF-8                              string, encoding utf8
    other bytes                                     string
    as many values in every record                  shape (n,), () for one
    a different number in some record, or none      shape (None,)

The first records decide which features hold images; a record with another value there is bad. Values do not show the type of an
array of raw bytes, which `RawFeature` declares, nor that a grey PNG holds classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from beam_jobs.stored_records.foreign.declared_feature import is_utf8_bytes
from beam_jobs.stored_records.options import RawFeature
from tpudata.console.tables import count_text
from tpudata.errors import FeatureError
from tpudata.format import Feature
from tpudata.format.example.wire import Value
from tpudata.format.label_map import GREY, MAP_BITS, png_kind
from tpudata.images.header import read_header
from tpudata.images.image_format import JPEG, PNG, detect_format

IMAGE, LABEL_MAP, TEXT, BYTES = "image", "label_map", "utf8", "bytes"
_KINDS = {bytes: BYTES, int: "int64", float: "float"}
# Kinds of values that are stored in a list of another name.
_LIST_KINDS = {IMAGE: BYTES, LABEL_MAP: BYTES, TEXT: BYTES}


@dataclasses.dataclass
class ValueStatistics:
    """Statistics of one feature's values in some records.

    Attributes:
        kind: IMAGE, LABEL_MAP, TEXT, BYTES, "int64", "float", or "" without a value.
        key: key of a record that has the feature, for messages.
        records: number of records that have the feature.
        low: minimum number of values in a record that has the feature.
        high: maximum number of values in a record.
        heights: smallest and largest height of images in pixels.
        widths: smallest and largest width of images in pixels.
        channels: maximum number of channels of an image.
        dtype: dtype of label maps; empty for other kinds.
        empty_kind: kind of the empty lists, "bytes", "int64" or "float", which counts if no record has a value; or "".
        empty_key: key of a record with an empty list that shows its kind.
    """

    kind: str = ""
    key: str = ""
    records: int = 0
    low: int = 0
    high: int = 0
    heights: tuple[int, int] = (0, 0)
    widths: tuple[int, int] = (0, 0)
    channels: int = 0
    dtype: str = ""
    empty_kind: str = ""
    empty_key: str = ""

    def merge(self, name: str, other: ValueStatistics) -> None:
        """Add the statistics of other records; FeatureError if kinds of lists do not fit together, or label maps differ in dtype.

        Args:
            name: name of the feature.
            other: statistics of the same feature in other records.
        """
        kind = self.kind or other.kind
        if other.kind not in ("", kind):
            if not {kind, other.kind} <= {TEXT, BYTES}:
                raise FeatureError(
                    f"Feature {name!r}: record {other.key} has {_describe(other.kind)}, record {self.key} has"
                    f" {_describe(self.kind)}. A feature has one kind in every record: correct the program that wrote the records."
                )
            # Some values are not UTF-8, so none of them is declared as text.
            kind = BYTES
        self._reject_other_empty_lists(name, other)
        other._reject_other_empty_lists(name, self)
        if kind == LABEL_MAP and self.kind == other.kind and self.dtype != other.dtype:
            raise FeatureError(
                f"Feature {name!r}: record {other.key} has a label map of {other.dtype}, record {self.key} of {self.dtype}. Write"
                " all maps with the same bits a pixel."
            )
        # Statistics without a kind are of records without values, which have no sizes to join.
        if kind in (IMAGE, LABEL_MAP) and self.kind == other.kind:
            self.heights = min(self.heights[0], other.heights[0]), max(self.heights[1], other.heights[1])
            self.widths = min(self.widths[0], other.widths[0]), max(self.widths[1], other.widths[1])
            self.channels = max(self.channels, other.channels)
        elif kind in (IMAGE, LABEL_MAP) and not self.kind:
            self.heights, self.widths, self.channels = other.heights, other.widths, other.channels
            self.dtype = other.dtype
        if self.records and other.records:
            self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        elif other.records:
            self.low, self.high = other.low, other.high
        self.kind = kind
        if not self.empty_kind:
            self.empty_kind, self.empty_key = other.empty_kind, other.empty_key
        self.key = self.key or other.key
        self.records += other.records

    def _reject_other_empty_lists(self, name: str, other: ValueStatistics) -> None:
        """Raise FeatureError if the empty lists of other records are of another kind than the lists of these.

        TensorFlow's parser compares the kind of each list, also that of an empty one.
        """
        kind, key = (self.kind, self.key) if self.kind else (self.empty_kind, self.empty_key)
        if kind and other.empty_kind and other.empty_kind != _LIST_KINDS.get(kind, kind):
            raise FeatureError(
                f"Feature {name!r}: record {other.empty_key} has an empty list of {_describe(other.empty_kind)}, record {key} has"
                f" {_describe(kind)}. A feature has one kind in every record: correct the program that wrote the records."
            )

    def make_feature(self, name: str, record_count: int) -> Feature:
        """Return the feature called `name` of a dataset with `record_count` records."""
        # A record without the feature has no values.
        min_values = self.low if self.records == record_count else 0
        # A list, with a fixed size if all records have the same number of values; one value in every record makes a scalar. If no
        # record has any, the size is open: TensorFlow finds no feature of a fixed size in such records.
        shape: tuple[int | None, ...] = (min_values if 0 < min_values == self.high else None,)
        if shape == (1,):
            shape = ()
        if self.kind in (IMAGE, LABEL_MAP) and shape == ():
            size = tuple(least if least == most else None for least, most in (self.heights, self.widths))
            return Feature(name, "bytes", self.dtype or "uint8", (*size, self.channels), self.kind)
        kind = self.kind or self.empty_kind
        if kind in ("int64", "float"):
            return Feature(name, kind, "int64" if kind == "int64" else "float32", shape)
        return Feature(name, "bytes", "string", shape, "utf8" if self.kind == TEXT else None)


@dataclasses.dataclass
class InferredSummary:
    """Statistics of some records' features; summaries can be merged in any order.

    Attributes:
        decoded_bytes: bytes of all records as tensors: pixels of images, 4 bytes a number, and the bytes of other values.
        records: number of records.
        features: statistics of each feature by name.
    """

    decoded_bytes: int = 0
    records: int = 0
    features: dict[str, ValueStatistics] = dataclasses.field(default_factory=dict)

    def add(
        self,
        example: Mapping[str, Value],
        key: str,
        raw: Mapping[str, RawFeature],
        images: Collection[str],
        label_maps: Collection[str] = (),
        list_kinds: Mapping[str, str] | None = None,
    ) -> None:
        """Count one record.

        Args:
            example: values of the record by feature name.
            key: key of the record.
            raw: features that are declared as arrays, by name.
            images: names of the features that hold images.
            label_maps: names of the features that hold label maps.
            list_kinds: kinds of the record's lists by feature name; None if no list is empty.

        Raises:
            FeatureError: a feature has a list of a different kind, or a label map of a different dtype, from earlier records.
            ValueError: a feature does not hold its image, label map or array, or one of `raw` or `label_maps` is missing; the
                message names it.
        """
        statistics_by_name: dict[str, tuple[ValueStatistics, int]] = {}
        for name, values in example.items():
            if name in images:
                statistics_by_name[name] = _measure_image(name, values, key)
            elif name in label_maps:
                statistics_by_name[name] = _measure_label_map(name, values, key)
            else:
                statistics_by_name[name] = _measure_values(name, values, key, raw.get(name))
            if not values and list_kinds is not None:
                statistics = statistics_by_name[name][0]
                statistics.empty_kind = list_kinds.get(name, "")
                statistics.empty_key = key if statistics.empty_kind else ""
        for flag, names in (("--raw", raw), ("--label-map", label_maps)):
            for name in names:
                if not example.get(name):
                    raise ValueError(f"no feature {name!r}, which {flag} describes")
        # The statistics are added last: a record that was rejected above must not count.
        for name, (statistics, size) in statistics_by_name.items():
            self.decoded_bytes += size
            self.features.setdefault(name, ValueStatistics()).merge(name, statistics)
        self.records += 1

    def merge(self, other: InferredSummary) -> None:
        """Add what another summary has counted; FeatureError if lists of a feature differ in kind, or label maps in dtype."""
        self.decoded_bytes += other.decoded_bytes
        self.records += other.records
        for name, statistics in other.features.items():
            self.features.setdefault(name, ValueStatistics()).merge(name, statistics)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, which `from_json` reads."""
        value = dataclasses.asdict(self)
        # Without the facts of empty lists if there are none, so that datasets keep the bytes of earlier versions.
        for fields in value["features"].values():
            if not fields["empty_kind"]:
                del fields["empty_kind"], fields["empty_key"]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> InferredSummary:
        """Return the summary that `to_json` wrote."""
        features = {
            name: ValueStatistics(**{**fields, "heights": tuple(fields["heights"]), "widths": tuple(fields["widths"])})
            for name, fields in value["features"].items()
        }
        return cls(value["decoded_bytes"], value["records"], features)


def holds_image(values: Value) -> bool:
    """Return whether the values of a feature are one whole JPEG or PNG."""
    try:
        _measure_image("", values, "")
    except ValueError:
        return False
    # `_measure_image` also accepts a feature without values.
    return len(values) == 1


def _measure_image(name: str, values: Value, key: str) -> tuple[ValueStatistics, int]:
    """Return the statistics of an image in one record, and the number of bytes that it takes as a tensor; 0 if it has no value.

    Raises:
        ValueError: there are several values, or the value is neither JPEG nor PNG.
    """
    if not values:
        return ValueStatistics(key=key, records=1), 0
    data = values[0]
    if len(values) > 1 or not isinstance(data, bytes):
        raise ValueError(f"feature {name!r} has {len(values)} values, expected one image")
    try:
        kind = detect_format(data)
        if kind not in (JPEG, PNG):
            raise ValueError(f"a {kind}; readers of datasets decode JPEG and PNG")
        header = read_header(data, kind)
    except ValueError as error:
        raise ValueError(f"feature {name!r} does not hold an image: {error}") from None
    # Readers decode an image to grey or to RGB.
    channels = 1 if header.components == 1 else 3
    statistics = ValueStatistics(
        IMAGE,
        key,
        records=1,
        low=1,
        high=1,
        heights=(header.height, header.height),
        widths=(header.width, header.width),
        channels=channels,
    )
    return statistics, header.height * header.width * channels


def _measure_label_map(name: str, values: Value, key: str) -> tuple[ValueStatistics, int]:
    """Return the statistics of a label map in one record, and the number of bytes that it takes as a tensor; 0 if it has no value.

    Raises:
        ValueError: there are several values, or the value is not a grey PNG of 8 or 16 bits.
    """
    statistics, _ = _measure_image(name, values, key)
    kind = png_kind(values[0]) if values and isinstance(values[0], bytes) else None
    dtype = next((dtype for dtype, bits in MAP_BITS.items() if kind == (bits, GREY)), None)
    if values and dtype is None:
        raise ValueError(
            f"feature {name!r} is not a grey PNG of 8 or 16 bits (expected a label map, whose values are the classes;"
            " WriteTFRecordShards stores the indices of a palette in this form)"
        )
    # Readers return maps of 16 bits as int32.
    size = statistics.heights[0] * statistics.widths[0] * (1 if dtype == "uint8" else 4)
    return dataclasses.replace(statistics, kind=LABEL_MAP if values else "", dtype=dtype or ""), size


def _measure_values(name: str, values: Value, key: str, raw: RawFeature | None) -> tuple[ValueStatistics, int]:
    """Return the statistics of values in one record that are no image or label map, and their number of bytes as tensors.

    Args:
        name: name of the feature, for messages.
        values: values of the feature in the record.
        key: key of the record.
        raw: array that the feature is declared to hold; None if it is not declared.

    Raises:
        ValueError: the values are not the bytes of the array that `raw` declares.
    """
    kind = _KINDS[type(values[0])] if values else ""
    statistics = ValueStatistics(kind, key, records=1, low=len(values), high=len(values))
    if raw is not None:
        size = len(values[0]) if statistics.kind == BYTES and len(values) == 1 else None  # type: ignore[arg-type]
        if size != raw.size:
            got = count_text(len(values), "value") if size is None else f"{size} bytes"
            raise ValueError(f"feature {name!r} has {got} (expected {raw.size} bytes, as --raw describes it)")
        return statistics, raw.size
    if statistics.kind != BYTES:
        # Readers make int32 and float32 of numbers.
        return statistics, 4 * len(values)
    strings: Sequence[bytes] = values  # type: ignore[assignment]
    if all(map(is_utf8_bytes, strings)):
        statistics.kind = TEXT
    return statistics, sum(map(len, strings))


def _describe(kind: str) -> str:
    """Return words for the values of a kind, for messages."""
    return {
        IMAGE: "an image",
        LABEL_MAP: "a label map",
        TEXT: "text",
        BYTES: "bytes",
        "int64": "integers",
        "float": "floats",
    }[kind]
