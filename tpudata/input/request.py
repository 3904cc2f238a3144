"""`InputRequest`: the data that an input_fn feeds, resolved from its options and checked against the data."""

from __future__ import annotations

import dataclasses

from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Fields
from tpudata.input.files.open_data import check_scheme, list_fields
from tpudata.input.files.split_files import SplitFiles
from tpudata.input.options.options import Options
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


def resolve(options: Options, files: SplitFiles) -> InputRequest:
    """Check options against the files that they are for, and return what is fed.

    Raises:
        DatasetError: a file is damaged, or its records are not what its user describes.
        FeatureError: a feature is missing or has no static shape.
        UsageError: an option does not fit the files.
    """
    check_scheme(files.dataset.path)
    files.check_cache(options.cache)
    tokens, weights = options.tokens, options.weights
    fields = list_fields(
        files,
        options.columns,
        is_parsed_by_user=options.parse is not None,
        image_size=options.images.size,
        keep_encoded=options.images.crop is not None,
        sequences=tokens,
    )
    options.images.check_fields(fields)
    sequences = tokens.sequences(files.manifest, fields, options.is_bare)
    check_token_names(tokens.names, sequences, weights, fields)
    has_labels = fields.label is not None or sequences.targets is not None or options.parse is not None
    if weights == "sample_weight" and not has_labels:
        raise UsageError(
            'weights="sample_weight": (features, labels, weights) needs labels, and the dataset has none. Omit it.'
        )
    return InputRequest(files, fields, options, sequences)
