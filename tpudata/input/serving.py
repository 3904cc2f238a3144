"""Features of prediction from what callers of an exported model have: encoded images, or records of the dataset."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tpudata.format import Dataset, Feature
from tpudata.input.dataset.fields import Field, Fields
from tpudata.input.dataset.select_fields import select_fields
from tpudata.input.dataset_ops import without_autograph
from tpudata.input.decode.image import decode_images
from tpudata.input.decode.parse import decode_columns, parse_columns
from tpudata.input.elements import get_features
from tpudata.input.graph.steps.step import Extras, fold
from tpudata.input.graph.steps.step_plan import StepPlan
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.options.images import Images
from tpudata.input.options.options import Options
from tpudata.input.options.tokens import Tokens
from tpudata.input.text.sequence import TOKEN_WEIGHTS
from tpudata.tensor_types import Element

# Numbers of channels that PNG stores without loss.
_PNG_CHANNELS = (1, 3, 4)


@dataclasses.dataclass(frozen=True)
class ServingTensors:
    """Tensors of a graph from n records to n rows of features; feeding a later one makes the earlier ones unnecessary.

    Attributes:
        examples: a placeholder, string [n]: serialized `tf.train.Example`s with the dataset's features; labels are not needed.
        encoded_images: string [n], the images as files, such as JPEG or PNG; None unless a model is fed one image, of 1, 3 or 4
            channels, and nothing else.
        features: features of prediction, by name.
    """

    examples: tf.Tensor
    encoded_images: tf.Tensor | None
    features: dict[str, tf.Tensor]


class ServingFeatures:
    """Steps from encoded images or records to the features of prediction: the features of evaluation without weights.

    Args:
        dataset: the dataset.
        images: options of images in evaluation.
        tokens: options of tokens.
        feature_options: options that select the features to read; None for the features that the layout feeds.

    Raises:
        FeatureError: a feature has no static shape.
        UsageError: an option does not fit the dataset.
    """

    def __init__(
        self, dataset: Dataset, images: Images, tokens: Tokens, feature_options: FeatureOptions | None = None
    ) -> None:
        fields = select_fields(
            dataset.manifest,
            feature_options or FeatureOptions(),
            image_size=images.size,
            keep_encoded=images.crop is not None,
            sequence_length=tokens.length,
            truncate=tokens.truncate,
        )
        sequences = tokens.plan_sequences(dataset.manifest, fields, is_bare=False)
        # A request has no labels, and no weights of records.
        self._fields = Fields(fields.inputs, label=None)
        self._steps = StepPlan(self._fields, Options(training=False, images=images), sequences)

    def build(self) -> ServingTensors:
        """Add the steps to the default graph, which must be one of TensorFlow 1, and return the tensors to feed and fetch.

        Running the graph raises a `tf.errors.InvalidArgumentError` for a record that does not match the features.
        """
        v1 = tf.compat.v1
        examples = v1.placeholder(tf.string, [None], name="examples")
        stored = parse_columns(examples, self._fields.inputs)
        if self._feeds_one_image:
            encoded, columns = self._build_encoded_images(stored)
        else:
            encoded, columns = None, decode_columns(stored, self._fields.inputs)
        features = {
            name: v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]], name=name)
            for name, tensor in self._make_features(columns).items()
        }
        return ServingTensors(examples, encoded, features)

    def _build_encoded_images(self, stored: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the encoded images, string [n], which callers may feed in place of records, and the decoded column by its name."""
        (field,) = self._fields.inputs
        name = field.feature.name
        if field.feature.encoding == "image":
            encoded = tf.compat.v1.placeholder_with_default(stored[name], [None], name="encoded_images")
            return encoded, decode_columns({name: encoded}, self._fields.inputs)
        # Encode stored pixels losslessly, so that callers can feed an image file instead.
        pixels = decode_columns(stored, self._fields.inputs)[name]
        files = tf.map_fn(tf.io.encode_png, pixels, fn_output_signature=tf.TensorSpec([], tf.string))
        encoded = tf.compat.v1.placeholder_with_default(files, [None], name="encoded_images")
        return encoded, {name: decode_images(encoded, _make_file_field(field))}

    @property
    def _feeds_one_image(self) -> bool:
        """Whether a model is fed one image that PNG can store, and nothing else."""
        images = self._fields.images
        return self._fields.inputs == images and len(images) == 1 and images[0].feature.shape[2] in _PNG_CHANNELS

    def _make_features(self, columns: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the features of prediction from decoded columns, through the steps of evaluation."""
        prepare_record, prepare_rows = fold(self._steps.record_steps), fold(self._steps.row_steps)
        if not self._steps.record_steps:
            return _drop_token_weights(prepare_rows(columns, {})[0])

        def prepare(row: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], Extras]:
            element, extras = prepare_record(row, {})
            return _drop_token_weights(element), extras

        # map_fn needs the specs of its results: a graph that never runs shows them.
        with tf.Graph().as_default():
            row = {name: tf.compat.v1.placeholder(tensor.dtype, tensor.shape[1:]) for name, tensor in columns.items()}
            signature = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), prepare(row))
        mapped = tf.map_fn(without_autograph(prepare), columns, fn_output_signature=signature)
        features: dict[str, tf.Tensor] = prepare_rows(*mapped)[0]
        return features


def _make_file_field(field: Field) -> Field:
    """Return the field of an image as if the image were stored as a file, such as a PNG."""
    feature = Feature(field.feature.name, "bytes", "uint8", field.shape, "image")
    return dataclasses.replace(field, feature=feature)


def _drop_token_weights(element: Element) -> dict[str, tf.Tensor]:
    """Return the features of an element without the weights of tokens, which prediction does not use."""
    features = get_features(element)
    return {name: tensor for name, tensor in features.items() if name != TOKEN_WEIGHTS}
