"""Features of a dataset that a model is fed, and their names.

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
# The two sides of pairs, in layouts text and tokens, and chats in layout text.
_SIDES, _CHAT = ("inputs", "targets"), ("messages",)
LABELS = ("image/class/label", "label")
# Suffix of the ids of each text field in layout tokens, if there are several.
_IDS_SUFFIX = "_ids"


def label_feature(manifest: Manifest, name: str | None = None) -> Feature | None:
    """Return the feature that holds the label (called `name`, or one of the usual names), or None."""
    names = LABELS if name is None else (name,)
    return next((feature for feature in manifest.features if feature.name in names), None)


def fed_features(manifest: Manifest, label: Feature | None) -> list[Feature]:
    """Return the features that a model is fed, without the label, in the manifest's order; may be empty."""
    fed = FED_BY_LAYOUT.get(manifest.layout)
    chosen = [f for f in manifest.features if f is not label and (fed is None or f.name in fed)]
    if manifest.layout == "tokens" and chosen:
        # Those of chats, next to their ids.
        chosen += [f for f in manifest.features if f.name == "loss_weights" and f is not label and is_sequence(f)]
    if manifest.layout in ("text", "tokens") and not chosen:
        names, is_text = _list_text_names(manifest), manifest.layout == "text"
        chosen = [f for f in manifest.features if f is not label and f.name in names and (is_text or is_sequence(f))]
    if manifest.layout == "tokens" and not chosen:
        chosen = [f for f in manifest.features if f is not label and f.name.endswith(_IDS_SUFFIX) and is_sequence(f)]
    return chosen


def _list_text_names(manifest: Manifest) -> Collection[str]:
    """Return the names of the features that a conversion made of text: those of a pair, a chat, or fields of rows."""
    options = manifest.options
    if options.get("inputs"):
        return _SIDES
    if options.get("chat"):
        return _CHAT
    kinds = options.get("fields")
    if not isinstance(kinds, dict):
        return ()
    texts = [name for name, kind in kinds.items() if _is_text(kind)]
    # Words and tags of sentences.
    return texts or [name for name, kind in kinds.items() if kind == "strings"]


def _is_text(kind: object) -> bool:
    """Return whether a field of the options of a conversion is text: `text`, or `text=VALUE` with a value for missing ones."""
    return isinstance(kind, str) and kind.partition("=")[0] == "text"


def is_sequence(feature: Feature) -> bool:
    """Return whether the feature is a sequence of integers whose length varies between records."""
    dtype = feature.dtype if feature.encoding in (None, "raw") else ""
    return feature.shape == (None,) and "int" in dtype


def short_name(feature: Feature) -> str:
    """Return `image` for `image/encoded` and `image_raw`, likewise for label maps, otherwise the feature's own name."""
    suffix = {"image": "/encoded", "label_map": "/encoded", "raw": "_raw"}.get(feature.encoding or "", "")
    return feature.name.removesuffix(suffix) or feature.name
