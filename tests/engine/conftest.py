"""Tests of the engine run where it is installed."""

import os

import pytest

if os.environ.get("LMERGE_REQUIRE_ENGINE"):
    import lmerge_engine  # noqa: F401  (without it, its tests fail here instead of being skipped)
else:
    pytest.importorskip("lmerge_engine", reason="the engine is not installed: make engine")
