"""The tokenizer's file in the folder of a dataset of tokens, which a reader and a trained model use again.

The manifest's option `tokenizer` holds its name and its SHA-256, next to the kind of tokenizer, the number of ids and special ids:

    {"name": "sentencepiece", "vocab_size": 32000, "eos_id": 2, "pad_id": 0, "file": "tokenizer.model", "sha256": "..."}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tpudata.format.manifest.manifest import Manifest

# Name of the character tokenizer's file, and the form of the names of other tokenizers' files. --overwrite deletes the file that a
# manifest names, so no other name is accepted.
_CHARACTERS_NAME = "vocab.json"
_OTHER_NAME = re.compile(r"tokenizer\.[A-Za-z0-9_]{1,16}")
# The chat template that the text was made with, in the form of Hugging Face.
CHAT_TEMPLATE = "tokenizer_config.json"


class TokenizerFile(NamedTuple):
    """A tokenizer's file in a dataset's folder.

    Attributes:
        name: name in the folder.
        sha256: SHA-256 of its bytes, in hexadecimal digits.
    """

    name: str
    sha256: str


def is_tokenizer_name(name: object) -> bool:
    """Return whether a name is allowed for a tokenizer's file: `vocab.json`, `CHAT_TEMPLATE`, or `tokenizer.` and an ending."""
    return isinstance(name, str) and (
        name in (_CHARACTERS_NAME, CHAT_TEMPLATE) or _OTHER_NAME.fullmatch(name) is not None
    )


def tokenizer_files(manifest: Manifest) -> tuple[TokenizerFile, ...]:
    """Return the tokenizer's own file and the chat template; empty if the manifest names neither."""
    entries = (manifest.options.get("tokenizer"), manifest.options.get("chat_template"))
    # A missing hash becomes the string "None", which is the hash of no file, so checks of the file fail.
    return tuple(
        TokenizerFile(entry["file"], str(entry.get("sha256")))
        for entry in entries
        if isinstance(entry, Mapping) and is_tokenizer_name(entry.get("file"))
    )
