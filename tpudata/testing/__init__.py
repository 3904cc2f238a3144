"""Checks for the tests of packages that extend conversions."""

from tpudata.testing.plugin_checks import check_source, check_tokenizer

__all__ = ["check_source", "check_tokenizer"]
