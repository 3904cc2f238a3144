"""The options of a tokenizer, checked once."""

from __future__ import annotations

import dataclasses

from beam_jobs.options.groups import FlagGroup
from tpudata.checked_json import FLAG, TEXT
from tpudata.console.option import Stored, Value, check_options, option
from tpudata.errors import UsageError
from tpudata.tokenizers.open_tokenizer import TokenizerSpec
from tpudata.tokenizers.tokenizer import PLAIN, TOKEN


@dataclasses.dataclass(frozen=True)
class TokenizerOptions:
    """The options that make a tokenizer: `spec`.

    Raises:
        UsageError: there is no such tokenizer, or two options do not fit each other.
    """

    tokenizer: str | None = option(
        None,
        FlagGroup.TOKENS,
        "bytes, chars, chars:FILE, sentencepiece:FILE or hf:FILE (default: store text)",
        Value("KIND[:FILE]"),
        stored=Stored(TEXT, lambda tokenizer: tokenizer.partition(":")[0]),
    )
    eos: str | None = option(
        None,
        FlagGroup.TOKENS,
        "token that ends a document (default: that of the tokenizer)",
        Value("TOKEN"),
        stored=Stored(TEXT),
    )
    replace_unknown: bool = option(
        False, FlagGroup.TOKENS, "chars:FILE: a separate id for unknown characters", stored=Stored(FLAG)
    )

    special_tokens: str | None = option(
        None,
        FlagGroup.TOKENS,
        "sentencepiece, hf: token makes the name of a special token in a text that token, text makes it ordinary text"
        " (default: hf token, sentencepiece text; in chats token)",
        choices=(TOKEN, PLAIN),
        stored=Stored(TEXT, is_optional=True),
    )
    chat_template: str | None = option(
        None,
        FlagGroup.TOKENS,
        "chat template of Jinja, or tokenizer_config.json with one (default: the one next to the tokenizer's file)",
        Value("FILE"),
        stored=Stored(TEXT, is_optional=True),
    )

    def __post_init__(self) -> None:
        check_options(self)
        is_passed_by_flag = {
            "--eos": self.eos is not None,
            "--replace-unknown": self.replace_unknown,
            "--special-tokens": self.special_tokens is not None,
            "--chat-template": self.chat_template is not None,
        }
        for flag, is_passed in is_passed_by_flag.items():
            if is_passed and self.tokenizer is None:
                raise UsageError(f"{flag} requires --tokenizer. Pass it, or omit the flag")
        _ = self.spec  # Its parser checks the tokenizer.

    @classmethod
    def from_spec(cls, spec: TokenizerSpec | None) -> TokenizerOptions:
        """Return the options of a tokenizer; the options that store text if `spec` is None."""
        return cls() if spec is None else cls(spec.text, spec.eos, spec.replace_unknown, spec.special_tokens)

    @property
    def spec(self) -> TokenizerSpec | None:
        """The tokenizer; None to store text."""
        if self.tokenizer is None:
            return None
        return TokenizerSpec.parse(
            self.tokenizer, self.eos, replace_unknown=self.replace_unknown, special_tokens=self.special_tokens
        )
