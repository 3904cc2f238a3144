"""Selection of the fields that are read of each record.

A layout names the features that a model is fed; the label is separate; everything else is read only on request.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpudata.errors import DatasetError, FeatureError, UsageError
from tpudata.format import Feature, Manifest
from tpudata.format.manifest.model_features import FED_BY_LAYOUT, fed_features, is_sequence, label_feature, short_name
from tpudata.input.dataset.fields import PARSE, Field, Fields

# The channels that `tf.io.decode_image` decodes to.
_CHANNELS = (1, 3, 4)


def select_fields(
    manifest: Manifest,
    *,
    only: str | None = None,
    extra: Sequence[str] = (),
    image_size: tuple[int, int] | None = None,
    keep_encoded: bool = False,
    label_name: str | None = None,
    sequence_length: int | None = None,
    truncate: bool = False,
    buckets: Sequence[int] | None = None,
    hint: str = PARSE,
) -> Fields:
    """Choose the fields that are read of each record.

    Args:
        manifest: manifest of the dataset.
        only: name of the one input to read, instead of all that the layout feeds.
        extra: names of further features, as in the manifest.
        image_size: (height, width) to resize encoded images and label maps to.
        keep_encoded: do not decode images and label maps.
        label_name: name of the label, unless it is one of the usual names.
        sequence_length: length to which integer sequences of varying length are padded.
        truncate: cut longer ones.
        buckets: the bucket lengths, if given; `sequence_length` is then the longest.
        hint: fix if the features cannot be fed as in the manifest.

    Raises:
        FeatureError: a feature is missing, or has no static shape.
        UsageError: `image_size` without an encoded image, `sequence_length` without a sequence whose length varies, or an extra
            feature that is read anyway.
    """
    label = label_feature(manifest, label_name)
    fed = FED_BY_LAYOUT.get(manifest.layout)
    chosen = fed_features(manifest, label)
    if not chosen and label is not None and fed is None:
        raise FeatureError(f"The only feature is the label, {label.name!r}, and a model is fed others. Name one more.")
    if not chosen:
        raise FeatureError(
            f"Layout {manifest.layout!r} feeds {', '.join(fed or ('any feature but the label',))}, and the dataset has"
            f" {', '.join(f.name for f in manifest.features) or 'no features'}. Convert it again with another layout."
        )
    if only is not None:
        names = [short_name(f) for f in chosen]
        if only not in names:
            raise FeatureError(f"features={only!r}: the dataset feeds {', '.join(names)}. Name one of these.")
        chosen = [chosen[names.index(only)]]
    for name in extra:
        if name in (f.name for f in (*chosen, label) if f is not None):
            raise UsageError(f"extra_features: {name!r} is read anyway. Omit it.")
        try:
            chosen.append(manifest.feature(name))
        except DatasetError as error:
            raise FeatureError(f"extra_features: {error}") from None
    if image_size is not None and not any(f.encoding == "image" for f in chosen) and not _are_label_maps(chosen):
        raise UsageError(f"size={image_size}: the dataset has no encoded images to resize. Omit it.")
    if sequence_length is not None and not any(is_sequence(f) for f in chosen):
        asked = f"sequence_length={sequence_length}" if buckets is None else f"buckets={buckets}"
        raise UsageError(
            f"{asked}: it is for sequences of tokens whose length varies, and the features"
            f" {', '.join(f.name for f in chosen)} are none. Omit it."
        )
    # Extra features keep their full names: `image/filename` is clearer than `filename`.
    inputs = tuple(
        Field(f, name, (sequence_length,), pads=True, cuts=truncate)
        if sequence_length is not None and is_sequence(f)
        else _field(f, name, image_size, keep_encoded, hint)
        for f, name in ((f, f.name if f.name in extra else short_name(f)) for f in chosen)
    )
    names = [field.name for field in inputs]
    if len(set(names)) != len(names):
        raise FeatureError(
            f"Two features would have one name: {', '.join(sorted(names))}. Choose fewer extra_features."
        )
    return Fields(inputs, None if label is None else Field(label, label.name, _label_shape(label, hint)))


def _field(feature: Feature, name: str, image_size: tuple[int, int] | None, keep_encoded: bool, hint: str) -> Field:
    if feature.encoding == "image" and feature.shape[2] not in _CHANNELS:
        raise FeatureError(f"Feature {feature.name!r}: {feature.shape[2]} channels; images decode to 1, 3 or 4. {hint}")
    if feature.is_image_file and keep_encoded:
        return Field(feature, name, (), is_encoded=True)
    return Field(feature, name, _static_shape(feature, image_size, hint))


def _are_label_maps(features: Sequence[Feature]) -> bool:
    """Return whether there are label maps without an image, to whose size they would have to keep."""
    return any(f.is_label_map for f in features) and not any(f.is_image for f in features)


def _static_shape(feature: Feature, image_size: tuple[int, int] | None, hint: str) -> tuple[int, ...]:
    shape = feature.shape
    if feature.is_image_file:
        shape = (*(image_size or shape[:2]), shape[2])
    static = tuple(size for size in shape if size is not None)
    if len(static) == len(shape):
        return static
    if feature.is_image_file:
        hint = (
            "Pass images=tpudata.Images(size=(height, width)), or --image-size HxW to a command: every image is then resized to"
            " it. Or pass crop=tpudata.TrainCrop(224) there and, in evaluation, tpudata.CentreCrop(224); --crop 224 to a command."
        )
    elif is_sequence(feature):
        hint = (
            "Pass tokens=tpudata.Tokens(sequence_length=N), or --sequence-length N to a command, to pad all records to N values;"
            " or Tokens(buckets=(64, 128, ...)) for several lengths."
        )
    else:
        hint = f"Omit it, or give all records one size. {hint}"
    raise FeatureError(
        f"Feature {feature.name!r}: shape {feature.shape} varies between records (None), and a TPU takes one static shape. {hint}"
    )


def _label_shape(feature: Feature, hint: str) -> tuple[int, ...]:
    if feature.kind != "int64" or feature.shape != ():
        raise FeatureError(
            f"Feature {feature.name!r}: a label is one int64 per record; this is {feature.kind} of shape {feature.shape}. {hint}"
        )
    return ()
