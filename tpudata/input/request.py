"""`InputRequest`: the data that an input_fn feeds, resolved from its options and checked against the data."""

from __future__ import annotations

import dataclasses

from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Fields
from tpudata.input.files.split_files import SplitFiles
from tpudata.input.options.columns import FeatureOptions
from tpudata.input.options.options import Options
from tpudata.input.options.tokens import Tokens
from tpudata.input.text.sequence import Sequences
from tpudata.input.text.token_names import check_token_names


@dataclasses.dataclass(frozen=True)
class InputRequest:
    """Data and options of an input_fn.

    Attributes:
        files: the files of the split.
        fields: fields that are read of each record.
        options: options of feeding.
        sequences: treatment of sequences of tokens.
    """

    files: SplitFiles
    fields: Fields
    options: Options
    sequences: Sequences = dataclasses.field(default_factory=Sequences)

    @property
    def name(self) -> str:
        """Name of the split, for messages."""
        return f"{self.files.dataset.path}: split {self.files.split!r}"

    @property
    def row_axes(self) -> dict[str, int]:
        """Axis of the rows of each transposed tensor, by its path, such as "features['image']"; empty without `transpose`."""
        permutation = self.options.images.permutation
        if permutation is None:
            return {}
        axis = permutation.index(0)
        if self.options.is_bare:
            return {"features": axis}
        return {f"features[{field.name!r}]": axis for field in (*self.fields.images, *self.fields.label_maps)}


def resolve_request(options: Options, files: SplitFiles) -> InputRequest:
    """Return the request of an input_fn, with its options checked against the files.

    Raises:
        DatasetError: a file is damaged, or its first record differs from the user's description of files without a manifest.
        FeatureError: a feature is missing or has no static shape.
        UsageError: an option does not fit the files.
    """
    files.check_cache(options.cache)
    tokens, weights = options.tokens, options.weights
    fields = list_fields(
        files,
        options.columns,
        is_parsed_by_user=options.parse is not None,
        image_size=options.images.size,
        keep_encoded=options.images.crop is not None,
        tokens=tokens,
    )
    options.images.check_fields(fields)
    sequences = tokens.plan_sequences(files.manifest, fields, is_bare=options.is_bare)
    check_token_names(tokens.names, sequences, weights, fields)
    has_labels = fields.label is not None or sequences.has_targets or options.parse is not None
    if weights == "sample_weight" and not has_labels:
        raise UsageError(
            'weights="sample_weight": (features, labels, weights) needs labels, and the dataset has none. Omit it.'
        )
    return InputRequest(files, fields, options, sequences)


def list_fields(
    files: SplitFiles,
    feature_options: FeatureOptions,
    *,
    is_parsed_by_user: bool,
    image_size: tuple[int, int] | None,
    keep_encoded: bool,
    tokens: Tokens,
) -> Fields:
    """Return the fields of each record: the fields that the options select, or the whole record for the user's `parse`.

    Args:
        files: the files of the split.
        feature_options: options that choose the fields.
        is_parsed_by_user: whether the user's `parse` takes records apart.
        image_size: (height, width) to resize encoded images and label maps to; None to keep their size.
        keep_encoded: whether images, label maps and masks stay encoded, since a crop decodes them.
        tokens: options of sequences of tokens.

    Raises:
        CorruptionError: the first record is not what the user describes.
        FeatureError: a feature is missing, differs from what is stored, or has no static shape.
        UsageError: an option does not fit the kind of files, or the features; or with `parse`, an option selects features.
    """
    if not is_parsed_by_user:
        return files.choose_fields(feature_options, image_size=image_size, keep_encoded=keep_encoded, tokens=tokens)
    selection = {
        "features": files.declared_features,
        **feature_options.selection,
        "size": image_size,
        **tokens.selection,
    }
    for name, value in selection.items():
        if value:
            raise UsageError(f"{name}={value!r}: parse decides what the features are. Pass one or the other.")
    return Fields.for_whole_records("serialized")
