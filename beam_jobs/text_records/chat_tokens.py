"""Tokens of chats: the text that a template renders, with loss weight 1 on the assistant's parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from beam_jobs.chats.template import ChatTemplate, ChatText
from beam_jobs.text_records.encode_each import encode_each
from beam_jobs.text_records.weights import zero_loss_weights
from tpudata.json_values import parse_input_json
from tpudata.tokenizers import Ids, Tokenizer
from tpudata.tokenizers.tokenizer import OffsetTokenizer


@dataclasses.dataclass(frozen=True)
class ChatEncoder:
    """Encoder of chats.

    Attributes:
        tokenizer: tokenizer of the text.
        template: template that renders messages as text.
        train_on_inputs: whether all tokens have loss weight 1.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    train_on_inputs: bool = False

    def encode_batch(self, chats: Sequence[str]) -> list[Ids]:
        """Return the tokens of chats, given as JSON of messages; the ids hold weights, see beam_jobs.text_records.weights.

        Raises:
            ValueError: a chat cannot be rendered or encoded.
        """
        messages = map(parse_input_json, chats)
        if self.train_on_inputs:
            return encode_each(self.tokenizer, list(map(self.template.render_text, messages)))
        return [self._encode(self.template.render(chat_messages)) for chat_messages in messages]

    def _encode(self, chat: ChatText) -> Ids:
        """Return the tokens of a chat: with loss weight 1 in the assistant's spans, otherwise with weight 0."""
        if not isinstance(self.tokenizer, OffsetTokenizer):
            return self._encode_parts(chat)
        ids, token_spans = self.tokenizer.encode_with_offsets(chat.text)
        has_loss = np.zeros(len(ids), np.bool_)
        for begin, end in chat.spans:
            token_rows = np.flatnonzero((token_spans[:, 0] < end) & (token_spans[:, 1] > begin))
            if len(token_rows):
                # Include the tokens in between that have no characters.
                has_loss[token_rows[0] : token_rows[-1] + 1] = True
        # The sign of a stored token encodes its weight: an unchanged id has weight 1.
        return np.where(has_loss, ids, zero_loss_weights(ids))

    def _encode_parts(self, chat: ChatText) -> Ids:
        """Return the tokens as `_encode` does, but encode parts separately: the tokenizer does not report positions of tokens."""
        parts, have_loss = zip(*_split_parts(chat), strict=True)
        ids_of_parts = encode_each(self.tokenizer, parts)
        return np.concatenate(
            [ids if has_loss else zero_loss_weights(ids) for ids, has_loss in zip(ids_of_parts, have_loss, strict=True)]
        )


def _split_parts(chat: ChatText) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it is the assistant's) for the parts of a chat, in order; parts may be empty."""
    position = 0
    for begin, end in chat.spans:
        yield chat.text[position:begin], False
        yield chat.text[begin:end], True
        position = end
    yield chat.text[position:], False
