"""Files of text."""

from beam_jobs.sources.text.source import TextSource

__all__ = ["TextSource"]
