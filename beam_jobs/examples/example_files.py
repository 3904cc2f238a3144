"""Spooling of examples: each is encoded once and written to a temporary file, so that only references travel further.

The examples of a bundle become one temporary file of records in the output folder. References to the records are grouped and
divided into shards like those of any source; the last step of the pipeline removes the files.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from apache_beam.pvalue import TaggedOutput

from beam_jobs.examples.example_record import DIGEST, make_example_record
from beam_jobs.examples.rules import ExampleRules
from beam_jobs.examples.schema import ExampleSummary
from beam_jobs.options import DEFAULT_SPLIT, ConvertOptions, SplitShares
from beam_jobs.output.spool_file import SpoolFile
from beam_jobs.planning.tally import TallyPart
from beam_jobs.references.packs.pack import PACK_REFERENCES, pack_references
from beam_jobs.references.reference import NO_FEATURES, Reference, key_bytes, key_digest
from beam_jobs.steps.global_window import put_in_global_window
from beam_jobs.steps.limited_step import LimitedStep, holds_limits
from tpudata.error_text.values import format_value
from tpudata.errors import FeatureError, SourceError, TpudataError, UsageError
from tpudata.storage import held_request_limits, storage_for
from tpudata.storage.claims.claim import Claim
from tpudata.storage.claims.hold import drop_pipeline_claim
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

# Names of the additional outputs: a TallyPart of each pack, and the ExampleSummary of each bundle.
TALLY, SCHEMA = "tally", "schema"
_DIGEST_BYTES = 16
# Characters of a value in a message.
_MAX_CHARACTERS = 80


class SpoolExamples(LimitedStep):
    """DoFn that writes examples to temporary files, and yields packs of references to them and the additional outputs.

    Args:
        options: options of the conversion.
        rules: rules for turning examples into records.
    """

    def __init__(self, options: ConvertOptions, rules: ExampleRules) -> None:
        super().__init__(options.request_limits)
        self._options = options
        self._rules = rules
        self._spool: SpoolFile | None = None
        self._held_references: list[Reference] = []
        self._summary = ExampleSummary()

    def start_bundle(self) -> None:
        """Begin a bundle; discard what a failed bundle has left."""
        self.teardown()
        self._held_references = []
        self._summary = ExampleSummary()

    @holds_limits
    def process(self, element: Any, claim: Claim | None = None) -> Iterator[Any]:
        """Write one example to the spool file, and yield a pack of references and its TallyPart once there are enough.

        Args:
            element: an example, or a (key, example) pair.
            claim: the claim on the output; a side input, so that nothing is written before the claim is taken.
        """
        try:
            self._held_references.append(self._spool_example(element))
        except BaseException as error:
            # Beam discards the bundle, and with it the references to the file.
            self.teardown()
            if isinstance(error, TpudataError):
                # Another attempt would also fail.
                drop_pipeline_claim(self._options.output, claim)
            raise
        if len(self._held_references) >= PACK_REFERENCES:
            references, self._held_references = self._held_references, []
            yield from self._pack(references)

    @holds_limits
    def finish_bundle(self) -> Iterator[Any]:
        """Finish the spool file; yield the remaining references as a pack with its TallyPart, and the bundle's summary."""
        if self._spool is not None:
            self._spool.finish()
            self._spool = None
        references, self._held_references = self._held_references, []
        # Beam requires a window for elements that are yielded after the last element of a bundle.
        yield from put_in_global_window([*self._pack(references), TaggedOutput(SCHEMA, self._summary)])

    def teardown(self) -> None:
        """Discard the spool file of an unfinished bundle."""
        if self._spool is not None:
            with held_request_limits(self._limits):
                self._spool.discard()
            self._spool = None

    def _pack(self, references: list[Reference]) -> Iterator[Any]:
        """Yield the references in packs, each as bytes, and the part of the tally for each pack as an additional output."""
        # Examples are always shuffled: positions come from the keys, not from the unit, so any unit will do.
        for pack, digests in pack_references(references, self._options.order, unit_index=0):
            yield pack.to_bytes()
            yield TaggedOutput(TALLY, TallyPart.from_pack(pack, digests, is_shuffled=True))

    def _spool_example(self, element: Any) -> Reference:
        """Encode an example, write it to the bundle's spool file, and return its reference.

        Raises:
            TpudataError: `ExampleRules.encode` or `_split_element` raises it, or the split has an invalid name.
        """
        key, example = self._split_element(element)
        origin = repr(key) if key else _shorten(example)
        try:
            data, signature = self._rules.encode(example, origin)
        except FeatureError as error:
            raise FeatureError(f"{error} Example: {origin}.") from None
        digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
        payload = make_example_record(signature, is_keyed=bool(key))
        # With a key, the digest shows a resumed run that the content changed. Without one, the content identifies the example.
        reference_features = {DIGEST: digest} if key else NO_FEATURES
        if not key:
            key = hashlib.blake2b(f"{digest}{signature}".encode(), digest_size=_DIGEST_BYTES).hexdigest()
        self._summary.add(signature, key, len(data))
        split = self._choose_split(example, key)
        self._spool = self._spool or _open_spool_file(self._options.output)
        offset = self._spool.write(data)
        return Reference(
            key,
            split,
            labels=(),
            path=self._options.input,
            offset=offset,
            size=len(data),
            payload=payload,
            features=reference_features,
            spool=self._spool.path,
        )

    def _split_element(self, element: Any) -> tuple[str, Mapping[str, Any]]:
        """Return the key of an element, empty if it has none, and its example.

        Raises:
            UsageError: the element is a pair, and the rules have a function for the key.
            SourceError: the element is neither an example nor a pair (key, example), or the key is invalid.
        """
        key, example = None, element
        if isinstance(element, tuple) and len(element) == 2:
            key, example = element
            if self._rules.key is not None:
                raise UsageError(
                    f"WriteTFRecordShards: key= and a pair with key {_shorten(key)} exclude each other. Pass one of them."
                )
        if not isinstance(example, Mapping):
            raise SourceError(
                f"WriteTFRecordShards: invalid element (got {_shorten(element)}, {type(element).__name__}, expected a dict of"
                " features by name, or a pair (key, dict))."
            )
        if self._rules.key is not None:
            key = self._rules.key(example)
        elif example is element:
            # Neither a pair nor a function gives a key.
            return "", example
        return _format_key(key), example

    def _choose_split(self, example: Mapping[str, Any], key: str) -> str:
        """Return the split of an example: by the user's function or, if there is none, by the shares and its key.

        If there are no shares either, it is the default split.
        """
        if self._rules.split_of is not None:
            split = self._rules.split_of(example)
            # Names in shares were checked when the shares were parsed.
            SplitShares.check_name(split)
            return split
        return self._options.split.assign_split(key_digest(key)) if self._options.split else DEFAULT_SPLIT


def _open_spool_file(folder: str) -> SpoolFile:
    """Return a new spool file with a unique name in the output folder; the prefix of its name marks it as unfinished."""
    storage = storage_for(folder)
    return SpoolFile(storage.join(folder, f"{TEMPORARY_PREFIX}spool-{uuid.uuid4().hex}"))


def _format_key(key: Any) -> str:
    """Return the key of an example as a string; SourceError if it is invalid."""
    if isinstance(key, bytes):
        key = key.decode("utf-8", "surrogateescape")
    # Any integer, also one of numpy; a bool is hardly meant as a key.
    elif hasattr(key, "__index__") and not isinstance(key, bool):
        key = str(int(key))
    if not isinstance(key, str) or not key:
        raise SourceError(
            f"WriteTFRecordShards: invalid key (got {key!r}, expected a str, bytes or int that is not empty)."
        )
    # The surrogates of "surrogateescape" stand for bytes that are not UTF-8; any other lone surrogate cannot be hashed.
    try:
        key_bytes(key)
    except UnicodeEncodeError:
        raise SourceError(f"WriteTFRecordShards: UTF-8 cannot encode the key {key!r}. Pass bytes.") from None
    return key


def _shorten(value: Any) -> str:
    """Return the repr of a value for a message, cut off if it is long."""
    text = format_value(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
