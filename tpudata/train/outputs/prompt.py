"""Continuation of a prompt by a trained model: `tpudata train --mode predict --prompt TEXT`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tpudata.console.flags import end_sentence
from tpudata.errors import UsageError
from tpudata.storage import storage_for
from tpudata.tensor_types import Array
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.predictions import make_line_formatter

if TYPE_CHECKING:
    import tensorflow as tf

    from tpudata.tokenizers import Tokenizer


def make_prompt_input_fn(options: TrainOptions, prompt: str) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Return an input_fn that yields the prompt once for each continuation.

    The features are `input_ids` int32 [B, L], and `prompt_seed` int32 [B], which counts the continuations from 0.

    Raises:
        UsageError: the dataset's tokenizer cannot encode the prompt, or returns no token.
        DatasetError: the dataset has no tokenizer.
    """
    try:
        ids = _open_tokenizer(options).encode_batch([prompt])[0]
    except ValueError as error:
        raise UsageError(f"--prompt {prompt!r}: {end_sentence(str(error))} Pass another text.") from error
    if len(ids) == 0:
        raise UsageError(
            f"--prompt {prompt!r} gives no token with the dataset's tokenizer (expected 1 or more). Pass another text."
        )
    num_continuations = options.num_predictions or 1

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        import tensorflow as tf

        prompts = np.tile(np.asarray(ids, np.int32), (num_continuations, 1))
        features = {"input_ids": prompts, "prompt_seed": np.arange(num_continuations, dtype=np.int32)}
        return tf.data.Dataset.from_tensor_slices(features).batch(params["batch_size"])

    return input_fn


def write_continuations(path: str, predictions: Iterable[Mapping[str, Array]], options: TrainOptions) -> list[str]:
    """Write a line for each continuation: `index`, `prompt`, and the `text` that follows; return the texts.

    Args:
        path: path of the file, CSV if it ends in .csv, else JSON Lines; it appears whole or not at all.
        predictions: predictions with `generated_ids`, int [N].
        options: options of the run.

    Raises:
        UsageError: the model does not generate.
        StorageError: the file could not be written.
    """
    tokenizer = _open_tokenizer(options)
    format_line = make_line_formatter(path)
    texts = []
    with storage_for(path).create(path) as file:
        for index, predicted in enumerate(predictions):
            if "generated_ids" not in predicted:
                raise UsageError(
                    f"--prompt: {options.model} does not generate text (got predictions {', '.join(predicted)}, expected "
                    "generated_ids). Use a model that does, such as char_lstm."
                )
            texts.append(tokenizer.decode(predicted["generated_ids"].tolist()))
            file.write(format_line({"index": index, "prompt": options.prompt, "text": texts[-1]}))
    return texts


def _open_tokenizer(options: TrainOptions) -> Tokenizer:
    """Return the tokenizer of the run's dataset; DatasetError if it has none."""
    from tpudata.tokenizers import dataset_tokenizer

    return dataset_tokenizer(options.data)
