"""Selection and opening of a tokenizer."""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tpudata.console.nearest import suggestion
from tpudata.entry_points import load_entry_point
from tpudata.errors import DatasetError, SourceError, UsageError
from tpudata.format import open_dataset
from tpudata.format.tokenizer_file import is_tokenizer_name
from tpudata.storage import storage_for
from tpudata.tokenizers import bytes as byte_tokens
from tpudata.tokenizers import chars, hugging_face, sentencepiece
from tpudata.tokenizers.tokenizer import MAX_FILE_BYTES, TOKEN, Tokenizer, TokenizerIdentity, reject_other_eos

# Installed packages add tokenizers by entry points of this group; each names a TokenizerKind.
ENTRY_POINTS = "tpudata.tokenizers"
# Members of the protocol Tokenizer.
_MEMBERS = ("identity", "unknown_id", "file_bytes", "encode_batch", "decode")


class FileUse(enum.Enum):
    """Whether a kind of tokenizer has a file.

    Attributes:
        NONE: it has none.
        OPTIONAL: it has one if `--tokenizer` names one.
        REQUIRED: `--tokenizer` must name one.
    """

    NONE = enum.auto()
    OPTIONAL = enum.auto()
    REQUIRED = enum.auto()


class TokenizerKind(NamedTuple):
    """A kind of tokenizer; docs/convert/extending.md has a recipe for adding one.

    Attributes:
        file: whether it has a file.
        open: returns the tokenizer, given its spec, the bytes of its file (empty without a file) and the characters of the data.
        takes_eos: whether --eos may name one of its tokens.
        has_special_tokens: whether it has special tokens whose names may stand in a text, and follows the spec's rule for them.
    """

    file: FileUse
    open: Callable[[TokenizerSpec, bytes, str], Tokenizer]
    takes_eos: bool = True
    has_special_tokens: bool = False


@dataclasses.dataclass(frozen=True)
class TokenizerSpec:
    """Description of a tokenizer, small enough to travel to workers instead of the tokenizer.

    Attributes:
        kind: `"bytes"`, `"chars"`, `"sentencepiece"`, `"hf"`, or the name of a tokenizer of an installed package.
        path: path of its file, local or gs://; empty for bytes, and for chars with a vocabulary from the data.
        eos: token that ends a document, or None for the tokenizer's default.
        replace_unknown: for chars only, whether an unknown character becomes a separate id instead of an error.
        special_tokens: what the name of a special token in a text becomes: `"token"`, `"text"`, or None for its package's rule.

    Raises:
        UsageError: the kind is unknown, its file is missing or unexpected, or values do not fit each other.
    """

    kind: str
    path: str = ""
    eos: str | None = None
    replace_unknown: bool = False
    special_tokens: str | None = None

    def __post_init__(self) -> None:
        kind = _find_kind(self.kind)
        if kind.file is FileUse.REQUIRED and not self.path:
            raise UsageError(f"--tokenizer {self.kind} requires its file. Pass {self.kind}:FILE")
        if kind.file is FileUse.NONE and self.path:
            raise UsageError(f"--tokenizer {self.kind} takes no file (got {self.path!r}). Omit it")
        if not kind.takes_eos:
            reject_other_eos(self.eos, self.kind)
        if self.special_tokens is not None and not kind.has_special_tokens:
            raise UsageError(
                f"--special-tokens: the tokenizer {self.kind} has none that a text can name. Omit the flag"
            )
        if self.replace_unknown and not (self.kind == chars.NAME and self.path):
            raise UsageError(
                "--replace-unknown requires --tokenizer chars:FILE: a vocabulary from the data has all characters, and other"
                " tokenizers have separate rules. Omit the flag"
            )

    @classmethod
    def parse(
        cls, text: str, eos: str | None = None, *, replace_unknown: bool = False, special_tokens: str | None = None
    ) -> TokenizerSpec:
        """Parse NAME or NAME:FILE of a tokenizer, one of tpudata's or an installed package's; UsageError for other values.

        Args:
            text: the value of `--tokenizer`: the attribute `kind`, or `kind:path`.
            eos: token that ends a document, or None for the tokenizer's default.
            replace_unknown: whether chars gives an unknown character a separate id instead of raising an error.
            special_tokens: what the name of a special token in a text becomes: `"token"`, `"text"`, or None for its package's
                rule.
        """
        kind, _, path = text.partition(":")
        return cls(kind, path, eos, replace_unknown=replace_unknown, special_tokens=special_tokens)

    def allow_special_tokens(self) -> TokenizerSpec:
        """Return a spec whose tokenizer turns names of special tokens, which chat templates write into texts, into these tokens."""
        return dataclasses.replace(self, special_tokens=TOKEN) if _find_kind(self.kind).has_special_tokens else self

    @property
    def text(self) -> str:
        """The value of `--tokenizer` that `parse` takes."""
        return f"{self.kind}:{self.path}" if self.path else self.kind

    @property
    def collects_characters(self) -> bool:
        """Whether the vocabulary is collected from the data, so that the tokenizer can be opened only after that."""
        return self.kind == chars.NAME and not self.path


def open_tokenizer(spec: TokenizerSpec, characters: str = "", sha256: str = "") -> Tokenizer:
    """Open a tokenizer.

    Args:
        spec: description of the tokenizer.
        characters: characters that were collected from the data, if the spec asks for that.
        sha256: required SHA-256 of its file, in hexadecimal digits; empty for any file.

    Raises:
        MissingExtraError: its package is not installed.
        SourceError: the file is missing, not a tokenizer of this kind, or differs from `sha256`.
        UsageError: the tokenizer lacks the token that the spec names as the end of documents, or its package returns an object or
            names that do not fit the spec.
    """
    tokenizer = _open(spec, characters)
    _check_members(spec, tokenizer)
    name, file = tokenizer.identity.name, tokenizer.identity.file
    if name != spec.kind:
        raise UsageError(
            f"--tokenizer {spec.kind}: its identity has another name (got {name!r}, expected {spec.kind!r}), so no dataset would"
            " find it again. Change its package."
        )
    if file and not is_tokenizer_name(file):
        raise UsageError(
            f"--tokenizer {spec.kind}: its file next to the shards has another name (got {file!r}, expected tokenizer.ENDING)."
            " Change its package."
        )
    if sha256 and tokenizer.identity.sha256 != sha256:
        raise SourceError(
            f"{spec.path} is another {spec.kind} tokenizer than before: got SHA-256 {tokenizer.identity.sha256}, expected"
            f" {sha256}. Restore the file, or convert again from the start."
        )
    return tokenizer


def dataset_tokenizer(folder: str) -> Tokenizer:
    """Open the tokenizer that made a dataset, from the file next to its shards.

    Args:
        folder: folder of the dataset, local or gs://.

    Raises:
        DatasetError: there is no complete dataset, or it has no tokenizer.
        MissingExtraError: the tokenizer needs an extra that is not installed.
        UsageError: the package that brings the tokenizer is not installed.
        SourceError: the file is missing, or not the file that made the dataset.
    """
    options = open_dataset(folder).manifest.options
    try:
        identity = TokenizerIdentity.from_json(options["tokenizer"])
    except (KeyError, TypeError):
        raise DatasetError(
            f"{folder} was made without a tokenizer. Pass a dataset of `tpudata convert text --tokenizer`."
        ) from None
    spec = TokenizerSpec(
        identity.name,
        path=storage_for(folder).join(folder, identity.file) if identity.file else "",
        eos=options.get("eos"),
        replace_unknown=bool(options.get("replace_unknown")),
        special_tokens=options.get("special_tokens"),
    )
    return open_tokenizer(spec, sha256=identity.sha256)


def _check_members(spec: TokenizerSpec, tokenizer: Tokenizer) -> None:
    """Raise UsageError if the tokenizer of an installed package lacks a member, or its identity is not a TokenizerIdentity."""
    if any(not hasattr(tokenizer, name) for name in _MEMBERS):
        raise UsageError(
            f"--tokenizer {spec.kind}: not a tokenizer (got {type(tokenizer).__name__}, expected the members of"
            f" tpudata.tokenizers.Tokenizer: {', '.join(_MEMBERS)}). Change its package."
        )
    if not isinstance(tokenizer.identity, TokenizerIdentity):
        raise UsageError(
            f"--tokenizer {spec.kind}: its identity is of another type (got {type(tokenizer.identity).__name__}, expected"
            " TokenizerIdentity). Change its package."
        )


def _open(spec: TokenizerSpec, characters: str) -> Tokenizer:
    """Open the tokenizer of a spec, without checks of what its package returns.

    Args:
        spec: the tokenizer.
        characters: characters of the vocabulary of `chars` without a file; empty for other tokenizers.

    Raises:
        SourceError: its file does not exist, is too large, or is not of this kind.
        UsageError: no package has the kind, or the tokenizer lacks the token that the spec names as the end of documents.
    """
    kind = _find_kind(spec.kind)
    if not spec.path:
        return kind.open(spec, b"", characters)
    storage = storage_for(spec.path)
    entry = storage.stat(spec.path)
    if entry is None or entry.is_folder:
        raise SourceError(f"--tokenizer {spec.kind}:{spec.path}: no such file. Check the path.")
    if entry.size > MAX_FILE_BYTES:
        raise SourceError(
            f"--tokenizer {spec.kind}:{spec.path}: the file is too large (got {entry.size:,} bytes, expected at most"
            f" {MAX_FILE_BYTES:,}). Check the path."
        )
    return kind.open(spec, storage.read(spec.path), characters)


def _open_bytes(spec: TokenizerSpec, _data: bytes, _characters: str) -> Tokenizer:
    return byte_tokens.ByteTokenizer(spec.eos)


def _open_chars(spec: TokenizerSpec, data: bytes, characters: str) -> Tokenizer:
    """Open a tokenizer of characters: from the content of the spec's vocabulary file, or without a file from `characters`.

    Raises:
        SourceError: the content is not a vocabulary, or there are no characters.
    """
    if spec.path:
        return chars.CharTokenizer.from_bytes(data, spec.path, spec.eos, replace_unknown=spec.replace_unknown)
    if not characters:
        raise SourceError("--tokenizer chars: the text has no characters for a vocabulary. Check --input.")
    return chars.CharTokenizer(characters, spec.eos)


def _open_sentencepiece(spec: TokenizerSpec, data: bytes, _characters: str) -> Tokenizer:
    return sentencepiece.SentencePieceTokenizer(data, spec.path, spec.eos, special_tokens=spec.special_tokens)


def _open_hugging_face(spec: TokenizerSpec, data: bytes, _characters: str) -> Tokenizer:
    return hugging_face.HuggingFaceTokenizer(data, spec.path, spec.eos, special_tokens=spec.special_tokens)


TOKENIZERS: Mapping[str, TokenizerKind] = MappingProxyType(
    {
        byte_tokens.NAME: TokenizerKind(FileUse.NONE, _open_bytes, takes_eos=False),
        chars.NAME: TokenizerKind(FileUse.OPTIONAL, _open_chars, takes_eos=False),
        sentencepiece.NAME: TokenizerKind(FileUse.REQUIRED, _open_sentencepiece, has_special_tokens=True),
        hugging_face.NAME: TokenizerKind(FileUse.REQUIRED, _open_hugging_face, has_special_tokens=True),
    }
)


def _find_kind(name: str) -> TokenizerKind:
    """Return the kind with a name, from the table or an installed package; UsageError if neither has it."""
    if name in TOKENIZERS:
        return TOKENIZERS[name]
    points = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if name in points:
        return _load_kind(points[name])
    flag_values = [
        *_list_values(TOKENIZERS),
        *itertools.chain.from_iterable(_list_installed_values(points[key]) for key in sorted(points)),
    ]
    raise UsageError(
        f"--tokenizer is {name!r} (expected one of {', '.join(flag_values)}){suggestion(name, [*TOKENIZERS, *points])}"
    )


def _load_kind(point: importlib.metadata.EntryPoint) -> TokenizerKind:
    """Return the TokenizerKind that an entry point names; UsageError if it names another object, or cannot be loaded."""
    kind = load_entry_point(point)
    if not isinstance(kind, TokenizerKind):
        raise UsageError(
            f"--tokenizer {point.name}: the entry point {point.value} is of another type (got {type(kind).__name__}, expected"
            " TokenizerKind). Change its package."
        )
    return kind


def _list_installed_values(point: importlib.metadata.EntryPoint) -> list[str]:
    """Return the values of --tokenizer for a tokenizer of an installed package; only its name if it cannot be loaded."""
    try:
        return [*_list_values({point.name: _load_kind(point)})]
    except UsageError:
        return [point.name]


def _list_values(kinds: Mapping[str, TokenizerKind]) -> Iterator[str]:
    """Yield the values of --tokenizer for kinds by name, such as `hf:FILE`."""
    for name, kind in kinds.items():
        if kind.file is not FileUse.REQUIRED:
            yield name
        if kind.file is not FileUse.NONE:
            yield f"{name}:FILE"
