"""Texts of records: strings, or rows of token ids, as documents of one part or of the two sides of a pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tpudata.format import Feature, Manifest
from tpudata.format.manifest.model_features import FED_BY_LAYOUT, fed_features, is_sequence, label_feature
from tpudata.report.split_sample import SamplePart, Text

_INPUT_IDS, _SIDES = "input_ids", ("inputs", "targets")
_Ids: TypeAlias = "np.ndarray[Any, Any]"
_Values: TypeAlias = "Mapping[str, Sequence[Any]]"


@dataclasses.dataclass(frozen=True)
class TextColumn:
    """A feature of text or of token ids, and the features that describe the ids.

    Attributes:
        feature: the text, or the ids.
        segments: the number of each token's document, 0 for padding; or None.
        weights: the weight of each token in the loss; or None.
    """

    feature: Feature
    segments: Feature | None = None
    weights: Feature | None = None

    @property
    def holds_token_ids(self) -> bool:
        """Whether it holds token ids."""
        return self.feature.encoding != "utf8"

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features of the column."""
        return tuple(feature for feature in (self.feature, self.segments, self.weights) if feature is not None)

    def read_text(self, values: _Values) -> str:
        """Return the text of a record; a list of texts is joined."""
        return b"".join(values.get(self.feature.name, ())).decode("utf-8", "replace")

    def read_ids(self, values: _Values) -> tuple[_Ids, int]:
        """Return the token ids of a record, and how many are not padding (segment 0); without segments, all count."""
        ids = _read_integers(values, self.feature)
        if self.segments is None:
            return ids, len(ids)
        return ids, int(np.count_nonzero(_read_integers(values, self.segments)))

    def split_documents(self, values: _Values, eos_id: int | None) -> list[list[SamplePart]]:
        """Return the documents of a row of tokens, split by its segments or, if it has none, after each id that ends a document.

        A row with weights but no segments is one document. A document has one part; with weights, a part for each run of tokens
        that are learned or not learned.

        Args:
            values: values of the record.
            eos_id: id of the end of a document, or None.
        """
        padded_ids, count = self.read_ids(values)
        ids = padded_ids[:count]
        # Indices at which documents after the first one start.
        starts = np.array([], np.int64)
        if self.segments is not None:
            starts = np.flatnonzero(np.diff(_read_integers(values, self.segments)[:count])) + 1
        # A row with weights but no segments is one document; the id may end the turns of a chat in it.
        elif eos_id is not None and self.weights is None:
            starts = np.flatnonzero(ids[:-1] == eos_id) + 1
        documents = np.split(ids, starts)
        if self.weights is None:
            return [[SamplePart(document.tolist())] for document in documents]
        masks = np.split(_read_integers(values, self.weights)[:count] > 0, starts)
        return [_split_learned(document, mask) for document, mask in zip(documents, masks, strict=True)]


def find_text_columns(manifest: Manifest) -> tuple[TextColumn, ...]:
    """Return the columns that hold a dataset's texts: one, both sides of pairs, or several fields; empty if it has no text.

    Columns of token ids come before text: if a dataset has any, its strings are not shown.
    """
    features = {feature.name: feature for feature in manifest.features}
    if _INPUT_IDS in features:
        return (TextColumn(features[_INPUT_IDS], features.get("segment_ids"), features.get("loss_weights")),)
    # The features of other layouts may be anything.
    fed = fed_features(manifest, label_feature(manifest)) if manifest.layout in FED_BY_LAYOUT else []
    # The ids of a side may also have a fixed length.
    id_features = [f for f in fed if is_sequence(f) or (f.name in _SIDES and "int" in f.dtype)]
    if id_features:
        return tuple(TextColumn(feature, features.get(f"{feature.name}_segment_ids")) for feature in id_features)
    text_features = [f for f in features.values() if f.encoding == "utf8" and not f.name.startswith("image/")]
    fed_texts = [feature for feature in text_features if feature in fed]
    # If a model is fed no text, the first feature of text is shown.
    return tuple(TextColumn(feature) for feature in fed_texts or text_features[:1])


def join_sides(sides: Mapping[str, list[list[SamplePart]]]) -> Text:
    """Return the documents of a record with several sides: document k has the parts of the k-th document of each side.

    Args:
        sides: the documents of each side, by its name. With several sides, the first part of a side in each document gets the
            side's name.
    """
    if len(sides) == 1:
        return next(iter(sides.values()))
    joined_documents: Text = [[] for _ in range(max(map(len, sides.values())))]
    for name, documents in sides.items():
        # A side may have fewer documents than another side.
        for joined_document, (first_part, *other_parts) in zip(joined_documents, documents, strict=False):
            joined_document += [first_part._replace(side=name), *other_parts]
    return joined_documents


def _split_learned(ids: _Ids, is_learned: np.ndarray[Any, Any]) -> list[SamplePart]:
    """Return the parts of a document: runs of tokens that are learned, and runs of tokens that are not.

    Args:
        ids: token ids of the document.
        is_learned: bool [tokens], whether each token is learned.
    """
    run_ends = np.flatnonzero(np.diff(is_learned.astype(np.int8))) + 1
    runs = zip(np.split(ids, run_ends), np.split(is_learned, run_ends), strict=True)
    # `any`, since the only run of an empty document is empty.
    return [SamplePart(run.tolist(), bool(mask.any())) for run, mask in runs]


def _read_integers(values: _Values, feature: Feature) -> _Ids:
    """Return the integers of a feature, which is a list, or bytes of little-endian integers."""
    # A list without values may be absent.
    feature_values = values.get(feature.name, ())
    if feature.encoding == "raw":
        return np.frombuffer(b"".join(feature_values), np.dtype(feature.dtype).newbyteorder("<"))
    return np.asarray(feature_values, np.int64)
