"""Loss weights of tokens: 1 for those that a model learns to give, 0 for those that it is given.

While documents are cut and packed, a token of weight 0 is held as its complement, `~id`, which is negative: token and weight then
move together, in the time that a token takes.
"""

from __future__ import annotations

import numpy as np

from beam_jobs.text_records.sequences import Documents
from tpudata.tokenizers import Ids


def zero_loss_weights(ids: Ids) -> Ids:
    """Return tokens that hold these ids with weight 0."""
    return ~ids


def split_weights(tokens: Ids) -> tuple[Ids, Ids]:
    """Return the ids and the weights, 0 or 1, that tokens hold: two int32 arrays of the shape of `tokens`."""
    weights = (tokens >= 0).astype(np.int32)
    return np.where(tokens < 0, ~tokens, tokens), weights


def join_sides(inputs: Documents, targets: Documents, *, train_on_inputs: bool = False) -> Documents:
    """Return documents that each consist of the tokens of an input, followed by the tokens of its target.

    Args:
        inputs: the inputs, in the order of the documents.
        targets: the targets, one for each input; their tokens get weight 1.
        train_on_inputs: whether tokens of inputs also get weight 1; otherwise 0.
    """
    sizes = inputs.sizes + targets.sizes
    tokens = np.empty(len(inputs.tokens) + len(targets.tokens), np.int32)
    # The runs of tokens are an input, its target, the next input, and so on.
    is_input = np.repeat(np.arange(2 * len(sizes)) % 2 == 0, np.stack([inputs.sizes, targets.sizes], axis=1).ravel())
    tokens[is_input] = inputs.tokens if train_on_inputs else zero_loss_weights(inputs.tokens)
    tokens[~is_input] = targets.tokens
    return Documents(tokens, sizes)
