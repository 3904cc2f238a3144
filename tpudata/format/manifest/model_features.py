"""Selection of the features of a dataset that a model is fed, and the names that a model sees.

Shared by the tf.data reader (`tpudata.input`) and by random access without TensorFlow (`tpudata.source`).
"""

from __future__ import annotations

from collections.abc import Collection

from tpudata.format.manifest.features import Feature
from tpudata.format.manifest.manifest import Manifest

# Features that a model is fed, by layout; a dataset of another layout feeds every feature except its label.
FED_BY_LAYOUT = {
    "imagenet": ("image/encoded",),
    "raw": ("image_raw",),
    "text": ("text",),
    "tokens": ("input_ids", "segment_ids", "positions"),
    "sequences": ("input_ids", "loss_weights"),
    "packed": ("input_ids", "segment_ids", "positions", "loss_weights"),
    "packed_pairs": (
        *("inputs", "inputs_segment_ids", "inputs_positions"),
        *("targets", "targets_segment_ids", "targets_positions"),
    ),
}
# The two sides of pairs, in layouts text and tokens.
_SIDES = ("inputs", "targets")
# Chats, in layout text.
_CHAT = ("messages",)
# Names of the label, by layout.
LABEL_NAMES = ("image/class/label", "label")
# Suffix of the ids of each text field in layout tokens, if there are several.
_IDS_SUFFIX = "_ids"


def label_feature(manifest: Manifest, name: str | None = None) -> Feature | None:
    """Return the feature that holds the label (called `name`, or one of the usual names), or None."""
    names = LABEL_NAMES if name is None else (name,)
    return next((feature for feature in manifest.features if feature.name in names), None)


def fed_features(manifest: Manifest, label: Feature | None) -> list[Feature]:
    """Return the features that a model is fed, without the label, in the manifest's order; may be empty.

    In layout `tokens`, the loss weights of chats come last.
    """
    layout = manifest.layout
    candidates = [feature for feature in manifest.features if feature is not label]
    if layout not in FED_BY_LAYOUT:
        return candidates
    usual_features = [feature for feature in candidates if feature.name in FED_BY_LAYOUT[layout]]
    if usual_features and layout == "tokens":
        # Chats have loss weights next to their ids.
        loss_weights = [feature for feature in candidates if feature.name == "loss_weights" and is_sequence(feature)]
        return usual_features + loss_weights
    if usual_features or layout not in ("text", "tokens"):
        return usual_features
    # The names of the features of pairs, chats and fields of rows are not in FED_BY_LAYOUT.
    names = _list_text_names(manifest)
    if layout == "text":
        return [feature for feature in candidates if feature.name in names]
    sequences = [feature for feature in candidates if is_sequence(feature)]
    text_features = [feature for feature in sequences if feature.name in names]
    # If there are several text fields, the ids of each are in a feature FIELD_ids.
    return text_features or [feature for feature in sequences if feature.name.endswith(_IDS_SUFFIX)]


def _list_text_names(manifest: Manifest) -> Collection[str]:
    """Return the names of the features that hold a conversion's text: of a pair, of a chat, or of the text fields of rows.

    For rows without text fields, returns the names of their lists of strings.
    """
    options = manifest.options
    if options.get("inputs"):
        return _SIDES
    if options.get("chat"):
        return _CHAT
    kinds = options.get("fields")
    if not isinstance(kinds, dict):
        return ()
    text_fields = [name for name, kind in kinds.items() if _is_text(kind)]
    # Rows without text may have lists of strings, such as the words and tags of sentences.
    return text_fields or [name for name, kind in kinds.items() if kind == "strings"]


def _is_text(kind: object) -> bool:
    """Return whether the kind of a field in a conversion's options is text: `text`, or `text=VALUE` with a default."""
    return isinstance(kind, str) and kind.partition("=")[0] == "text"


def is_sequence(feature: Feature) -> bool:
    """Return whether the feature is a sequence of integers whose length varies between records."""
    # Values of other encodings are files or text.
    has_numbers = feature.encoding in (None, "raw")
    return has_numbers and feature.shape == (None,) and "int" in feature.dtype


def short_name(feature: Feature) -> str:
    """Return a feature's name without `/encoded` (image files) or `_raw` (raw values), such as `image` for `image/encoded`."""
    suffix = {"image": "/encoded", "label_map": "/encoded", "raw": "_raw"}.get(feature.encoding or "", "")
    # A name that consists only of the suffix stays.
    return feature.name.removesuffix(suffix) or feature.name
