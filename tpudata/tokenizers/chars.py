"""Characters as tokens, with a vocabulary of the characters of the data.

The vocabulary is vocab.json, a JSON object `{"kind": "chars", "characters": ["\\n", " ", "!", ...]}`: id i is the character at i,
and characters are in the order of their code points. After these n ids, n ends a document, n + 1 is padding, and n + 2, if allowed,
stands for an unknown character.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tpudata.errors import SourceError
from tpudata.json_values import parse_input_json
from tpudata.tokenizers.tokenizer import COPY_AGAIN, Ids, TokenizerIdentity, content_ids, reject_other_eos, sha256

NAME = "chars"
FILE = "vocab.json"
UNKNOWN = "\ufffd"
_CODE_POINTS = 0x110000


class CharTokenizer:
    """Tokenizer of characters, whose ids are their positions in a vocabulary; see the module's docstring.

    Args:
        characters: each once, in the order of their code points.
        eos: the name `<eos>`, or None, which means the same.
        replace_unknown: whether a character outside the vocabulary becomes the last id; otherwise a text with it is rejected.

    Raises:
        UsageError: `eos` names a different end of document.
        SourceError: the characters are not in order, or there are none.
    """

    def __init__(self, characters: str, eos: str | None = None, *, replace_unknown: bool = False) -> None:
        reject_other_eos(eos, NAME)
        if not characters or any(character >= following for character, following in itertools.pairwise(characters)):
            raise SourceError("the vocabulary is not a list of distinct characters in the order of code points")
        self.characters = characters
        self._replaces_unknown = replace_unknown
        self.file_bytes = encode_vocabulary(characters)
        # After the characters: the ids of the end of a document, of padding and of unknown characters.
        size = len(characters)
        self.identity = TokenizerIdentity(
            NAME, vocab_size=size + 3, eos_id=size, pad_id=size + 1, file=FILE, sha256=sha256(self.file_bytes)
        )
        self._code_points = _encode_code_points(characters)
        # Ids by code point; the last element is for all code points above those of the vocabulary.
        self._ids = np.full(int(self._code_points[-1]) + 2, size + 2, np.int32)
        self._ids[self._code_points] = np.arange(size)

    @classmethod
    def from_bytes(
        cls, data: bytes, path: str, eos: str | None = None, *, replace_unknown: bool = False
    ) -> CharTokenizer:
        """Return the tokenizer of a vocabulary file.

        Args:
            data: content of the file.
            path: path of the file, for messages.
            eos: the name `<eos>`, or None, which means the same.
            replace_unknown: whether a character outside the vocabulary becomes the last id; otherwise a text with it is rejected.

        Raises:
            SourceError: it is not a vocabulary of characters.
            UsageError: `eos` names a different end of document.
        """
        try:
            vocabulary = parse_input_json(data)
            if not isinstance(vocabulary, dict) or "characters" not in vocabulary:
                raise ValueError("it has no key 'characters'")
            characters = vocabulary["characters"]
            if not all(isinstance(character, str) and len(character) == 1 for character in characters):
                raise ValueError("each character must be a string of one")
            return cls("".join(characters), eos, replace_unknown=replace_unknown)
        # TypeError: `characters` is not a list, but null, for example. SourceError: they are not in order, or there are none.
        except (ValueError, TypeError, SourceError) as error:
            raise SourceError(
                f"{path} is not a vocabulary of characters, which a conversion with chars writes as {FILE}: {error}. {COPY_AGAIN}"
            ) from None

    @property
    def unknown_id(self) -> int | None:
        """The last id if unknown characters are replaced, else None."""
        return self.identity.vocab_size - 1 if self._replaces_unknown else None

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text; ValueError for an unknown character, unless the tokenizer replaces it."""
        code_points = _encode_code_points("".join(texts))
        # The last element of `_ids` is for all code points above those of the vocabulary.
        ids = self._ids[np.minimum(code_points, len(self._ids) - 1)]
        # The last id stands for unknown characters.
        unknown_positions = np.flatnonzero(ids == self.identity.vocab_size - 1)
        if unknown_positions.size and not self._replaces_unknown:
            character = chr(code_points[unknown_positions[0]])
            raise ValueError(
                f"a character is not in the vocabulary of {len(self.characters)}: {character!r}, U+{ord(character):04X}"
            )
        bounds = itertools.accumulate(map(len, texts), initial=0)
        return [ids[start:end] for start, end in itertools.pairwise(bounds)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; the id of unknown characters becomes U+FFFD."""
        # The ids of the end of a document and of padding have no character; `content_ids` removes them.
        code_points = np.append(self._code_points, [0, 0, ord(UNKNOWN)]).astype("<u4")
        return code_points[content_ids(ids, self.identity)].tobytes().decode("utf-32-le")


class CharacterSet:
    """Set of the characters of a dataset, which is collected in parts, in any order."""

    def __init__(self) -> None:
        self._seen = np.zeros(_CODE_POINTS, np.bool_)

    def add(self, text: str) -> None:
        """Add the characters of a text; UnicodeEncodeError, a ValueError, for a lone surrogate."""
        self._seen[_encode_code_points(text)] = True

    def merge(self, characters: str) -> None:
        """Add the `characters` of another set."""
        self.add(characters)

    @property
    def characters(self) -> str:
        """Each character once, in the order of code points."""
        return "".join(map(chr, np.flatnonzero(self._seen)))


def encode_vocabulary(characters: str) -> bytes:
    """Return the content of the vocabulary file of some characters."""
    return (json.dumps({"kind": NAME, "characters": list(characters)}, ensure_ascii=False) + "\n").encode()


def _encode_code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the code point of each character, uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
