"""The conversions as functions of a program: `tpudata.convert_images`, `tpudata.convert_text` and `tpudata.reshard`.

Importing this package loads no Beam; the first call does.
"""

from beam_jobs.calls.functions import convert_images, convert_text, reshard
from beam_jobs.calls.keywords import ConversionKeywords, ImageKeywords, ReshardKeywords, TextKeywords
from beam_jobs.calls.plan import ConversionPlan, PlannedSplit

__all__ = [
    "ConversionKeywords",
    "ConversionPlan",
    "ImageKeywords",
    "PlannedSplit",
    "ReshardKeywords",
    "TextKeywords",
    "convert_images",
    "convert_text",
    "reshard",
]
