"""Tests that run by either engine: by Python always, by the native one where it is installed."""

from importlib.util import find_spec

import pytest

from lmerge_service.core.engine import EngineSetting

__all__ = ("ENGINES", "by_both_engines")

_NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(
        find_spec("lmerge_engine") is None, reason="the engine is not installed: make engine"
    ),
)
ENGINES: list[EngineSetting | object] = ["python", _NATIVE]

by_both_engines = pytest.mark.parametrize("engine", ENGINES)
