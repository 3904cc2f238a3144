"""Checks for the tests of packages that extend tpudata."""

from tpudata.testing.plugin_checks import check_source, check_tokenizer
from tpudata.testing.storage_checks import check_storage

__all__ = ["check_source", "check_storage", "check_tokenizer"]
