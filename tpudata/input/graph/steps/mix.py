"""Steps that mix or transpose the images of a batch, with their label maps."""

from __future__ import annotations

import tensorflow as tf

from tpudata.errors import FeatureError
from tpudata.input.dataset.fields import Fields
from tpudata.input.dataset_ops import without_autograph
from tpudata.input.elements import get_features, replace_features
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.image.mix import CutMix, MixUp, mix_images, mix_labels
from tpudata.input.options.images import count_label_values
from tpudata.input.order.seeds import MIX_SEED, derive_seed
from tpudata.tensor_types import Element


def make_mix_step(fields: Fields, options: MixUp | CutMix) -> Step:
    """Return the step that mixes images and labels of a batch, with the seed of the first row, which is unique to the batch.

    The step raises FeatureError if `transform` has turned the labels into something that cannot be mixed.
    """
    label = fields.label

    @without_autograph
    def mix(element: Element, extras: Extras) -> tuple[Element, Extras]:
        """Mix the images and label maps of a batch and, if there are labels, the labels in the same shares."""
        seed = derive_seed(extras["seed"][0], MIX_SEED)
        images, own_shares = mix_images(_find_images(fields, element), options, seed)
        element = _replace_images(fields, element, images)
        if label is None:
            return element, extras
        labels = element[1]
        is_tensor = isinstance(labels, tf.Tensor)
        are_class_indices = is_tensor and labels.shape.rank == 1 and labels.dtype.is_integer
        # Only labels stored as float32 may be floats: transform may have turned a class into a float.
        are_numbers = is_tensor and labels.dtype.is_floating and label.dtype == "float32"
        are_soft_labels = is_tensor and labels.shape.rank == 2
        if not (are_class_indices or are_numbers or are_soft_labels):
            raise FeatureError(
                "mix: labels are a tensor of classes, integers [batch], of shares, [batch, classes], or of floats. Let transform"
                " return one of these."
            )
        num_classes = count_label_values(label) if are_class_indices else None
        return (element[0], mix_labels(labels, num_classes, own_shares)), extras

    return mix


def make_transpose_step(fields: Fields, permutation: tuple[int, ...]) -> Step:
    """Return the step that permutes the axes of a batch's images and label maps, as `tf.transpose` does."""

    @without_autograph
    def transpose(element: Element, extras: Extras) -> tuple[Element, Extras]:
        images = [tf.transpose(values, permutation) for values in _find_images(fields, element)]
        return _replace_images(fields, element, images), extras

    return transpose


def _find_images(fields: Fields, element: Element) -> list[tf.Tensor]:
    """Return the images and label maps of a batch, in the order of `_list_names`.

    Raises:
        FeatureError: the user's transform dropped or changed one of them.
    """
    features, names = get_features(element), _list_names(fields)
    # A bare tensor is the only image.
    if not isinstance(features, dict) and len(names) == 1:
        features = {names[0]: features}
    images = []
    for name in names:
        image = features.get(name) if isinstance(features, dict) else None
        if not isinstance(image, tf.Tensor) or image.shape.rank != 4:
            raise FeatureError(
                f"Feature {name!r}: mix and transpose take images [batch, height, width, channels]; after transform it is"
                f" {getattr(image, 'shape', 'missing')}. Omit the options, or let transform keep its name and shape."
            )
        images.append(image)
    if len({tuple(image.shape[1:3]) for image in images}) > 1:
        sizes = ", ".join(f"{name} {image.shape[1:3]}" for name, image in zip(names, images, strict=True))
        raise FeatureError(
            f"mix and transpose: images and label maps have several sizes ({sizes}). Let transform keep one."
        )
    return images


def _replace_images(fields: Fields, element: Element, images: list[tf.Tensor]) -> Element:
    """Return a batch whose images and label maps are replaced by `images`, in the order of `_list_names`."""
    features = get_features(element)
    images_by_name = dict(zip(_list_names(fields), images, strict=True))
    return replace_features(element, {**features, **images_by_name} if isinstance(features, dict) else images[0])


def _list_names(fields: Fields) -> list[str]:
    """Return the names of the images, then of the label maps."""
    return [field.name for field in (*fields.images, *fields.label_maps)]
