"""Steps from parsed rows to batches: images, the user's transform, weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpudata.console.tables import counted
from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset.fields import Field, Fields
from tpudata.input.dataset_ops import as_written, checked, to_int32
from tpudata.input.decode.user_parse import parse_rows
from tpudata.input.graph.batch import (
    check_static,
    has_room,
    map_named,
    named_leaves,
    row_weights,
    with_record_weight,
    with_rows,
    with_weights,
)
from tpudata.input.graph.batch_images import BatchImages
from tpudata.input.image.image_steps import Masks, Prepared, prepare_image, scale_images
from tpudata.input.lists.moves import move_record, move_tables
from tpudata.input.lists.tables import find_tables
from tpudata.input.options.options import Options, check_arguments, takes_seed
from tpudata.input.text.sequence import split_token_weights, with_row_weights

# Extra of a record: the moves of its image.
_MOVES = "moves"


class BatchSteps:
    """Steps from parsed rows to the model's features and labels.

    Args:
        fields: fields that are read of each record.
        options: options of feeding.
    """

    def __init__(self, fields: Fields, options: Options) -> None:
        self._fields = fields
        self._options = options
        self._images = BatchImages(fields)
        # Tables that move with the image.
        self._tables = find_tables(fields) if options.images.moves_pixels else ()

    @property
    def _has_labels(self) -> bool:
        return self._fields.label is not None or self._options.sequences.targets is not None

    def user_parsed(self, found: dict[str, tf.Tensor], extras: dict[str, tf.Tensor]) -> Any:
        """Return the result of the user's parse function for whole records, and their extras."""
        assert self._options.parse is not None
        (serialized,) = found.values()
        return parse_rows(self._options.parse, serialized), extras

    def rows(self, parsed: Any, extras: dict[str, tf.Tensor]) -> Any:
        """Turn parsed columns into the model's (features, labels) or features; also return the extras."""
        if self._options.parse is not None:
            return parsed, extras
        extras = with_record_weight(parsed, extras, self._fields.weight)
        return self._fed(parsed, {f.name: self._scaled(f, parsed[f.feature.name]) for f in self._fields.inputs}), extras

    def row(self, parsed: Any, extras: dict[str, tf.Tensor]) -> Any:
        """Turn parsed columns of one record into the model's features and labels; also return its extras."""
        extras = with_record_weight(parsed, extras, self._fields.weight)
        record, moves = as_written(self._prepared)(parsed, extras)
        extras = {**extras, **moves}
        if self._options.transform is None:
            return record, extras
        arguments = record if isinstance(record, tuple) else (record,)
        seed = {"seed": extras["seed"]} if self._options.transform_takes_seed else {}
        names = ("features", "labels")[: len(arguments)] + ("more",) * (len(arguments) - 2)
        as_written(check_arguments)("transform", self._options.transform, names, tuple(seed))
        result = self._options.transform(*arguments, **seed)
        if result is None:
            raise UsageError("transform returned None. End it with `return features, labels`.")
        if isinstance(result, list):
            raise UsageError("transform returned a list. End it with `return features, labels`, which is a tuple.")
        return map_named(_tensor, result, "the result of transform"), extras

    def move_places(self, element: Any, extras: dict[str, tf.Tensor]) -> tuple[Any, dict[str, tf.Tensor]]:
        """Return a batch of results of `row` with its boxes and points moved, if they are not yet; and the other extras."""
        if _MOVES not in extras:
            return element, extras
        features = element[0] if isinstance(element, tuple) else element
        features = move_tables(self._tables, features, extras[_MOVES], self._options.images.least_visible)
        element = (features, *element[1:]) if isinstance(element, tuple) else features
        return element, {name: value for name, value in extras.items() if name != _MOVES}

    def check_row(self, spec: Any) -> None:
        """Check the `element_spec` of single records.

        Raises:
            FeatureError: a shape is not static.
            UsageError: transform dropped the labels.
        """
        check_static(spec, "the result of transform")
        if self._has_labels and not (isinstance(spec, tuple) and len(spec) == 2):
            raise UsageError("transform returned no (features, labels). End it with `return features, labels`.")

    def check_room(self, spec: Any, records: int, per_step: int) -> None:
        """Check that evaluation weights can be added, if a batch may be padded."""
        if self._options.weights == "sample_weight":
            if not isinstance(spec, tuple) or len(spec) != 2:
                raise UsageError(
                    'weights="sample_weight": (features, labels, weights) needs labels, and there are features alone. Omit it.'
                )
            return
        if has_room(spec):
            return
        if records % per_step:
            raise UsageError(
                f"{counted(records, 'record')} in batches of {per_step}: the last one would be padded, and features that are not a"
                ' dict have no place for its weights. Feed a dict, pass weights="sample_weight" for (features, labels,'
                " weights), or choose a batch size that divides the number of records."
            )

    def batch(self, element: Any, extras: dict[str, tf.Tensor], batch_size: int) -> tuple[Any, dict[str, tf.Tensor]]:
        """Return a batch with its number of rows in its shapes, its images mixed and transposed, and its extras."""
        element, extras = with_rows((element, extras), batch_size)
        if self._options.images.mix is not None:
            element = self._images.mix(element, self._options.images.mix, extras["seed"][0])
        if self._options.images.permutation is not None:
            turned = [tf.transpose(values, self._options.images.permutation) for values in self._images.find(element)]
            element = self._images.replace(element, turned)
        if self._options.batch_transform is not None:
            element = self._transformed(element, extras, batch_size)
        return element, extras

    def weighted(self, element: Any, extras: dict[str, tf.Tensor]) -> Any:
        """Return a batch with its weights: those of evaluation, of records and of tokens."""
        weights = row_weights(extras, self._fields.weight)
        if weights is not None:
            element = with_row_weights(element, weights)
        if self._options.weights == "sample_weight" and self._options.sequences.targets is not None:
            return split_token_weights(element)
        if weights is None:
            return element
        if self._options.weights == "sample_weight":
            return (*element, weights)
        if has_room(element):
            return with_weights(element, weights)
        if self._fields.weight is not None:
            raise FeatureError(
                f"weight={self._fields.weight.name!r}: features that are not a dict have no place for weights. Let transform return"
                ' a dict, or pass weights="sample_weight".'
            )
        return element

    def _transformed(self, element: Any, extras: dict[str, tf.Tensor], batch_size: int) -> Any:
        """Return the result of the user's batch_transform for a batch."""
        function = self._options.batch_transform
        assert function is not None
        arguments = element if isinstance(element, tuple) else (element,)
        # One seed for a batch: that of its first row, which no other batch has.
        seed = {"seed": extras["seed"][0]} if takes_seed(function) else {}
        names = ("features", "labels")[: len(arguments)] + ("more",) * (len(arguments) - 2)
        check_arguments("batch_transform", function, names, tuple(seed))
        # AutoGraph converts only the user's function, which may branch on tensors.
        result = tf.function(function)(*arguments, **seed)
        if result is None or isinstance(result, list):
            kind = "None" if result is None else "a list"
            raise UsageError(
                f"batch_transform returned {kind}. End it with `return features, labels`, which is a tuple."
            )
        result = map_named(_tensor, result, "the result of batch_transform")
        check_static(result, "the result of batch_transform")
        if self._has_labels and not (isinstance(result, tuple) and len(result) == 2):
            raise UsageError("batch_transform returned no (features, labels). End it with `return features, labels`.")
        is_weighed = not self._options.training or self._fields.weight is not None
        if is_weighed and self._options.images.permutation is None:
            for name, leaf in named_leaves(result, "the result of batch_transform"):
                if leaf.shape.rank == 0 or leaf.shape[0] != batch_size:
                    raise FeatureError(
                        f"{name} has the shape {leaf.shape} (expected {counted(batch_size, 'row')}). Keep the rows: their"
                        " weights belong to them, which mark the padding of evaluation."
                    )
        return result

    def _prepared(self, parsed: Any, extras: dict[str, tf.Tensor]) -> tuple[Any, dict[str, tf.Tensor]]:
        """Return a record with its image prepared, and as an extra the moves that its boxes and points have yet to make."""
        if self._options.parse is not None:
            return parsed, {}
        moves: list[tf.Tensor] = []
        shape = None
        inputs = {field.name: parsed[field.feature.name] for field in self._fields.inputs}
        maps = {field.name: (field.feature, inputs[field.name]) for field in self._fields.label_maps}
        masks = {
            field.name: Masks(field, inputs[field.name], inputs[self._fields.count_of(field).name])
            for field in self._fields.masks
        }
        for field in self._fields.images:
            channels = field.feature.shape[2]
            assert channels is not None
            # The seed is the same for all images, and so are the draws for images of one size.
            is_first = field is self._fields.images[0]
            prepared = prepare_image(
                inputs[field.name],
                channels,
                self._options.images,
                extras.get("seed"),
                maps if is_first else {},
                masks=masks if is_first else {},
                tracks_moves=is_first and bool(self._tables),
            )
            image = prepared.image if is_first else self._same_size(field, prepared, shape)
            shape = prepared.shape
            inputs |= {field.name: image, **prepared.maps, **prepared.masks}
            moves += prepared.moves
        if not moves:
            return self._fed(parsed, inputs), {}
        if self._options.transform is None:
            # Later, a batch at a time: for single records some sixty small operations would take as long as a small image.
            return self._fed(parsed, inputs), {_MOVES: tf.stack(moves)}
        least = self._options.images.least_visible
        return self._fed(parsed, move_record(self._tables, inputs, tf.stack(moves), least)), {}

    def _same_size(self, field: Field, prepared: Prepared, shape: tf.Tensor | None) -> tf.Tensor:
        """Return an image once it is known to be as large as the one before it, if both are cropped."""
        if prepared.shape is None or shape is None:
            return prepared.image
        message = (
            f"Feature {field.feature.name}: a record has images of two sizes, of which a crop takes one window. Store images of one"
            " size, or pass size= in place of the crop."
        )
        return checked(prepared.image, tf.reduce_all(tf.equal(prepared.shape[:2], shape[:2])), message)

    def _scaled(self, field: Field, value: tf.Tensor) -> tf.Tensor:
        return scale_images(value, self._options.images) if field.feature.is_image else value

    def _fed(self, parsed: dict[str, tf.Tensor], inputs: dict[str, tf.Tensor]) -> Any:
        inputs = self._options.sequences.fed(inputs, self._fields)
        if self._options.sequences.targets is not None:
            return self._options.sequences.with_targets(inputs)
        features = inputs[self._fields.inputs[0].name] if self._options.bare else inputs
        label = self._fields.label
        return features if label is None else (features, parsed[label.feature.name])


def _tensor(name: str, value: Any) -> Any:
    """Return a leaf of transform's result as a tensor; ragged and sparse ones stay, to be rejected by name."""
    return to_int32(name, value if tf.is_tensor(value) else tf.convert_to_tensor(value))
