"""The mark of tests that need the TPU's compiler."""

import importlib.util

import pytest

needs_libtpu = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jax", "libtpu")),
    reason="jax and libtpu, the compiler of TPUs, are not installed (the [tpu] extra)",
)
