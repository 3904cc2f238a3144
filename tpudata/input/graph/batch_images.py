"""Images of batches, with their label maps: found by name, replaced and mixed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpudata.errors import FeatureError
from tpudata.input.dataset.fields import Fields
from tpudata.input.image.mix import CutMix, MixUp, mix_images, mix_labels
from tpudata.input.options.images import label_classes
from tpudata.input.order.seeds import MIX_SEED


class BatchImages:
    """The images of batches, and their label maps.

    Args:
        fields: fields that are read of each record.
    """

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def mix(self, element: Any, options: MixUp | CutMix, seed: tf.Tensor) -> Any:
        """Return a batch mixed; its seed is that of its first row, which no other batch has."""
        label = self._fields.label
        seed = tf.bitwise.bitwise_xor(seed, tf.constant(MIX_SEED, tf.int32))
        images, shares = mix_images(self.find(element), options, seed)
        element = self.replace(element, images)
        if label is None:
            return element
        labels = element[1]
        is_tensor = isinstance(labels, tf.Tensor)
        is_classes = is_tensor and labels.shape.rank == 1 and labels.dtype.is_integer
        # A class that transform turned into a float is none of these.
        is_number = is_tensor and labels.dtype.is_floating and label.dtype == "float32"
        if not is_classes and not is_number and not (is_tensor and labels.shape.rank == 2):
            raise FeatureError(
                "mix: labels are a tensor of classes, integers [batch], of shares, [batch, classes], or of floats. Let transform"
                " return one of these."
            )
        return element[0], mix_labels(labels, label_classes(label) if is_classes else None, shares)

    def find(self, element: Any) -> list[tf.Tensor]:
        """Return the batch's images, and its label maps."""
        features, names = element[0] if isinstance(element, tuple) else element, self._names
        found = []
        for name in names:
            image = features.get(name) if isinstance(features, dict) else features if len(names) == 1 else None
            if not isinstance(image, tf.Tensor) or image.shape.rank != 4:
                raise FeatureError(
                    f"Feature {name!r}: mix and transpose take images [batch, height, width, channels]; after transform it is"
                    f" {getattr(image, 'shape', 'not there')}. Leave the options out, or let transform keep its name and shape."
                )
            found.append(image)
        if len({tuple(image.shape[1:3]) for image in found}) > 1:
            sizes = ", ".join(f"{name} {image.shape[1:3]}" for name, image in zip(names, found, strict=True))
            raise FeatureError(
                f"mix and transpose: images and label maps have several sizes ({sizes}). Let transform keep one."
            )
        return found

    def replace(self, element: Any, images: list[tf.Tensor]) -> Any:
        """Return the batch with other values of what `find` returns."""
        features = element[0] if isinstance(element, tuple) else element
        named = dict(zip(self._names, images, strict=True))
        features = {**features, **named} if isinstance(features, dict) else images[0]
        return (features, *element[1:]) if isinstance(element, tuple) else features

    @property
    def _names(self) -> list[str]:
        return [field.name for field in (*self._fields.images, *self._fields.label_maps)]
