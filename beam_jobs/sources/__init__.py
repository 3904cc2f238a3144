"""Where records come from: each source lists references to what is in the input, and reads as little else as it can."""

from beam_jobs.sources._open import open_source
from beam_jobs.sources._source import Source, make_reference

__all__ = ["Source", "make_reference", "open_source"]
