"""Tar files of images."""

from beam_jobs.sources.tars.tars import Tars

__all__ = ["Tars"]
