"""Sources of records: each lists references to what is in the input, and reads as little else as it can."""

from beam_jobs.sources.open_source import open_source
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.source import Reject, Source, make_reference, raise_rejection

__all__ = [
    "Reject",
    "Source",
    "SourceOptions",
    "make_reference",
    "open_source",
    "raise_rejection",
]
