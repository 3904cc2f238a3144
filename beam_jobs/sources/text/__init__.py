"""Documents: of files of text, and of the sources of installed packages."""

from beam_jobs.sources.text.source import TextSource
from beam_jobs.sources.text.source_documents import SourceDocuments

__all__ = ["SourceDocuments", "TextSource"]
