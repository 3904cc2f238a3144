"""CSV and JSONL lists of images."""

from beam_jobs.sources.lists.lists import Lists

__all__ = ["Lists"]
