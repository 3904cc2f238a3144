"""Sources of records: each lists references to inputs, and reads as few bytes as possible.

This package exports what a source of another package needs. The sources of this package are imported where they are opened: a
conversion of text needs no source of images.
"""

from beam_jobs.references.reference import Payload
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.source import Source, make_reference
from beam_jobs.text_files.document_form import DocumentForm

__all__ = [
    "DocumentForm",
    "Payload",
    "Reject",
    "Source",
    "SourceOptions",
    "make_reference",
    "raise_rejection",
]
