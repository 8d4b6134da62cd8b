"""Which engine merges: LMR3 in Python, or the same in native code.

Theory
    Python defines the algorithms. The *engine* (`engine/`, the package lmerge-engine) does case R3
    under the usual policies, decodes and encodes, ten times as fast, with equal results. It is
    chosen where it is installed and knows what is asked for; nobody has to know which one runs, and
    whoever wants to, can see it and why.

    >>> chosen("python", Case.R3, Policy()).why
    'it was asked for'
    >>> chosen("native", Case.R4, Policy()).why
    'the engine does case R3 alone, and this is R4'
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from lmerge_service.core.case import Case
from lmerge_service.core.policy import Policy
from lmerge_service.errors import ConfigurationError

__all__ = (
    "ENGINE_VERSION",
    "Engine",
    "EngineChoice",
    "EngineSetting",
    "chosen",
    "chosen_to_decode",
)

EngineSetting: TypeAlias = Literal["auto", "python", "native"]

ENGINE_VERSION: Final = "0.3.3"
"""Of the package lmerge-engine, the only one that this version of the service works with."""
_INSTALL: Final = "run `make engine`, or `pip install ./engine`"


class Engine(StrEnum):
    """The values are labels of metrics."""

    PYTHON = "python"
    NATIVE = "native"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and why it is this one, in words."""

    engine: Engine
    why: str

    @property
    def is_native(self) -> bool:
        return self.engine is Engine.NATIVE


_ASKED_FOR: Final = EngineChoice(Engine.PYTHON, "it was asked for")


def chosen(setting: EngineSetting, case: Case, policy: Policy) -> EngineChoice:
    """The engine for a merge of that case under that policy.

    Raises:
        ConfigurationError: the native one was asked for, and is not installed, or is another
            version.
    """
    if setting == "python":
        return _ASKED_FOR
    if case is not Case.R3:
        return EngineChoice(Engine.PYTHON, f"the engine does case R3 alone, and this is {case}")
    if (policy.insert, policy.adjust) != ("first", "lazy") or policy.voters > 1:
        return EngineChoice(Engine.PYTHON, f"the engine does not do {policy}")
    return chosen_to_decode(setting)


def chosen_to_decode(setting: EngineSetting) -> EngineChoice:
    """The engine where nothing is merged.

    Raises:
        ConfigurationError: as `chosen`.
    """
    if setting == "python":
        return _ASKED_FOR
    if (lacking := _lacking()) is None:
        return EngineChoice(Engine.NATIVE, f"lmerge-engine {ENGINE_VERSION} is installed")
    if setting == "native":
        raise ConfigurationError(f"engine: native, but {lacking}; or set engine: auto")
    return EngineChoice(Engine.PYTHON, lacking)


@lru_cache(maxsize=1)
def _lacking() -> str | None:
    """Why the native engine cannot be used, and what to do."""
    try:
        from lmerge_engine import VERSION
    except ImportError:
        return f"lmerge-engine is not installed: {_INSTALL}"
    if VERSION != ENGINE_VERSION:
        return f"lmerge-engine is of version {VERSION}, and {ENGINE_VERSION} is needed: {_INSTALL}"
    return None
