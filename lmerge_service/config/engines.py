"""Which engine is asked for: the environment's `LMERGE_ENGINE` comes first."""

import os
from typing import cast, get_args

from lmerge_service.core.engine import EngineSetting
from lmerge_service.errors import ConfigurationError

__all__ = ("engine_setting",)


def engine_setting(otherwise: EngineSetting) -> EngineSetting:
    """The setting that counts.

    Raises:
        ConfigurationError: LMERGE_ENGINE is none of the choices.
    """
    asked = os.environ.get("LMERGE_ENGINE") or otherwise
    if asked not in (choices := get_args(EngineSetting)):
        raise ConfigurationError(
            f"LMERGE_ENGINE must be one of {', '.join(choices)}, got {asked!r}"
        )
    return cast("EngineSetting", asked)
