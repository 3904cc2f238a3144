"""Selection and opening of a tokenizer."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from beam_jobs.tokenizers import bytes as byte_tokens
from beam_jobs.tokenizers import chars, hugging_face, sentencepiece
from beam_jobs.tokenizers.tokenizer import Tokenizer, TokenizerIdentity, reject_eos
from tpudata.console.nearest import suggestion
from tpudata.errors import DatasetError, SourceError, UsageError
from tpudata.format import open_dataset
from tpudata.storage import storage_for


class FileUse(enum.Enum):
    """Whether a kind of tokenizer has a file."""

    NONE = enum.auto()
    OPTIONAL = enum.auto()
    REQUIRED = enum.auto()


class TokenizerKind(NamedTuple):
    """A kind of tokenizer; docs/convert/extending.md has a recipe for another one.

    Attributes:
        file: whether it has a file.
        open: from its spec, the bytes of its file (empty without one) and the characters of the data to the tokenizer.
        takes_eos: whether --eos names one of its tokens.
    """

    file: FileUse
    open: Callable[[TokenizerSpec, bytes, str], Tokenizer]
    takes_eos: bool = True


@dataclasses.dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer as a person names it; small, so that it can travel to workers in the tokenizer's place.

    Attributes:
        kind: `"bytes"`, `"chars"`, `"sentencepiece"` or `"hf"`.
        path: its file, local or gs://; empty for bytes, and for chars whose vocabulary is collected from the data.
        eos: the token that ends a document, or None for the tokenizer's own.
        replace_unknown: chars only: a character that is not in the vocabulary becomes a separate id instead of an error.

    Raises:
        UsageError: there is no such kind, a file is missing or one too many, or the values do not fit each other.
    """

    kind: str
    path: str = ""
    eos: str | None = None
    replace_unknown: bool = False

    def __post_init__(self) -> None:
        kind = TOKENIZERS.get(self.kind)
        if kind is None:
            raise UsageError(
                f"--tokenizer is {self.kind!r} (expected one of {', '.join(_forms())}){suggestion(self.kind, TOKENIZERS)}"
            )
        if kind.file is FileUse.REQUIRED and not self.path:
            raise UsageError(f"--tokenizer {self.kind} needs its file: write {self.kind}:FILE")
        if kind.file is FileUse.NONE and self.path:
            raise UsageError(f"--tokenizer {self.kind} has no file, and got {self.path!r}")
        if not kind.takes_eos:
            reject_eos(self.eos, self.kind)
        if self.replace_unknown and not (self.kind == chars.NAME and self.path):
            raise UsageError(
                "unknown characters are replaced only with --tokenizer chars:FILE: a vocabulary that is collected from the"
                " data has them all, and other tokenizers have rules of their own"
            )

    @classmethod
    def parse(cls, text: str, eos: str | None = None, *, replace_unknown: bool = False) -> TokenizerSpec:
        """Parse `bytes`, `chars`, `chars:FILE`, `sentencepiece:FILE` or `hf:FILE`; UsageError if it is none."""
        kind, _, path = text.partition(":")
        return cls(kind, path, eos, replace_unknown)

    @property
    def collects_characters(self) -> bool:
        """Whether the vocabulary is collected from the data, so that the tokenizer is there only after that."""
        return self.kind == chars.NAME and not self.path


def open_tokenizer(spec: TokenizerSpec, characters: str = "", sha256: str = "") -> Tokenizer:
    """Open a tokenizer.

    Args:
        spec: which.
        characters: those collected from the data, where the spec says so.
        sha256: hash that its file is to have, as in `TokenizerIdentity`; nothing where any file will do.

    Raises:
        MissingExtraError: its package is not installed.
        SourceError: there is no such file, it is no such tokenizer, or another one than `sha256` says.
        UsageError: it has no such end of document.
    """
    tokenizer = _opened(spec, characters)
    if sha256 and tokenizer.identity.sha256 != sha256:
        raise SourceError(
            f"{spec.path} is another {spec.kind} tokenizer than before: its SHA-256 is {tokenizer.identity.sha256}, and was"
            f" {sha256}. Bring back the file, or convert again from the start."
        )
    return tokenizer


def dataset_tokenizer(folder: str) -> Tokenizer:
    """Open the tokenizer that made a dataset, from the file next to its shards.

    Args:
        folder: the dataset's, local or gs://.

    Raises:
        DatasetError: there is no complete dataset, or it has no tokenizer.
        MissingExtraError: the tokenizer's package is not installed.
        SourceError: the file is missing, or not the one that made the dataset.
    """
    options = open_dataset(folder).manifest.options
    try:
        identity = TokenizerIdentity.from_json(options["tokenizer"])
    except (KeyError, TypeError):
        raise DatasetError(
            f"{folder} was made without a tokenizer: name one of `tpudata convert text` with --tokenizer."
        ) from None
    path = storage_for(folder).join(folder, identity.file) if identity.file else ""
    spec = TokenizerSpec(identity.name, path, options.get("eos"), bool(options.get("replace_unknown")))
    return open_tokenizer(spec, sha256=identity.sha256)


def _opened(spec: TokenizerSpec, characters: str) -> Tokenizer:
    kind = TOKENIZERS[spec.kind]
    if not spec.path:
        return kind.open(spec, b"", characters)
    storage = storage_for(spec.path)
    found = storage.stat(spec.path)
    if found is None or found.is_folder:
        raise SourceError(f"--tokenizer {spec.kind}:{spec.path}: there is no such file.")
    return kind.open(spec, storage.read(spec.path), characters)


def _open_bytes(spec: TokenizerSpec, _data: bytes, _characters: str) -> Tokenizer:
    return byte_tokens.ByteTokenizer(spec.eos)


def _open_chars(spec: TokenizerSpec, data: bytes, characters: str) -> Tokenizer:
    if spec.path:
        return chars.CharTokenizer.from_bytes(data, spec.path, spec.eos, replace_unknown=spec.replace_unknown)
    if not characters:
        raise SourceError("--tokenizer chars: the text has no characters to make a vocabulary of.")
    return chars.CharTokenizer(characters, spec.eos)


def _open_sentencepiece(spec: TokenizerSpec, data: bytes, _characters: str) -> Tokenizer:
    return sentencepiece.SentencePieceTokenizer(data, spec.path, spec.eos)


def _open_hugging_face(spec: TokenizerSpec, data: bytes, _characters: str) -> Tokenizer:
    return hugging_face.HuggingFaceTokenizer(data, spec.path, spec.eos)


TOKENIZERS: Mapping[str, TokenizerKind] = MappingProxyType(
    {
        byte_tokens.NAME: TokenizerKind(FileUse.NONE, _open_bytes, takes_eos=False),
        chars.NAME: TokenizerKind(FileUse.OPTIONAL, _open_chars, takes_eos=False),
        sentencepiece.NAME: TokenizerKind(FileUse.REQUIRED, _open_sentencepiece),
        hugging_face.NAME: TokenizerKind(FileUse.REQUIRED, _open_hugging_face),
    }
)


def _forms() -> Iterator[str]:
    """Yield what --tokenizer takes."""
    for name, kind in TOKENIZERS.items():
        if kind.file is not FileUse.REQUIRED:
            yield name
        if kind.file is not FileUse.NONE:
            yield f"{name}:FILE"
