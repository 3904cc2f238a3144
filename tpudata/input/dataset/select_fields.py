"""Selection of the fields that are read of each record.

A layout names the features that a model is fed; the label is separate; everything else is read only on request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from tpudata.error_text.values import format_value
from tpudata.errors import DatasetError, FeatureError, UsageError
from tpudata.format import Feature, Manifest
from tpudata.format.manifest.annotation_features import is_mask
from tpudata.format.manifest.model_features import FED_BY_LAYOUT, fed_features, is_sequence, label_feature, short_name
from tpudata.input.dataset.default_values import fill_defaults
from tpudata.input.dataset.fields import PARSE, Field, Fields
from tpudata.input.dataset.padded_fields import make_default_fields, pad_fields
from tpudata.input.options.columns import FeatureOptions

# The channels that `tf.io.decode_image` decodes to.
_CHANNELS = (1, 3, 4)
# dtypes of labels and weights as they are fed.
_NUMBER_DTYPES = ("int32", "float32")
# Options of a caller who passes none: the features that the layout feeds.
_DEFAULT_OPTIONS = FeatureOptions()


def select_fields(
    manifest: Manifest,
    feature_options: FeatureOptions = _DEFAULT_OPTIONS,
    *,
    image_size: tuple[int, int] | None = None,
    keep_encoded: bool = False,
    label_name: str | None = None,
    sequence_length: int | Mapping[str, int] | None = None,
    truncate: bool = False,
    buckets: Sequence[int] | None = None,
    hint: str = PARSE,
) -> Fields:
    """Choose the fields that are read of each record.

    Args:
        manifest: manifest of the dataset.
        feature_options: options that choose the fields.
        image_size: (height, width) to resize encoded images and label maps to; None to keep their size.
        keep_encoded: whether images, label maps and masks stay encoded, since a crop decodes them.
        label_name: name of the label if `feature_options.label` is None; None for the usual names.
        sequence_length: length to which integer sequences of varying length are padded, except the keys of
            `feature_options.pads`; or the length of each sequence by name; None to reject such sequences.
        truncate: whether to cut longer sequences, instead of rejecting their records.
        buckets: the bucket lengths, for messages; `sequence_length` is the longest of them. None without buckets.
        hint: fix if the features cannot be fed as in the manifest.

    Raises:
        FeatureError: a feature is missing, has no static shape or cannot be the label or the weight; or two have the same name.
        UsageError: `image_size` without an encoded image, `sequence_length` without a sequence whose length varies, an extra
            feature that is read anyway, a key of `pad` or a default that does not fit, or one feature as label and weight.
    """
    label = _find_named(manifest, "label", feature_options.label) or label_feature(manifest, label_name)
    weight = _find_named(manifest, "weight", feature_options.weight)
    padded_fields = pad_fields(manifest.features, feature_options.pads, manifest.maxima)
    # The fields of padded lists, by the name of the feature.
    list_fields = {field.feature.name: field for field in padded_fields if field.is_stored}
    chosen = _choose_features(manifest, feature_options, label, weight)
    # The padded lists that the layout does not feed follow the features that it feeds.
    chosen += [
        feature
        for feature in manifest.features
        if feature.name in list_fields and feature not in chosen and feature is not label
    ]
    _check_sizes(chosen, list_fields.keys(), image_size, sequence_length, buckets)
    sequences = {short_name(feature) for feature in chosen if is_sequence(feature) and feature.name not in list_fields}
    lengths = _pick_lengths(sequences, sequence_length)
    # Lists that neither `pad` nor `sequence_length` pads; sequences of tokens only if their names are requested.
    unpadded_lists = [
        feature
        for feature in chosen
        if feature.is_list
        and feature.name not in list_fields
        and short_name(feature) not in lengths
        and (not is_sequence(feature) or feature.name in feature_options.extra_features)
    ]
    default_fields = make_default_fields(unpadded_lists, manifest.features, manifest.maxima)
    padded_fields += default_fields
    list_fields |= {field.feature.name: field for field in default_fields if field.is_stored}

    def make_field(feature: Feature) -> Field:
        """Return the field of a feature: a padded list, a padded sequence, or one of static shape."""
        if feature.name in list_fields:
            return list_fields[feature.name]
        # Extra features keep their full names: `image/filename` is clearer than `filename`.
        name = feature.name if feature.name in feature_options.extra_features else short_name(feature)
        if short_name(feature) in lengths:
            return Field(feature, name, (lengths[short_name(feature)],), is_padded_sequence=True, cuts=truncate)
        return _make_field(feature, name, image_size, keep_encoded=keep_encoded, hint=hint)

    # The numbers of entries of padded lists, which no record stores, come last.
    inputs = (*map(make_field, chosen), *(field for field in padded_fields if not field.is_stored))
    inputs = _resolve_masks(inputs, keep_encoded=keep_encoded)
    names = [field.name for field in inputs]
    if len(set(names)) != len(names):
        raise FeatureError(
            f"Two features would have the same name: {', '.join(sorted(names))}. Choose fewer extra_features, or others to pad."
        )
    label_field = None
    if label is not None:
        label_field = _make_label_field(_add_class_count_and_offset(label, manifest), list_fields.get(label.name), hint)
    weight_field = None if weight is None else _make_weight_field(weight, label)
    return fill_defaults(Fields(inputs, label_field, weight_field), feature_options.defaults or {})


def _find_named(manifest: Manifest, option: str, name: str | None) -> Feature | None:
    """Return the feature called `name`, or None for None; FeatureError, which names `option`, if records have no such feature."""
    if name is None:
        return None
    # `label_feature` finds any feature by its full name.
    feature = label_feature(manifest, name)
    if feature is None:
        names = ", ".join(feature.name for feature in manifest.features)
        raise FeatureError(f"{option}={name!r}: the records have {names}. Name one of these.")
    return feature


def _choose_features(
    manifest: Manifest, feature_options: FeatureOptions, label: Feature | None, weight: Feature | None
) -> list[Feature]:
    """Return the features that the layout feeds, or the one that `features` names, followed by `extra_features`.

    Args:
        manifest: manifest of the dataset.
        feature_options: options that choose the fields.
        label: the label, which is not fed; None without one.
        weight: the weight of the records, which is not fed; None without one.

    Raises:
        FeatureError: the dataset has no feature to feed, or lacks a feature that an option names.
        UsageError: an extra feature is read anyway.
    """
    layout_names = FED_BY_LAYOUT.get(manifest.layout)
    chosen = [feature for feature in fed_features(manifest, label) if feature is not weight]
    # `layout_names` is None without a layout of ours: then all features but label and weight are fed.
    if not chosen and label is not None and layout_names is None:
        fix = "Pass records with one more feature."
        if weight is not None:
            fix = "Omit weight=, or pass records with one more feature."
        raise FeatureError(
            f"Nothing is left to feed a model: the label is {label.name!r}, and the records have no other feature"
            f"{'' if weight is None else ' but the weight'}. {fix}"
        )
    if not chosen:
        for option, feature in (("label", label), ("weight", weight)):
            if feature is not None and feature.name in (layout_names or ()):
                raise FeatureError(
                    f"{option}={feature.name!r}: layout {manifest.layout!r} then feeds no feature. Name another feature."
                )
        raise FeatureError(
            f"Layout {manifest.layout!r} feeds {', '.join(layout_names or ('any feature but the label',))}, and the dataset has"
            f" {', '.join(feature.name for feature in manifest.features) or 'no features'}. Convert it again with another layout."
        )
    if feature_options.features is not None:
        names = [short_name(feature) for feature in chosen]
        if feature_options.features not in names:
            raise FeatureError(
                f"features={format_value(feature_options.features)}: the dataset feeds {', '.join(names)}. Name one of these."
            )
        chosen = [chosen[names.index(feature_options.features)]]
    for name in feature_options.extra_features:
        if name in (feature.name for feature in (*chosen, label, weight) if feature is not None):
            raise UsageError(f"extra_features: {name!r} is read anyway. Omit it.")
        try:
            chosen.append(manifest.feature(name))
        except DatasetError as error:
            raise FeatureError(f"extra_features: {error}") from None
    return chosen


def _check_sizes(
    chosen: Sequence[Feature],
    padded_names: Collection[str],
    image_size: tuple[int, int] | None,
    sequence_length: int | Mapping[str, int] | None,
    buckets: Sequence[int] | None,
) -> None:
    """Check that there is an image to resize and a sequence to pad, if the options have sizes for them.

    Args:
        chosen: the features that are read, without the label.
        padded_names: names of the features that `pad` pads.
        image_size: (height, width) to resize images to; None to keep their size.
        sequence_length: length to pad sequences to, or the length of each by name; None without padding.
        buckets: the bucket lengths, for the message; None without buckets.

    Raises:
        UsageError: there is a size, and no image to resize or no sequence to pad.
    """
    has_images = any(feature.encoding == "image" for feature in chosen)
    if image_size is not None and not has_images and not _has_label_maps_without_images(chosen):
        raise UsageError(f"size={image_size}: the dataset has no encoded images to resize. Omit it.")
    has_sequences = any(is_sequence(feature) and feature.name not in padded_names for feature in chosen)
    if sequence_length is not None and not has_sequences:
        option = f"sequence_length={sequence_length}" if buckets is None else f"buckets={buckets}"
        raise UsageError(
            f"{option}: it is for sequences of tokens whose length varies, and the features"
            f" {', '.join(feature.name for feature in chosen)} are none. Omit it."
        )


def _pick_lengths(sequences: Collection[str], sequence_length: int | Mapping[str, int] | None) -> Mapping[str, int]:
    """Return the length that each sequence of tokens is padded to, by name; sequences that a mapping omits are not padded.

    Raises:
        UsageError: a key of `sequence_length` names no sequence of varying length.
    """
    if sequence_length is None:
        return {}
    if not isinstance(sequence_length, Mapping):
        return dict.fromkeys(sequences, sequence_length)
    if not sequence_length.keys() <= set(sequences):
        raise UsageError(
            f"sequence_length={sequence_length}: a name is not that of a sequence of varying length (got"
            f" {', '.join(sorted(sequence_length))}, expected {', '.join(sorted(sequences))}). Change it."
        )
    return sequence_length


def _make_field(
    feature: Feature, name: str, image_size: tuple[int, int] | None, *, keep_encoded: bool, hint: str
) -> Field:
    """Return the field of a feature, fed as `name`; FeatureError if it cannot be fed in one static shape.

    Args:
        feature: the feature; neither a padded list nor a padded sequence.
        name: name under which a model gets it.
        image_size: (height, width) to resize encoded images and label maps to; None to keep their size.
        keep_encoded: whether images and label maps stay encoded, since a crop decodes them.
        hint: fix for a feature that cannot be fed, if no option can fix it.
    """
    if feature.encoding == "image" and feature.shape[2] not in _CHANNELS:
        raise FeatureError(f"Feature {feature.name!r}: {feature.shape[2]} channels; images decode to 1, 3 or 4. {hint}")
    if feature.is_image_file and keep_encoded:
        return Field(feature, name, (), is_encoded=True)
    return Field(feature, name, _require_static_shape(feature, image_size, hint))


def _resolve_masks(inputs: Sequence[Field], *, keep_encoded: bool) -> tuple[Field, ...]:
    """Return the fields, with lists of masks as fields of masks of the first image; unchanged without an image.

    Masks are decoded to the image's size, or stay encoded if `keep_encoded` is set, since a crop decodes them later.
    """
    image = next((field for field in inputs if field.feature.is_image), None)
    if image is None:
        return tuple(inputs)

    def resolve_mask(field: Field) -> Field:
        """Return a padded list of masks with the shape of its decoded masks; other fields unchanged."""
        if field.padding is None or not is_mask(field.feature):
            return field
        shape = field.shape if keep_encoded else (*field.shape, *image.shape[:2])
        return dataclasses.replace(field, shape=shape, is_encoded=keep_encoded, masks_of=image.feature)

    return tuple(map(resolve_mask, inputs))


def _has_label_maps_without_images(features: Sequence[Feature]) -> bool:
    """Return whether there are label maps, but no image whose size they must have."""
    return any(feature.is_label_map for feature in features) and not any(feature.is_image for feature in features)


def _require_static_shape(feature: Feature, image_size: tuple[int, int] | None, hint: str) -> tuple[int, ...]:
    """Return the shape in which a feature is fed; FeatureError, with a fix, if a size varies."""
    shape = feature.shape
    if feature.is_image_file:
        shape = (*(image_size or shape[:2]), shape[2])
    static = tuple(size for size in shape if size is not None)
    if len(static) == len(shape):
        return static
    if feature.is_image_file:
        fix = (
            "Pass images=tpudata.Images(size=(height, width)), or --image-size HxW to a command: every image is then resized to"
            " it. Or pass crop=tpudata.TrainCrop(224) there and, in evaluation, tpudata.CentreCrop(224); --crop 224 to a command."
        )
    elif is_sequence(feature):
        fix = (
            "Pass tokens=tpudata.Tokens(sequence_length=N), or --sequence-length N to a command, to pad all records to N values;"
            " or Tokens(buckets=(64, 128, ...)) for several lengths."
            f" For a list that is not a text, pass pad={{{feature.name!r}: N}}."
        )
    elif feature.is_list:
        fix = (
            f"Pass pad={{{feature.name!r}: N}}, or --pad {feature.name}=N to a command, to pad all lists to N entries."
        )
    else:
        fix = f"Omit it, or give all records one size. {hint}"
    raise FeatureError(
        f"Feature {feature.name!r}: shape {feature.shape} varies between records (None), and a TPU takes one static shape. {fix}"
    )


def _make_weight_field(feature: Feature, label: Feature | None) -> Field:
    """Return the field of the records' weights; UsageError if it is the label, FeatureError if it is not one number."""
    field = Field(feature, feature.name, ())
    if feature is label:
        raise UsageError(f"weight={feature.name!r}: it is the label, too. Name another feature, or pass label=.")
    if feature.shape != () or field.dtype not in _NUMBER_DTYPES:
        raise FeatureError(
            f"weight={feature.name!r}: a weight is one int64 or float32 (got {feature.dtype} of shape {feature.shape}). Name"
            " another feature."
        )
    return field


def _add_class_count_and_offset(label: Feature, manifest: Manifest) -> Feature:
    """Return the label, with the manifest's number of classes and offset if it is the default label and a list.

    The feature of such a label lacks both, since the manifest states them for the dataset.
    """
    # `labels` counts the classes of the default label, not the classes of another feature.
    if label.shape != (None,) or manifest.labels is None or label is not label_feature(manifest):
        return label
    offset = manifest.options.get("label_offset", 0)
    return dataclasses.replace(label, num_classes=manifest.labels, label_offset=offset)


def _make_label_field(feature: Feature, padded_field: Field | None, hint: str) -> Field:
    """Return the field of the label: numbers of a static shape, multi-hot classes, or a list that the key `NAME` of `pad` pads.

    Args:
        feature: the label.
        padded_field: its field if it is a list that `pad` pads; None otherwise.
        hint: fix for a label that cannot be fed, if no option can fix it.

    Raises:
        FeatureError: labels of this dtype or shape cannot be fed.
        UsageError: a pattern of `pad` matches the label.
    """
    name = feature.name
    if padded_field is not None and is_mask(feature):
        raise FeatureError(
            f"Feature {name!r}: masks cannot be the label. Feed them, and let batch_transform return them as labels."
        )
    if padded_field is not None:
        assert padded_field.padding is not None
        key = padded_field.padding.key
        if key != name:
            raise UsageError(
                f"pad: {key!r} has {name!r}, which is the label. Pass another label=, or a pattern without it."
            )
        return padded_field
    if feature.shape == (None,) and feature.num_classes is not None and "int" in feature.dtype:
        return Field(feature, name, (feature.num_classes,), is_multi_hot=True)
    shape = tuple(size for size in feature.shape if size is not None)
    field = Field(feature, name, shape)
    if feature.is_static and not feature.is_image_file and field.dtype in _NUMBER_DTYPES:
        return field
    fix = hint
    if feature.is_list and "int" in feature.dtype:
        fix = f"For several classes of a record give it num_classes in its schema; for a list pass pad={{{name!r}: N}}."
    elif feature.is_list:
        fix = f"Pass pad={{{name!r}: N}}."
    elif feature.is_label_map:
        fix = "Feed label maps as features, and let batch_transform return them as labels."
    raise FeatureError(
        f"Feature {name!r}: a label is int64 or float32 of a static shape; this is {feature.dtype} of shape {feature.shape}. {fix}"
    )
