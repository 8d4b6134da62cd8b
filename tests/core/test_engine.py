"""Which engine is chosen where there is none, or another one than is needed."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from lmerge_service.core import Case, Policy
from lmerge_service.core.engine import ENGINE_VERSION, Engine, _lacking, chosen
from lmerge_service.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _looks_again() -> Iterator[None]:
    _lacking.cache_clear()
    yield
    _lacking.cache_clear()


def test_without_it_python_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmerge_engine", None)
    choice = chosen("auto", Case.R3, Policy())
    assert choice.engine is Engine.PYTHON
    assert "not installed" in choice.why
    with pytest.raises(ConfigurationError, match="engine: native, but lmerge-engine is not insta"):
        chosen("native", Case.R3, Policy())


def test_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("lmerge_engine")
    other.VERSION = "0.0.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmerge_engine", other)
    assert (
        f"of version 0.0.9, and {ENGINE_VERSION} is needed" in chosen("auto", Case.R3, Policy()).why
    )
    with pytest.raises(ConfigurationError, match="make engine"):
        chosen("native", Case.R3, Policy())
