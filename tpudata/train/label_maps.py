"""Label maps as the labels of bundled models that learn them, such as `unet`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tpudata.errors import DatasetError, UsageError
from tpudata.format import Dataset, Feature
from tpudata.format.manifest.annotation_features import object_tables
from tpudata.format.manifest.model_features import FED_BY_LAYOUT, short_name

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class LabelMap:
    """The label map of a dataset that a model learns.

    Attributes:
        feature: the feature in the manifest.
        is_extra: whether the dataset's layout does not feed it, so that make_input_fn needs it in `extra_features`.
    """

    feature: Feature
    is_extra: bool

    @classmethod
    def from_dataset(cls, dataset: Dataset, model: str) -> LabelMap:
        """Return the label map of a dataset; `model` is the name of the model, for the message.

        Raises:
            DatasetError: the dataset has no label map, or several.
        """
        features = dataset.manifest.features
        maps = [feature for feature in features if feature.is_label_map]
        if len(maps) != 1:
            got = ", ".join(feature.name for feature in maps or features)
            raise DatasetError(
                f"{model} learns one label map of each image, and {dataset.path} has {len(maps) or 'none'} (got {got}). Use another"
                " model, or a dataset of `tpudata convert images` with --masks."
            )
        # A layout that the table lacks feeds all features.
        fed_names = FED_BY_LAYOUT.get(dataset.manifest.layout)
        return cls(maps[0], is_extra=fed_names is not None and maps[0].name not in fed_names)

    @property
    def input_options(self) -> dict[str, Any]:
        """The arguments of make_input_fn that yield the map as the labels."""
        # Extra features keep their full names; other features are fed under short names.
        if self.is_extra:
            name = self.feature.name
            return {"extra_features": (name,), "batch_transform": _make_label_transform(name)}
        return {"extra_features": (), "batch_transform": _make_label_transform(short_name(self.feature))}

    def derive_params(self, dataset: Dataset) -> dict[str, int]:
        """Return the model's params that follow from the dataset.

        Returns:
            `ignored_label`, the largest value of the map's dtype, and `num_classes` if the objects have labels whose number of
            classes is in the manifest.
        """
        params = {"ignored_label": int(np.iinfo(self.feature.dtype).max)}
        label = next(
            (table.label for table in object_tables(dataset.manifest.features) if table.label is not None), None
        )
        if label is not None and label.num_classes is not None:
            # The values of the map are labels of objects, and the model's classes count from 0.
            params["num_classes"] = label.label_offset + label.num_classes
        return params


def require_num_classes(label_map: LabelMap, dataset: Dataset, model: str, params: Mapping[str, object]) -> None:
    """Raise UsageError if neither the manifest nor the user defines the number of classes.

    Args:
        label_map: the label map that the model learns.
        dataset: the dataset that has the label map, for messages.
        model: name of the model, for messages.
        params: params of the model from the dataset and the user.
    """
    if "num_classes" not in params:
        raise UsageError(
            f"{model}: the manifest of {dataset.path} does not say how many classes {label_map.feature.name} has. Pass --param"
            " num_classes=N: one more than the highest class."
        )


def _make_label_transform(name: str) -> Callable[..., tuple[dict[str, tf.Tensor], tf.Tensor]]:
    """Return a batch_transform that yields the feature `name` as the labels."""

    def move_map_to_labels(
        features: dict[str, tf.Tensor], labels: tf.Tensor | None = None
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Return the features without the map, and the map as the labels."""
        del labels  # The class of the whole picture, if it has one.
        return {key: feature for key, feature in features.items() if key != name}, features[name]

    return move_map_to_labels
